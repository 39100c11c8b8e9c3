"""AutoAugment compared with torchvision, image by image; Cutout compared with a loop over pixels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from conftest import seeded, small_config, small_stream, write_colours
from ffcil.config.settings import Phase
from ffcil.data.augment import Augmentation, Draws
from ffcil.data.autoaugment import (
    BINS,
    FILL,
    Operation,
    Policy,
    PolicyName,
    auto_augment,
    draw_operations,
    operations_of,
    published_policy,
)
from ffcil.data.glyphs import GLYPHS_AUGMENTATION
from ffcil.data.sources import CIFAR100_AUGMENTATION, load_dataset
from ffcil.runs.run import Run
from ffcil.training.batches import ImageSource
from ffcil.training.engine import Engine
from ffcil.training.fit import Optimisation, ParameterGroup, Training, fit
from oracles import grey_levels

MEAN, STD = (0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)
pixels = partial(grey_levels, mean=MEAN, std=STD)
SIZES = [(32, 32), (21, 34), (33, 20)]
NAMES: list[PolicyName] = ["cifar10", "imagenet", "svhn"]
GEOMETRY = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
WITHOUT_BIN = ("AutoContrast", "Equalize", "Invert")
OPERATIONS = [
    Operation("Identity"),
    *(Operation(n, k, negative) for n in GEOMETRY + BLENDS for k in range(BINS) for negative in (False, True)),
    *(Operation(n, k) for n in ("Posterize", "Solarize") for k in range(BINS)),
    *(Operation(n) for n in WITHOUT_BIN),
]
EVERYTHING: Policy = tuple(((o.name, 1.0, o.bin), ("Invert", 0.0, None)) for o in OPERATIONS if not o.negative)
"""A policy with every operation at every strength."""


def noise(n: int, height: int, width: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (n, 3, height, width), generator=seeded(seed)).to(torch.uint8)


def smooth(n: int, height: int, width: int) -> Tensor:
    """Slow waves. Every channel has its own range, without the darkest and the brightest values."""
    y, x = torch.meshgrid(torch.linspace(0, 3, height), torch.linspace(0, 4, width), indexing="ij")
    k = torch.arange(3 * n).view(n, 3, 1, 1)
    return (110 + (20 + 6 * (k % 12)) * torch.sin(x * (1 + 0.1 * k) + k) * torch.cos(y + 0.3 * k)).to(torch.uint8)


def one_colour(n: int, height: int, width: int) -> Tensor:
    """Images of one colour, with the darkest, the brightest and another value in the three channels."""
    other = torch.arange(n) % 254 + 1
    colours = torch.stack([torch.zeros(n), torch.full((n,), 255), other], 1).to(torch.uint8)
    return colours[:, :, None, None].expand(n, 3, height, width).contiguous()


def two_values(n: int, height: int, width: int) -> Tensor:
    """Images in which one pixel differs: the step of equalize is (H * W - 1) // 255 or 1 // 255, 0 in small images."""
    images = torch.full((n, 3, height, width), 90, dtype=torch.uint8)
    images[::2, :, 1, 2], images[1::2, :, 1, 2] = 200, 3
    return images


def expected_magnitude(operation: Operation, height: int, width: int) -> float:
    """Magnitude in torchvision, except that solarize starts at 256, which inverts nothing."""
    if operation.bin is None:
        return 0.0
    if operation.name == "Solarize":
        return 256 * (1 - operation.bin / 9)
    magnitudes, signed = AutoAugment()._augmentation_space(BINS, (height, width))[operation.name]
    assert signed or not operation.negative
    return float(magnitudes[operation.bin]) * (-1 if operation.negative else 1)


def by_torchvision(image: Tensor, operation: Operation) -> Tensor:
    magnitude = expected_magnitude(operation, *image.shape[1:])
    if operation.name == "Solarize" and magnitude > 255:
        return image
    result: Tensor = _apply_op(image, operation.name, magnitude, InterpolationMode.NEAREST, [128.0] * 3)
    return result


def numbers(policy: Policy, operations: Sequence[Operation]) -> Tensor:
    return torch.tensor([operations_of(policy).index(operation) for operation in operations])


def augmented(images: Tensor, policy: Policy, first: Sequence[Operation], second: Sequence[Operation]) -> Tensor:
    steps = torch.stack([numbers(policy, first), numbers(policy, second)], 1)
    values = images.float()
    result = auto_augment(values, policy, steps)
    assert torch.equal(values, images.float())  # the input is not changed
    assert result.dtype == torch.float32
    assert torch.equal(result, result.to(torch.uint8).float())
    return result.to(torch.uint8)


