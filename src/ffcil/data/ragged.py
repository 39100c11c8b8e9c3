"""`RaggedImages`: a store of images of any size, flat in one buffer; and the few things to ask of either kind of store.

A store is a uint8 tensor [N, 3, H, W], or a `RaggedImages`. Of both there are `len(store)`, `store.device` and
`store.to(device)`, and here `image_sizes` and `locate`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from ffcil.data.placement import placed


@dataclass(frozen=True, eq=False)
class RaggedImages:
    """Images one after another, each [height, width, 3]: the colours of a pixel lie together in memory."""

    pixels: Tensor
    """uint8, flat: on the device, or on the CPU and possibly memory-mapped"""
    offsets: Tensor
    """int64, [N], where in `pixels` an image begins"""
    sizes: Tensor
    """int64, [N, 2], height and width"""

    def __post_init__(self) -> None:
        if self.pixels.dtype != torch.uint8 or self.pixels.ndim != 1:
            raise ValueError(f"pixels must be flat uint8, not {self.pixels.dtype} {list(self.pixels.shape)}")
        if self.offsets.ndim != 1 or self.sizes.shape != (len(self.offsets), 2):
            raise ValueError(f"sizes must be [{len(self.offsets)}, 2], not {list(self.sizes.shape)}")

    @classmethod
    def packed(cls, pixels: Tensor, sizes: Tensor) -> RaggedImages:
        """From images that follow one another without gaps."""
        lengths = 3 * sizes.prod(1)
        return cls(pixels, lengths.cumsum(0) - lengths, sizes)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    def to(self, device: torch.device) -> RaggedImages:
        return RaggedImages(placed(self.pixels, device), self.offsets.to(device), self.sizes.to(device))

    def image(self, row: int) -> Tensor:
        """One image, [3, height, width]: a view of the store."""
        height, width = self.sizes[row].tolist()
        start = int(self.offsets[row])
        return self.pixels[start : start + 3 * height * width].view(height, width, 3).permute(2, 0, 1)


Images: TypeAlias = Tensor | RaggedImages
"""a store of either kind"""


def taken(store: Images, rows: Tensor) -> Images:
    """A store of some images of another."""
    if isinstance(store, Tensor):
        return store[rows]
    pixels = [store.image(row).permute(1, 2, 0).reshape(-1) for row in rows.tolist()]
    return RaggedImages.packed(torch.cat([store.pixels[:0], *pixels]), store.sizes[rows])


def joined(first: Images, second: Images) -> Images:
    """A store of the images of two, which are of one kind; where one has none, the other as it is."""
    if not len(first) or not len(second):
        return first if len(first) else second
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return torch.cat([first, second])
    assert isinstance(first, RaggedImages)
    assert isinstance(second, RaggedImages)
    offsets = torch.cat([first.offsets, second.offsets + len(first.pixels)])
    return RaggedImages(torch.cat([first.pixels, second.pixels]), offsets, torch.cat([first.sizes, second.sizes]))


class Located(NamedTuple):
    """Where some images of a store are; every tensor is int64 [B], and a distance is one in the flat store."""

    height: Tensor
    width: Tensor
    offset: Tensor
    """position of the first value"""
    channel: Tensor
    """distance from a colour to the next"""
    line: Tensor
    """distance from a pixel to the one below"""
    column: Tensor
    """distance from a pixel to the one on the right"""


def flat_pixels(store: Images) -> Tensor:
    """All pixels in one row."""
    return store.view(-1) if isinstance(store, Tensor) else store.pixels


def locate(store: Images, rows: Tensor) -> Located:
    """Where the images `rows` are. Nothing waits for the device."""
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
