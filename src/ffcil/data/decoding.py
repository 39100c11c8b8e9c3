"""Image files to a store: decoded once, in parallel, and written as they come."""

from __future__ import annotations

import itertools
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track

from ffcil.data.cache import cached_folder
from ffcil.data.store import BadImage, Store, StoreDraft, open_store
from ffcil.errors import InputError

LONGEST = 16
"""times its short side: a longer image is no photograph, and would fill the store"""
_AHEAD = 64  # images that may be decoded before they are written: what bounds the memory
_NAMED = 20  # unreadable images that an error names; it counts the others
_SECONDS = 10  # between two lines of progress where there is no terminal

Decode = Callable[[Path | bytes], Image.Image]
Decoded = TypeVar("Decoded")


class Encoded(NamedTuple):
    """An image as a file holds it."""

    name: str
    """by which a user finds it"""
    content: Path | bytes
    part: int
    """of the data set: 0 for training, 1 for test"""


def upright(content: Path | bytes) -> Image.Image:
    """An image of a file as `as_shown` has it."""
    with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
        return as_shown(image)


def as_shown(image: Image.Image) -> Image.Image:
    """An image in RGB as a viewer shows it, but for transparency, which is dropped."""
    turned = ImageOps.exif_transpose(image)
    if turned.mode[0] in "IF":  # Pillow would cut its values at 255, not scale them
        turned = _eight_bits(turned)
    if turned.mode == "P" and "transparency" in turned.info:
        turned = turned.convert("RGBA")
    return turned.convert("RGB")


def _eight_bits(image: Image.Image) -> Image.Image:
    """From whole numbers of 16 bits, which may come in 32, or from numbers in 0 .. 1."""
    values = np.asarray(image)
    most = 1 if image.mode == "F" else 2**16 - 1
    low, high = values.min(), values.max()
    if not (low >= 0 and high <= most):
        raise ValueError(f"its pixels are {low} .. {high}, which mean a grey level only in 0 .. {most}")
    if image.mode == "I" and 0 < high < 256:
        raise ValueError(f"its pixels of 32 bits are {low} .. {high}, a picture of 8 bits or a black one of 16")
    return Image.fromarray((values * 255).round().astype(np.uint8) if most == 1 else (values >> 8).astype(np.uint8))


def decode_square(content: Path | bytes, size: int) -> Image.Image:
    """The middle square at `size` pixels."""
    return middle_square(upright(content), size)


def decode_whole(content: Path | bytes, short_side: int) -> Image.Image:
    """The full frame, its short side at `short_side` pixels."""
    return whole_frame(upright(content), short_side)


def middle_square(image: Image.Image, size: int) -> Image.Image:
    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)


def whole_frame(image: Image.Image, short_side: int) -> Image.Image:
    short, long = sorted(image.size)
    if long > LONGEST * short:
        raise ValueError(f"it is more than {LONGEST} times as long as wide")
    width, height = (short_side if side == short else int(short_side * side / short) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


class UnreadableImages(InputError):
    """Images that cannot be read; `images` has all of them, the message the first few."""

    def __init__(self, images: Sequence[BadImage], remedy: str = "remove or repair them") -> None:
        named = "; ".join(f"{image.name} ({image.reason})" for image in images[:_NAMED])
        others = f"; and {len(images) - _NAMED} more" if len(images) > _NAMED else ""
        super().__init__(f"{len(images)} image(s) cannot be read, {remedy}: {named}{others}.")
        self.images = tuple(images)


def decoded(
    key: str,
    images: Callable[[], Iterable[Encoded]],
    count: int,
    decode: Decode,
    planar: bool,
    skip_bad: bool = False,
) -> Store:
    """Training and test images, decoded at most once for a `key` and memory-mapped from then on.

    Args:
        images: called when they must be decoded; `count` of them
        planar: whether an image is stored as [3, height, width], or else as [height, width, 3]
        skip_bad: leave out what cannot be read, instead of raising `UnreadableImages`
    """

    def write(folder: Path) -> None:
        with StoreDraft(folder) as draft:
            rest = itertools.islice(images(), len(draft), None)
            for image, result in _shown(
                _in_order(rest, lambda image: attempt(image.content, decode)), count, len(draft)
            ):
                if isinstance(result, str):
                    draft.leave_out(image.name, result)
                else:
                    pixels = np.asarray(result)
                    stored = pixels.transpose(2, 0, 1) if planar else pixels
                    draft.add(image.part, stored, result.height, result.width)
            if draft.bad and not skip_bad:
                raise UnreadableImages(draft.bad)
            draft.finish()

    return open_store(cached_folder(key, write))


def unreadable(images: Iterable[Encoded], count: int, decode: Decode) -> list[BadImage]:
    """All images that cannot be decoded; nothing is written."""
    results = _shown(_in_order(images, lambda image: attempt(image.content, decode)), count, 0, "Reading images")
    return [
        BadImage(position, image.name, result)
        for position, (image, result) in enumerate(results)
        if isinstance(result, str)
    ]


def _shown(
    results: Iterable[tuple[Encoded, Image.Image | str]], count: int, done: int, what: str = "Decoding images"
) -> Iterator[tuple[Encoded, Image.Image | str]]:
    """The same, with a bar on a terminal, and elsewhere a line now and then."""
    if sys.stderr.isatty():
        shown = Console(stderr=True)
        yield from track(results, what, count, completed=done, console=shown, transient=True)
        return
    told = time.monotonic()
    for number, result in enumerate(results, done + 1):
        yield result
        if time.monotonic() - told >= _SECONDS:
            print(f"{what}: {number:,} of {count:,}", file=sys.stderr, flush=True)
            told = time.monotonic()


def attempt(content: Path | bytes, decode: Callable[[Path | bytes], Decoded]) -> Decoded | str:
    """The image, or what is wrong with it."""
    try:
        return decode(content)
    except Exception as error:  # a damaged file can bring a decoder to any of them
        # Pillow names a buffer by its address in memory, which tells nobody anything
        reason = "it is not an image in a known format" if isinstance(error, UnidentifiedImageError) else error
        return str(reason)


def _in_order(
    images: Iterable[Encoded], decode: Callable[[Encoded], Image.Image | str]
) -> Iterator[tuple[Encoded, Image.Image | str]]:
    """Every image with its result, in their order, while the next ones are decoded beside it."""
    waiting: deque[tuple[Encoded, Future[Image.Image | str]]] = deque()
    with ThreadPoolExecutor() as pool:  # Pillow decodes without the interpreter's lock
        for image in images:
            waiting.append((image, pool.submit(decode, image)))
            if len(waiting) >= _AHEAD:
                first, result = waiting.popleft()
                yield first, result.result()
        for first, result in waiting:
            yield first, result.result()