@pytest.mark.parametrize(("height", "width"), SIZES)
@pytest.mark.parametrize("images", [noise, smooth, one_colour, two_values])
@pytest.mark.parametrize("place", ["first", "second"])
def test_every_operation_equals_torchvision(images: object, height: int, width: int, place: str) -> None:
    assert callable(images)
    store = images(len(OPERATIONS), height, width)
    still = [Operation("Identity")] * len(OPERATIONS)
    got = augmented(store, EVERYTHING, *((OPERATIONS, still) if place == "first" else (still, OPERATIONS)))
    for image, operation, result in zip(store, OPERATIONS, got, strict=True):
        assert torch.equal(result, by_torchvision(image, operation)), operation


def test_strong_operations_change_images() -> None:
    """Otherwise the comparison with torchvision would be without meaning."""
    image = smooth(1, 32, 32)
    for operation in OPERATIONS:
        strong = operation.bin == BINS - 1 or operation.name in WITHOUT_BIN
        changed = not torch.equal(augmented(image, EVERYTHING, [operation], [Operation("Identity")]), image)
        assert changed if strong else True, operation
        if operation.bin == 0:
            assert not changed, operation  # the weakest strength changes nothing


@pytest.mark.parametrize("images", [noise, smooth])
def test_pairs_of_operations(images: object) -> None:
    """Every pair of operations, in both orders."""
    assert callable(images)
    chosen = [o for o in OPERATIONS if o.bin in (None, 3, 8)]
    pairs = [(a, b) for a in chosen for b in chosen]
    store = images(len(pairs), 18, 23)
    got = augmented(store, EVERYTHING, [a for a, _ in pairs], [b for _, b in pairs])
    for image, (a, b), result in zip(store, pairs, got, strict=True):
        assert torch.equal(result, by_torchvision(by_torchvision(image, a), b)), (a, b)


@pytest.mark.parametrize("name", NAMES)
def test_operations_of_a_published_policy(name: PolicyName) -> None:
    policy, store = published_policy(name), smooth(300, 32, 32)
    steps = draw_operations(policy, 300, seeded(3))
    got = auto_augment(store.float(), policy, steps).to(torch.uint8)
    operations = operations_of(policy)
    for image, (a, b), result in zip(store, steps.tolist(), got, strict=True):
        assert torch.equal(result, by_torchvision(by_torchvision(image, operations[a]), operations[b]))


@pytest.mark.parametrize(("height", "width"), [(1, 1), (2, 5), (3, 3)])
def test_tiny_images(height: int, width: int) -> None:
    store = noise(len(OPERATIONS), height, width)
    got = augmented(store, EVERYTHING, OPERATIONS, [Operation("Identity")] * len(OPERATIONS))
    for image, operation, result in zip(store, OPERATIONS, got, strict=True):
        assert torch.equal(result, by_torchvision(image, operation)), operation


def test_grey_levels_of_colours_equal_torchvision() -> None:
    """Every red with every green, each with some blue. All 2^24 colours would be too many."""
    red, green = torch.meshgrid(torch.arange(256), torch.arange(256), indexing="ij")
    image = torch.stack([red, green, (red * 7 + green * 13) % 256]).to(torch.uint8)
    grey = Operation("Color", 9, negative=True)
    got = augmented(image[None], EVERYTHING, [grey], [Operation("Identity")])
    assert torch.equal(got[0], by_torchvision(image, grey))


def test_the_fill_is_grey() -> None:
    black = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    got = augmented(black, EVERYTHING, [Operation("TranslateX", 9)], [Operation("Identity")])
    assert got[0, :, :, :14].unique().tolist() == [FILL]
    assert got[0, :, :, 14:].unique().tolist() == [0]


# --- what is drawn -------------------------------------------------------------------------------------------------


def test_policies_equal_torchvision() -> None:
    for name in NAMES:
        assert list(published_policy(name)) == AutoAugment(AutoAugmentPolicy(name)).policies
        assert operations_of(published_policy(name))[0] == Operation("Identity")
        assert len(set(operations_of(published_policy(name)))) == len(operations_of(published_policy(name)))


@pytest.mark.parametrize("name", NAMES)
def test_frequencies_of_operations(name: PolicyName) -> None:
    """Operations and signs are as frequent as in the sub-policies, within five standard deviations."""
    policy, n = published_policy(name), 200_000
    steps = draw_operations(policy, n, seeded(1))
    assert steps.dtype == torch.int64
    for place in (0, 1):
        expected = dict.fromkeys(operations_of(policy), 0.0)
        for pair in policy:
            operation, probability, magnitude_bin = pair[place]
            signed = operation in GEOMETRY + BLENDS
            expected[Operation("Identity")] += (1 - probability) / len(policy)
            for negative in (False, True) if signed else (False,):
                expected[Operation(operation, magnitude_bin, negative)] += probability / len(policy) / (1 + signed)
        counts = torch.bincount(steps[:, place], minlength=len(expected)) / n
        for (operation_, share), count in zip(expected.items(), counts.tolist(), strict=True):
            assert abs(count - share) <= 5 * (share * (1 - share) / n) ** 0.5, operation_


