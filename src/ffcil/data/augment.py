"""Batched augmentation on the device: crop, flip, brightness, AutoAugment, Cutout, normalisation of a batch at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from ffcil.data.autoaugment import PolicyName, auto_augment, draw_operations, published_policy
from ffcil.data.ragged import Images
from ffcil.data.resized_crop import ResizedCrop


class Draws(NamedTuple):
    """The random parameters of n training images; every tensor is [n, ...]."""

    top: Tensor
    """int64, row of the padded image at which the crop begins, 0 .. 2 * padding"""
    left: Tensor
    """int64, column of the padded image at which the crop begins, 0 .. 2 * padding"""
    flip: Tensor
    """bool, mirrored left to right"""
    brightness: Tensor
    """float32, factor on the pixel values"""
    operations: Tensor
    """int64 [n, 2], the two operations of AutoAugment by their numbers in the policy; [n, 0] without it"""
    hole: Tensor
    """float32 [n, 2], centre of Cutout's hole, as a share of the height and of the width; [n, 0] without it"""
    box: Tensor
    """int64 [n, 4], top, left, height and width of a resized crop; [n, 0] without it"""


@dataclass(frozen=True)
class Augmentation:
    """How training and test images become the network's input.

    Training: zero padding and a random crop of the original size, or the resized crop that `crop` describes; a
    horizontal flip, brightness; where `auto` is on, an AutoAugment policy and Cutout; [0, 1] and normalisation, in that
    order. Test: the middle where there is a `crop`; [0, 1] and normalisation. The random part is drawn apart from its
    use, so that a run can draw an epoch from its own CPU generator while `train` sits inside a captured CUDA graph.

    A store is a uint8 tensor [N, 3, H, W] or a `RaggedImages`, which needs a `crop`.
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
    auto: bool = False
    """whether AutoAugment and Cutout come on top; `policy` and `cutout` say in which form"""
    policy: PolicyName = "cifar10"
    """the AutoAugment policy: that of the published data set whose images are the most alike"""
    cutout: int = 16
    """side in pixels of the black square, centred anywhere in the image and cut at its borders; 0: none"""
    crop: ResizedCrop | None = None
    """how images become squares of one size; None: they are, and stay as they are but for the padding"""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more, not {self.padding}")
        if not 0 <= self.brightness <= 1:
            raise ValueError(f"brightness must lie in [0, 1], not {self.brightness}")
        if self.cutout < 0:
            raise ValueError(f"cutout must be 0 or more, not {self.cutout}")

    def still(self) -> Augmentation:
        """The same without anything random: training images look like test images."""
        crop = self.crop and replace(self.crop, random=False)
        return replace(self, padding=0, flip=False, brightness=0.0, auto=False, crop=crop)

    def draw(self, n: int, generator: torch.Generator, sizes: Tensor | None = None) -> Draws:
        """Parameters of `n` images, on the generator's device; a resized crop needs their `sizes` (int64, [n, 2]).

        A crop, flip or brightness that is switched off still consumes its randomness. AutoAugment, Cutout and resized
        crops draw after them, in this order and only where they are on, so that a run without them has the batches that
        it had before there were any.
        """
        if self.crop is not None and sizes is None:
            raise ValueError("a resized crop is drawn for images of known sizes: give draw() their sizes")
        device = generator.device
        offsets = torch.randint(0, 2 * self.padding + 1, (2, n), generator=generator, device=device)
        flip, brightness = torch.rand(2, n, generator=generator, device=device)
        nothing = torch.empty(n, 0, device=device)
        on = self.auto
        return Draws(
            top=offsets[0],
            left=offsets[1],
            flip=flip < (0.5 if self.flip else 0.0),
            brightness=1 + self.brightness * (2 * brightness - 1),
            operations=draw_operations(published_policy(self.policy), n, generator) if on else nothing.long(),
            hole=torch.rand(n, 2, generator=generator, device=device) if on and self.cutout else nothing,
            box=nothing.long() if self.crop is None or sizes is None else self.crop.draw(sizes, generator),
        )

    def train(self, images: Images, rows: Tensor, draws: Draws) -> Tensor:
        """The augmented images `rows` (int64, [B]) of the store `images`: float32, [B, 3, H, W].

        All tensors are on one device.
        """
        if self.crop is not None:
            if not (self.brightness or self.auto):
                return self.crop.train(images, rows, draws.box, draws.flip, self._normalise)
            values = self.crop.train(images, rows, draws.box, draws.flip)
            if self.brightness:
                values.mul_(draws.brightness[:, None, None, None]).clamp_(0, 255).floor_()
        else:
            values = self._padded_crop(_square(images), rows, draws)
        if self.auto:
            values = auto_augment(values, published_policy(self.policy), draws.operations)
            if self.cutout:
                _cut_out(values, self.cutout, draws.hole)
        return self._normalise(values)

    def _padded_crop(self, images: Tensor, rows: Tensor, draws: Draws) -> Tensor:
        """Whole grey levels. Padding, crop and flip are one gather from the store: a pixel of the output knows where in
        the store it comes from, and whether it comes from the padding."""
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
        return pixels.float().mul_(factor[:, None]).clamp_(0, 255).floor_()

    def plain(self, images: Images, rows: Tensor | None = None) -> Tensor:
        """The test transform of the images `rows` of a store, or of all: normalised float32, [B, 3, H, W]."""
        if self.crop is not None:
            rows = torch.arange(len(images), device=images.device) if rows is None else rows
            return self.crop.test(images, rows, finish=self._normalise)
        square = _square(images)
        return self._normalise((square if rows is None else square[rows]).float())

    def _normalise(self, pixels: Tensor) -> Tensor:
        """In place."""
        scale, shift = _scale_and_shift(self.mean, self.std, pixels.device)
        return pixels.mul_(scale).add_(shift)


def _square(images: Images) -> Tensor:
    if not isinstance(images, Tensor):
        raise ValueError("images of many sizes need an Augmentation with a `crop`")
    return images


def _cut_out(pixels: Tensor, side: int, centre: Tensor) -> None:
    """Blacken a square of each image, in place.

    Args:
        pixels: [B, 3, H, W]
        centre: [B, 2], in [0, 1), as a share of H and of W
    """
    # An even side has no middle pixel: the one drawn is then the first after the middle.
    middle = (side - 1) / 2 - side // 2
    inside = []
    for size, share in zip(pixels.shape[2:], centre.unbind(1), strict=True):
        drawn = (share * size).floor_()  # any pixel, each with the same probability
        offset = torch.arange(-middle, size - middle, device=pixels.device) - drawn[:, None]  # from the hole's middle
        inside.append(offset.abs_() < side / 2)
    down, across = inside  # [B, H], [B, W]
    pixels.masked_fill_((down[:, :, None] & across[:, None])[:, None], 0)


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
