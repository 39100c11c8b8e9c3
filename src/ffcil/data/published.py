"""Published data sets: what each one is, in which forms it is handed on, which split those hold, and how to get it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from ffcil.data.layouts import (
    list_cub,
    list_imagenet100,
    list_tiny_imagenet,
    list_torchvision,
    list_train_test,
)
from ffcil.data.own_images import TEST, TRAIN, Listing
from ffcil.data.tables import list_parquet
from ffcil.errors import InputError


@dataclass(frozen=True)
class Form:
    """Files of a certain shape, and the split that they hold."""

    marks: tuple[str, ...]
    """files or folders below the root by which the form is known; `*` stands for any letters"""
    list_images: Callable[[Path], Listing]
    train: int | None
    """training images as published; None: not printed anywhere, and not checked"""
    test: int

    def fits(self, root: Path) -> bool:
        return root.is_dir() and all(any(root.glob(mark)) for mark in self.marks)


@dataclass(frozen=True)
class Published:
    """A data set with a published split."""

    about: str
    origin: str
    """of the images and of the split"""
    licence: str
    gigabytes: float | None
    """to download; None: not stated"""
    classes: int
    folders: tuple[str, ...]
    """below the data folder in which it is looked for"""
    forms: tuple[Form, ...]
    """the first is the one that published results of class-incremental learning use"""
    how: str
    """to get it by hand"""
    download: Callable[[Path], None] | None = None
    """into the data folder; None: its owners ask for a click or an agreement"""
    image_size: int | None = None
    """side of all images; None: photographs of any size"""


# --- downloads ------------------------------------------------------------------------------------------------------


def _torchvision(name: str, *splits: str) -> Callable[[Path], None]:
    def download(root: Path) -> None:
        from torchvision import datasets

        for split in splits:
            getattr(datasets, name)(str(root), split=split, download=True)

    return download


def _archive(url: str, md5: str) -> Callable[[Path], None]:
    def download(root: Path) -> None:
        from torchvision.datasets.utils import download_and_extract_archive

        download_and_extract_archive(url, str(root), md5=md5)

    return download


def _hub(folder: str, repository: str, revision: str, *files: str) -> Callable[[Path], None]:
    def download(root: Path) -> None:
        from huggingface_hub import snapshot_download

        snapshot_download(
            repository, repo_type="dataset", revision=revision, allow_patterns=list(files), local_dir=root / folder
        )

    return download


# --- the table ------------------------------------------------------------------------------------------------------

_IMAGENET = "ImageNet's terms: research and teaching, not commerce"
_PILOT = "https://github.com/LAMDA-CL/LAMDA-PILOT#-datasets"


def _from_pilot(
    about: str, origin: str, licence: str, classes: int, train: int, test: int, gigabytes: float | None, *folders: str
) -> Published:
    """One of the sets with train/ and test/ that the toolbox PILOT hands on."""
    return Published(
        about,
        f"{origin}; split: PILOT ({_PILOT})",
        licence,
        gigabytes,
        classes,
        folders,
        (Form(("train", "test"), list_train_test, train, test),),
        f"get the archive linked at {_PILOT}, unpack it, and name with --data the folder that holds train/ and test/",
    )


def _torchvision_set(
    about: str,
    origin: str,
    licence: str,
    gigabytes: float,
    name: str,
    classes: int,
    mark: str,
    train: dict[str, int],
    test: int,
) -> Published:
    """A set that torchvision lists and downloads; the training set may be several of its splits."""
    form = Form((mark,), list_torchvision(name, tuple(train)), sum(train.values()), test)
    return Published(
        about,
        origin,
        licence,
        gigabytes,
        classes,
        (".",),
        (form,),
        f"unpack the archives of {origin} as torchvision's {name} does ({mark}), and name their folder with --data",
        _torchvision(name, *train, "test"),
    )


_CUB = _from_pilot(
    "CUB-200-2011: birds",
    "https://www.vision.caltech.edu/datasets/cub_200_2011",
    "research and teaching, not commerce; the images belong to their photographers",
    200,
    9430,
    2358,
    1.2,
    "cub200",
    "cub",
    "CUB_200_2011",
)

PUBLISHED: dict[str, Published] = {
    "imagenet100": Published(
        "ImageNet-100: the first 100 of the 1,000 classes in the order of seed 1993",
        "https://image-net.org (ILSVRC 2012); classes: https://github.com/LAMDA-CL/PyCIL",
        _IMAGENET,
        144.0,
        100,
        ("imagenet100", "imagenet"),
        (Form(("train", "val"), list_imagenet100, None, 5000),),
        "register at https://image-net.org, unpack ILSVRC 2012 (or these 100 classes) into train/ and val/ with one "
        "folder a class, and name their folder with --data; another list of classes goes into its classes.txt",
    ),
    "cars": Published(
        "Stanford Cars: makes, models and years",
        "Krause et al. 2013 (the authors' page is gone; mirror: https://huggingface.co/datasets/tanganke/stanford_cars)",
        "research, not commerce",
        2.0,
        196,
        ("cars", "."),
        (
            Form(("train", "test"), list_train_test, 8144, 8041),
            Form(("stanford_cars/devkit",), list_torchvision("StanfordCars", ("train",)), 8144, 8041),
            Form(("data/train-*.parquet", "data/test-*.parquet"), lambda root: list_parquet(root / "data"), 8144, 8041),
        ),
        "get data/train-* and data/test-* of the mirror, or train/ and test/ with one folder a class, or the files "
        "of torchvision's StanfordCars, and name their folder with --data",
        _hub(
            "cars",
            "tanganke/stanford_cars",
            "9abf6cf7d6dfa7b95152a0d6e791ea9435b47a40",
            "data/train-*.parquet",
            "data/test-*.parquet",
        ),
    ),
    "imagenet-a": _from_pilot(
        "ImageNet-A: photographs that networks get wrong",
        "https://github.com/hendrycks/natural-adv-examples",
        "MIT for the collection; the images belong to their owners",
        200,
        5981,
        1519,
        0.7,
        "imagenet-a",
    ),
    "imagenet-r": _from_pilot(
        "ImageNet-R: paintings, toys, sketches and other renditions",
        "https://github.com/hendrycks/imagenet-r",
        "MIT for the collection; the images belong to their owners",
        200,
        24000,
        6000,
        2.2,
        "imagenet-r",
    ),
    "cub200": replace(
        _CUB,
        forms=(*_CUB.forms, Form(("images.txt", "train_test_split.txt"), list_cub, 5994, 5794)),
        how=f"{_CUB.how}; the authors' own split of 5,994 and 5,794 images (CUB_200_2011.tgz, unpacked) is read too",
    ),
    "tiny-imagenet": Published(
        "Tiny ImageNet: 64 x 64 pixels",
        "http://cs231n.stanford.edu; its validation images are the test set",
        _IMAGENET,
        0.25,
        200,
        ("tiny-imagenet-200", "tiny-imagenet"),
        (Form(("wnids.txt", "train", "val/val_annotations.txt"), list_tiny_imagenet, 100_000, 10_000),),
        "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and name its folder with --data",
        _archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
        64,
    ),
    "omnibenchmark": _from_pilot(
        "OmniBenchmark: 300 classes from 21 realms",
        "https://zhangyuanhan-ai.github.io/OmniBenchmark",
        "as its page says",
        300,
        89697,
        5985,
        None,
        "omnibenchmark",
    ),
    "vtab": _from_pilot(
        "VTAB: 10 classes each of five data sets (aerial photographs, textures, pets, satellite images, flowers)",
        "https://google-research.github.io/task_adaptation",
        "each data set's own",
        50,
        1796,
        8619,
        None,
        "vtab-cil/vtab",
        "vtab",
    ),
    "objectnet": _from_pilot(
        "ObjectNet: things at home in odd poses",
        "https://objectnet.dev",
        "CC BY 4.0 with two conditions, one of which forbids to tune a model's parameters on it",
        200,
        26509,
        6628,
        None,
        "objectnet",
    ),
    "food101": _torchvision_set(
        "Food-101: dishes",
        "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
        "scientific use; the images belong to Foodspotting's users",
        5.0,
        "Food101",
        101,
        "food-101/meta",
        {"train": 75750},
        25250,
    ),
    "flowers102": _torchvision_set(
        "Oxford Flowers-102; training and validation images are the training set",
        "https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
        "not stated",
        0.35,
        "Flowers102",
        102,
        "flowers-102/setid.mat",
        {"train": 1020, "val": 1020},
        6149,
    ),
    "aircraft": _torchvision_set(
        "FGVC-Aircraft: 100 variants; training and validation images are the training set",
        "https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft",
        "research, not commerce",
        2.8,
        "FGVCAircraft",
        100,
        "fgvc-aircraft-2013b/data",
        {"trainval": 6667},
        3333,
    ),
    "gtsrb": _torchvision_set(
        "GTSRB: German traffic signs",
        "https://benchmark.ini.rub.de",
        "not stated",
        0.28,
        "GTSRB",
        43,
        "gtsrb/GTSRB/Training",
        {"train": 26640},
        12630,
    ),
}


# --- finding and listing --------------------------------------------------------------------------------------------


def find_published(name: str, root: Path | None, data_folder: Path) -> tuple[Form, Path]:
    """The form in which a data set is there, and its folder; people name that, the one above or the one below it."""
    published = PUBLISHED[name]
    places = [data_folder / folder for folder in published.folders]
    if root is not None:
        places = [root, *(root / folder for folder in published.folders), root.parent]
    for form in published.forms:
        for place in places:
            if form.fits(place):
                return form, place
    get = f"`ffcil data prepare {name}` downloads it, or " if published.download else ""
    raise InputError(f"Data set {name!r} is not in {root or data_folder}: {get}{published.how}.")


def list_published(name: str, root: Path | None, data_folder: Path) -> Listing:
    """Its images, checked against the published numbers: under its name there is no other split."""
    form, place = find_published(name, root, data_folder)
    try:
        listing = form.list_images(place)
    except InputError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError) as error:  # what readers of a broken table come to
        raise InputError(f"{place} is not {name} as published ({error}): get it again.") from error
    found = {"classes": len(listing.class_names)} | {
        part: int(listing.counts(number).sum()) for part, number in (("training images", TRAIN), ("test images", TEST))
    }
    wanted = {"classes": PUBLISHED[name].classes, "training images": form.train, "test images": form.test}
    for what, number in wanted.items():
        if number is not None and found[what] != number:
            raise InputError(
                f"{place} has {found[what]:,} {what}, but {name} as published has {number:,}: get it again, or, if it "
                "is meant to be different, use it under dataset=folder, parquet or csv."
            )
    return listing


def download_published(name: str, data_folder: Path) -> None:
    """Get it into the data folder, where that can be done without a click; started again, it goes on."""
    published = PUBLISHED[name]
    assert published.download is not None
    data_folder.mkdir(parents=True, exist_ok=True)
    try:
        published.download(data_folder)
    except Exception as error:  # torchvision and the hub raise anything, from URLError to their own
        raise InputError(f"{name} could not be downloaded ({error}): try again, or {published.how}.") from error
