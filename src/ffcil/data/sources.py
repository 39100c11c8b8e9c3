"""Data sets by name, loaded from files into two `ImageSet`s."""

import os
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from ffcil.data.augment import Augmentation
from ffcil.data.cache import cache_folder
from ffcil.data.decoding import UnreadableImages, short_side_for
from ffcil.data.downloading import https_only
from ffcil.data.glyphs import CHARACTERS, GLYPHS_AUGMENTATION, glyphs, verify_glyphs
from ffcil.data.image_set import ImageSet
from ffcil.data.layouts import find_folder, list_folder
from ffcil.data.own_images import DEFAULT_SIZE, Listing, OutsideError, own_augmentation
from ffcil.data.pictures import image_set_of
from ffcil.data.published import PUBLISHED, Facts, download_published, find_published, list_published
from ffcil.data.resized_crop import SMALLEST_CROP, ResizedCrop
from ffcil.data.tables import csv_file, csv_files, list_csv, list_parquet, parquet_files
from ffcil.errors import InputError, unknown


@dataclass(frozen=True)
class DataSet:
    """Training images, test images and their augmentation."""

    train: ImageSet
    test: ImageSet
    augmentation: Augmentation


Load = Callable[[Path | None, int | None, bool, bool], DataSet]
ListImages = Callable[[Path | None], Listing]
PHOTOGRAPH_SIZE = 224
"""Default side of the network's input for published photographs."""


@dataclass(frozen=True, kw_only=True)
class Source(Facts):
    """A data set that ffcil can load by name."""

    usual_size: int
    """Default side of the network's input in pixels."""
    load: Load
    """Function that loads the data set from the path of --data (or None), for an input size (or None), with or without
    unreadable images, and with or without files outside the folder of a table."""
    find: Callable[[Path | None], str | None]
    """Function that reports what is missing and how to get it, or returns None."""
    list_images: ListImages | None = None
    """Function that lists names and labels without decoding; None if the images are not in separate files."""
    verify: Callable[[], None] | None = None
    """Function that raises an error if stored images do not match their checksums; None if there is no such store."""
    counts: tuple[int | None, int | None] | None = None
    """Number of training and test images of the published split; None if uncertain."""


def data_folder() -> Path:
    """Default folder of data sets and downloads: `$FFCIL_DATA`, or else a folder of the cache."""
    named = os.environ.get("FFCIL_DATA")
    return Path(named).expanduser() if named else cache_folder() / "data"


def find_source(name: str) -> Source:
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]


def check_drawn(name: str, data: Path | None) -> None:
    """Raise an error if files are given for a data set that is drawn and would not use them."""
    if name == "glyphs" and data is not None:
        raise InputError(
            "Data set 'glyphs' is drawn, not read from files: leave --data out, or set dataset to folder, parquet or "
            "csv for your own images."
        )


def form_of(path: Path) -> str:
    """Form of the user's own images at a path: `folder`, `parquet` or `csv`."""
    if not path.exists():
        raise InputError(f"There is no file or folder {path}: correct the path.")
    suffix = path.suffix.lower()
    if suffix == ".csv" or (path.is_dir() and csv_files(path)):
        return "csv"
    if suffix == ".parquet" or (path.is_dir() and next(path.rglob("*.parquet"), None)):
        return "parquet"
    if not path.is_dir():
        raise InputError(f"{path} is not a folder, .parquet or .csv file: give one of these; unpack an archive first.")
    return "folder"


def list_own(path: Path) -> Listing:
    """List the user's own images in any form; a single split is sufficient."""
    forms = {"folder": list_folder, "parquet": list_parquet, "csv": list_csv}
    return forms[form_of(path)](path, partial=True)


