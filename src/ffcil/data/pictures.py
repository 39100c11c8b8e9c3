"""Pictures without labels, from files or from memory, a batch at a time."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image
from torch import Tensor

from ffcil.data.decoding import UnreadableImages, attempt, upright
from ffcil.data.own_images import readable
from ffcil.data.store import BadImage
from ffcil.data.torch_datasets import frame_of, scaled
from ffcil.errors import InputError

Picture = str | Path | Image.Image | Tensor
"""a file, a PIL image, or a tensor [1 or 3, H, W] that is uint8 or, in [0, 1], floating"""
Frame = Tensor | BadImage
"""[height, width, 3] as stored for a network, or what is wrong with it"""
REMEDY = "repair them, or pass over them with --skip-bad (skip_bad=True)"


def frames(images: Iterable[Picture], size: int, batch: int, skip_bad: bool) -> Iterator[list[Frame]]:
    """As stored for a network whose input has side `size`, `batch` at a time; files are read side by side.

    The first batch with a file that cannot be read is an error, unless `skip_bad`.
    """
    if isinstance(images, str | Path | Image.Image | Tensor):
        raise InputError("Images come as a list, also where there is one: give [image].")

    def of_file(number: int, file: str | Path) -> Frame:
        result = attempt(Path(file), lambda content: scaled(upright(content), size))
        return BadImage(number, readable(file), result) if isinstance(result, str) else result

    numbered = enumerate(images)
    with ThreadPoolExecutor() as pool:
        while some := list(itertools.islice(numbered, batch)):
            files = {n: pool.submit(of_file, n, image) for n, image in some if isinstance(image, str | Path)}
            # a PIL image may be read only now, and may be there twice: one thread
            found = [files[n].result() if n in files else frame_of(image, size, f"Input {n + 1}") for n, image in some]
            if (bad := [frame for frame in found if isinstance(frame, BadImage)]) and not skip_bad:
                raise UnreadableImages(bad, REMEDY)
            yield found
