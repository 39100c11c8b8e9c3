"""Published data sets: description, layouts, split, and download."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from ffcil.config.reading import read_yaml
from ffcil.data.downloading import download_archive, https_only
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
    """Published number of training images; None if it is unknown or uncertain, and therefore not checked."""
    test: int | None
    """Published number of test images; None if it is unknown or uncertain, and therefore not checked."""

    def fits(self, root: Path) -> bool:
        return root.is_dir() and all(any(root.glob(mark)) for mark in self.marks)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts about a data set."""

    about: str
    """Short description."""
    origin: str = "you"
    """Origin of the images and of the split."""
    licence: str = "yours"
    gigabytes: float | None = None
    """Size of the download; None if there is none, or if it is unknown."""
    classes: int | None = None
    """Number of classes; None for the user's own images."""
    image_size: int | None = None
    """Side of all images in pixels; None if sizes differ."""


@dataclass(frozen=True, kw_only=True)
class Published(Facts):
    """A data set with a published split."""

    folders: tuple[str, ...]
    """Folders of the data folder that are searched."""
    forms: tuple[Form, ...]
    """Layouts; the first is the one used in published results of class-incremental learning."""
    how: str
    """Instructions for a manual download."""
    download: Callable[[Path], None] | None = None
    """Function that downloads into the data folder; None if the owners require an agreement or a click."""
    smallest_crop: float = SMALLEST_CROP
    """Smallest area of a training crop, as a fraction of the image, in published runs."""


def _download_torchvision(root: Path, name: str, splits: Sequence[str]) -> None:
    from torchvision import datasets

    source = getattr(datasets, name)
    if getattr(source, "_URL", "").startswith("http:"):  # Food101; its host has HTTPS, too
        source = type(name, (source,), {"_URL": source._URL.replace("http:", "https:", 1)})
    for split in splits:
        source(str(root), split=split, download=True)


def _download_from_hub(root: Path, folder: str, repository: str, revision: str, files: Sequence[str]) -> None:
    from huggingface_hub import snapshot_download

    place = root / folder
    snapshot_download(repository, repo_type="dataset", revision=revision, allow_patterns=list(files), local_dir=place)


_PILOT = "https://github.com/LAMDA-CL/LAMDA-PILOT#-datasets"


def _imagenet100(train: int | None, test: int | None) -> dict[str, Any]:
    return {
        "folders": ("imagenet100", "imagenet"),
        "forms": (Form(("train", "val"), list_imagenet100, train, test),),
        "smallest_crop": 0.08,
    }


def _cars(train: int | None, test: int | None) -> dict[str, Any]:
    parquet = ("data/train-*.parquet", "data/test-*.parquet")
    repository, revision = "tanganke/stanford_cars", "9abf6cf7d6dfa7b95152a0d6e791ea9435b47a40"
    return {
        "folders": ("cars", "."),
        "forms": (
            Form(("train", "test"), list_train_test, train, test),
            Form(("stanford_cars/devkit",), list_torchvision("StanfordCars", ("train",)), train, test),
            Form(parquet, lambda root: list_parquet(root / "data"), train, test),
        ),
        "download": partial(_download_from_hub, folder="cars", repository=repository, revision=revision, files=parquet),
    }


def _tiny_imagenet(train: int | None, test: int | None) -> dict[str, Any]:
    url = "https://cs231n.stanford.edu/tiny-imagenet-200.zip"
    sha256 = "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821"
    return {
        "folders": ("tiny-imagenet-200", "tiny-imagenet"),
        "forms": (Form(("wnids.txt", "train", "val/val_annotations.txt"), list_tiny_imagenet, train, test),),
        "download": partial(download_archive, url=url, sha256=sha256),
        "image_size": 64,
    }


def _from_pilot(name: str, origin: str, folders: Sequence[str], train: int, test: int | None) -> dict[str, Any]:
    """Fields of a data set with train/ and test/ that the toolbox PILOT distributes."""
    forms = [Form(("train", "test"), list_train_test, train, test)]
    how = f"download the archive linked at {_PILOT}, unpack it, and give the folder of train/ and test/ with --data"
    if name == "cub200":
        forms.append(Form(("images.txt", "train_test_split.txt"), list_cub, 5_994, 5_794))
        how += "; the authors' split of 5,994 and 5,794 images (CUB_200_2011.tgz, unpacked) is supported too"
    return {
        "folders": tuple(folders),
        "forms": tuple(forms),
        "how": how,
        "origin": f"{origin}; split: PILOT ({_PILOT})",
    }


def _from_torchvision(origin: str, own: dict[str, Any], train: int, test: int) -> dict[str, Any]:
    """Fields of a data set that torchvision lists and downloads; the training set may consist of several splits."""
    name, splits, mark = own["name"], tuple(own["train"]), own["mark"]
    return {
        "folders": (".",),
        "forms": (Form((mark,), list_torchvision(name, splits), train, test),),
        "how": f"unpack the archives of {origin} like {name} of torchvision ({mark}), and give their folder with "
        "--data",
        "download": partial(_download_torchvision, name=name, splits=(*splits, "test")),
    }


_OTHERS = {"imagenet100": _imagenet100, "cars": _cars, "tiny-imagenet": _tiny_imagenet}


def _published(name: str, facts: dict[str, Any]) -> Published:
    """A data set from its entry in published.yaml."""
    split = (facts.pop("train"), facts.pop("test"))
    folders, torchvision = facts.pop("pilot", None), facts.pop("torchvision", None)
    if folders:
        facts |= _from_pilot(name, facts["origin"], folders, *split)
    elif torchvision:
        facts |= _from_torchvision(facts["origin"], torchvision, *split)
    else:
        facts |= _OTHERS[name](*split)
    return Published(**facts)


_TABLE = read_yaml("published.yaml", (files("ffcil.data") / "published.yaml").read_text(encoding="utf-8"))
PUBLISHED = {name: _published(name, facts) for name, facts in _TABLE.items()}


def find_published(name: str, root: Path | None, data_folder: Path) -> tuple[Form, Path]:
    """Find the layout of a data set and its folder. Users may give this folder, its parent, or a folder in it."""
    published = PUBLISHED[name]
    # the parent comes last, because it may contain train/ and test/ of another data set
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
    comparisons = {
        "classes": (len(listing.class_names), PUBLISHED[name].classes),
        "training images": (int(listing.counts(TRAIN).sum()), form.train),
        "test images": (int(listing.counts(TEST).sum()), form.test),
    }
    for what, (found, published) in comparisons.items():
        if published is not None and found != published:
            raise InputError(
                f"{place} has {found:,} {what}, but {name} as published has {published:,}: download it again, or, "
                "if the difference is intended, use it with dataset=folder, parquet or csv."
            )
    return listing


def download_published(name: str, data_folder: Path) -> None:
    """Download a data set into the data folder; an interrupted download is resumed."""
    published = PUBLISHED[name]
    assert published.download is not None
    data_folder.mkdir(parents=True, exist_ok=True)
    try:
        with https_only():
            published.download(data_folder)
    except Exception as error:  # torchvision and the hub raise exceptions of many types
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{name} could not be downloaded ({reason}): try again, or {published.how}.") from error
