"""`Listing`: the images of somebody's own data set before they are decoded, and what becomes of them."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ffcil.data.augment import Augmentation
from ffcil.data.cache import cache_folder
from ffcil.data.decoding import Decode, Encoded, decode_square, decode_whole, decoded
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import Images, RaggedImages
from ffcil.data.resized_crop import SMALLEST_CROP, ResizedCrop
from ffcil.errors import InputError

DEFAULT_SIZE = 64
"""side of the network's input where `image_size` says nothing"""
LARGE = 96
"""side from which on images keep their full frame and are augmented like ImageNet's; smaller ones like CIFAR's"""
TEST_SHARE = 0.2
"""of a data set without a split that is kept for testing, class by class"""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
TRAIN, TEST, UNUSED = 0, 1, -1
_TEST_NAMES = ("test", "val", "valid", "validation")  # the first that occurs is the test split
_NAMED = 3  # ignored files that are told by name
_VERSION = 3  # of a store: another number where the same files would give another one


@dataclass(frozen=True)
class Listing:
    """Every image of a data set, in one order, by its name, label and part."""

    names: Sequence[str]
    """by which a user finds an image"""
    labels: NDArray[np.int64]
    """[N], position in `class_names`"""
    parts: NDArray[np.int64]
    """[N], `TRAIN`, `TEST` or `UNUSED`"""
    class_names: tuple[str, ...]
    contents: Callable[[], Iterable[Path | bytes]]
    """of all images, one after another; called only when they must be decoded"""
    content_key: str
    """another one where any content is another"""
    ignored: Sequence[str] = ()
    """files among them that are no images by their names"""
    drawn: bool = False
    """whether the parts were drawn here, for want of a split"""

    @classmethod
    def of_files(
        cls,
        paths: Sequence[Path],
        labels: NDArray[np.int64],
        parts: NDArray[np.int64],
        class_names: tuple[str, ...],
        ignored: Sequence[str] = (),
        drawn: bool = False,
    ) -> Listing:
        names, key = list(map(readable, paths)), file_key(paths)
        return cls(names, labels, parts, class_names, lambda: paths, key, ignored, drawn)

    def undivided(self) -> Listing:
        """The same with nothing set apart for testing, unless there is a split that says so."""
        return replace(self, parts=np.full(len(self.labels), TRAIN)) if self.drawn else self

    def __len__(self) -> int:
        """Images that are used."""
        return int((self.parts != UNUSED).sum())

    def counts(self, part: int) -> NDArray[np.int64]:
        """Images of each class in a part, [classes]."""
        return np.bincount(self.labels[self.parts == part], minlength=len(self.class_names))

    def told_ignored(self) -> str:
        """A sentence about the files that are no images by their names, where there are some."""
        first = ", ".join(self.ignored[:_NAMED]) + (", ..." if len(self.ignored) > _NAMED else "")
        return f"{len(self.ignored)} file(s) are ignored, for their names end like no image's that can be read: {first}"

    def encoded(self) -> Iterator[Encoded]:
        for name, content, part in zip(self.names, self.contents(), self.parts.tolist(), strict=True):
            if part != UNUSED:
                yield Encoded(name, content, part)

    def key(self, size: int) -> str:
        """Names the store of these images for a network whose input has side `size`."""
        short_side = short_side_for(size) if size >= LARGE else None
        key = hashlib.sha256(f"{_VERSION} {short_side} {size} {self.content_key}".encode())
        key.update(self.parts.tobytes())
        return f"images-{key.hexdigest()[:16]}"

    def decoder(self, size: int) -> Decode:
        if size < LARGE:
            return partial(decode_square, size=size)
        return partial(decode_whole, short_side=short_side_for(size))

    def load(self, size: int, skip_bad: bool = False) -> tuple[ImageSet, ImageSet]:
        """Training and test images for a network whose input has side `size`; their store is made if need be.

        Unreadable images are left out where `skip_bad`, or where they were when the store was made.
        """
        square = size < LARGE
        if self.ignored and not (cache_folder() / self.key(size)).is_dir():
            print(self.told_ignored(), file=sys.stderr)
        store = decoded(self.key(size), self.encoded, len(self), self.decoder(size), square, skip_bad)
        kept = self.parts.copy()
        kept[np.flatnonzero(kept != UNUSED)[[image.position for image in store.left_out]]] = UNUSED
        images: tuple[Images, ...] = tuple(
            pixels.view(-1, 3, size, size) if square else RaggedImages.packed(pixels, sizes)
            for pixels, sizes in store.parts
        )
        train, test = (
            ImageSet(images[part], torch.from_numpy(self.labels[kept == part]), self.class_names)
            for part in (TRAIN, TEST)
        )
        return train, test


