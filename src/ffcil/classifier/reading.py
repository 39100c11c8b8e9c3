"""Labelled images in all forms in which users give them to a classifier."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffcil.data.decoding import UnreadableImages
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import TRAIN, Listing
from ffcil.data.pictures import REMEDY, image_set_of, store_frames
from ffcil.data.ragged import Images, RaggedImages
from ffcil.data.sources import list_own
from ffcil.errors import InputError

Labelled = str | Path | ImageSet | Dataset[Any]
"""A folder of class folders, a Parquet or CSV file, an `ImageSet`, or any map-style data set of (image, label)."""


def read_labelled(
    images: Labelled, size: int, allow_outside: bool = False, skip_bad: bool = False
) -> tuple[ImageSet, ImageSet]:
    """Read the training images and the test images for an input of `size` pixels: the same images if there is no split.

    With `allow_outside`, a table may name files outside its own folder. With `skip_bad`, files that cannot be read are
    skipped, now and whenever these files are read again."""
    if isinstance(images, str | Path):
        listing = _listed(images)
        try:
            train, test = listing.load(size, skip_bad, allow_outside)
        except UnreadableImages as error:
            raise UnreadableImages(error.images, REMEDY) from error
        gone = (train.counts() == 0).numpy() & (listing.counts(TRAIN) > 0)
        if gone.any():
            name = listing.class_names[int(gone.argmax())]
            raise InputError(f"No image of class {name!r} can be read: repair them, or remove the class.")
        return train, train if listing.random_split else test
    read = images if isinstance(images, ImageSet) else image_set_of(images, size)
    _check_form(read.images, size)
    used = read.counts().nonzero().flatten().tolist()
    if len(used) == read.classes and not (read.labels < 0).any():
        return read, read
    # a part of a larger set: only the classes that occur count
    position = torch.full((read.classes + 1,), -1)
    position[used] = torch.arange(len(used))
    own = replace(read, labels=position.to(read.labels.device)[read.labels])
    rows = (own.labels >= 0).nonzero().flatten()
    part = replace(own.subset(rows), class_names=tuple(read.class_names[k] for k in used))
    return part, part


def _check_form(images: Images, size: int) -> None:
    expected = store_frames([], size)
    if isinstance(images, Tensor) and isinstance(expected, Tensor) and images.shape[2:] == expected.shape[2:]:
        return
    if isinstance(images, RaggedImages) and isinstance(expected, RaggedImages):
        return
    raise InputError(
        f"The ImageSet is not stored for an input of {size} pixels: make it with `image_set_of` for that size."
    )


def _listed(images: str | Path) -> Listing:
    return list_own(Path(images).expanduser()).undivided()


def skipped(images: str | Path, size: int) -> list[str]:
    """Names of the images that `read_labelled` skipped when it read these files for an input of `size` pixels."""
    return [image.name for image in _listed(images).left_out(size)]


def names_read(images: str | Path, size: int) -> list[str]:
    """Names of the training images that `read_labelled` returned, in their order."""
    listing = _listed(images)
    return listing.without(listing.left_out(size)).names_of(TRAIN)


def never_learned(images: Labelled, found: Tensor, size: int) -> InputError:
    """The error for images to correct that were never learned, with the name of the first one if it is a file."""
    missing = (~found).nonzero().flatten().tolist()
    rest = "leave them out, or learn them"
    if not isinstance(images, str | Path):
        return InputError(f"{len(missing)} of {len(found)} images were never learned: {rest}.")
    name = names_read(images, size)[missing[0]]
    return InputError(f"{len(missing)} of {len(found)} images were never learned, such as {name}: {rest}.")
