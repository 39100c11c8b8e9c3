"""Augmentation of whole batches on the device: crop, flip, brightness, AutoAugment, Cutout and normalisation."""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, Self

import torch
from torch import Tensor

from ffcil.data.autoaugment import PolicyName, auto_augment, draw_operations, published_policy
from ffcil.data.ragged import Images
from ffcil.data.resized_crop import ResizedCrop


class Draws(NamedTuple):
    """Random parameters of n training images; every tensor is [n, ...]."""

    top: Tensor
    """int64, first row of the crop in the padded image, 0 .. 2 * padding."""
    left: Tensor
    """int64, first column of the crop in the padded image, 0 .. 2 * padding."""
    flip: Tensor
    """bool, whether the image is flipped horizontally."""
    brightness: Tensor
    """float32, factor of the pixel values."""
    operations: Tensor
    """int64 [n, 2], indices of the two AutoAugment operations in the policy; [n, 0] without AutoAugment."""
    hole: Tensor
    """float32 [n, 2], centre of the Cutout square as a fraction of height and width; [n, 0] without Cutout."""
    box: Tensor
    """int64 [n, 4], top, left, height and width of a resized crop; [n, 0] without a resized crop."""


@dataclass(frozen=True)
class Augmentation:
    """Conversion of training and test images to the input of the network.

    Training images get, in this order: zero padding and a random crop of the original size, or the resized crop of
    `crop`; a horizontal flip; brightness; if `auto` is set, an AutoAugment policy and Cutout; normalisation. Test
    images get a centre crop if `crop` is set, and normalisation. Random parameters are drawn separately, so that a run
    can draw an epoch from its own CPU generator while `train` is part of a captured CUDA graph.

    A store is a uint8 tensor [N, 3, H, W] or a `RaggedImages`, which needs a `crop`.
    """

    mean: tuple[float, float, float]
    """Mean of each channel, for pixels in [0, 1]."""
    std: tuple[float, float, float]
    """Standard deviation of each channel, for pixels in [0, 1]."""
    padding: int = 4
    """Number of black pixels added on each side before the crop."""
    flip: bool = True
    """Whether images are flipped horizontally with probability 0.5."""
    brightness: float = 63 / 255
    """Range b of the brightness factor, which is uniform in [1 - b, 1 + b]."""
    auto: bool = False
    """Whether to use AutoAugment (see `policy`) and Cutout (see `cutout`)."""
    policy: PolicyName = "cifar10"
    """AutoAugment policy, named after the data set for which it was found."""
    cutout: int = 16
    """Side of the black Cutout square in pixels; 0 for none. Its centre is anywhere in the image."""
    crop: ResizedCrop | None = None
    """Resized crop that gives all images one size; None if the stored images already have one size."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"padding must be 0 or more, not {self.padding}")
        if not 0 <= self.brightness <= 1:
            raise ValueError(f"brightness must lie in [0, 1], not {self.brightness}")
        if self.cutout < 0:
            raise ValueError(f"cutout must be 0 or more, not {self.cutout}")

    def without_randomness(self) -> Self:
        """The same transform without random changes: training images are treated like test images."""
        crop = self.crop and replace(self.crop, random=False)
        return replace(self, padding=0, flip=False, brightness=0.0, auto=False, crop=crop)

    def draw(self, n: int, generator: torch.Generator, sizes: Tensor | None = None) -> Draws:
        """Draw parameters of `n` images on the generator's device; a resized crop needs `sizes` (int64, [n, 2]).

        Crop, flip and brightness consume random numbers even if they are disabled. AutoAugment, Cutout and resized
        crops draw after them, in this order and only if enabled, so that they do not change the batches of other runs.
        """
        if self.crop is not None and sizes is None:
            raise ValueError("draw() needs the sizes of the images for a resized crop")
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
        """Augment the images `rows` (int64, [B]) of a store on the same device: float32, [B, 3, H, W]."""
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
        """Pad, crop, flip and change the brightness; values are integers in 0 .. 255.

        One gather from the store does padding, crop and flip: the source of each output pixel is computed first."""
        _, channels, height, width = images.shape
        # int32 if possible, with which index arithmetic takes a third of the time on a CPU
        integer = torch.int32 if images.numel() < 2**31 else torch.int64

        def positions(size: int) -> Tensor:
            return torch.arange(size, dtype=integer, device=images.device)

        across = positions(width)
        y = positions(height) + (draws.top.to(integer) - self.padding)[:, None]  # [B, H]
        x = torch.where(draws.flip[:, None], width - 1 - across, across)  # flips the crop, not the image
        x = x + (draws.left.to(integer) - self.padding)[:, None]  # [B, W]
        inner_y, inner_x = y.clamp(0, height - 1), x.clamp(0, width - 1)
        # pixels of the padding are black, so their factor is 0
        factor = ((inner_y == y) * draws.brightness[:, None])[:, :, None] * (inner_x == x)[:, None]  # [B, H, W]

        plane = rows.to(integer)[:, None] * channels + positions(channels)  # [B, 3]
        line = plane[:, :, None] * height + inner_y[:, None]  # [B, 3, H]
        index = line[..., None] * width + inner_x[:, None, None]  # [B, 3, H, W]
        pixels = images.view(-1).index_select(0, index.view(-1)).view(index.shape)

        # brightness is a blend with black, truncated to an integer in 0 .. 255, as in Pillow and torchvision
        return pixels.float().mul_(factor[:, None]).clamp_(0, 255).floor_()

    @property
    def preparation(self) -> str:
        """Everything that the result of `plain` depends on, as a key."""
        crop = None if self.crop is None else (self.crop.size, self.crop.short_side, self.crop.bicubic)
        return f"{self.mean} {self.std} {crop}"

    def plain(self, images: Images, rows: Tensor | None = None) -> Tensor:
        """Apply the test transform to the images `rows` of a store, or to all: normalised float32, [B, 3, H, W]."""
        if self.crop is not None:
            rows = torch.arange(len(images), device=images.device) if rows is None else rows
            return self.crop.test(images, rows, finish=self._normalise)
        square = _square(images)
        return self._normalise((square if rows is None else square[rows]).float())

    def _normalise(self, pixels: Tensor) -> Tensor:
        """Normalise in place."""
        scale, shift = _scale_and_shift(self.mean, self.std, pixels.device)
        return pixels.mul_(scale).add_(shift)


def _square(images: Images) -> Tensor:
    """The store, if all of its images have one size."""
    if not isinstance(images, Tensor):
        raise ValueError("images of different sizes need an Augmentation with a `crop`")
    return images


def _cut_out(pixels: Tensor, side: int, centre: Tensor) -> None:
    """Blacken a square of each image ([B, 3, H, W]) in place; `centre` is a fraction of H and W in [0, 1), [B, 2]."""
    # if the side is even, the drawn pixel is the first one after the middle
    middle = (side - 1) / 2 - side // 2
    inside = []
    for size, share in zip(pixels.shape[2:], centre.unbind(1), strict=True):
        drawn = (share * size).floor_()  # every pixel has the same probability
        offset = torch.arange(-middle, size - middle, device=pixels.device) - drawn[:, None]  # from the square's middle
        inside.append(offset.abs_() < side / 2)
    down, across = inside  # [B, H], [B, W]
    pixels.masked_fill_((down[:, :, None] & across[:, None])[:, None], 0)


# Cached, because a tensor made from a Python list is a copy from the host, which is forbidden during the capture of a
# CUDA graph. It is made in the warm-up before the capture.
@lru_cache
def _scale_and_shift(mean: tuple[float, ...], std: tuple[float, ...], device: torch.device) -> tuple[Tensor, Tensor]:
    """(pixel / 255 - mean) / std = pixel * scale + shift; both [3, 1, 1]."""
    means, stds = torch.tensor(mean, dtype=torch.float64), torch.tensor(std, dtype=torch.float64)
    scale, shift = 1 / (255 * stds), -means / stds
    return scale.to(device, torch.float32).view(-1, 1, 1), shift.to(device, torch.float32).view(-1, 1, 1)
