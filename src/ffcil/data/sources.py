"""Data sets by name: one small function each, from files to two `ImageSet`s."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from ffcil.data.augment import Augmentation
from ffcil.data.cache import cache_folder, cached_arrays
from ffcil.data.glyphs import CHARACTERS, GLYPHS_AUGMENTATION, glyphs
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError, unknown

FOLDER_SIZE = 64
"""side of a folder's images where `image_size` says nothing"""
LARGE = 96
"""side from which on AutoAugment treats a folder's images like ImageNet's"""
TEST_SHARE = 0.2
"""of a folder without train/ and test/ that is kept for testing, class by class"""


@dataclass(frozen=True)
class DataSet:
    """What a source gives: training and test images, and how they are augmented."""

    train: ImageSet
    test: ImageSet
    augmentation: Augmentation


@dataclass(frozen=True)
class Source:
    """A data set that ffcil can load by name."""

    about: str
    classes: int | None
    """None: as many as the user's folders"""
    image_size: int | None
    load: Callable[[Path | None, int | None], DataSet]
    """from the folder named with --data, and the side asked for"""
    find: Callable[[Path | None], str | None]
    """what is missing and how to get it; None where nothing is"""


def data_folder() -> Path:
    """Where data sets are looked for, and downloaded to, unless --data names a folder: `$FFCIL_DATA` or the cache."""
    named = os.environ.get("FFCIL_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def load_dataset(name: str, root: str | Path | None = None, image_size: int | None = None) -> DataSet:
    """A data set by name (`ffcil datasets` lists them), from `root` where it needs files."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    source = SOURCES[name]
    if image_size is not None and source.image_size is not None and image_size != source.image_size:
        raise InputError(f"Data set {name!r} has images of {source.image_size} pixels: leave image_size out.")
    return source.load(None if root is None else Path(root), image_size)


# --- glyphs: drawn, not downloaded ---------------------------------------------------------------------------------


def _load_glyphs(root: Path | None, image_size: int | None) -> DataSet:
    train, test = glyphs()
    return DataSet(train, test, GLYPHS_AUGMENTATION)


# --- CIFAR-100 ----------------------------------------------------------------------------------------------------

CIFAR100_AUGMENTATION = Augmentation(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))


def _cifar100_root(root: Path | None) -> Path:
    """torchvision wants the parent of `cifar-100-python`; people name either."""
    root = root or data_folder()
    return root.parent if root.name == "cifar-100-python" else root


def _find_cifar100(root: Path | None) -> str | None:
    root = _cifar100_root(root)
    missing = [n for n in ("train", "test", "meta") if not (root / "cifar-100-python" / n).is_file()]
    if not missing:
        return None
    return (
        f"CIFAR-100 is not in {root} (no cifar-100-python/{missing[0]}): with a network the first run downloads it; "
        "without one, unpack the authors' cifar-100-python.tar.gz and name its folder with --data."
    )


def _load_cifar100(root: Path | None, image_size: int | None) -> DataSet:
    from torchvision.datasets import CIFAR100

    root, problem = _cifar100_root(root), _find_cifar100(root)
    if problem:
        try:
            CIFAR100(str(root), download=True)
        except (OSError, RuntimeError) as error:
            raise InputError(f"{problem} (The download failed: {error})") from error
    try:
        splits = [CIFAR100(str(root), train=train) for train in (True, False)]
    except RuntimeError as error:
        raise InputError(
            f"The files in {root / 'cifar-100-python'} are not the published ones: remove them and get CIFAR-100 again."
        ) from error
    train, test = (
        ImageSet(
            torch.from_numpy(split.data).permute(0, 3, 1, 2).contiguous(),
            torch.tensor(split.targets),
            tuple(split.classes),
        )
        for split in splits
    )
    return DataSet(train, test, CIFAR100_AUGMENTATION)


# --- anybody's own folder -----------------------------------------------------------------------------------------

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_HOW_FOLDER = "name with --data a folder that holds one folder a class, or train/ and test/ which hold those"


def _samples(root: Path) -> tuple[list[tuple[str, int]], tuple[str, ...]]:
    """(path, class) of every image below a folder of class folders, sorted by name."""
    from torchvision.datasets import ImageFolder

    try:
        found = ImageFolder(str(root), allow_empty=True)
    except FileNotFoundError as error:
        raise InputError(f"There are no class folders in {root}: {_HOW_FOLDER}.") from error
    empty = set(range(len(found.classes))) - {label for _, label in found.samples}
    if empty:
        raise InputError(
            f"Class {found.classes[min(empty)]!r} in {root} has no images: add some, or remove its folder."
        )
    return found.samples, tuple(found.classes)


def _decode(path: str, size: int) -> NDArray[np.uint8] | str:
    """One image as [3, size, size], upright, cut to the middle square; or what is wrong with it."""
    try:
        with Image.open(path) as image:
            square = ImageOps.fit(
                ImageOps.exif_transpose(image).convert("RGB"), (size, size), Image.Resampling.BILINEAR
            )
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return f"{path} ({error})"
    return np.asarray(square).transpose(2, 0, 1)


def _decode_all(samples: list[tuple[str, int]], size: int) -> dict[str, NDArray[np.generic]]:
    images = np.empty((len(samples), 3, size, size), np.uint8)
    bad = []
    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        for k, result in enumerate(pool.map(lambda sample: _decode(sample[0], size), samples)):
            if isinstance(result, str):
                bad.append(result)
            else:
                images[k] = result
    if bad:
        raise InputError(f"{len(bad)} image(s) cannot be read, remove or repair them: {'; '.join(bad)}.")
    return {"images": images, "labels": np.array([label for _, label in samples], np.int64)}


def _folder_split(root: Path, size: int) -> ImageSet:
    samples, names = _samples(root)
    key = hashlib.sha256(f"{size}".encode())
    for path, label in samples:  # a changed file is another key
        stat = os.stat(path) if os.path.exists(path) else None  # a dangling link is named with the unreadable images
        key.update(f"{path}\0{label}\0{stat and (stat.st_size, stat.st_mtime_ns)}\n".encode())
    arrays = cached_arrays(f"folder-{key.hexdigest()[:16]}", lambda: _decode_all(samples, size))
    return ImageSet(torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"]), names)


def _splits(root: Path) -> tuple[Path, Path] | None:
    """The folders of training and test images; None where the root holds the classes themselves."""
    train, tests = root / "train", [root / name for name in ("test", "val", "valid", "validation")]
    test = next((folder for folder in tests if folder.is_dir()), None)
    if train.is_dir() and test:
        return train, test
    if train.is_dir() or test:
        raise InputError(f"{root} has only one of train/ and test/ (or val/): {_HOW_FOLDER}.")
    return None


def _stratified(images: ImageSet) -> tuple[ImageSet, ImageSet]:
    """A fixed share of every class for testing, drawn with a fixed seed; a class of one image keeps it for training."""
    generator = np.random.default_rng(0)
    test = np.zeros(len(images), bool)
    for label in range(images.classes):
        rows = generator.permutation(np.flatnonzero(images.labels.numpy() == label))
        test[rows[: min(max(1, round(TEST_SHARE * len(rows))), len(rows) - 1)]] = True
    train_rows, test_rows = (torch.from_numpy(np.flatnonzero(mask)) for mask in (~test, test))
    return tuple(  # type: ignore[return-value]
        ImageSet(images.images[rows], images.labels[rows], images.class_names) for rows in (train_rows, test_rows)
    )


def _folder_augmentation(size: int) -> Augmentation:
    """For images of `size` pixels: large ones are augmented like ImageNet, small ones like CIFAR."""
    large = size >= LARGE
    return Augmentation(
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        padding=size // 8,
        policy="imagenet" if large else "cifar10",
        cutout=0 if large else size // 2,
    )


def _find_folder(root: Path | None) -> str | None:
    if root is None:
        return f"Data set 'folder' needs images: {_HOW_FOLDER}."
    return None if root.is_dir() else f"There is no folder {root}: {_HOW_FOLDER}."


def _load_folder(root: Path | None, image_size: int | None) -> DataSet:
    if problem := _find_folder(root):
        raise InputError(problem)
    assert root is not None
    size = image_size or FOLDER_SIZE
    if splits := _splits(root):
        train, test = (_folder_split(split, size) for split in splits)
        if train.class_names != test.class_names:
            only = sorted(set(train.class_names) ^ set(test.class_names))
            raise InputError(
                f"Class {only[0]!r} is in only one of train/ and test/ in {root}: give both the same classes."
            )
    else:
        train, test = _stratified(_folder_split(root, size))
    return DataSet(train, test, _folder_augmentation(size))


SOURCES: dict[str, Source] = {
    "glyphs": Source(
        "characters of many scripts in random fonts, poses and colours over clutter; drawn here, no download",
        len(CHARACTERS),
        32,
        _load_glyphs,
        lambda root: None,
    ),
    "cifar100": Source(
        "CIFAR-100: 50,000 + 10,000 images, through torchvision", 100, 32, _load_cifar100, _find_cifar100
    ),
    "folder": Source(
        "your own images: one folder a class, or train/ and test/", None, None, _load_folder, _find_folder
    ),
}
