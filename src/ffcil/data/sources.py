"""Data sets by name: one small function each, from files to two `ImageSet`s."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ffcil.data.augment import Augmentation
from ffcil.data.cache import cache_folder
from ffcil.data.glyphs import CHARACTERS, GLYPHS_AUGMENTATION, glyphs
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import (
    DEFAULT_SIZE,
    TEST,
    TRAIN,
    Listing,
    check_classes,
    file_key,
    own_augmentation,
    stratified,
)
from ffcil.data.resized_crop import ResizedCrop
from ffcil.data.tables import csv_file, list_csv, list_parquet, parquet_files
from ffcil.errors import InputError, unknown


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
    """None: the user's own images, as many as they have"""
    image_size: int | None
    load: Callable[[Path | None, int | None], DataSet]
    """from the file or folder named with --data, and the side asked for"""
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
    native = source.image_size
    if image_size is not None and native is not None and image_size < native:
        raise InputError(f"Data set {name!r} has images of {native} pixels: leave image_size out, or ask for more.")
    data = source.load(None if root is None else Path(root), image_size)
    if image_size is None or native is None or image_size == native:
        return data
    return replace(data, augmentation=enlarged(data.augmentation, image_size))


def enlarged(augmentation: Augmentation, size: int) -> Augmentation:
    """For a ViT that wants larger images than there are: crops of random sizes brought to `size`, as published."""
    crop = ResizedCrop(size, short_side=round(size * 256 / 224))
    return replace(augmentation, padding=0, brightness=0.0, crop=crop)


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

_HOW_FOLDER = "name with --data a folder that holds one folder a class, or train/ and test/ which hold those"


def _samples(root: Path) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    """(path, class) of every image below a folder of class folders, sorted by name."""
    from torchvision.datasets import ImageFolder

    try:
        found = ImageFolder(str(root), allow_empty=True)
    except FileNotFoundError as error:
        raise InputError(f"There are no class folders in {root}: {_HOW_FOLDER}.") from error
    labels = np.array([label for _, label in found.samples], np.int64)
    check_classes(labels, found.classes, root, "remove its folder")
    return [(Path(path), label) for path, label in found.samples], tuple(found.classes)


def _splits(root: Path) -> tuple[Path, Path] | None:
    """The folders of training and test images; None where the root holds the classes themselves."""
    train, tests = root / "train", [root / name for name in ("test", "val", "valid", "validation")]
    test = next((folder for folder in tests if folder.is_dir()), None)
    if train.is_dir() and test:
        return train, test
    if train.is_dir() or test:
        raise InputError(f"{root} has only one of train/ and test/ (or val/): {_HOW_FOLDER}.")
    return None


def _find_folder(root: Path | None) -> str | None:
    if root is None:
        return f"Data set 'folder' needs images: {_HOW_FOLDER}."
    return None if root.is_dir() else f"There is no folder {root}: {_HOW_FOLDER}."


def _list_folder(root: Path | None) -> Listing:
    if problem := _find_folder(root):
        raise InputError(problem)
    assert root is not None
    if splits := _splits(root):
        (train, names), (test, test_names) = (_samples(split) for split in splits)
        if only := sorted(set(names) ^ set(test_names)):
            raise InputError(
                f"Class {only[0]!r} is in only one of train/ and test/ in {root}: give both the same classes."
            )
        samples, parts = train + test, np.repeat([TRAIN, TEST], [len(train), len(test)])
        labels = np.array([label for _, label in samples], np.int64)
    else:
        samples, names = _samples(root)
        labels = np.array([label for _, label in samples], np.int64)
        parts = stratified(labels, len(names))
    paths = [path for path, _ in samples]
    return Listing(list(map(str, paths)), labels, parts, names, lambda: paths, file_key(paths))


def _own(list_images: Callable[[Path | None], Listing]) -> Callable[[Path | None, int | None], DataSet]:
    """How a user's own images are loaded, whatever lists them."""

    def load(root: Path | None, image_size: int | None) -> DataSet:
        size = image_size or DEFAULT_SIZE
        train, test = list_images(root).load(size)
        return DataSet(train, test, own_augmentation(size))

    return load


def _missing(find: Callable[[Path | None], object]) -> Callable[[Path | None], str | None]:
    """What a function that looks for files says when it does not find them."""

    def problem(root: Path | None) -> str | None:
        try:
            find(root)
        except InputError as error:
            return str(error)
        return None

    return problem


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
        "your own images: one folder a class, or train/ and test/", None, None, _own(_list_folder), _find_folder
    ),
    "parquet": Source(
        "your own images in Parquet files: image, label, split", None, None, _own(list_parquet), _missing(parquet_files)
    ),
    "csv": Source("your own images by a CSV file: path, label, split", None, None, _own(list_csv), _missing(csv_file)),
}
