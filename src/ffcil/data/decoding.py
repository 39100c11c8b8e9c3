"""Decoding of image files into a store, in parallel."""

import hashlib
import itertools
import os
import stat
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from ffcil.data.budget import Budget
from ffcil.data.cache import cached
from ffcil.data.store import BadImage, Store, StoreDraft, open_store
from ffcil.errors import InputError

LARGE = 96
"""Smallest side of the network's input for which full frames are stored, and augmented like ImageNet. For smaller
inputs, centre squares are stored, and augmented like CIFAR."""
LONGEST = 16
"""Largest ratio of the long to the short side of an image. Longer images are rejected as unreadable."""
IN_FLIGHT = Budget(192_000_000)
"""Number of pixels that are decoded at a time: sixteen photographs of 12 megapixels. A pixel takes 4 to 12 bytes."""
_AHEAD = 64  # images that are decoded before they are written; bounds the memory
_NAMED = 20  # unreadable images that an error lists by name
_SECONDS = 10  # between two lines of progress without a terminal


class Encoded(NamedTuple):
    """An encoded image."""

    name: str
    """Name that a user recognises, such as its path."""
    content: Path | bytes
    """The file of the image, or its content."""
    part: int
    """Part of the data set: 0 for training, 1 for test."""


@cache
def image_formats() -> tuple[str, ...]:
    """Prepare Pillow and return the formats that are read: all but EPS, for which Pillow starts Ghostscript."""
    Image.preinit()  # the common formats come first
    Image.init()
    # The C library returns large blocks to the system. Small ones would stay with each thread that decoded an image.
    Image.core.set_block_size(2**26)  # type: ignore[attr-defined]
    return tuple(name for name in Image.ID if name != "EPS")


def decode(content: Path | bytes, size: int) -> Image.Image:
    """Decode an image and scale it for input size `size`. The pixels of all threads together stay within a budget."""
    with ExitStack() as stack:
        file = BytesIO(content) if isinstance(content, bytes) else stack.enter_context(_open_regular(content))
        image = stack.enter_context(Image.open(file, formats=image_formats()))
        stack.enter_context(IN_FLIGHT.take(image.width * image.height))
        ImageOps.exif_transpose(image, in_place=True)
        return scaled(_rgb(image), size)


