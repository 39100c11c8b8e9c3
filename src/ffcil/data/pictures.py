"""Batches of images without labels, from files or from memory."""

import itertools
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from PIL import Image
from torch import Tensor

from ffcil.data.decoding import UnreadableImages, try_decode
from ffcil.data.own_images import readable
from ffcil.data.store import BadImage
from ffcil.data.torch_datasets import frame_of, pixels_of
from ffcil.errors import InputError

Picture = str | Path | Image.Image | Tensor
"""A file, a PIL image, or a tensor [1 or 3, H, W] of uint8 or of floats in [0, 1]."""
Frame = Tensor | BadImage
"""Scaled image [height, width, 3], or the reason why it cannot be read."""
REMEDY = "repair them, or skip them with --skip-bad (skip_bad=True)"


def frames(images: Iterable[Picture], size: int, batch: int, skip_bad: bool) -> Iterator[list[Frame]]:
    """Yield batches of images, scaled for a network of input size `size`; files are read in parallel.

    An unreadable file raises `UnreadableImages`, unless `skip_bad` is set.
    """
    if isinstance(images, str | Path | Image.Image | Tensor):
        raise InputError("Images must be given as a list: use [image] for a single image.")

    def read_file(number: int, file: str | Path) -> Frame:
        result = try_decode(Path(file), size)
        return BadImage(number, readable(file), result) if isinstance(result, str) else pixels_of(result)

    numbered = enumerate(images)
    with ThreadPoolExecutor() as pool:
        while some := list(itertools.islice(numbered, batch)):
            files = {n: pool.submit(read_file, n, image) for n, image in some if isinstance(image, str | Path)}
            # PIL images are lazy and may occur twice, so they are not read in threads
            found = [files[n].result() if n in files else frame_of(image, size, f"Input {n + 1}") for n, image in some]
            if (bad := [frame for frame in found if isinstance(frame, BadImage)]) and not skip_bad:
                raise UnreadableImages(bad, REMEDY)
            yield found
