"""`Listing`: names, labels and parts of the images of a data set, before they are decoded."""

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from ffcil.data.augment import Augmentation
from ffcil.data.cache import cache_folder
from ffcil.data.decoding import LARGE, Encoded, decode_to_store, short_side_for
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import RaggedImages
from ffcil.data.resized_crop import SMALLEST_CROP, ResizedCrop
from ffcil.data.store import BadImage, open_store
from ffcil.errors import InputError

DEFAULT_SIZE = 64
"""Default side of the network's input in pixels, for users' own images."""
TEST_SHARE = 0.2
"""Fraction of each class that is used for testing if a data set has no split."""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN, TEST, UNUSED = 0, 1, -1
TEST_NAMES = ("test", "val", "valid", "validation")
"""Names of the test split. The first one that occurs is used."""
_NAMED = 3  # ignored files that are listed by name
_VERSION = 3  # increased when the same files give another store


class OutsideError(InputError):
    """A table names files outside its own folder, which may be private."""

    def __init__(self, files: Sequence[str], remedy: str = "add --allow-outside") -> None:
        super().__init__(
            f"{len(files)} image(s) are not in the folder of their table, such as {files[0]}: move them into it, or, "
            f"if you trust the table, {remedy}."
        )
        self.files = files


@dataclass(frozen=True)
class Listing:
    """Name, label and part of every image of a data set."""

    names: Sequence[str]
    """Names that a user recognises, such as paths."""
    labels: NDArray[np.int64]
    """Position in `class_names`, [N]."""
    parts: NDArray[np.int64]
    """`TRAIN`, `TEST` or `UNUSED`, [N]."""
    class_names: tuple[str, ...]
    contents: Callable[[], Iterable[Path | bytes]]
    """Function that returns the encoded images in order. It is called only if they must be decoded."""
    content_key: str
    """Key that changes if any image changes."""
    ignored: Sequence[str] = ()
    """Files that are not images, judged by their names."""
    random_split: bool = False
    """Whether the parts were drawn at random because the data set has no split."""
    outside: Sequence[str] = ()
    """Files that a table names outside its own folder."""

    @classmethod
    def of_files(
        cls,
        paths: Sequence[Path],
        labels: NDArray[np.int64],
        parts: NDArray[np.int64],
        class_names: tuple[str, ...],
        ignored: Sequence[str] = (),
        random_split: bool = False,
    ) -> Self:
        names, key = list(map(readable, paths)), file_key(paths)
        return cls(names, labels, parts, class_names, lambda: paths, key, ignored, random_split)

    def undivided(self) -> Self:
        """The same listing with all images for training, unless the data set has its own split."""
        return replace(self, parts=np.full(len(self.labels), TRAIN)) if self.random_split else self

    def without(self, left_out: Iterable[BadImage]) -> Self:
        """The same listing in which these images, by their positions among the used ones, are not used."""
        parts = self.parts.copy()
        parts[np.flatnonzero(parts != UNUSED)[[image.position for image in left_out]]] = UNUSED
        return replace(self, parts=parts)

    def left_out(self, size: int) -> tuple[BadImage, ...]:
        """The unreadable images that the store of this size leaves out. The store must exist."""
        return open_store(cache_folder() / self.key(size)).left_out

    def __len__(self) -> int:
        """Number of used images."""
        return int((self.parts != UNUSED).sum())

    def counts(self, part: int) -> NDArray[np.int64]:
        """Number of images of each class in a part, [classes]."""
        return np.bincount(self.labels[self.parts == part], minlength=len(self.class_names))

    def names_of(self, part: int) -> list[str]:
        """Names of the images of a part, in the order in which `load` returns them if all of them are readable."""
        return [name for name, own in zip(self.names, self.parts.tolist(), strict=True) if own == part]

    def ignored_message(self) -> str:
        """Message about the ignored files."""
        first = ", ".join(self.ignored[:_NAMED]) + (", ..." if len(self.ignored) > _NAMED else "")
        return f"{len(self.ignored)} file(s) are ignored because their suffixes are not those of images: {first}"

    def encoded(self, allow_outside: bool = False) -> Iterator[Encoded]:
        """The used images. Files outside the folder of a table are an error, unless `allow_outside` is set."""
        if self.outside and not allow_outside:
            raise OutsideError(self.outside)
        for name, content, part in zip(self.names, self.contents(), self.parts.tolist(), strict=True):
            if part != UNUSED:
                yield Encoded(name, content, part)

    def key(self, size: int) -> str:
        """Name of the store of these images for a network of input size `size`."""
        short_side = short_side_for(size) if size >= LARGE else None
        key = hashlib.sha256(f"{_VERSION} {short_side} {size} {self.content_key}".encode())
        key.update(self.parts.tobytes())
        return f"images-{key.hexdigest()[:16]}"

    def load(self, size: int, skip_bad: bool = False, allow_outside: bool = False) -> tuple[ImageSet, ImageSet]:
        """Training and test images for a network of input size `size`. Their store is created if it does not exist.

        Unreadable images are left out if `skip_bad` is set, or was set when the store was created. Files outside the
        folder of a table are read only if `allow_outside` is set.
        """
        if self.ignored and not (cache_folder() / self.key(size)).is_dir():
            print(self.ignored_message(), file=sys.stderr)
        encoded = partial(self.encoded, allow_outside)
        store = decode_to_store(self.key(size), encoded, len(self), size, skip_bad)
        kept = self.without(store.left_out).parts

        def image_set(part: int) -> ImageSet:
            pixels, sizes = store.parts[part]
            images = pixels.view(-1, 3, size, size) if size < LARGE else RaggedImages.packed(pixels, sizes)
            labels = torch.from_numpy(self.labels[kept == part])
            return ImageSet(images, labels, self.class_names, store.digest_file(part))

        return image_set(TRAIN), image_set(TEST)


