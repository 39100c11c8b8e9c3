"""Image files to a store: decoded once, in parallel, and written as they come."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from rich.console import Console
from rich.progress import track
from torch import Tensor

from ffcil.data.cache import cached_folder
from ffcil.errors import InputError

LONGEST = 16
"""times its short side: a longer image is no photograph, and would fill the store"""
_AHEAD = 64  # images that may be decoded before they are written: what bounds the memory
_NAMED = 20  # unreadable images that an error names; it counts the others

Decode = Callable[[Path | bytes], Image.Image]
Stored = tuple[Tensor, Tensor]
"""flat uint8 pixels; int64 [N, 2], height and width of each image"""


class Encoded(NamedTuple):
    """An image as a file holds it."""

    name: str
    """by which a user finds it"""
    content: Path | bytes
    part: int
    """of the data set: 0 for training, 1 for test"""


def upright(content: Path | bytes) -> Image.Image:
    """An image in RGB as a viewer shows it, but for transparency, which is dropped."""
    with Image.open(BytesIO(content) if isinstance(content, bytes) else content) as image:
        turned = ImageOps.exif_transpose(image)
    if turned.mode.startswith("I;16"):  # Pillow would cut its values at 255, not scale them
        turned = Image.fromarray((np.asarray(turned) >> 8).astype(np.uint8))
    if turned.mode == "P" and "transparency" in turned.info:
        turned = turned.convert("RGBA")
    return turned.convert("RGB")


def decode_square(content: Path | bytes, size: int) -> Image.Image:
    """The middle square at `size` pixels."""
    return ImageOps.fit(upright(content), (size, size), Image.Resampling.BILINEAR)


def decode_whole(content: Path | bytes, short_side: int) -> Image.Image:
    """The full frame, its short side at `short_side` pixels."""
    image = upright(content)
    short, long = sorted(image.size)
    if long > LONGEST * short:
        raise ValueError(f"it is more than {LONGEST} times as long as wide")
    width, height = (short_side if side == short else int(short_side * side / short) for side in image.size)
    return image.resize((width, height), Image.Resampling.BICUBIC)


def decoded(
    key: str, images: Callable[[], Iterable[Encoded]], count: int, decode: Decode, planar: bool
) -> tuple[Stored, Stored]:
    """Training and test images, decoded at most once for a `key` and memory-mapped from then on.

    Args:
        images: called when they must be decoded; `count` of them
        planar: whether an image is stored as [3, height, width], or else as [height, width, 3]
    """
    folder = cached_folder(key, lambda draft: _write(draft, images(), count, decode, planar))
    return _mapped(folder, 0), _mapped(folder, 1)


def _write(folder: Path, images: Iterable[Encoded], count: int, decode: Decode, planar: bool) -> None:
    sizes: tuple[list[tuple[int, int]], ...] = ([], [])
    bad = []
    shown = Console(stderr=True)
    with ExitStack() as stack:
        files = [stack.enter_context((folder / f"{part}.pixels").open("wb")) for part in (0, 1)]
        results = track(
            _in_order(images, lambda image: _attempt(image, decode)),
            "Decoding images",
            count,
            console=shown,
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        for image, result in results:
            if isinstance(result, str):
                bad.append(result)
            elif not bad:  # else it would be for nothing
                pixels = np.asarray(result)
                files[image.part].write(np.ascontiguousarray(pixels.transpose(2, 0, 1) if planar else pixels).data)
                sizes[image.part].append((result.height, result.width))
    if bad:
        others = f"; and {len(bad) - _NAMED} more" if len(bad) > _NAMED else ""
        raise InputError(
            f"{len(bad)} image(s) cannot be read, remove or repair them: {'; '.join(bad[:_NAMED])}{others}."
        )
    for part, of_part in enumerate(sizes):
        np.save(folder / f"{part}.sizes.npy", np.array(of_part, np.int64).reshape(-1, 2))


def _attempt(image: Encoded, decode: Decode) -> Image.Image | str:
    """The image, or what is wrong."""
    try:
        return decode(image.content)
    except Exception as error:  # a damaged file can bring a decoder to any of them
        # Pillow names a buffer by its address in memory, which tells nobody anything
        reason = "it is not an image in a known format" if isinstance(error, UnidentifiedImageError) else error
        return f"{image.name} ({reason})"


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


def _mapped(folder: Path, part: int) -> Stored:
    path = folder / f"{part}.pixels"
    # An empty file cannot be mapped. Copy on write: torch has no tensors that may only be read.
    pixels = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.empty(0, np.uint8)
    return torch.from_numpy(pixels), torch.from_numpy(np.load(folder / f"{part}.sizes.npy"))
