"""Crops from a ragged store compared with torchvision, image by image, with the same boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandomResizedCrop
from torchvision.transforms.v2 import functional as tv

from conftest import seeded
from ffcil.data.augment import Augmentation, Draws
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import Images, RaggedImages, flat_pixels, image_sizes, locate
from ffcil.data.resized_crop import ResizedCrop, resample, resample_one_by_one
from ffcil.training.batches import ImageSource, _ImageBatches
from ffcil.training.parallel import ALONE
from oracles import grey_levels

UNIT = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
SIZES = [(64, 64), (64, 96), (120, 64), (64, 65), (1, 1), (3, 40), (200, 64), (64, 333)]


def picture(height: int, width: int, seed: int) -> Tensor:
    """An image that is smooth in one half and noise in the other."""
    noise = torch.randint(0, 256, (3, height, width), generator=seeded(seed))
    slope = torch.linspace(0, 255, height)[:, None] * torch.linspace(0.3, 1, width)
    return torch.where(torch.arange(width) < width // 2, slope.expand(3, -1, -1), noise).to(torch.uint8)


def ragged(sizes: Sequence[tuple[int, int]] = SIZES) -> tuple[RaggedImages, list[Tensor]]:
    images = [picture(*size, seed) for seed, size in enumerate(sizes)]
    return packed(images), images


def packed(images: Sequence[Tensor] | Tensor) -> RaggedImages:
    pixels = torch.cat([image.permute(1, 2, 0).flatten() for image in images])
    return RaggedImages.packed(pixels, torch.tensor([image.shape[1:] for image in images]))


def augmentation(size: int = 56, short_side: int = 64, **fields: object) -> Augmentation:
    return Augmentation(*UNIT, 0, brightness=0.0, crop=ResizedCrop(size, short_side), **fields)  # type: ignore[arg-type]


def levels(result: Tensor) -> Tensor:
    return grey_levels(result).double()


def drawn(augmentation: Augmentation, store: RaggedImages | Tensor, rows: Tensor, seed: int = 0) -> Draws:
    return augmentation.draw(len(rows), seeded(seed), image_sizes(store)[rows])


# --- the store -----------------------------------------------------------------------------------------------------


def test_a_store_returns_its_images() -> None:
    store, images = ragged()
    assert len(store) == len(images)
    assert all(torch.equal(store.image(k), image) for k, image in enumerate(images))
    moved = store.to(torch.device("cpu"))
    assert moved.device.type == "cpu"
    assert torch.equal(moved.image(3), images[3])


def test_pixels_are_located_in_both_kinds_of_store() -> None:
    square = torch.randint(0, 256, (5, 3, 6, 9), dtype=torch.uint8)
    rows = torch.tensor([4, 0, 2, 2])
    for store in (square, packed(square)):
        assert image_sizes(store).tolist() == [[6, 9]] * 5
        place = locate(store, rows)
        assert (place.height.tolist(), place.width.tolist()) == ([6] * 4, [9] * 4)
        for colour, y, x in ((0, 0, 0), (2, 5, 8), (1, 3, 7)):
            position = place.offset + colour * place.channel + y * place.line + x * place.column
            assert torch.equal(flat_pixels(store)[position], square[rows, colour, y, x])


def test_invalid_stores_are_an_error() -> None:
    with pytest.raises(ValueError, match="flat uint8"):
        RaggedImages(torch.zeros(9), torch.zeros(1), torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"sizes must be \[1, 2\]"):
        RaggedImages(torch.zeros(9, dtype=torch.uint8), torch.zeros(1), torch.ones(2, 2))
    store, _ = ragged()
    with pytest.raises(ValueError, match="labels must be"):
        ImageSet(store, torch.zeros(3, dtype=torch.int64), ("a",))
    assert ImageSet(store, torch.zeros(len(store), dtype=torch.int64), ("a",)).image_size == (1, 1)


# --- boxes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "size", [(256, 256), (256, 400), (300, 90), (40, 640)]
)  # for the last two, often no box is found
def test_boxes_have_the_distribution_of_torchvision(size: tuple[int, int]) -> None:
    n = 4000
    crop = ResizedCrop()
    mine = crop.draw(torch.tensor([size] * n), seeded())
    torch.manual_seed(1)
    image = torch.empty(3, *size)
    theirs = torch.tensor([RandomResizedCrop.get_params(image, list(crop.scale), list(crop.ratio)) for _ in range(n)])
    for mine_k, theirs_k in zip(mine.unbind(1), theirs.unbind(1), strict=True):
        assert ks_2samp(mine_k.numpy(), theirs_k.numpy()).pvalue > 1e-4
    area = [(boxes[:, 2] * boxes[:, 3]).numpy() for boxes in (mine, theirs)]
    assert ks_2samp(*area).pvalue > 1e-4
    whole = [((boxes[:, 2] == size[0]) | (boxes[:, 3] == size[1])).double().mean() for boxes in (mine, theirs)]
    assert abs(whole[0] - whole[1]) < 0.04  # share of images for which the largest box was used


def test_boxes_lie_inside_their_images_and_are_determined_by_the_generator() -> None:
    sizes = torch.tensor(SIZES).repeat(500, 1)
    crop = ResizedCrop()
    first, again, other = (crop.draw(sizes, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.int64
    assert (first[:, :2] >= 0).all()
    assert (first[:, 2:] >= 1).all()
    assert (first[:, :2] + first[:, 2:] <= sizes).all()


def test_boxes_are_drawn_after_everything_else() -> None:
    """The other draws are therefore those of earlier versions."""
    sizes = torch.tensor([[64, 80]] * 30)
    with_crop = augmentation(auto=True, cutout=4)
    before = replace(with_crop, crop=None)
    new, old = (a.draw(30, seeded(), sizes) for a in (with_crop, before))
    assert all(torch.equal(a, b) for a, b in zip(new[:-1], old[:-1], strict=True))
    assert new.box.shape == (30, 4)
    assert old.box.shape == (30, 0)
    with pytest.raises(ValueError, match="sizes"):
        with_crop.draw(30, torch.Generator())


@pytest.mark.parametrize(
    "fields", [{"size": 300}, {"size": 0}, {"scale": (0.5, 0.1)}, {"scale": (0, 1)}, {"ratio": (2, 1)}]
)
def test_invalid_crops_are_an_error(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(fields))):
        ResizedCrop(**fields)  # type: ignore[arg-type]


# --- pixels --------------------------------------------------------------------------------------------------------


def batched(store: Images, rows: Tensor, box: Tensor, flip: Tensor, size: int) -> Tensor:
    return resample(store, rows, box, box, flip, size)


@pytest.mark.parametrize("take", [batched, resample_one_by_one])
@pytest.mark.parametrize("size", [56, 21])
def test_training_crops_equal_torchvision(take: Callable[..., Tensor], size: int) -> None:
    """With the code for GPUs and the code for CPUs."""
    store, images = ragged()
    rows = torch.arange(len(store)).repeat(12)
    draws = drawn(augmentation(), store, rows)
    got = take(store, rows, draws.box, draws.flip, size)
    assert torch.equal(got, got.round())
    assert draws.flip.any()
    for k, row in enumerate(rows.tolist()):
        want = tv.resized_crop(images[row], *draws.box[k].tolist(), [size, size], antialias=False)
        want = tv.horizontal_flip(want) if draws.flip[k] else want
        assert (got[k] - want).abs().max() <= 1


@pytest.mark.parametrize("short_side", [64, 80, 57])
def test_test_images_equal_torchvision(short_side: int) -> None:
    """Images with another short side are resized; then the centre is cropped."""
    store, images = ragged()
    got = levels(augmentation(short_side=short_side).plain(store))
    for image, result in zip(images, got, strict=True):
        resized = tv.resize(image, [short_side], InterpolationMode.BILINEAR, antialias=False)
        want = tv.center_crop(resized, [56, 56])
        assert (result - want).abs().max() <= 1
        if min(image.shape[1:]) == short_side:
            assert torch.equal(result, want.double())  # nothing is resampled


def test_images_of_the_right_size_are_cut_out_as_they_would_be_resampled() -> None:
    a, crop = augmentation(), ResizedCrop(56, 64)
    store, images = ragged([(64, 91), (64, 64), (120, 64), (64, 67)])
    rows, flip = torch.tensor([3, 0, 2, 2, 1]), torch.zeros(5, dtype=torch.bool)
    resampled = crop.test(store, rows, flip)
    assert torch.equal(crop.test(store, rows), resampled)
    beside_another = packed([*images, picture(80, 90, 9)])
    assert torch.equal(a.plain(store, rows), a.plain(beside_another, torch.tensor([4, *rows]))[1:])


def test_selected_rows_equal_rows_of_the_whole() -> None:
    store, _ = ragged()
    a, rows = augmentation(), torch.tensor([5, 2, 2, 7])
    assert torch.equal(a.plain(store, rows), a.plain(store)[rows])


def test_square_images_are_the_same_from_both_kinds_of_store() -> None:
    square = torch.stack([picture(64, 64, seed) for seed in range(6)])
    store = packed(square)
    a, rows = augmentation(short_side=72, auto=True, cutout=8), torch.tensor([0, 3, 5, 5, 1])
    draws = drawn(a, square, rows)
    assert all(torch.equal(x, y) for x, y in zip(draws, drawn(a, store, rows), strict=True))
    assert torch.equal(a.train(square, rows, draws), a.train(store, rows, draws))
    flat = (rows, draws.box, draws.flip, 56)
    assert torch.equal(batched(square, *flat), batched(store, *flat))
    assert torch.equal(a.plain(square), a.plain(store))
    padded = Augmentation(*UNIT)
    with pytest.raises(ValueError, match="need an Augmentation with a `crop`"):
        padded.plain(store)


def test_brightness_auto_augment_and_cutout_follow_the_crop() -> None:
    store, _ = ragged()
    rows = torch.arange(len(store)).repeat(4)
    a = replace(augmentation(policy="imagenet"), brightness=0.4)
    draws = drawn(a, store, rows)
    cropped = levels(replace(a, brightness=0.0).train(store, rows, draws)).float()
    bright = levels(a.train(store, rows, draws))
    want = (cropped * draws.brightness[:, None, None, None]).clamp(0, 255).floor()
    assert torch.equal(bright, want.double())
    auto = replace(a, auto=True, cutout=10)
    changed = levels(auto.train(store, rows, drawn(auto, store, rows)))
    assert changed.shape == bright.shape
    assert (changed == 0).all(1).sum((1, 2)).min() >= 25  # a hole, possibly in a corner


def test_normalisation_follows_the_crop() -> None:
    store, _ = ragged()
    a = augmentation()
    got = replace(a, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0)).plain(store)
    want = tv.normalize(a.plain(store), [0.1, 0.2, 0.3], [0.5, 1.0, 2.0])
    torch.testing.assert_close(got, want, rtol=0, atol=2e-6)


def test_training_images_without_randomness_equal_test_images() -> None:
    store, _ = ragged()
    a, rows = augmentation(auto=True).without_randomness(), torch.arange(len(store))
    assert torch.equal(a.train(store, rows, drawn(a, store, rows)), a.plain(store))


def test_positions_beyond_32_bits() -> None:
    """A store of more than 2^31 bytes. Most of it is never written and takes no memory."""
    image = picture(40, 60, 0)
    pixels = torch.empty(2**31 + 10_000, dtype=torch.uint8)
    pixels[-image.numel() :] = image.permute(1, 2, 0).flatten()
    store = RaggedImages(pixels, torch.tensor([len(pixels) - image.numel()]), torch.tensor([[40, 60]]))
    small = packed([image])
    a = augmentation(35, 40)
    assert torch.equal(a.plain(store), a.plain(small))


def test_boxes_of_an_epoch_fit_its_images() -> None:
    """In every view. A box that is larger than its image would read pixels of the next image."""
    store, _ = ragged([(20, 200), (200, 20), (50, 50)])
    images = ImageSet(store, torch.arange(3), ("a", "b", "c"))
    source = ImageSource(images, torch.arange(3), augmentation(16, 20), batch=2, views=2)
    batches = _ImageBatches(source, torch.device("cpu"), ALONE)
    for seed in range(20):
        batches.start_epoch(seed)
        sizes = store.sizes[batches.order]
        assert (batches.draws.box[..., :2] + batches.draws.box[..., 2:] <= sizes).all()
    assert batches.next()[0].shape == (4, 3, 16, 16)


def test_the_number_of_threads_changes_nothing() -> None:
    store, _ = ragged([(64 + k, 90 - k) for k in range(20)])
    augment = augmentation(flip=True)
    rows = torch.arange(20)
    draws = drawn(augment, store, rows)
    results = []
    for threads in (1, 3):
        torch.set_num_threads(threads)
        results.append((augment.train(store, rows, draws), augment.plain(store, rows)))
        with torch.inference_mode():
            results[-1] += (augment.train(store, rows, draws), augment.plain(store, rows))
        assert torch.get_num_threads() == threads
    for one, several in zip(*results, strict=True):
        assert torch.equal(one, several)
