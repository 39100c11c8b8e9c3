"""Listings of data sets in folders: one function per layout."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ffcil.data.decoding import image_formats
from ffcil.data.own_images import TEST, TEST_NAMES, TRAIN, Listing, check_classes, readable, stratified
from ffcil.data.tables import listed_classes
from ffcil.errors import InputError

FORM = "a folder with one folder per class, or with train/ and test/ that contain one folder per class"
Samples = Sequence[tuple[Path, int]]
"""Path and class of every image."""


def listing_of(train: Samples, test: Samples, class_names: Sequence[str], ignored: Sequence[str] = ()) -> Listing:
    """Listing of a training and a test split."""
    both = [*train, *test]
    labels = np.array([label for _, label in both], np.int64)
    parts = np.repeat([TRAIN, TEST], [len(train), len(test)])
    return Listing.of_files([path for path, _ in both], labels, parts, tuple(class_names), ignored)


def find_folder(root: Path | None) -> Path:
    if root is None:
        raise InputError(f"Data set 'folder' needs images: give with --data {FORM}.")
    if root.is_file():
        raise InputError(f"{root} is a file: give {FORM}, or set dataset to parquet or csv.")
    if not root.is_dir():
        raise InputError(f"There is no folder {root}: give {FORM}.")
    return root


def list_folder(root: Path | None, partial: bool = False) -> Listing:
    """List train/ and test/, or a single folder of classes, of which a fraction of every class is used for testing.

    With `partial`, train/ or test/ alone is sufficient."""
    root = find_folder(root)
    train, test = _splits(root)
    if train and test:
        return list_splits(train, test)
    if (only := train or test) and not _is_class(only):
        if not partial:
            raise InputError(f"{root} has only one of train/ and test/ (or val/): give {FORM}.")
        if beside := [name for name in _folders(root) if name != only.name and _has_images(root / name)]:
            raise InputError(
                f"{readable(root)} has class folders in {only.name}/, and {readable(beside[0])}/ with images beside "
                f"it: give {readable(only)} if only its classes are meant, or move the others into it."
            )
        samples, names, ignored = _samples(only)
        return listing_of(samples if train else [], samples if test else [], names, ignored)
    samples, names, ignored = _samples(root)
    labels = np.array([label for _, label in samples], np.int64)
    paths = [path for path, _ in samples]
    return Listing.of_files(paths, labels, stratified(labels, len(names)), names, ignored, random_split=True)


def list_splits(train: Path, test: Path) -> Listing:
    """List two folders with the same class folders."""
    (train_samples, names, ignored), (test_samples, test_names, also) = _samples(train), _samples(test)
    if only := sorted(set(names) ^ set(test_names)):
        raise InputError(f"Class {only[0]!r} is in only one of {train} and {test}: give both the same classes.")
    return listing_of(train_samples, test_samples, names, [*ignored, *also])


def _samples(root: Path) -> tuple[list[tuple[Path, int]], tuple[str, ...], list[str]]:
    """Images of a folder of class folders, sorted by name; the classes; ignored files."""
    classes = _folders(root)
    if not classes:
        raise InputError(f"There are no class folders in {readable(root)}: give {FORM}.")
    above = {_identity(folder) for folder in (root, *root.resolve().parents)}
    suffixes, samples, ignored = image_suffixes(), list[tuple[Path, int]](), list[str]()
    for label, name in enumerate(classes):
        for path in _files_below(root / name, above.copy()):
            if path.suffix.lower() in suffixes:
                samples.append((path, label))
            else:
                ignored.append(readable(path))
    names = tuple(map(readable, classes))
    check_classes(np.array([label for _, label in samples], np.int64), names, root, "remove its folder")
    return samples, names, ignored


def _folders(root: Path) -> list[str]:
    """Names of the folders that can be classes, sorted."""
    return sorted(entry.name for entry in os.scandir(root) if entry.is_dir() and not _hidden(entry.name))


def _is_class(folder: Path) -> bool:
    """Whether a folder with the name of a split is a class of trains or tests: it has no folders, and has others beside
    it."""
    return not _folders(folder) and len(_folders(folder.parent)) > 1


def _has_images(folder: Path) -> bool:
    return any(path.suffix.lower() in image_suffixes() for path in _files_below(folder, set()))


def _files_below(place: Path, seen: set[tuple[int, int]]) -> list[Path]:
    """All files below a folder, sorted. Hidden files are left out, because programs write files such as `._1.jpg`
    beside photos. Links are followed, but a folder in `seen`, or one that was read already, is not read."""
    found: list[tuple[str, list[str]]] = []
    waiting = [str(place)]
    while waiting:
        folder = waiting.pop()
        if (identity := _identity(folder)) in seen:
            continue
        seen.add(identity)
        folders, files = list[str](), list[str]()
        with os.scandir(folder) as entries:
            for entry in (entry for entry in entries if not _hidden(entry.name)):
                (folders if entry.is_dir() else files).append(entry.name)
        found.append((folder, sorted(files)))
        waiting += [os.path.join(folder, name) for name in sorted(folders, reverse=True)]
    return [Path(folder, name) for folder, files in sorted(found) for name in files]


def _hidden(name: str) -> bool:
    return name.startswith(".")


def _identity(folder: str | Path) -> tuple[int, int]:
    """The same value for all paths of one folder: device and inode."""
    found = os.stat(folder)
    return found.st_dev, found.st_ino


def image_suffixes() -> set[str]:
    """Suffixes of the image formats that are read."""
    formats = set(image_formats())
    return {suffix for suffix, kind in Image.registered_extensions().items() if kind in formats}


def image_files(places: Sequence[Path]) -> list[Path]:
    """The given files, and all images in the given folders, sorted by folder and name."""
    suffixes, files = image_suffixes(), []
    for place in places:
        if not place.exists():
            raise InputError(f"There is no file or folder {readable(place)}: correct the path.")
        below = _files_below(place, set()) if place.is_dir() else [place]
        if place.is_dir() and not (below := [path for path in below if path.suffix.lower() in suffixes]):
            raise InputError(f"There are no images in {readable(place)}: give a folder of images, or files.")
        files += below
    return files


def _splits(root: Path) -> tuple[Path | None, Path | None]:
    """The folders of training and test images; None if they do not exist."""
    train, tests = root / "train", [root / name for name in TEST_NAMES]
    return (train if train.is_dir() else None), next((folder for folder in tests if folder.is_dir()), None)


def list_train_test(root: Path) -> Listing:
    return list_splits(root / "train", root / "test")


def list_imagenet100(root: Path) -> Listing:
    """List 100 classes of an ImageNet folder with train/ and val/, sorted by name: those in classes.txt, or by default
    the first 100 of the 1,000 in the order of NumPy's permutation with seed 1993."""
    wnids = sorted(listed_classes(root) or _seeded_wnids())
    train, test = (_images_of_classes(root / split, wnids) for split in ("train", "val"))
    check_classes(np.array([label for _, label in train], np.int64), wnids, root / "train", "download them again")
    return listing_of(train, test, wnids)


