"""Overview of a data set: images per class, imbalance, and a sheet of images."""

from collections.abc import Sequence
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from ffcil.data.image_set import ImageSet
from ffcil.data.sources import DataSet
from ffcil.errors import unknown

SIDE = 96
"""Side of an image on a sheet, in pixels."""
ACROSS = 10
"""Number of images in a row."""
_GAP, _NAME = 4, 18  # pixels between images, and for the name of a class


def describe(data: DataSet) -> dict[str, Any]:
    """Number of images per class, and their imbalance."""
    train, test = data.train.counts(), data.test.counts()
    names = data.train.class_names
    smallest, largest = int(train.argmin()), int(train.argmax())
    return {
        "classes": len(names),
        "train_images": int(train.sum()),
        "test_images": int(test.sum()),
        "smallest": {"class": names[smallest], "train_images": int(train[smallest])},
        "largest": {"class": names[largest], "train_images": int(train[largest])},
        "imbalance": float(train.max() / train.min()) if train.min() else None,
        "without_test_images": without_test_images(data),
        "per_class": [
            {"class": name, "train_images": of_train, "test_images": of_test}
            for name, of_train, of_test in zip(names, train.tolist(), test.tolist(), strict=True)
        ],
    }


def without_test_images(data: DataSet) -> list[str]:
    """Classes without test images, whose accuracy is unknown."""
    return [name for name, count in zip(data.test.class_names, data.test.counts().tolist(), strict=True) if not count]


def contact_sheet(images: ImageSet, classes: Sequence[str], rows: int = 1) -> Image.Image:
    """A sheet with up to `rows` rows of images per class, below the name of the class."""
    bands = [_band(images, name, rows) for name in classes]
    sheet = Image.new("RGB", (_GAP + ACROSS * (SIDE + _GAP), sum(band.height for band in bands)), "white")
    top = 0
    for band in bands:
        sheet.paste(band, (0, top))
        top += band.height
    return sheet


def some_classes(names: Sequence[str], most: int) -> list[str]:
    """Up to `most` names, evenly spaced in the list."""
    picked = torch.linspace(0, len(names) - 1, min(most, len(names))).round().long()
    return [names[k] for k in picked.tolist()]


def _band(images: ImageSet, name: str, rows: int) -> Image.Image:
    """The first images of one class, below its name."""
    if name not in images.class_names:
        raise unknown("class", name, images.class_names)
    found = (images.labels == images.class_names.index(name)).nonzero().flatten()
    shown = found[: rows * ACROSS].tolist()
    high = -(-max(len(shown), 1) // ACROSS)
    band = Image.new("RGB", (_GAP + ACROSS * (SIDE + _GAP), _NAME + high * (SIDE + _GAP)), "white")
    ImageDraw.Draw(band).text((_GAP, 3), f"{name}  ({len(found)})", "black", font=ImageFont.load_default(12))
    for position, row in enumerate(shown):
        down, across = divmod(position, ACROSS)
        band.paste(_thumbnail(images, row), (_GAP + across * (SIDE + _GAP), _NAME + down * (SIDE + _GAP)))
    return band


def _thumbnail(images: ImageSet, row: int) -> Image.Image:
    """The whole image in a grey square."""
    pixels = images.images[row] if isinstance(images.images, Tensor) else images.images.image(row)
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    return ImageOps.pad(image, (SIDE, SIDE), color=(210, 210, 210))
