"""Augmentation compared with torchvision and Pillow, image by image, with the same parameters."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv

from conftest import captured, seeded
from ffcil.data.augment import Augmentation, Draws
from oracles import grey_levels

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
pixels = partial(grey_levels, mean=MEAN, std=STD)
SHAPES = [(32, 32), (17, 17), (20, 31), (9, 4)]


def store(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, 3, height, width), generator=seeded(seed)).to(torch.uint8)


def still(n: int, padding: int) -> Draws:
    """Parameters that leave the image as it is."""
    middle = torch.full((n,), padding)
    floats, numbers = torch.empty(n, 0), torch.empty(n, 0, dtype=torch.int64)
    return Draws(middle, middle, torch.zeros(n, dtype=torch.bool), torch.ones(n), numbers, floats, numbers)


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_crops_equal_torchvision(height: int, width: int) -> None:
    augmentation, images = Augmentation(MEAN, STD, padding=3), store(5, height, width)
    offsets = torch.cartesian_prod(torch.arange(7), torch.arange(7))  # every offset
    n = len(offsets)
    rows = torch.arange(n) % 5
    draws = still(n, 3)._replace(top=offsets[:, 0], left=offsets[:, 1])
    got = pixels(augmentation.train(images, rows, draws))
    for i in range(n):
        top, left = offsets[i].tolist()
        assert torch.equal(got[i], tv.crop(tv.pad(images[rows[i]], [3]), top, left, height, width))


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_flips_equal_torchvision(height: int, width: int) -> None:
    images, flip = store(6, height, width), torch.tensor([True, False, True, True, False, False])
    got = pixels(Augmentation(MEAN, STD).train(images, torch.arange(6), still(6, 4)._replace(flip=flip)))
    for image, flipped, result in zip(images, flip, got, strict=True):
        assert torch.equal(result, tv.horizontal_flip(image) if flipped else image)


def test_brightness_equals_torchvision_and_pillow_on_every_value() -> None:
    image = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).expand(1, 3, 16, 16).contiguous()
    factors = torch.cat([torch.linspace(0, 2, 41), torch.rand(60, generator=seeded(1)) * 0.5 + 0.75])
    n = len(factors)
    got = pixels(
        Augmentation(MEAN, STD).train(
            image, torch.zeros(n, dtype=torch.int64), still(n, 4)._replace(brightness=factors)
        )
    )
    picture = tv.to_pil_image(image[0])
    for factor, result in zip(factors.tolist(), got, strict=True):
        assert torch.equal(result, tv.adjust_brightness(image[0], factor))
        assert torch.equal(result, tv.pil_to_tensor(tv.adjust_brightness(picture, factor)))


def test_normalisation_equals_torchvision() -> None:
    images = store(8, 32, 32)
    want = tv.normalize(tv.to_dtype(images, torch.float32, scale=True), list(MEAN), list(STD))
    augmentation = Augmentation(MEAN, STD)
    torch.testing.assert_close(augmentation.plain(images), want, rtol=0, atol=2e-6)
    torch.testing.assert_close(augmentation.train(images, torch.arange(8), still(8, 4)), want, rtol=0, atol=2e-6)


def test_channels_have_their_own_constants() -> None:
    black = torch.zeros(1, 3, 2, 2, dtype=torch.uint8)
    got = Augmentation((0.1, 0.2, 0.3), (0.5, 1.0, 2.0)).plain(black)
    torch.testing.assert_close(got[0, :, 0, 0], torch.tensor([-0.2, -0.2, -0.15]))


def one_by_one(augmentation: Augmentation, images: Tensor, rows: Tensor, draws: Draws) -> Tensor:
    height, width = images.shape[2:]
    results = []
    for i, row in enumerate(rows.tolist()):
        image = tv.pad(images[row], [augmentation.padding])
        image = tv.crop(image, int(draws.top[i]), int(draws.left[i]), height, width)
        image = tv.horizontal_flip(image) if draws.flip[i] else image
        image = tv.adjust_brightness(image, draws.brightness[i].item())
        image = tv.to_dtype(image, torch.float32, scale=True)
        results.append(tv.normalize(image, list(augmentation.mean), list(augmentation.std)))
    return torch.stack(results)


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize("padding", [0, 1, 4, 12])
def test_batches_equal_torchvision_applied_to_single_images(height: int, width: int, padding: int) -> None:
    augmentation, images = Augmentation(MEAN, STD, padding=padding), store(30, height, width)
    generator = seeded(padding)
    rows = torch.randint(0, 30, (64,), generator=generator)  # some twice
    draws = augmentation.draw(64, generator)
    before = images.clone()
    got, want = augmentation.train(images, rows, draws), one_by_one(augmentation, images, rows, draws)
    assert got.dtype == torch.float32
    assert got.shape == (64, 3, height, width)
    assert torch.equal(images, before)
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6)
    assert torch.equal(pixels(got), pixels(want))


def test_memory_mapped_store(tmp_path: Path) -> None:
    images, path = store(10, 8, 8), tmp_path / "images.npy"
    np.save(path, images.numpy())
    mapped = torch.from_numpy(np.load(path, mmap_mode="c"))
    augmentation = Augmentation(MEAN, STD)
    draws = augmentation.draw(10, seeded())
    rows = torch.arange(10)
    assert torch.equal(augmentation.train(mapped, rows, draws), augmentation.train(images, rows, draws))


def test_draw_ranges_and_types() -> None:
    draws = Augmentation(MEAN, STD).draw(20_000, seeded())
    integer, real = torch.int64, torch.float32
    assert [part.dtype for part in draws] == [integer, integer, torch.bool, real, integer, real, integer]
    assert all(part.shape == (20_000,) for part in draws[:4])
    assert all(part.shape == (20_000, 0) for part in draws[4:])
    for offsets in (draws.top, draws.left):  # uniform over 0 to 8, within five standard deviations
        assert offsets.unique().tolist() == list(range(9))
        assert (torch.bincount(offsets) - 20_000 / 9).abs().max() < 5 * (20_000 * 8 / 81) ** 0.5
    pairs = (draws.top * 9 + draws.left).unique()
    assert len(pairs) == 81  # the two offsets are independent
    assert abs(draws.flip.float().mean() - 0.5) < 5 * 0.5 / 20_000**0.5
    low, high = 1 - 63 / 255, 1 + 63 / 255
    assert low <= draws.brightness.min() < low + 0.001
    assert high - 0.001 < draws.brightness.max() <= high
    assert abs(draws.brightness.mean() - 1) < 0.01


def test_draws_are_determined_by_the_generator() -> None:
    augmentation = Augmentation(MEAN, STD)
    first, again, other = (augmentation.draw(50, seeded(seed)) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first[:4], other[:4], strict=True))


def test_disabled_operations_consume_the_same_random_numbers() -> None:
    on, off = seeded(), seeded()
    Augmentation(MEAN, STD).draw(100, on)
    draws = Augmentation(MEAN, STD, padding=0, flip=False, brightness=0).draw(100, off)
    assert draws.top.eq(0).all()
    assert draws.left.eq(0).all()
    assert not draws.flip.any()
    assert draws.brightness.eq(1).all()
    assert torch.equal(on.get_state(), off.get_state())
    plain = Augmentation(MEAN, STD, padding=0, flip=False, brightness=0)
    images = store(100, 6, 6)
    assert torch.equal(plain.train(images, torch.arange(100), draws), plain.plain(images))


@pytest.mark.parametrize("field", [{"padding": -1}, {"brightness": 1.5}, {"brightness": -0.1}, {"cutout": -1}])
def test_invalid_parameters_are_an_error(field: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(field))):
        Augmentation(MEAN, STD, **field)  # type: ignore[arg-type]


@pytest.mark.gpu
def test_a_captured_graph_equals_the_cpu() -> None:
    augmentation, images = Augmentation(MEAN, STD), store(200, 32, 32)
    device = torch.device("cuda")
    generator, store_on_gpu = seeded(), images.to(device)
    rows = torch.zeros(64, dtype=torch.int64, device=device)
    draws = Draws(*(part.to(device) for part in still(64, 4)))
    graph, result = captured(lambda: augmentation.train(store_on_gpu, rows, draws))
    for _ in range(3):
        new_rows, new = torch.randint(0, 200, (64,), generator=generator), augmentation.draw(64, generator)
        rows.copy_(new_rows)
        for static, part in zip(draws, new, strict=True):
            static.copy_(part)
        graph.replay()
        assert torch.equal(pixels(result.cpu()), pixels(augmentation.train(images, new_rows, new)))
