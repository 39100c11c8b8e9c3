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
from ffcil.data.resized_crop import SMALLEST_CROP
from ffcil.data.tables import list_parquet
from ffcil.errors import InputError


@dataclass(frozen=True)
class Form:
    """Files of a certain shape, and the split that they hold."""

    marks: tuple[str, ...]
    """files or folders below the root by which the form is known; `*` stands for any letters"""
    list_images: Callable[[Path], Listing]
    train: int | None
    """training images as published; None: not printed, or not by all alike, and so not checked"""
    test: int | None

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
    smallest_crop: float = SMALLEST_CROP
    """area of a training box as a share of the image's, in published runs on it"""


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
    about: str,
    *,
    origin: str,
    licence: str,
    classes: int,
    train: int,
    test: int | None,
    folders: tuple[str, ...],
    gigabytes: float | None = None,
) -> Published:
    """One of the sets with train/ and test/ that the toolbox PILOT hands on."""
    return Published(
        about=about,
        origin=f"{origin}; split: PILOT ({_PILOT})",
        licence=licence,
        gigabytes=gigabytes,
        classes=classes,
        folders=folders,
        forms=(Form(("train", "test"), list_train_test, train, test),),
        how=f"get the archive linked at {_PILOT}, unpack it, and name the folder of train/ and test/ with --data",
    )


def _from_torchvision(
    name: str,
    about: str,
    *,
    origin: str,
    licence: str,
    classes: int,
    train: dict[str, int],
    test: int,
    mark: str,
    gigabytes: float,
) -> Published:
    """A set that torchvision lists and downloads; the training set may be several of its splits."""
    return Published(
        about=about,
        origin=origin,
        licence=licence,
        gigabytes=gigabytes,
        classes=classes,
        folders=(".",),
        forms=(Form((mark,), list_torchvision(name, tuple(train)), sum(train.values()), test),),
        how=f"unpack the archives of {origin} as torchvision's {name} does ({mark}), and name their folder with --data",
        download=_torchvision(name, *train, "test"),
    )


_CUB = _from_pilot(
    "CUB-200-2011: birds",
    origin="https://www.vision.caltech.edu/datasets/cub_200_2011",
    licence="research and teaching, not commerce; the images belong to their photographers",
    classes=200,
    train=9_430,
    test=2_358,
    folders=("cub200", "cub", "CUB_200_2011"),
    gigabytes=1.2,
)