def readable(path: str | Path) -> str:
    """A path as text: bytes that are not UTF-8 are shown as \\xNN."""
    return os.fsencode(path).decode(errors="backslashreplace")


def own_augmentation(size: int, smallest_crop: float = SMALLEST_CROP) -> Augmentation:
    """Augmentation for images of `size` pixels: resized crops as for ImageNet, or shifts as for CIFAR."""
    if size >= LARGE:
        crop = ResizedCrop(size, short_side_for(size), scale=(smallest_crop, 1.0))
        return Augmentation(IMAGENET_MEAN, IMAGENET_STD, 0, brightness=0.0, policy="imagenet", cutout=0, crop=crop)
    return Augmentation(IMAGENET_MEAN, IMAGENET_STD, padding=size // 8, cutout=size // 2)


def stratified(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Parts [N]: a fraction of every class, drawn with a fixed seed, is for testing. A single image of a class is for
    training."""
    generator = np.random.default_rng(0)
    parts = np.full(len(labels), TRAIN)
    for label in range(classes):
        rows = generator.permutation(np.flatnonzero(labels == label))
        parts[rows[: min(max(1, round(TEST_SHARE * len(rows))), len(rows) - 1)]] = TEST
    return parts


def parts_of(splits: Sequence[str], where: Path, partial: bool = False) -> NDArray[np.int64]:
    """Parts [N] from the name of each image's split. A validation split is used only if there is no test split.

    With `partial`, a single split is sufficient."""
    found = set(splits)
    if wrong := sorted(found - {"train", *TEST_NAMES}):
        raise InputError(f"{where} has a split {wrong[0]!r}: use the names train, test and validation.")
    test = next((name for name in TEST_NAMES if name in found), None)
    if not partial and (test is None or "train" not in found):
        raise InputError(f"{where} has only the split {', '.join(sorted(found))}: give train and test, or no split.")
    numbers = {"train": TRAIN, **({test: TEST} if test else {})}
    return np.array([numbers.get(split, UNUSED) for split in splits])


def check_classes(labels: NDArray[np.int64], class_names: Sequence[str], where: Path, remedy: str) -> None:
    """Raise an error if a class has no images."""
    empty = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
    if len(empty):
        raise InputError(f"Class {class_names[empty[0]]!r} in {where} has no images: add some, or {remedy}.")


def file_key(paths: Iterable[Path]) -> str:
    """Key that changes with the name, size or modification time of any file."""
    key = hashlib.sha256()
    for path in paths:
        stat = path.stat() if path.exists() else None  # a broken link is reported with the unreadable images
        key.update(os.fsencode(os.path.abspath(path)))  # names may have any encoding
        key.update(f"\0{stat and (stat.st_size, stat.st_mtime_ns)}\n".encode())
    return key.hexdigest()