def readable(path: str | Path) -> str:
    """A path to print: what is not UTF-8 in it is shown as \\xNN."""
    return os.fsencode(path).decode(errors="backslashreplace")


def short_side_for(size: int) -> int:
    """Of the stored frames: a test image is the middle 224 of 256 pixels, or as large a share of others."""
    return round(size * 256 / 224)


def own_augmentation(size: int, smallest_crop: float = SMALLEST_CROP) -> Augmentation:
    """For images of `size` pixels: large ones are cut at random like ImageNet's, small ones shifted like CIFAR's."""
    if size >= LARGE:
        crop = ResizedCrop(size, short_side_for(size), scale=(smallest_crop, 1.0))
        return Augmentation(IMAGENET_MEAN, IMAGENET_STD, 0, brightness=0.0, policy="imagenet", cutout=0, crop=crop)
    return Augmentation(IMAGENET_MEAN, IMAGENET_STD, padding=size // 8, cutout=size // 2)


def stratified(labels: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    """Parts [N]: a fixed share of every class for testing, drawn with a fixed seed; a class of one image keeps it for
    training."""
    generator = np.random.default_rng(0)
    parts = np.full(len(labels), TRAIN)
    for label in range(classes):
        rows = generator.permutation(np.flatnonzero(labels == label))
        parts[rows[: min(max(1, round(TEST_SHARE * len(rows))), len(rows) - 1)]] = TEST
    return parts


def parts_of(splits: Sequence[str], where: Path, partial: bool = False) -> NDArray[np.int64]:
    """Parts [N] by the name of each image's split. Where there is a test split, a validation split is not used.

    `partial`: one split alone will do."""
    found = set(splits)
    if wrong := sorted(found - {"train", *_TEST_NAMES}):
        raise InputError(f"{where} has a split {wrong[0]!r}: name every split train, test or validation.")
    test = next((name for name in _TEST_NAMES if name in found), None)
    if not partial and (test is None or "train" not in found):
        raise InputError(
            f"{where} has only the split {', '.join(sorted(found))}: give it train and test, or no split at all."
        )
    numbers = {"train": TRAIN, **({test: TEST} if test else {})}
    return np.array([numbers.get(split, UNUSED) for split in splits])


def check_classes(labels: NDArray[np.int64], class_names: Sequence[str], where: Path, remedy: str) -> None:
    """Every class has an image."""
    empty = np.flatnonzero(np.bincount(labels, minlength=len(class_names)) == 0)
    if len(empty):
        raise InputError(f"Class {class_names[empty[0]]!r} in {where} has no images: add some, or {remedy}.")


def file_key(paths: Iterable[Path]) -> str:
    """Changes with the name, size or time of any file."""
    key = hashlib.sha256()
    for path in paths:
        stat = path.stat() if path.exists() else None  # a dangling link is named with the unreadable images
        key.update(os.fsencode(os.path.abspath(path)))  # a name may be in any encoding
        key.update(f"\0{stat and (stat.st_size, stat.st_mtime_ns)}\n".encode())
    return key.hexdigest()
