"""Images that users give as files, PIL images, tensors or data sets of torch."""

import itertools
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ffcil.data.decoding import LARGE, UnreadableImages, as_shown, scaled, try_decode
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import DEFAULT_SIZE, readable
from ffcil.data.ragged import Images, RaggedImages
from ffcil.data.store import BadImage
from ffcil.errors import InputError

Picture = str | Path | Image.Image | Tensor
"""A file, a PIL image, or a tensor [1 or 3, H, W] of uint8 or of floats in [0, 1]."""
Frame = Tensor | BadImage
"""Scaled image [height, width, 3], or the reason why it cannot be read."""
REMEDY = "repair them, or skip them with --skip-bad (skip_bad=True)"


def frames(images: Iterable[Picture], size: int, batch: int, skip_bad: bool) -> Iterator[list[Frame]]:
    """Yield batches of images, scaled for a network of input size `size`. Files are read in parallel, those of a batch
    while the caller works on the one before.

    An unreadable file raises `UnreadableImages`, unless `skip_bad` is set.
    """
    if isinstance(images, str | Path | Image.Image | Tensor):
        raise InputError("Images must be given as a list: use [image] for a single image.")

    def read_file(number: int, file: str | Path) -> Frame:
        result = try_decode(Path(file), size)
        return BadImage(number, readable(file), result) if isinstance(result, str) else pixels_of(result)

    def begin(some: Sequence[tuple[int, Picture]]) -> list[Callable[[], Frame]]:
        """Begin to read a batch; the functions wait for its frames."""
        started: list[Callable[[], Frame]] = []
        for number, image in some:
            if not isinstance(image, str | Path):  # PIL images are lazy and may occur twice: not in threads
                started.append(partial(frame_of, image, size, f"Input {number + 1}"))
            elif len(some) == 1:
                started.append(partial(read_file, number, image))
            else:
                started.append(pool.submit(read_file, number, image).result)
        return started

    numbered, pool = enumerate(images), ThreadPoolExecutor()
    try:
        reading = begin(list(itertools.islice(numbered, batch)))
        while reading:
            found = [frame() for frame in reading]
            if (bad := [frame for frame in found if isinstance(frame, BadImage)]) and not skip_bad:
                raise UnreadableImages(bad, REMEDY)
            reading = begin(list(itertools.islice(numbered, batch)))
            yield found
    finally:
        pool.shutdown(cancel_futures=True)


def image_set_of(
    dataset: Dataset[Any], image_size: int = DEFAULT_SIZE, class_names: Sequence[str] | None = None
) -> ImageSet:
    """Read all items of a data set into memory, for a network of input size `image_size`.

    Args:
        dataset: Has a length; an item is (image, label), and further values, such as Avalanche's task label, are
            ignored. An image is a PIL image, or a tensor [1 or 3, H, W] of uint8 or of floats in [0, 1]; a label is an
            integer from 0. Do not use random transforms or normalisation: they are applied later, on the device.
        image_size: Input size of the network in pixels.
        class_names: By default the `classes` of the data set or of its underlying data set, or else the numbers.
    """
    frames: list[Tensor] = []
    labels: list[int] = []
    for row in range(len(dataset)):  # type: ignore[arg-type]
        what = f"Item {row} of the data set"
        image, label = _image_and_label(dataset[row], what)
        frames.append(frame_of(image, image_size, what))
        labels.append(label)
    names = class_names or _classes_of(dataset) or range(1 + max(labels, default=-1))
    if labels and not 0 <= min(labels) <= max(labels) < len(names):
        wrong = min(labels) if min(labels) < 0 else max(labels)
        raise InputError(f"An image has label {wrong}, but there are {len(names)} classes: number the classes from 0.")
    return ImageSet(store_frames(frames, image_size), torch.tensor(labels, dtype=torch.int64), tuple(map(str, names)))


def _image_and_label(item: Any, what: str) -> tuple[Any, int]:
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise InputError(f"{what} is of type {type(item).__name__}: give pairs of an image and a label.")
    image, label = item[:2]
    try:  # the label may be a tensor or an array of one element
        return image, operator.index(label.item() if hasattr(label, "item") else label)
    except (TypeError, ValueError, RuntimeError):
        remedy = "give whole numbers from 0, and the names of the classes as class_names"
        raise InputError(f"{what} has the label {label!r}: {remedy}.") from None


def _classes_of(dataset: Any) -> Sequence[str] | None:
    while not hasattr(dataset, "classes") and hasattr(dataset, "dataset"):  # torch's Subset
        dataset = dataset.dataset
    return getattr(dataset, "classes", None)


def frame_of(image: Any, size: int, what: str) -> Tensor:
    """Scale an image like one from a file: [height, width, 3]. `what` names it in errors."""
    if isinstance(image, Tensor):
        image = _pil(image, what)
    if not isinstance(image, Image.Image):
        raise InputError(f"{what} has an image of type {type(image).__name__}: give PIL images or tensors.")
    try:
        return pixels_of(scaled(as_shown(image), size))
    except ValueError as error:
        raise InputError(f"{what} cannot be used ({error}): convert it to 8 bits per colour, or crop it.") from error


def pixels_of(image: Image.Image) -> Tensor:
    """The pixels of an RGB image, uint8 [height, width, 3]."""
    return torch.from_numpy(np.array(image))


def _pil(image: Tensor, what: str) -> Image.Image:
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise InputError(f"{what} is a tensor {list(image.shape)}: give [1 or 3, height, width].")
    if image.dtype != torch.uint8:
        if not image.is_floating_point() or image.min() < 0 or image.max() > 1:
            raise InputError(f"{what} is {image.dtype} and not in [0, 1]: give uint8, or remove the normalisation.")
        image = (image * 255).round().to(torch.uint8)
    return Image.fromarray(image.expand(3, -1, -1).permute(1, 2, 0).contiguous().cpu().numpy())


def store_frames(frames: Sequence[Tensor], size: int) -> Images:
    """A store of frames for a network of input size `size`."""
    pixels = torch.cat([torch.empty(0, dtype=torch.uint8), *(frame.view(-1) for frame in frames)])
    if size < LARGE:
        return pixels.view(-1, size, size, 3).permute(0, 3, 1, 2).contiguous()
    return RaggedImages.packed(pixels, torch.tensor([frame.shape[:2] for frame in frames]).view(-1, 2).long())