def load_dataset(
    name: str,
    root: str | Path | None = None,
    image_size: int | None = None,
    skip_bad: bool = False,
    allow_outside: bool = False,
) -> DataSet:
    """Load a data set by name (`ffcil data list` lists them), from the file or folder `root` if it needs one.

    Images are decoded once and stored. With `skip_bad`, unreadable images are left out of the store. With
    `allow_outside`, a table may name files outside its own folder.
    """
    source = find_source(name)
    check_drawn(name, None if root is None else Path(root))
    native = source.image_size
    if image_size is not None and native is not None and image_size < native:
        raise InputError(f"Data set {name!r} has images of {native} pixels: omit image_size, or give a larger one.")
    try:
        data = source.load(None if root is None else Path(root), image_size, skip_bad, allow_outside)
    except UnreadableImages as error:
        raise UnreadableImages(error.images, remedy_for_bad_images(name, root, image_size)) from error
    except OutsideError as error:
        prepare = preparation(name, root, image_size)
        raise OutsideError(error.files, f"read them once with `{prepare} --allow-outside`") from error
    if image_size is None or native is None or image_size == native:
        return data
    return replace(data, augmentation=enlarged(data.augmentation, image_size))


def remedy_for_bad_images(name: str, root: str | Path | None, image_size: int | None) -> str:
    return f"repair them, or leave them out with `{preparation(name, root, image_size)} --skip-bad`"


def preparation(name: str, root: str | Path | None, image_size: int | None) -> str:
    """The command that prepares a data set."""
    place = "" if root is None else f" --data {shlex.quote(str(root))}"
    return f"ffcil data prepare {name}{place} --image-size {image_size or find_source(name).usual_size}"


def dataset_of(
    train: Dataset[Any], test: Dataset[Any], class_names: Sequence[str] | None = None, image_size: int | None = None
) -> DataSet:
    """Convert two map-style `torch.utils.data.Dataset`s of (image, label) for `Run(config, data=...)`.

    Images are kept in memory; see `image_set_of` for supported images.
    """
    size = image_size or DEFAULT_SIZE
    training, testing = (image_set_of(split, size, class_names) for split in (train, test))
    names = max(training.class_names, testing.class_names, key=len)  # the test set may lack the last classes
    if all(_are_named(split) for split in (training, testing)):
        for label, pair in enumerate(zip(training.class_names, testing.class_names, strict=False)):
            if len(set(pair)) > 1:
                which = "is {!r} in the training set and {!r} in the test set".format(*pair)
                raise InputError(f"Class {label} {which}: number the classes of both alike, and give class_names.")
    return DataSet(replace(training, class_names=names), replace(testing, class_names=names), own_augmentation(size))


def _are_named(images: ImageSet) -> bool:
    return images.class_names != tuple(map(str, range(len(images.class_names))))


def enlarged(augmentation: Augmentation, size: int) -> Augmentation:
    """Augmentation for a ViT with an input larger than the images: resized crops of side `size`, as published."""
    crop = ResizedCrop(size, short_side_for(size), bicubic=True)
    return replace(augmentation, padding=0, brightness=0.0, crop=crop)


def _load_glyphs(root: Path | None, image_size: int | None, skip_bad: bool, allow_outside: bool) -> DataSet:
    train, test = glyphs()
    return DataSet(train, test, GLYPHS_AUGMENTATION)


CIFAR100_AUGMENTATION = Augmentation(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))


def _cifar100_root(root: Path | None) -> Path:
    """The parent of `cifar-100-python`, which torchvision needs; users may give either."""
    root = root or data_folder()
    return root.parent if root.name == "cifar-100-python" else root


def _find_cifar100(named: Path | None) -> str | None:
    root = _cifar100_root(named)
    missing = [n for n in ("train", "test", "meta") if not (root / "cifar-100-python" / n).is_file()]
    if not missing:
        return None
    how = "" if named is None else "omit --data, and "
    return (
        f"CIFAR-100 is not in {root} (no cifar-100-python/{missing[0]}): with internet access, {how}the first run "
        "downloads it; otherwise unpack the authors' cifar-100-python.tar.gz and give its folder with --data."
    )


