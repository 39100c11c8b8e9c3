"""AutoAugment of whole batches on the device; each image gets the two operations of its own sub-policy.

Sub-policies and operations are those of torchvision, exact to the pixel, with one exception: the threshold of solarize
starts at 256, as in the published reference, and not at 255. The reference also shears with bicubic interpolation,
while this module uses the nearest pixel, as torchvision does.

There is no loop over images and no branch on data, so the code can be part of a captured CUDA graph. Every image passes
through every stage. If a stage is not part of an image's operation, its parameters change nothing.
"""

import math
from functools import cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

PolicyName = Literal["cifar10", "imagenet", "svhn"]
Step = tuple[str, float, int | None]
"""Name of an operation, its probability, and its magnitude as one of the bins 0 .. 9."""
Policy = tuple[tuple[Step, Step], ...]
"""Sub-policies of two steps each, of which every image gets a random one."""

BINS = 10
FILL = 128.0
"""Grey level of pixels that a geometric operation moves into the image from outside."""
_LUMA = (0.2989, 0.587, 0.114)  # weights of red, green and blue in torchvision
_STRONGEST = {"Shear": 0.3, "Rotate": 30.0}  # magnitude of the last bin: a slope, degrees
_TRANSLATION = 150 / 331  # fraction of the image's side at the last bin
_BLEND = 0.9  # change of brightness, colour, contrast and sharpness at the last bin: factors 0.1 .. 1.9
_SIGNED = {"ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness", "Color", "Contrast", "Sharpness"}


class Operation(NamedTuple):
    """One operation with one magnitude."""

    name: str
    bin: int | None = None
    negative: bool = False


@cache
def published_policy(name: PolicyName) -> Policy:
    """The published sub-policies of a data set."""
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy  # It imports torch's compiler, which takes long.

    return tuple(AutoAugment(AutoAugmentPolicy(name)).policies)


@cache
def operations_of(policy: Policy) -> tuple[Operation, ...]:
    """All distinct operations of a policy. Operation 0 is the identity."""
    found = dict.fromkeys([Operation("Identity")])
    for sub_policy in policy:
        for step in sub_policy:
            found |= dict.fromkeys(_with_either_sign(step))
    return tuple(found)


def _with_either_sign(step: Step) -> tuple[Operation, Operation]:
    """The operation of a step with positive and with negative magnitude; the same twice if it has no sign."""
    name, _, magnitude_bin = step
    return Operation(name, magnitude_bin), Operation(name, magnitude_bin, negative=name in _SIGNED)


def draw_operations(policy: Policy, n: int, generator: torch.Generator) -> Tensor:
    """Draw the two operations of `n` images: int64, [n, 2], positions in `operations_of(policy)`."""
    which, chance, sign = torch.rand(n, 5, generator=generator, device=generator.device).split([1, 2, 2], 1)
    numbers, probabilities = _choices(policy, generator.device)
    # the product is below len(policy) even after rounding to float32, because the factor is below 1
    sub_policy = (which[:, 0] * len(policy)).long()
    chosen = numbers[sub_policy].gather(2, (sign < 0.5).long()[..., None])[..., 0]
    return torch.where(chance < probabilities[sub_policy], chosen, 0)


def auto_augment(pixels: Tensor, policy: Policy, operations: Tensor) -> Tensor:
    """Apply two operations (from `draw_operations`) to each image (float32 [B, 3, H, W], integers in 0 .. 255)."""
    tables = _tables(policy, pixels.shape[2], pixels.shape[3], pixels.device)
    first, second = operations.unbind(1)
    # An operation either recolours or moves the pixels of an image. So both steps can share one move, between the
    # recolouring of the first step and that of the second.
    blends = any(operation.name in ("Color", "Sharpness") for operation in operations_of(policy))
    pixels = _recolour(pixels, tables, first, blends)
    pixels = _move(pixels, tables, first, second)
    return _recolour(pixels, tables, second, blends)


class _Tables(NamedTuple):
    """Parameters of the E operations of a policy, for one image size on one device."""

    luma: Tensor
    """Weights of red, green and blue, [3, 1, 1]."""
    map: Tensor
    """Row of `sources`, int64 [E]; 0 for operations that move nothing."""
    sources: Tensor
    """Source of each pixel, int64 [maps, H * W + 1]. Pixel H * W stands for the fill and does not move."""
    curves: Tensor
    """New value of each grey level before truncation to an integer in 0 .. 255, [E, 256]."""
    own_curve: Tensor
    """Whether the curve depends on the image's extremes (autocontrast), on its histogram (equalize), bool [E, 2]."""
    shares: Tensor
    """Weights, [E, 4]: of the mean brightness in the curve (contrast); then, in the blend, of the image, of the grey
    image (colour) and of the smoothed image (sharpness)."""