def test_both_operations_come_from_one_sub_policy_and_are_otherwise_independent() -> None:
    policy: Policy = (
        (("Rotate", 0.5, 3), ("Color", 0.25, 4)),
        (("Invert", 1.0, None), ("Equalize", 1.0, None)),
        (("ShearX", 0.0, 5), ("Solarize", 1.0, 6)),
    )
    n = 120_000
    steps = draw_operations(policy, n, seeded(2))
    names = [operation.name for operation in operations_of(policy)]
    got: dict[tuple[str, str], float] = {}
    for (a, b), count in zip(*(part.tolist() for part in steps.unique(dim=0, return_counts=True)), strict=True):
        got[names[a], names[b]] = got.get((names[a], names[b]), 0) + count / n
    expected = {
        ("Rotate", "Color"): 0.125 / 3,
        ("Rotate", "Identity"): 0.375 / 3,
        ("Identity", "Color"): 0.125 / 3,
        ("Identity", "Identity"): 0.375 / 3,
        ("Invert", "Equalize"): 1 / 3,
        ("Identity", "Solarize"): 1 / 3,
    }
    assert got == pytest.approx(expected, abs=5 * (0.25 / n) ** 0.5)
    signs = [operations_of(policy)[k].negative for k in range(len(names))]
    both = [(signs[a], signs[b]) for a, b in steps.tolist() if names[a] == "Rotate" and names[b] == "Color"]
    for pair in [(False, False), (False, True), (True, False), (True, True)]:
        assert abs(both.count(pair) / len(both) - 0.25) < 5 * (0.1875 / len(both)) ** 0.5


def test_auto_augmentation_does_not_change_the_other_draws() -> None:
    """Runs of earlier versions with augment=standard drew the same numbers."""
    generator = seeded()
    offsets = torch.randint(0, 9, (2, 40), generator=generator)
    flip, brightness = torch.rand(2, 40, generator=generator)
    after = generator.get_state()
    for auto in (False, True):
        again = seeded()
        draws = replace(CIFAR100_AUGMENTATION, auto=auto).draw(40, again)
        assert torch.equal(draws.top, offsets[0])
        assert torch.equal(draws.left, offsets[1])
        assert torch.equal(draws.flip, flip < 0.5)
        assert torch.equal(draws.brightness, 1 + 63 / 255 * (2 * brightness - 1))
        assert torch.equal(again.get_state(), after) is not auto
        assert [part.shape[1] for part in draws[4:]] == ([2, 2, 0] if auto else [0, 0, 0])


# --- within Augmentation -------------------------------------------------------------------------------------------


def still(n: int, hole: Tensor) -> Draws:
    """Parameters that change nothing but the hole."""
    nowhere = torch.zeros(n, dtype=torch.int64)
    operations, box = nowhere.new_zeros(n, 2), nowhere.new_empty(n, 0)
    return Draws(nowhere, nowhere, nowhere.bool(), torch.ones(n), operations, hole, box)


@pytest.mark.parametrize("side", [1, 5, 16, 64])
def test_cutout_is_a_square_cut_at_the_borders(side: int) -> None:
    height, width = 12, 17
    centres = [(y, x) for y in range(height) for x in range(width)]
    # numbers between the borders of a pixel
    within = torch.rand(len(centres), 2, generator=seeded()) * 0.98 + 0.01
    hole = (torch.tensor(centres) + within) / torch.tensor([height, width])
    images = noise(len(centres), height, width).clamp(min=1)
    got = pixels(Augmentation(MEAN, STD, 0, auto=True, cutout=side).train(images, torch.arange(204), still(204, hole)))
    for image, (y, x), result in zip(images, centres, got, strict=True):
        for row in range(height):
            for column in range(width):
                inside = 0 <= row - y + side // 2 < side and 0 <= column - x + side // 2 < side
                if inside:
                    image[:, row, column] = 0
        assert torch.equal(result, image)


def test_the_centre_of_the_hole_is_uniform_over_pixels() -> None:
    augmentation = Augmentation(MEAN, STD, 0, flip=False, brightness=0, auto=True, cutout=1)
    n = 10_000
    hole = augmentation.draw(n, seeded()).hole
    white = torch.full((1, 3, 5, 4), 255, dtype=torch.uint8)
    got = pixels(augmentation.train(white, torch.zeros(n, dtype=torch.int64), still(n, hole)))
    share = (got[:, 0] == 0).double().mean(0)
    assert (share - 1 / 20).abs().max() < 5 * (1 / 20 / n) ** 0.5