def _load_cifar100(named: Path | None, image_size: int | None, skip_bad: bool, allow_outside: bool) -> DataSet:
    from torchvision.datasets import CIFAR100

    root, problem = _cifar100_root(named), _find_cifar100(named)
    if problem and named is not None:  # possibly a typing error, so nothing is downloaded
        raise InputError(problem)
    if problem:
        try:
            with https_only():
                CIFAR100(str(root), download=True)
        except (OSError, RuntimeError) as error:
            raise InputError(f"{problem} (The download failed: {error})") from error
    try:
        splits = [CIFAR100(str(root), train=train) for train in (True, False)]
    except RuntimeError as error:
        folder = root / "cifar-100-python"
        raise InputError(f"The files in {folder} are not those of CIFAR-100: remove and download them.") from error
    train, test = (
        ImageSet(torch.from_numpy(split.data).permute(0, 3, 1, 2), torch.tensor(split.targets), tuple(split.classes))
        for split in splits
    )
    return DataSet(train, test, CIFAR100_AUGMENTATION)


def _listed(list_images: ListImages, image_size: int | None, usual: int, smallest_crop: float = SMALLEST_CROP) -> Load:
    """A function that loads the images of a listing."""

    def load(root: Path | None, asked: int | None, skip_bad: bool, allow_outside: bool) -> DataSet:
        size = image_size or asked or usual
        train, test = list_images(root).load(size, skip_bad, allow_outside)
        return DataSet(train, test, own_augmentation(size, smallest_crop))

    return load


def _missing(find: Callable[[Path | None], object]) -> Callable[[Path | None], str | None]:
    """A function that returns the error message of `find`, or None."""

    def problem(root: Path | None) -> str | None:
        try:
            find(root)
        except InputError as error:
            return str(error)
        return None

    return problem


def _own(about: str, list_images: ListImages, find: Callable[[Path | None], object]) -> Source:
    """Source of the user's own images in one form."""
    load = _listed(list_images, None, DEFAULT_SIZE)
    return Source(about=about, usual_size=DEFAULT_SIZE, load=load, find=_missing(find), list_images=list_images)


def _published(name: str) -> Source:
    published = PUBLISHED[name]

    def list_images(root: Path | None) -> Listing:
        return list_published(name, root, data_folder())

    def list_or_download(root: Path | None) -> Listing:
        try:
            return list_images(root)
        except InputError:  # it does not exist, or its download was interrupted
            if root is not None or published.download is None:
                raise
        download_published(name, data_folder())
        return list_images(root)

    usual = published.image_size or PHOTOGRAPH_SIZE
    return Source(
        **{field.name: getattr(published, field.name) for field in fields(Facts)},
        usual_size=usual,
        load=_listed(list_or_download, published.image_size, usual, published.smallest_crop),
        find=_missing(lambda root: find_published(name, root, data_folder())),
        list_images=list_images,
        counts=(published.forms[0].train, published.forms[0].test),
    )


SOURCES: dict[str, Source] = {
    "glyphs": Source(
        about="characters of many scripts in random fonts, poses and colours; drawn by ffcil, no download",
        classes=len(CHARACTERS),
        image_size=32,
        usual_size=32,
        load=_load_glyphs,
        find=lambda root: None,
        verify=verify_glyphs,
        origin="ffcil",
        licence="MIT",
        counts=(20_000, 5_000),
    ),
    "cifar100": Source(
        about="CIFAR-100: small photographs",
        classes=100,
        image_size=32,
        usual_size=32,
        load=_load_cifar100,
        find=_find_cifar100,
        origin="https://www.cs.toronto.edu/~kriz/cifar.html, through torchvision",
        licence="not stated",
        gigabytes=0.17,
        counts=(50_000, 10_000),
    ),
    **{name: _published(name) for name in PUBLISHED},
    "folder": _own("your own images: one folder per class, or train/ and test/", list_folder, find_folder),
    "parquet": _own("your own images in Parquet files: image, label, split", list_parquet, parquet_files),
    "csv": _own("your own images in a CSV file: path, label, split", list_csv, csv_file),
}
