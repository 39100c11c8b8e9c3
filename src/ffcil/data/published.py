"""Published data sets: description, layouts, split, and download."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ffcil.data.layouts import list_cub, list_imagenet100, list_tiny_imagenet, list_torchvision, list_train_test
from ffcil.data.own_images import TEST, TRAIN, Listing
from ffcil.data.resized_crop import SMALLEST_CROP
from ffcil.data.tables import list_parquet
from ffcil.errors import InputError


@dataclass(frozen=True)
class Form:
    """A layout of files, and the split that they contain."""

    marks: tuple[str, ...]
    """Glob patterns of files or folders that identify the layout."""
    list_images: Callable[[Path], Listing]
    train: int | None
    """Published number of training images; None if unknown or uncertain, and therefore not checked."""
    test: int | None
    """Published number of test images; None like above."""

    def fits(self, root: Path) -> bool:
        return root.is_dir() and all(any(root.glob(mark)) for mark in self.marks)


@dataclass(frozen=True)
class Published:
    """A data set with a published split."""

    about: str
    origin: str
    """Origin of the images and of the split."""
    licence: str
    gigabytes: float | None
    """Size of the download; None if unknown."""
    classes: int
    folders: tuple[str, ...]
    """Folders of the data folder that are searched."""
    forms: tuple[Form, ...]
    """Layouts; the first is the one used in published results of class-incremental learning."""
    how: str
    """Instructions for a manual download."""
    download: Callable[[Path], None] | None = None
    """Function that downloads into the data folder; None if the owners require an agreement or a click."""
    image_size: int | None = None
    """Side of all images in pixels; None if sizes differ."""
    smallest_crop: float = SMALLEST_CROP
    """Smallest area of a training crop, as a fraction of the image, in published runs."""


# --- downloads ------------------------------------------------------------------------------------------------------


def _download_torchvision(root: Path, name: str, splits: Sequence[str]) -> None:
    from torchvision import datasets

    for split in splits:
        getattr(datasets, name)(str(root), split=split, download=True)


def _download_archive(root: Path, url: str, md5: str) -> None:
    from torchvision.datasets.utils import download_and_extract_archive

    download_and_extract_archive(url, str(root), md5=md5)


def _download_from_hub(root: Path, folder: str, repository: str, revision: str, files: Sequence[str]) -> None:
    from huggingface_hub import snapshot_download

    place = root / folder
    snapshot_download(repository, repo_type="dataset", revision=revision, allow_patterns=list(files), local_dir=place)


# --- the table ------------------------------------------------------------------------------------------------------

_IMAGENET = "terms of ImageNet: research and teaching, non-commercial"
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
    """A data set with train/ and test/ that the toolbox PILOT distributes."""
    return Published(
        about=about,
        origin=f"{origin}; split: PILOT ({_PILOT})",
        licence=licence,
        gigabytes=gigabytes,
        classes=classes,
        folders=folders,
        forms=(Form(("train", "test"), list_train_test, train, test),),
        how=f"download the archive linked at {_PILOT}, unpack it, and give the folder of train/ and test/ with --data",
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
    """A data set that torchvision lists and downloads; the training set may consist of several splits."""
    return Published(
        about=about,
        origin=origin,
        licence=licence,
        gigabytes=gigabytes,
        classes=classes,
        folders=(".",),
        forms=(Form((mark,), list_torchvision(name, tuple(train)), sum(train.values()), test),),
        how=f"unpack the archives of {origin} like {name} of torchvision ({mark}), and give their folder with --data",
        download=partial(_download_torchvision, name=name, splits=(*train, "test")),
    )


_CUB = _from_pilot(
    "CUB-200-2011: birds",
    origin="https://www.vision.caltech.edu/datasets/cub_200_2011",
    licence="research and teaching, non-commercial; the images belong to their photographers",
    classes=200,
    train=9_430,
    test=2_358,
    folders=("cub200", "cub", "CUB_200_2011"),
    gigabytes=1.2,
)

_CARS_PARQUET = ("data/train-*.parquet", "data/test-*.parquet")

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
        "one folder per class, and give their folder with --data; write other classes into its classes.txt",
        smallest_crop=0.08,
    ),
    "cars": Published(
        about="Stanford Cars: makes, models and years",
        origin="Krause et al. 2013; the original page is offline, mirror: https://huggingface.co/datasets/tanganke/stanford_cars",
        licence="research, non-commercial",
        gigabytes=2.0,
        classes=196,
        folders=("cars", "."),
        forms=(
            Form(("train", "test"), list_train_test, 8_144, 8_041),
            Form(("stanford_cars/devkit",), list_torchvision("StanfordCars", ("train",)), 8_144, 8_041),
            Form(_CARS_PARQUET, lambda root: list_parquet(root / "data"), 8_144, 8_041),
        ),
        how="download data/train-* and data/test-* of the mirror, or train/ and test/ with one folder per class, or "
        "the files of torchvision's StanfordCars, and give their folder with --data",
        download=partial(
            _download_from_hub,
            folder="cars",
            repository="tanganke/stanford_cars",
            revision="9abf6cf7d6dfa7b95152a0d6e791ea9435b47a40",
            files=_CARS_PARQUET,
        ),
    ),
    "imagenet-a": _from_pilot(
        "ImageNet-A: photographs that networks misclassify",
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
        how=f"{_CUB.how}; the authors' split of 5,994 and 5,794 images (CUB_200_2011.tgz, unpacked) is supported too",
    ),
    "tiny-imagenet": Published(
        about="Tiny ImageNet: 64 x 64 pixels",
        origin="http://cs231n.stanford.edu; its validation images are the test set",
        licence=_IMAGENET,
        gigabytes=0.25,
        classes=200,
        folders=("tiny-imagenet-200", "tiny-imagenet"),
        forms=(Form(("wnids.txt", "train", "val/val_annotations.txt"), list_tiny_imagenet, 100_000, 10_000),),
        how="unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip and give its folder with --data",
        download=partial(
            _download_archive,
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
        ),
        image_size=64,
    ),
    "omnibenchmark": _from_pilot(
        "OmniBenchmark: 300 classes of many realms",
        origin="https://zhangyuanhan-ai.github.io/OmniBenchmark",
        licence="see its page",
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
        "ObjectNet: household objects in unusual poses",
        origin="https://objectnet.dev",
        licence="CC BY 4.0 with two conditions, one of which forbids training a model on it",
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
        licence="research, non-commercial",
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
    """Find the layout of a data set and its folder. Users may give this folder, its parent, or a folder in it."""
    published = PUBLISHED[name]
    # The parent comes last, because it may contain train/ and test/ of another data set.
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
    """List the images of a data set, and check their number against the published split."""
    form, place = find_published(name, root, data_folder)
    try:
        listing = form.list_images(place)
    except InputError:
        raise
    except (OSError, RuntimeError, LookupError, ValueError) as error:  # errors of readers of damaged tables
        raise InputError(f"{place} is not {name} as published ({error}): download it again.") from error
    found = {"classes": len(listing.class_names)} | {
        part: int(listing.counts(number).sum()) for part, number in (("training images", TRAIN), ("test images", TEST))
    }
    wanted = {"classes": PUBLISHED[name].classes, "training images": form.train, "test images": form.test}
    for what, number in wanted.items():
        if number is not None and found[what] != number:
            raise InputError(
                f"{place} has {found[what]:,} {what}, but {name} as published has {number:,}: download it again, or, "
                "if the difference is intended, use it with dataset=folder, parquet or csv."
            )
    return listing


def download_published(name: str, data_folder: Path) -> None:
    """Download a data set into the data folder; an interrupted download is resumed."""
    published = PUBLISHED[name]
    assert published.download is not None
    data_folder.mkdir(parents=True, exist_ok=True)
    try:
        published.download(data_folder)
    except Exception as error:  # torchvision and the hub raise exceptions of many types
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{name} could not be downloaded ({reason}): try again, or {published.how}.") from error