@cache
def _choices(policy: Policy, device: torch.device) -> tuple[Tensor, Tensor]:
    """Operation with either sign, int64 [S, 2, 2], and probability, [S, 2], of each sub-policy and step."""
    number = {operation: k for k, operation in enumerate(operations_of(policy))}
    numbers = [[[number[operation] for operation in _with_either_sign(step)] for step in pair] for pair in policy]
    probabilities = [[probability for _, probability, _ in pair] for pair in policy]
    return torch.tensor(numbers, device=device), torch.tensor(probabilities, device=device)


# Cached without a limit, because a captured graph reads these tensors at every replay. They are copied to the device in
# the warm-up before the capture, during which copies from the host are forbidden.
@cache
def _tables(policy: Policy, height: int, width: int, device: torch.device) -> _Tables:
    operations = [(o.name, _magnitude(o, height, width)) for o in operations_of(policy)]
    sources, maps = [torch.arange(height * width + 1)], []
    for name, magnitude in operations:
        source = _source(name, magnitude, height, width)
        maps.append(0 if source is None else len(sources))
        sources += [] if source is None else [source]

    def called(wanted: str) -> Tensor:
        return torch.tensor([name == wanted for name, _ in operations])

    # weights of the image and of the other image in a blend, each rounded to float32
    factor = torch.tensor([1.0 + magnitude for _, magnitude in operations])
    rest = torch.tensor([1.0 - (1.0 + magnitude) for _, magnitude in operations])
    grey, smooth = called("Color"), called("Sharpness")
    if min(height, width) < 3:
        smooth[:] = False  # no pixel has eight neighbours
    tensors = _Tables(
        luma=torch.tensor(_LUMA).view(3, 1, 1),
        map=torch.tensor(maps),
        sources=torch.stack(sources),
        curves=torch.stack([_curve(name, magnitude) for name, magnitude in operations]),
        own_curve=torch.stack([called("AutoContrast"), called("Equalize")], 1),
        shares=torch.stack(
            [rest * called("Contrast"), torch.where(grey | smooth, factor, 1.0), rest * grey, rest * smooth], 1
        ),
    )
    return _Tables(*(table.to(device) for table in tensors))


def _magnitude(operation: Operation, height: int, width: int) -> float:
    """The magnitude of a bin, rounded to float32 as in torchvision, since this decides which pixel is nearest."""
    name, magnitude_bin, negative = operation
    if magnitude_bin is None:
        return 0.0
    if name == "Posterize":
        return 8.0 - round(magnitude_bin * 4 / (BINS - 1))  # bits
    start, end = 0.0, _BLEND
    if name == "Solarize":
        start, end = 256.0, 0.0
    elif name.startswith("Translate"):
        end = _TRANSLATION * (width if name.endswith("X") else height)
    else:
        end = _STRONGEST.get(name.rstrip("XY"), end)
    magnitude = float(torch.linspace(start, end, BINS)[magnitude_bin])
    return -magnitude if negative else magnitude


def _source(name: str, magnitude: float, height: int, width: int) -> Tensor | None:
    """Source of each pixel, int64 [H * W + 1]; None for an operation that moves nothing.

    torchvision transforms an image whose pixels hold their own index, exact in float32 up to 4096 x 4096 pixels.
    """
    from torchvision.transforms import functional as tv

    moved: Tensor
    numbers = torch.arange(height * width, dtype=torch.float32).view(1, height, width)
    fill = [float(height * width)]
    across, down = (float(name.endswith(axis)) for axis in "XY")
    if name.startswith("Shear"):
        slope = math.degrees(math.atan(magnitude))
        # around the corner, like the published reference
        moved = tv.affine(numbers, 0.0, [0, 0], 1.0, [slope * across, slope * down], fill=fill, center=[0, 0])
    elif name.startswith("Translate"):
        offset = [int(magnitude * across), int(magnitude * down)]
        moved = tv.affine(numbers, 0.0, offset, 1.0, [0.0, 0.0], fill=fill)
    elif name == "Rotate":
        moved = tv.rotate(numbers, magnitude, fill=fill)
    else:
        return None
    return torch.cat([moved.long().view(-1), torch.tensor([height * width])])


def _curve(name: str, magnitude: float) -> Tensor:
    """New value of each grey level, [256], for curves that do not depend on the image."""
    levels = torch.arange(256, dtype=torch.float32)
    if name in ("Brightness", "Contrast"):
        return levels * (1.0 + magnitude)
    if name == "Posterize":
        step = 1 << (8 - int(magnitude))
        return (levels / step).floor() * step
    if name == "Solarize":
        return torch.where(levels >= magnitude, 255 - levels, levels)
    if name == "Invert":
        return 255 - levels
    return levels