def _images_of_classes(split: Path, wnids: Sequence[str]) -> Samples:
    if missing := [wnid for wnid in wnids if not (split / wnid).is_dir()]:
        raise InputError(
            f"{len(missing)} of the {len(wnids)} classes, such as {missing[0]}, have no folder in {split}: download "
            "them, or list other classes in classes.txt beside train/, one per line."
        )
    return [(path, label) for label, wnid in enumerate(wnids) for path in sorted((split / wnid).iterdir())]


def _seeded_wnids() -> list[str]:
    from timm.data.imagenet_info import ImageNetInfo

    wnids: list[str] = sorted(ImageNetInfo().label_names())  # type: ignore[no-untyped-call]
    return [wnids[k] for k in np.random.RandomState(1993).permutation(1000)[:100]]


def list_tiny_imagenet(root: Path) -> Listing:
    """List Tiny ImageNet; its validation images, whose classes are in a table, are the test set."""
    train, wnids, _ = _samples(root / "train")  # ignores the tables beside the images
    number = {wnid: label for label, wnid in enumerate(wnids)}
    lines = (root / "val" / "val_annotations.txt").read_text(encoding="utf-8").splitlines()
    test = [(root / "val" / "images" / name, number[wnid]) for name, wnid, *_ in map(str.split, lines)]
    return listing_of(train, test, wnids)


def list_cub(root: Path) -> Listing:
    """List CUB-200 from its tables, whose lines have a number and a word."""

    def table(name: str) -> dict[str, str]:
        lines = (root / name).read_text(encoding="utf-8").splitlines()
        return dict(line.split(maxsplit=1) for line in lines if line.strip())

    paths, labels, training = table("images.txt"), table("image_class_labels.txt"), table("train_test_split.txt")
    samples: dict[str, list[tuple[Path, int]]] = {"1": [], "0": []}
    for number, path in paths.items():
        samples[training[number].strip()].append((root / "images" / path.strip(), int(labels[number]) - 1))
    return listing_of(samples["1"], samples["0"], list(table("classes.txt").values()))


def list_torchvision(name: str, train: Sequence[str]) -> Callable[[Path], Listing]:
    """A function that lists a data set of torchvision, whose training set consists of the splits `train`."""

    def split(root: Path, split: str) -> tuple[list[tuple[Path, int]], Any]:
        from torchvision import datasets

        found = getattr(datasets, name)(str(root), split=split)
        if not hasattr(found, "loader"):  # GTSRB has no public access to paths
            return [(Path(path), label) for path, label in found._samples], found
        found.loader = Path  # return paths; images are decoded later
        return [found[row] for row in range(len(found))], found

    def list_images(root: Path) -> Listing:
        splits = [split(root, each) for each in (*train, "test")]
        training = [sample for samples, _ in splits[:-1] for sample in samples]
        testing, found = splits[-1]
        names = getattr(found, "classes", None) or [f"{k:05d}" for k in range(1 + max(label for _, label in training))]
        return listing_of(training, testing, names)

    return list_images
