"""Batched augmentation on the device: pad, crop, flip, brightness and normalisation of a whole batch at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor


class Draws(NamedTuple):
    """The random parameters of n training images; every tensor is [n]."""

    top: Tensor
    """int64, row of the padded image at which the crop begins, 0 .. 2 * padding"""
    left: Tensor
    """int64, column of the padded image at which the crop begins, 0 .. 2 * padding"""
    flip: Tensor
    """bool, mirrored left to right"""
    brightness: Tensor
    """float32, factor on the pixel values"""


@dataclass(frozen=True)
class Augmentation:
    """How training and test images become the network's input.

    Training: zero padding, a random crop of the original size, a horizontal flip, brightness, [0, 1], normalisation,
    in that order. Test: [0, 1] and normalisation. The random part is drawn apart from its use, so that a run can draw
    an epoch from its own CPU generator while `train` sits inside a captured CUDA graph.
    """

    mean: tuple[float, float, float]
    """of each channel, for pixels in [0, 1]"""
    std: tuple[float, float, float]
    """of each channel, for pixels in [0, 1]"""
    padding: int = 4
    """black pixels added on each of the four sides before the crop"""
    flip: bool = True
    """whether every second image, at random, is mirrored"""
    brightness: float = 63 / 255
    """b: the factor is uniform in [1 - b, 1 + b]"""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more, not {self.padding}")
        if not 0 <= self.brightness <= 1:
            raise ValueError(f"brightness must lie in [0, 1], not {self.brightness}")

    def draw(self, n: int, generator: torch.Generator) -> Draws:
        """Parameters of `n` images, on the generator's device. What is switched off still consumes its randomness."""
        device = generator.device
        offsets = torch.randint(0, 2 * self.padding + 1, (2, n), generator=generator, device=device)
        flip, brightness = torch.rand(2, n, generator=generator, device=device)
        return Draws(
            top=offsets[0],
            left=offsets[1],
            flip=flip < (0.5 if self.flip else 0.0),
            brightness=1 + self.brightness * (2 * brightness - 1),
        )

    def train(self, images: Tensor, rows: Tensor, draws: Draws) -> Tensor:
        """The augmented images `rows` (int64, [B]) of the store `images` (uint8, [N, 3, H, W]): float32, [B, 3, H, W].

        All tensors are on one device. Padding, crop and flip are one gather from the store: a pixel of the output knows
        where in the store it comes from, and whether it comes from the padding.
        """
        _, channels, height, width = images.shape
        # int32 where it can hold a position in the store: index arithmetic is a third of the time on a CPU.
        integer = torch.int32 if images.numel() < 2**31 else torch.int64

        def positions(size: int) -> Tensor:
            return torch.arange(size, dtype=integer, device=images.device)

        across = positions(width)
        y = positions(height) + (draws.top.to(integer) - self.padding)[:, None]  # [B, H]
        x = torch.where(draws.flip[:, None], width - 1 - across, across)  # the crop is what is flipped, not the image
        x = x + (draws.left.to(integer) - self.padding)[:, None]  # [B, W]
        inner_y, inner_x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        # Pixels from the padding are black: their factor is 0.
        factor = ((inner_y == y) * draws.brightness[:, None])[:, :, None] * (inner_x == x)[:, None]  # [B, H, W]

        plane = rows.to(integer)[:, None] * channels + positions(channels)  # [B, 3]
        line = plane[:, :, None] * height + inner_y[:, None]  # [B, 3, H]
        index = line[..., None] * width + inner_x[:, None, None]  # [B, 3, H, W]
        pixels = images.view(-1).index_select(0, index.view(-1)).view(index.shape)

        # Brightness is a blend with black that is cut to an integer in 0 .. 255, as Pillow and torchvision do it.
        return self._normalise(pixels.float().mul_(factor[:, None]).clamp_(0, 255).floor_())

    def plain(self, images: Tensor) -> Tensor:
        """The test transform: uint8 [B, 3, H, W] to normalised float32 [B, 3, H, W]."""
        return self._normalise(images.float())

    def _normalise(self, pixels: Tensor) -> Tensor:
        scale, shift = _scale_and_shift(self.mean, self.std, pixels.device)
        return pixels.mul_(scale).add_(shift)


# A constant made from a Python list is a copy from the host, which a CUDA graph under capture forbids. So it is made
# once for a device, in the step that warms up before the capture, and found here from then on.
@lru_cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(pixel / 255 - mean) / std = pixel * scale + shift; both [3, 1, 1]."""
    means, stds = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    scale, shift = 1 / (255 * stds), -means / stds
    return (
        scale.to(device, torch.float32).view(-1, 1, 1),
        shift.to(device, torch.float32).view(-1, 1, 1),
    )