def test_the_ends_of_the_uniform_numbers() -> None:
    """The largest number below 1 selects the last pixel and the last sub-policy."""
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0))
    sizes = torch.arange(1, 5000)
    assert torch.equal((largest * sizes).long(), sizes - 1)


def test_order_of_all_operations() -> None:
    """Crop, flip, brightness, AutoAugment, Cutout, normalisation."""
    standard = Augmentation(MEAN, STD, policy="svhn", cutout=7)
    auto, images, rows = replace(standard, auto=True), noise(20, 24, 32), torch.arange(60) % 20
    draws = auto.draw(60, seeded(5))
    values = pixels(standard.train(images, rows, draws))
    policy = published_policy("svhn")
    want = auto_augment(values.float(), policy, draws.operations)
    for image, (y, x) in zip(want, (draws.hole * torch.tensor([24, 32])).long().tolist(), strict=True):
        image[:, max(0, y - 3) : y + 4, max(0, x - 3) : x + 4] = 0
    assert torch.equal(pixels(auto.train(images, rows, draws)), want.to(torch.uint8))
    assert not torch.equal(values, want.to(torch.uint8))


def test_cutout_can_be_turned_off() -> None:
    whole = Augmentation(MEAN, STD, auto=True, cutout=0)
    draws = whole.draw(30, seeded(5))
    assert draws.hole.shape == (30, 0)
    white = torch.full((30, 3, 8, 8), 255, dtype=torch.uint8)
    plain = still(30, draws.hole)._replace(top=torch.full((30,), 4), left=torch.full((30,), 4))
    assert pixels(whole.train(white, torch.arange(30), plain)).eq(255).all()


# --- within a run --------------------------------------------------------------------------------------------------


def test_auto_augmentation_of_each_data_set(tmp_path: Path) -> None:
    assert not CIFAR100_AUGMENTATION.auto
    assert (CIFAR100_AUGMENTATION.policy, CIFAR100_AUGMENTATION.cutout) == ("cifar10", 16)
    assert (GLYPHS_AUGMENTATION.policy, GLYPHS_AUGMENTATION.cutout) == ("svhn", 8)
    folder = write_colours(tmp_path / "mine", classes=2, images=2)
    for size, form in {64: ("cifar10", 32), 95: ("cifar10", 47), 96: ("imagenet", 0)}.items():
        augmentation = load_dataset("folder", folder, size).augmentation
        assert (augmentation.policy, augmentation.cutout) == form


def test_fit_uses_the_batches_of_draw_and_train() -> None:
    """Two epochs have different batches."""
    augmentation = Augmentation(MEAN, STD, padding=1, auto=True, cutout=6)
    settings = small_config(train={"augment": "auto"}).train
    engine, data = Engine.create("cpu", settings), small_stream([2])[0].train
    weight, seen = torch.nn.Parameter(torch.zeros(())), []

    def loss(images: Tensor, targets: Tensor) -> Tensor:
        seen.append(images.clone())
        return weight * images.mean()

    optimisation = Optimisation.of_phase(Phase(epochs=2, learning_rate=0.1), settings.momentum)
    source = ImageSource(data, torch.arange(32), augmentation, settings.batch, views=2)
    with engine.settled():
        fit(Training(loss, [ParameterGroup([weight])], source, optimisation, seed=0), engine)
    assert [batch.shape for batch in seen] == [(2 * settings.batch, 3, 16, 16)] * 4
    assert not torch.equal(seen[0], seen[2])
    black = [(pixels(batch) == 0).all(1).float().mean() for batch in seen]
    assert min(black) > 0.05  # holes of 36 of 256 pixels, or fewer at the borders
    values = pixels(torch.cat(seen))
    fill = (values == 128).all(1).flatten(1).float().mean(1)
    assert 0.05 < (fill > 0.05).float().mean() < 0.6  # only moved images show the grey fill


def test_a_run_with_auto_augmentation(colours: Path, tmp_path: Path) -> None:
    """It uses the policy of folders, is reproducible, and learns."""
    losses: dict[str, list[float]] = {}
    for name in ("standard", "auto", "auto again"):
        config = small_config(
            dataset="folder",
            image_size=16,
            arrivals={"sizes": [4, 2]},
            memory={"budget": 18},
            train={"augment": name.split()[0]},
        )
        summary = Run(config, tmp_path / name, data=colours, device="cpu", threads=1).execute()
        lines = (tmp_path / name / "records.jsonl").read_text().splitlines()
        losses[name] = [json.loads(line)["loss"] for line in lines]
        assert summary["average"] > 40  # of 4 and 6 classes, after seconds of training
    assert losses["auto"] == losses["auto again"]
    assert losses["auto"] != losses["standard"]