def _open_regular(path: Path) -> BinaryIO:
    """Open a file, but not a pipe or a device, whose content may never come or never end."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # without O_NONBLOCK, a pipe would wait for its writer
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError("it is not a regular file")
    return os.fdopen(handle, "rb")


def as_shown(image: Image.Image) -> Image.Image:
    """A copy of an image in RGB with the orientation in which viewers show it. Transparency is dropped."""
    return _rgb(ImageOps.exif_transpose(image))


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode[0] in "IF":  # Pillow would clip values at 255 instead of scaling them
        image = _eight_bits(image)
    if image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == "RGB" else image.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """Convert integers of 16 bits (possibly stored in 32) or floats in 0 .. 1 to 8 bits."""
    values = np.asarray(image)
    most = 1 if image.mode == "F" else 2**16 - 1
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= most):
        raise ValueError(f"its pixels are in {low} .. {high}, not in 0 .. {most}")
    if image.mode == "I" and 0 < high < 256:
        raise ValueError(f"its pixels of 32 bits are in {low} .. {high}, which may mean 8 or 16 bits")
    return Image.fromarray((values * 255).round().astype(np.uint8) if most == 1 else (values >> 8).astype(np.uint8))


def short_side_for(size: int) -> int:
    """Short side of the stored frames for input size `size`. Test images are the central 224 of 256 pixels, or the same
    fraction."""
    return round(size * 256 / 224)


def scaled(image: Image.Image, size: int) -> Image.Image:
    """Scale an image for a network of input size `size`: its centre square or, for large sizes, the full frame."""
    if size < LARGE:
        return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
    short, long = sorted(image.size)
    if long > LONGEST * short:
        raise ValueError(f"its long side is more than {LONGEST} times its short side")
    short_side = short_side_for(size)
    width, height = (short_side if side == short else int(short_side * side / short) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


class UnreadableImages(InputError):
    """Images that cannot be read. `images` lists all of them, the message only the first few."""

    def __init__(self, images: Sequence[BadImage], remedy: str = "remove or repair them") -> None:
        named = "; ".join(f"{image.name} ({image.reason})" for image in images[:_NAMED])
        others = f"; and {len(images) - _NAMED} more" if len(images) > _NAMED else ""
        super().__init__(f"{len(images)} image(s) cannot be read, {remedy}: {named}{others}.")
        self.images = tuple(images)


def decode_to_store(
    key: str, images: Callable[[], Iterable[Encoded]], count: int, size: int, skip_bad: bool = False
) -> Store:
    """The memory-mapped store of training and test images, which are decoded at most once per `key`.

    Centre squares are stored as [3, height, width], full frames as [height, width, 3].

    Args:
        images: Returns `count` images. It is called only if they must be decoded.
        size: Input size of the network.
        skip_bad: Whether unreadable images are left out. Otherwise they are an error.
    """

    def write(folder: Path) -> None:
        with closing(StoreDraft(folder)) as draft:
            rest = itertools.islice(images(), len(draft), None)
            for image, result in _with_progress(_in_order(rest, size), count, len(draft)):
                if isinstance(result, str):
                    draft.leave_out(image.name, result)
                else:
                    pixels = np.asarray(result)
                    stored = pixels.transpose(2, 0, 1) if size < LARGE else pixels
                    draft.add(image.part, stored, result.height, result.width)
            if draft.bad and not skip_bad:
                raise UnreadableImages(draft.bad)
            draft.finish()

    return cached(key, write, open_store)


def read_all(images: Iterable[Encoded], count: int, size: int) -> Iterator[BadImage | bytes]:
    """Decode all images for input size `size`. Yields a digest of the pixels of each, or why it cannot be decoded."""
    for position, (image, result) in enumerate(_with_progress(_in_order(images, size), count, 0, "Reading images")):
        if isinstance(result, str):
            yield BadImage(position, image.name, result)
        else:
            yield hashlib.blake2b(repr(result.size).encode() + result.tobytes(), digest_size=16).digest()


def _with_progress(
    results: Iterable[tuple[Encoded, Image.Image | str]], count: int, done: int, what: str = "Decoding images"
) -> Iterator[tuple[Encoded, Image.Image | str]]:
    """Yield the results and report progress: a bar in a terminal, otherwise a line every few seconds."""
    if sys.stderr.isatty():
        yield from track(results, what, count, completed=done, console=Console(stderr=True), transient=True)
        return
    reported = time.monotonic()
    for number, result in enumerate(results, done + 1):
        yield result
        if time.monotonic() - reported >= _SECONDS:
            print(f"{what}: {number:,} of {count:,}", file=sys.stderr, flush=True)
            reported = time.monotonic()


def try_decode(content: Path | bytes, size: int) -> Image.Image | str:
    """The decoded image, scaled for input size `size`, or the reason why it cannot be decoded."""
    try:
        return decode(content, size)
    except UnidentifiedImageError:
        return "its format is unknown"
    except Exception as error:  # decoders raise exceptions of any type for damaged files
        return str(error)


def _in_order(images: Iterable[Encoded], size: int) -> Iterator[tuple[Encoded, Image.Image | str]]:
    """Decode images in threads and yield them with their results in order."""
    waiting: deque[tuple[Encoded, Future[Image.Image | str]]] = deque()
    with ThreadPoolExecutor() as pool:  # Pillow releases the interpreter lock while it decodes
        for image in images:
            waiting.append((image, pool.submit(try_decode, image.content, size)))
            if len(waiting) >= _AHEAD:
                first, result = waiting.popleft()
                yield first, result.result()
        for first, result in waiting:
            yield first, result.result()
