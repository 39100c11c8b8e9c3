"""`RaggedImages`: images of different sizes in one flat buffer, and functions for both kinds of stores.

A store is a uint8 tensor [N, 3, H, W] or a `RaggedImages`. Both have a length, `device` and `to(device)`.
"""

from dataclasses import dataclass
from typing import NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from ffcil.data.placement import place


@dataclass(frozen=True, eq=False)
class RaggedImages:
    """Images stored one after another, each as [height, width, 3]."""

    pixels: Tensor
    """Flat uint8, on the device, or on the CPU and possibly memory-mapped."""
    offsets: Tensor
    """Position of each image in `pixels`, int64 [N]."""
    sizes: Tensor
    """Height and width of each image, int64 [N, 2]."""

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 1:
            raise ValueError(f"pixels must be flat uint8, not {self.pixels.dtype} {list(self.pixels.shape)}")
        if self.offsets.ndim != 1 or self.sizes.shape != (len(self.offsets), 2):
            raise ValueError(f"sizes must be [{len(self.offsets)}, 2], not {list(self.sizes.shape)}")

    @classmethod
    def packed(cls, pixels: Tensor, sizes: Tensor) -> Self:
        """Build from images that are stored without gaps."""
        lengths = 3 * sizes.prod(1)
        return cls(pixels, lengths.cumsum(0) - lengths, sizes)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    def to(self, device: torch.device) -> Self:
        return type(self)(place(self.pixels, device), self.offsets.to(device), self.sizes.to(device))

    def image(self, row: int) -> Tensor:
        """One image as a view of the store, [3, height, width]."""
        height, width = self.sizes[row].tolist()
        start = int(self.offsets[row])
        return self.pixels[start : start + 3 * height * width].view(height, width, 3).permute(2, 0, 1)


Images: TypeAlias = Tensor | RaggedImages
"""A store of either kind."""


def select(store: Images, rows: Tensor) -> Images:
    """A new store of the images `rows`."""
    if isinstance(store, Tensor):
        return store[rows]
    pixels = [store.image(row).permute(1, 2, 0).reshape(-1) for row in rows.tolist()]
    return RaggedImages.packed(torch.cat([store.pixels[:0], *pixels]), store.sizes[rows])


def join(first: Images, second: Images) -> Images:
    """Join two stores of the same kind; if one is empty, the other is returned."""
    if not len(first) or not len(second):
        return first if len(first) else second
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second])
    assert isinstance(first, RaggedImages)
    assert isinstance(second, RaggedImages)
    offsets = torch.cat([first.offsets, second.offsets + len(first.pixels)])
    return RaggedImages(torch.cat([first.pixels, second.pixels]), offsets, torch.cat([first.sizes, second.sizes]))


class Located(NamedTuple):
    """Positions of some images in the flat store; every tensor is int64 [B]."""

    height: Tensor
    width: Tensor
    offset: Tensor
    """Position of the first value."""
    channel: Tensor
    """Distance between two colours of a pixel."""
    line: Tensor
    """Distance from a pixel to the one below."""
    column: Tensor
    """Distance from a pixel to the one on the right."""


def flat_pixels(store: Images) -> Tensor:
    """All pixels as a flat tensor."""
    return store.view(-1) if isinstance(store, Tensor) else store.pixels


def locate(store: Images, rows: Tensor) -> Located:
    """Positions of the images `rows`, computed without a synchronisation of the device."""
    if isinstance(store, Tensor):
        _, channels, height, width = store.shape
        distances = (torch.full_like(rows, distance) for distance in (height * width, width, 1))
        offset = rows * (channels * height * width)
        return Located(torch.full_like(rows, height), torch.full_like(rows, width), offset, *distances)
    heights, widths = store.sizes.index_select(0, rows).unbind(1)
    one = torch.ones_like(rows)
    return Located(heights, widths, store.offsets.index_select(0, rows), one, 3 * widths, 3 * one)


def image_sizes(store: Images) -> Tensor:
    """Height and width of every image, int64 [N, 2]."""
    if isinstance(store, Tensor):
        return torch.tensor(store.shape[2:]).expand(len(store), 2)
    return store.sizes
