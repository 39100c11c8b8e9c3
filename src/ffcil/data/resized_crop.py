"""Resized crops of whole batches from a store of either kind.

Sampling is bilinear and rounded to an integer grey level, as in torchvision without antialiasing. Little smoothing is
needed, because a store made for its `ResizedCrop` already has the scale of the test images, and a training crop is at
most slightly larger than the result. Small test images can be enlarged bicubically, as Pillow does it.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ffcil.data.ragged import Images, Located, flat_pixels, locate

ATTEMPTS = 10
"""Number of boxes drawn per image before the largest possible one is used, as in torchvision."""
SMALLEST_CROP = 0.05
"""Smallest area of a training crop, as a fraction of the image, as published for pre-trained ViTs."""
Finish = Callable[[Tensor], object]
"""Function that changes a part of the result in place."""
_AT_ONCE = 4  # images that fit into the cache of a CPU
_AT_ONCE_ON_A_GPU = 256  # bounds the memory of the pixels' positions


@dataclass(frozen=True)
class ResizedCrop:
    """Training: a random box, resized to a square. Test: the short side resized, then a centre crop."""

    size: int = 224
    """Side of the result in pixels."""
    short_side: int = 256
    """Short side of a test image before the centre crop, in pixels."""
    scale: tuple[float, float] = (SMALLEST_CROP, 1.0)
    """Smallest and largest area of a training box, as a fraction of the image."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Smallest and largest ratio of width to height of a training box."""
    random: bool = True
    """Whether training boxes are random; otherwise training images are cropped like test images."""
    bicubic: bool = False
    """Whether test images are resized bicubically, as published for pre-trained ViTs. It applies only to images of one
    size, because others were resized bicubically when they were decoded."""

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.short_side:
            raise ValueError(f"size must lie in 1 .. short_side ({self.short_side}), not {self.size}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be two shares in (0, 1], the smaller one first, not {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio must be two positive numbers, the smaller one first, not {self.ratio}")

    def draw(self, sizes: Tensor, generator: torch.Generator) -> Tensor:
        """Draw boxes for images of the given sizes (height and width, int64 [n, 2]).

        Returns top, left, height and width, int64 [n, 4], distributed like `RandomResizedCrop.get_params` of
        torchvision; [n, 0] if the crop is not random.
        """
        device, n = generator.device, len(sizes)
        if not self.random:
            return torch.empty(n, 0, dtype=torch.int64, device=device)
        # float64 gives the same box on every device
        area, shape = torch.rand(2, n, ATTEMPTS, generator=generator, device=device, dtype=torch.float64)
        place = torch.rand(n, 2, generator=generator, device=device, dtype=torch.float64)
        least, most = self.scale
        narrow, wide = (math.log(ratio) for ratio in self.ratio)
        area = (least + (most - least) * area) * sizes.prod(1, keepdim=True)
        shape = (narrow + (wide - narrow) * shape).exp_()
        tried = torch.stack([(area / shape).sqrt_().round_(), (area * shape).sqrt_().round_()], 2)  # [n, ATTEMPTS, 2]
        fits = ((tried > 0) & (tried <= sizes[:, None])).all(2)
        first = fits.to(torch.uint8).argmax(1)[:, None, None].expand(n, 1, 2)
        found = fits.any(1)[:, None]
        extent = torch.where(found, tried.gather(1, first)[:, 0], self._largest(sizes))
        room = sizes - extent
        corner = torch.where(found, (place * (room + 1)).floor_(), (room / 2).floor_())
        return torch.cat([corner, extent], 1).long()

    def _largest(self, sizes: Tensor) -> Tensor:
        """Height and width of the largest allowed box, float64 [n, 2]."""
        height, width = sizes.double().unbind(1)
        narrow, wide = self.ratio
        shape = width / height
        height, width = (
            torch.where(shape < narrow, (width / narrow).round(), height),
            torch.where(shape > wide, (height * wide).round(), width),
        )
        return torch.stack([height, width], 1)

    def middle(self, sizes: Tensor) -> Tensor:
        """The box of each test image in pixels of the store, not rounded: float64 [n, 4]."""
        sizes = sizes.double()
        resized = (self.short_side * sizes / sizes.amin(1, keepdim=True)).floor_()
        scale = sizes / resized
        return torch.cat([((resized - self.size) / 2).round_() * scale, self.size * scale], 1)

    def train(self, store: Images, rows: Tensor, box: Tensor, flip: Tensor, finish: Finish | None = None) -> Tensor:
        """Resize the boxes of the images `rows`, flipped if `flip`: [B, 3, size, size], integer grey levels.

        `finish` changes each part of the result in place while it is still in the cache of the CPU.
        """
        if not self.random:
            return self.test(store, rows, flip, finish)
        if store.device.type == "cpu":
            return resample_one_by_one(store, rows, box, flip, self.size, finish)
        return resample(store, rows, box, box, flip, self.size, finish)

    def test(self, store: Images, rows: Tensor, flip: Tensor | None = None, finish: Finish | None = None) -> Tensor:
        """The centre of the images `rows`: [B, 3, size, size], integer grey levels before `finish` is applied."""
        if self.bicubic and isinstance(store, Tensor):
            return self._test_bicubic(store, rows, flip, finish)
        height, width = locate(store, rows)[:2]
        sizes = torch.stack([height, width], 1)
        box = self.middle(sizes)
        if store.device.type == "cpu" and flip is None and (sizes.amin(1) == self.short_side).all():
            return cut_out(store, rows, box[:, :2].long(), self.size, finish)
        whole = torch.cat([torch.zeros_like(sizes), sizes], 1)
        flip = torch.zeros_like(rows).bool() if flip is None else flip
        return resample(store, rows, box, whole, flip, self.size, finish)

    def _test_bicubic(self, store: Tensor, rows: Tensor, flip: Tensor | None, finish: Finish | None) -> Tensor:
        height, width = (self.short_side * side // min(store.shape[2:]) for side in store.shape[2:])
        top, left = (round((side - self.size) / 2) for side in (height, width))
        result = torch.empty(len(rows), 3, self.size, self.size, device=store.device)
        for part in (slice(start, start + _AT_ONCE_ON_A_GPU) for start in range(0, len(rows), _AT_ONCE_ON_A_GPU)):
            # First the width, then the height, with rounding in between, as in Pillow. `antialias` selects the curve of
            # Pillow, and has no other effect on images that are enlarged.
            large = store[rows[part]].float()
            for shape in ((large.shape[2], width), (height, width)):
                large = interpolate(large, shape, mode="bicubic", antialias=True).round_().clamp_(0, 255)
            middle = large[:, :, top : top + self.size, left : left + self.size]
            if flip is not None:
                middle = torch.where(flip[part, None, None, None], middle.flip(3), middle)
            result[part] = middle
            if finish:
                finish(result[part])
        return result


def resample(
    store: Images, rows: Tensor, box: Tensor, within: Tensor, flip: Tensor, size: int, finish: Finish | None = None
) -> Tensor:
    """Resize parts of images to one size: float32 [B, 3, size, size], integers in 0 .. 255.

    Args:
        box: Top, left, height and width of the part, [B, 4].
        within: Box of the pixels that may be read, integers [B, 4]; border pixels are repeated beyond it.
        finish: Function applied in place to each part of the result.
    """
    place, pixels = locate(store, rows), flat_pixels(store)
    # int32 if possible, because positions take most of the memory traffic
    integer = torch.int32 if pixels.numel() < 2**31 else torch.int64
    result = torch.empty(len(rows), 3, size, size, device=pixels.device)

    def sample(part: slice) -> None:
        _sample(
            pixels,
            Located(*(values[part].to(integer) for values in place)),
            _Axis.of(box[part], within[part], 0, size, None),
            _Axis.of(box[part], within[part], 1, size, flip[part]),
            result[part],
        )
        if finish:
            finish(result[part])

    if pixels.device.type == "cpu":
        _in_threads(sample, len(rows))
    else:
        for start in range(0, len(rows), _AT_ONCE_ON_A_GPU):
            sample(slice(start, start + _AT_ONCE_ON_A_GPU))
    return result


def cut_out(store: Images, rows: Tensor, corners: Tensor, size: int, finish: Finish | None = None) -> Tensor:
    """`resample` for boxes of `size` pixels, which are copied. Corners are int64 [B, 2]."""
    result = torch.empty(len(rows), 3, size, size)
    places = list(zip(rows.tolist(), corners.tolist(), strict=True))

    def sample(part: slice) -> None:
        for k, (row, (top, left)) in enumerate(places[part], part.start):
            image = store[row] if isinstance(store, Tensor) else store.image(row)
            result[k] = image[:, top : top + size, left : left + size]
        if finish:
            finish(result[part])

    _in_threads(sample, len(rows))
    return result


def resample_one_by_one(
    store: Images, rows: Tensor, box: Tensor, flip: Tensor, size: int, finish: Finish | None = None
) -> Tensor:
    """`resample` for integer boxes, several times faster on a CPU. Results differ by one grey level at most."""
    result = torch.empty(len(rows), 3, size, size)
    places = list(zip(rows.tolist(), box.tolist(), flip.tolist(), strict=True))

    def sample(part: slice) -> None:
        for k in range(part.start, min(part.stop, len(places))):
            row, (top, left, height, width), mirrored = places[k]
            image = store[row] if isinstance(store, Tensor) else store.image(row)
            crop = image[None, :, top : top + height, left : left + width]
            resized = interpolate(crop, (size, size), mode="bilinear", align_corners=False)[0]
            result[k] = resized.flip(2) if mirrored else resized
        if finish:
            finish(result[part])

    _in_threads(sample, len(rows))
    return result


def _in_threads(sample: Callable[[slice], None], n: int) -> None:
    """Process a few images at a time in each of several threads.

    Several threads of torch for one image wait for each other after every operation. If the cores are busy, they are
    ten times slower than a single thread. The results are bit-equal.
    """
    parts = [slice(start, start + _AT_ONCE) for start in range(0, n, _AT_ONCE)]
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        for part in parts:
            sample(part)
        return
    inference = torch.is_inference_mode_enabled()  # new threads start without it and could not write the result

    def sample_in_mode(part: slice) -> None:
        with torch.inference_mode(inference):
            sample(part)

    torch.set_num_threads(1)  # applies to the threads started below
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(sample_in_mode, parts))
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Axis:
    """The two source pixels of each output pixel in one direction; all tensors are [B, size]."""

    low: Tensor
    """The pixel above or on the left, int64."""
    high: Tensor
    """Its neighbour, int64; the same pixel at the border."""
    share: Tensor
    """Weight of the neighbour, float32."""

    @classmethod
    def of(cls, box: Tensor, within: Tensor, direction: int, size: int, flip: Tensor | None) -> Self:
        """`direction` is 0 for rows and 1 for columns."""
        start, length = (box[:, k, None].double() for k in (direction, direction + 2))
        first, count = (within[:, k, None] for k in (direction, direction + 2))
        output = torch.arange(size, device=box.device)
        if flip is not None:
            output = torch.where(flip[:, None], size - 1 - output, output)
        centre = (output + 0.5) * (length / size) - 0.5 + start
        last = first + count - 1
        centre = torch.minimum(torch.maximum(centre, first), last)
        low = centre.floor()
        return cls(low.long(), torch.minimum(low.long() + 1, last), (centre - low).float())


def _sample(pixels: Tensor, place: Located, down: _Axis, across: _Axis, result: Tensor) -> None:
    """Interpolate four neighbours into `result`, [B, 3, size, size]. Positions have the type of `place`."""
    integer = place.offset.dtype
    colours = torch.arange(3, dtype=integer, device=pixels.device)
    corner = place.offset[:, None] + colours * place.channel[:, None]  # [B, 3]

    def lines(y: Tensor) -> Tensor:
        return (corner[:, :, None] + (y.to(integer) * place.line[:, None])[:, None])[..., None]  # [B, 3, size, 1]

    def columns(x: Tensor) -> Tensor:
        return (x.to(integer) * place.column[:, None])[:, None, None]  # [B, 1, 1, size]

    def look_up(line: Tensor, column: Tensor) -> Tensor:
        index = line + column  # [B, 3, size, size]
        return pixels.index_select(0, index.view(-1)).view(index.shape).float()

    left, right, share = columns(across.low), columns(across.high), across.share[:, None, None]
    upper, lower = (
        torch.lerp(look_up(line, left), look_up(line, right), share) for line in (lines(down.low), lines(down.high))
    )
    torch.lerp(upper, lower, down.share[:, None, :, None], out=result)
    result.round_()