PUBLISHED: dict[str, Published] = {
    "imagenet100": Published(
        about="ImageNet-100: the first 100 of the 1,000 classes in the order of seed 1993",
        origin="https://image-net.org (ILSVRC 2012); classes: https://github.com/LAMDA-CL/PyCIL",
        licence=_IMAGENET,
        gigabytes=144.0,
        classes=100,
        folders=("imagenet100", "imagenet"),
        forms=(Form(("train", "val"), list_imagenet100, None, 5_000),),
        how="register at https://image-net.org, unpack ILSVRC 2012 (or these 100 classes) into train/ and val/ with "
        "one folder a class, and name their folder with --data; another list of classes goes into its classes.txt",
        smallest_crop=0.08,
    ),
    "cars": Published(
        about="Stanford Cars: makes, models and years",
        origin="Krause et al. 2013; their page is gone, mirror: https://huggingface.co/datasets/tanganke/stanford_cars",
        licence="research, not commerce",
        gigabytes=2.0,
        classes=196,
        folders=("cars", "."),
        forms=(
            Form(("train", "test"), list_train_test, 8_144, 8_041),
            Form(("stanford_cars/devkit",), list_torchvision("StanfordCars", ("train",)), 8_144, 8_041),
            Form(
                ("data/train-*.parquet", "data/test-*.parquet"), lambda root: list_parquet(root / "data"), 8_144, 8_041
            ),
        ),
        how="get data/train-* and data/test-* of the mirror, or train/ and test/ with one folder a class, or the files "
        "of torchvision's StanfordCars, and name their folder with --data",
        download=_hub(
            "cars",
            "tanganke/stanford_cars",
            "9abf6cf7d6dfa7b95152a0d6e791ea9435b47a40",
            "data/train-*.parquet",
            "data/test-*.parquet",
        ),
    ),
    "imagenet-a": _from_pilot(
        "ImageNet-A: photographs that networks get wrong",
        origin="https://github.com/hendrycks/natural-adv-examples",
        licence="MIT for the collection; the images belong to their owners",
        classes=200,
        train=5_981,
        test=1_519,
        folders=("imagenet-a",),
        gigabytes=0.7,
    ),
    "imagenet-r": _from_pilot(
        "ImageNet-R: paintings, toys, sketches and other renditions",
        origin="https://github.com/hendrycks/imagenet-r",
        licence="MIT for the collection; the images belong to their owners",
        classes=200,
        train=24_000,
        test=6_000,
        folders=("imagenet-r",),
        gigabytes=2.2,
    ),
    "cub200": replace(
        _CUB,
        forms=(*_CUB.forms, Form(("images.txt", "train_test_split.txt"), list_cub, 5_994, 5_794)),
        how=f"{_CUB.how}; the authors' own split of 5,994 and 5,794 images (CUB_200_2011.tgz, unpacked) is read too",
    ),
    "tiny-imagenet": Published(
        about="Tiny ImageNet: 64 x 64 pixels",
        origin="http://cs231n.stanford.edu; its validation images are the test set",
        licence=_IMAGENET,
        gigabytes=0.25,
        classes=200,
        folders=("tiny-imagenet-200", "tiny-imagenet"),
        forms=(Form(("wnids.txt", "train", "val/val_annotations.txt"), list_tiny_imagenet, 100_000, 10_000),),
        how="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and name its folder with --data",
        download=_archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de"),
        image_size=64,
    ),
    "omnibenchmark": _from_pilot(
        "OmniBenchmark: 300 classes of many realms",
        origin="https://zhangyuanhan-ai.github.io/OmniBenchmark",
        licence="as its page says",
        classes=300,
        train=89_697,
        test=None,  # 5,985 in some tables, 5,983 in others
        folders=("omnibenchmark",),
    ),
    "vtab": _from_pilot(
        "VTAB: 10 classes each of five data sets (aerial photographs, textures, pets, satellite images, flowers)",
        origin="https://google-research.github.io/task_adaptation",
        licence="each data set's own",
        classes=50,
        train=1_796,
        test=8_619,
        folders=("vtab-cil/vtab", "vtab"),
    ),
    "objectnet": _from_pilot(
        "ObjectNet: things at home in odd poses",
        origin="https://objectnet.dev",
        licence="CC BY 4.0 with two conditions, one of which forbids to tune a model's parameters on it",
        classes=200,
        train=26_509,
        test=6_628,
        folders=("objectnet",),
    ),
    "food101": _from_torchvision(
        "Food101",
        "Food-101: dishes",
        origin="https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101",
        licence="scientific use; the images belong to Foodspotting's users",
        classes=101,
        train={"train": 75_750},
        test=25_250,
        mark="food-101/meta",
        gigabytes=5.0,
    ),
    "flowers102": _from_torchvision(
        "Flowers102",
        "Oxford Flowers-102; training and validation images are the training set",
        origin="https://www.robots.ox.ac.uk/~vgg/data/flowers/102",
        licence="not stated",
        classes=102,
        train={"train": 1_020, "val": 1_020},
        test=6_149,
        mark="flowers-102/setid.mat",
        gigabytes=0.35,
    ),
    "aircraft": _from_torchvision(
        "FGVCAircraft",
        "FGVC-Aircraft: variants; training and validation images are the training set",
        origin="https://www.robots.ox.ac.uk/~vgg/data/fgvc-aircraft",
        licence="research, not commerce",
        classes=100,
        train={"trainval": 6_667},
        test=3_333,
        mark="fgvc-aircraft-2013b/data",
        gigabytes=2.8,
    ),
    "gtsrb": _from_torchvision(
        "GTSRB",
        "GTSRB: German traffic signs",
        origin="https://benchmark.ini.rub.de",
        licence="not stated",
        classes=43,
        train={"train": 26_640},
        test=12_630,
        mark="gtsrb/GTSRB/Training",
        gigabytes=0.28,
    ),
}


# --- finding and listing --------------------------------------------------------------------------------------------


def find_published(name: str, root: Path | None, data_folder: Path) -> tuple[Form, Path]:
    """The form in which a data set is there, and its folder; people name that, the one above or the one below it."""
    published = PUBLISHED[name]
    # Its own folder comes before the one above, in which there may be other people's train/ and test/.
    places = [(root or data_folder) / folder for folder in published.folders]
    if root is not None:
        places += [root, *([root.parent] if root.is_dir() else [])]
    for place in places:
        for form in published.forms:
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
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{name} could not be downloaded ({reason}): try again, or {published.how}.") from error
