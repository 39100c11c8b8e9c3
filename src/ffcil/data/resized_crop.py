"""Crops of any size brought to one size, a batch at once, from a store of either kind.

Sampling is bilinear between the four nearest pixels and rounded to a whole grey level, as torchvision resizes a tensor
without antialiasing. A store made for its `ResizedCrop` has the scale of the test images already, and a training crop
is at most a little larger than what it becomes, so that there is little to smooth. Small test images that are enlarged
can be resized bicubically, as Pillow does it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from ffcil.data.ragged import Images, Located, flat_pixels, locate

ATTEMPTS = 10
"""boxes drawn for an image before the largest that fits is taken, as torchvision does"""
SMALLEST_CROP = 0.05
"""area of a training box as a share of the image's, as published for pre-trained ViTs"""
Finish = Callable[[Tensor], object]
_AT_ONCE = 4  # images: what a CPU's cache holds of them
_AT_ONCE_ON_A_GPU = 256  # bounds the memory that the pixels' positions take


@dataclass(frozen=True)
class ResizedCrop:
    """Training: a box of random area and shape, made square. Test: the short side resized, then the middle square."""

    size: int = 224
    """side of what the network gets"""
    short_side: int = 256
    """of a test image before the middle is cut out"""
    scale: tuple[float, float] = (SMALLEST_CROP, 1.0)
    """area of a training box as a share of the image's, smallest and largest"""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """width of a training box over its height, smallest and largest"""
    random: bool = True
    """off: training images are cut like test images"""
    bicubic: bool = False
    """test images are resized bicubically, as published for pre-trained ViTs; for images of one size, since those of a
    store of any sizes were resized so when they were decoded"""

    def __post_init__(self) -> None:
        if not 0 < self.size <= self.short_side:
            raise ValueError(f"size must lie in 1 .. short_side ({self.short_side}), not {self.size}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale must be two shares in (0, 1], the smaller one first, not {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio must be two positive numbers, the smaller one first, not {self.ratio}")

    def draw(self, sizes: Tensor, generator: torch.Generator) -> Tensor:
        """Boxes for images of the given sizes.

        Args:
            sizes: int64, [n, 2], height and width

        Returns:
            int64, [n, 4]: top, left, height, width, distributed as torchvision's `RandomResizedCrop.get_params`; for
            a crop that is not random nothing is drawn, [n, 0].
        """
        device, n = generator.device, len(sizes)
        if not self.random:
            return torch.empty(n, 0, dtype=torch.int64, device=device)
        # In float64, so that it is the same box wherever it is computed.
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
        """Height and width of the largest box whose shape is allowed, float64 [n, 2]."""
        height, width = sizes.double().unbind(1)
        narrow, wide = self.ratio
        shape = width / height
        return torch.stack(
            [
                torch.where(shape < narrow, (width / narrow).round(), height),
                torch.where(shape > wide, (height * wide).round(), width),
            ],
            1,
        )

    def middle(self, sizes: Tensor) -> Tensor:
        """The box of each test image, in pixels of the store but not whole: float64, [n, 4]."""
        sizes = sizes.double()
        resized = (self.short_side * sizes / sizes.amin(1, keepdim=True)).floor_()
        scale = sizes / resized
        return torch.cat([((resized - self.size) / 2).round_() * scale, self.size * scale], 1)

    def train(self, store: Images, rows: Tensor, box: Tensor, flip: Tensor, finish: Finish | None = None) -> Tensor:
        """The boxes of the images `rows`, mirrored where `flip`, at `size`: [B, 3, size, size], whole grey levels.

        `finish` changes a part of the result in place, as soon as it is made: then a CPU's cache still holds it.
        """
        if not self.random:
            return self.test(store, rows, flip, finish)
        if store.device.type == "cpu":
            return resample_one_by_one(store, rows, box, flip, self.size, finish)
        return resample(store, rows, box, box, flip, self.size, finish)

    def test(self, store: Images, rows: Tensor, flip: Tensor | None = None, finish: Finish | None = None) -> Tensor:
        """The middle of the images `rows`: [B, 3, size, size], whole grey levels, or what `finish` makes of them."""
        if self.bicubic and isinstance(store, Tensor):
            return self._test_bicubic(store, rows, flip, finish)
        height, width = locate(store, rows)[:2]
        corner = torch.zeros_like(height)
        whole = torch.stack([corner, corner, height, width], 1)
        box = self.middle(torch.stack([height, width], 1))
        flip = torch.zeros_like(rows).bool() if flip is None else flip
        return resample(store, rows, box, whole, flip, self.size, finish)

    def _test_bicubic(self, store: Tensor, rows: Tensor, flip: Tensor | None, finish: Finish | None) -> Tensor:
        height, width = (self.short_side * side // min(store.shape[2:]) for side in store.shape[2:])
        top, left = (round((side - self.size) / 2) for side in (height, width))
        result = torch.empty(len(rows), 3, self.size, self.size, device=store.device)
        for part in (slice(start, start + _AT_ONCE_ON_A_GPU) for start in range(0, len(rows), _AT_ONCE_ON_A_GPU)):
            # Across, then down, with grey levels between, as Pillow does it; with antialiasing, which changes nothing
            # where images grow, torch has the same curve as Pillow.
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
    """Parts of images at one size: float32, [B, 3, size, size], whole numbers in 0 .. 255.

    Args:
        rows: int64, [B]
        box: [B, 4], top, left, height, width of what is shown
        within: [B, 4], whole numbers: the pixels that may be looked at; beyond them the nearest one is repeated
        flip: bool, [B], whether it is mirrored left to right
        finish: what is done to each part of the result
    """
    place, pixels = locate(store, rows), flat_pixels(store)
    # int32 where it can hold a position in the store: positions are most of what is read and written here.
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


def resample_one_by_one(
    store: Images, rows: Tensor, box: Tensor, flip: Tensor, size: int, finish: Finish | None = None
) -> Tensor:
    """`resample` for whole boxes, to a grey level: on a CPU torch's own resizing is several times as fast."""
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
    """A few images at a time on each of torch's threads.

    One image is too little to be shared by threads: where the cores are busy, torch's own, which wait for one another
    after every operation, make it ten times slower than one thread alone. The result is the same to the bit.
    """
    parts = [slice(start, start + _AT_ONCE) for start in range(0, n, _AT_ONCE)]
    threads = torch.get_num_threads()
    if threads == 1 or len(parts) == 1:
        for part in parts:
            sample(part)
        return
    inference = torch.is_inference_mode_enabled()  # a thread begins without it, and could not write the result

    def sample_likewise(part: slice) -> None:
        with torch.inference_mode(inference):
            sample(part)

    torch.set_num_threads(1)  # of every thread that starts from here on
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(sample_likewise, parts))
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class _Axis:
    """From which two pixels of an image each output pixel comes along one direction; all are [B, size]."""

    low: Tensor
    """int64, the pixel above, or on the left"""
    high: Tensor
    """int64, its neighbour; the same one where there is none"""
    share: Tensor
    """float32, of the neighbour"""

    @classmethod
    def of(cls, box: Tensor, within: Tensor, direction: int, size: int, flip: Tensor | None) -> _Axis:
        """`direction` 0 is down, 1 across."""
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
    """Mix four neighbours into `result`, [B, 3, size, size]. Positions are in the type of `place`."""
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