def _move(pixels: Tensor, tables: _Tables, first: Tensor, second: Tensor) -> Tensor:
    """Move the pixels by both steps at once: the source of the second step is looked up in that of the first."""
    after = tables.sources.index_select(0, tables.map.index_select(0, second))[:, :-1]
    source = tables.sources.index_select(0, tables.map.index_select(0, first)).gather(1, after)  # [B, H * W]
    filled = torch.nn.functional.pad(pixels.flatten(2), (0, 1), value=FILL)
    return filled.gather(2, source[:, None].expand(-1, pixels.shape[1], -1)).view(pixels.shape)


def _recolour(pixels: Tensor, tables: _Tables, operation: Tensor, blends: bool) -> Tensor:
    """Recolour images by the `operation` (int64 [B]) of one step: a curve for every image and channel, then, if the
    policy `blends`, a blend with the grey or smoothed image."""
    red, green, blue = (pixels * tables.luma).split(1, 1)
    grey = (red + green).add_(blue).floor_()  # [B, 1, H, W]; a fixed order, because truncation depends on it
    levels = pixels.flatten(2).long()  # [B, 3, H * W]
    of_mean, of_self, of_grey, of_smooth = tables.shares.index_select(0, operation)[..., None, None, None].unbind(1)
    curves = _image_curves(pixels, levels, grey, of_mean[..., 0, 0], tables, operation)
    result = curves.gather(2, levels).view(pixels.shape)
    if not blends:
        return result
    del levels  # eight bytes per pixel
    # Rounded like torchvision: at most one of the added weights is not 0, and adding 0 changes nothing.
    result.mul_(of_self).add_(grey.mul_(of_grey)).add_(_smoothed(pixels).mul_(of_smooth))
    return result.clamp_(0, 255).floor_()


def _image_curves(
    pixels: Tensor, levels: Tensor, grey: Tensor, of_mean: Tensor, tables: _Tables, operation: Tensor
) -> Tensor:
    """New value of each grey level of each channel of each image, [B, 3, 256].

    `levels` are the pixels as int64 [B, 3, H * W], `of_mean` is the weight of the mean brightness [B, 1]."""
    # The sum is exact up to 256 x 256 pixels. In larger images, rounding may change a grey level. The divisor is a
    # tensor, because CUDA would multiply by the rounded inverse of a Python number.
    total = grey.sum((2, 3))  # [B, 1]
    mean = total / torch.full_like(total, levels.shape[2])
    given = tables.curves.index_select(0, operation) + mean * of_mean  # [B, 256]

    low, high = (extreme.flatten(2) for extreme in (pixels.amin((2, 3), True), pixels.amax((2, 3), True)))  # [B, 3, 1]
    counts = torch.zeros(*levels.shape[:2], 256, dtype=torch.int32, device=levels.device)
    counts.scatter_add_(2, levels, torch.ones_like(levels, dtype=torch.int32))
    below = counts.cumsum(2, dtype=torch.int32) - counts  # number of pixels darker than a level
    step = below.gather(2, high.long()).div(255, rounding_mode="floor")
    # integers below 2^24, so that their float32 quotient truncates correctly; 0 / 0 may occur, but is not selected
    equalised = (below + step // 2) / step

    flat = low == high  # nothing to stretch: 0 .. 255 leaves such a channel unchanged
    low, high = low.masked_fill(flat, 0), high.masked_fill(flat, 255)
    stretched = (tables.curves[0] - low) * (255 / (high - low))

    stretches, equalises = tables.own_curve.index_select(0, operation)[..., None, None].unbind(1)  # [B, 1, 1]
    curves = torch.where(stretches, stretched, given[:, None])
    curves = torch.where(equalises & (step > 0), equalised, curves)
    return curves.clamp_(0, 255).floor_()


def _smoothed(pixels: Tensor) -> Tensor:
    """Rounded mean of each pixel (weight 5) and its eight neighbours; border pixels stay unchanged."""
    rows = (pixels[..., :-2] + pixels[..., 1:-1]).add_(pixels[..., 2:])
    squares = (rows[..., :-2, :] + rows[..., 1:-1, :]).add_(rows[..., 2:, :])  # [B, 3, H - 2, W - 2]
    squares.add_(pixels[..., 1:-1, 1:-1], alpha=4)
    result = pixels.clone()
    result[..., 1:-1, 1:-1] = squares.div_(13).round_()  # never near a half, so every rounding mode agrees
    return result
