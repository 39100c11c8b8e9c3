"""The novelty of images: what it is fitted to, how it ranks near and far images, and its rate of false alarms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from conftest import seeded
from ffcil.calibration import auroc, fit_temperature, threshold_at
from ffcil.models.discriminant import ClassSums, Discriminant
from ffcil.models.novelty import FAR, Novelty, _describe

WIDTH, KNOWN, UNKNOWN, EACH = 30, 12, 8, 40
SHRINKAGE = 0.1


def images(classes: Tensor, each: int, seed: int) -> tuple[Tensor, Tensor]:
    """Images of classes whose means lie in a third of all directions, and vary there less than elsewhere."""
    means = torch.randn(KNOWN + UNKNOWN, WIDTH, generator=seeded(5), dtype=torch.float64)
    means[:, 10:] = 0
    targets = classes.repeat_interleave(each)
    noise = torch.randn(len(targets), WIDTH, generator=seeded(seed), dtype=torch.float64)
    noise[:, :10] *= 0.5
    return means[targets] + noise, targets


def fitted() -> tuple[Novelty, ClassSums]:
    features, targets = images(torch.arange(KNOWN), EACH, 1)
    sums = ClassSums(WIDTH, KNOWN)
    sums.add(features, targets)
    distances = Discriminant.of(sums).left_out_distances(features, targets, SHRINKAGE)
    whole = Discriminant.of(sums.merged())
    background = whole.left_out_distances(features, torch.zeros_like(targets), SHRINKAGE)[:, 0]
    return Novelty.fit(distances, background, targets, fit_temperature(-distances / 2, targets)), sums


def novelty_of(features: Tensor) -> Tensor:
    novelty, sums = fitted()
    near, far = (Discriminant.of(of).distances(SHRINKAGE) for of in (sums, sums.merged()))
    return novelty(near(features), far(features)[:, 0])


def test_unknown_classes_are_found_better_than_by_the_highest_probability() -> None:
    known, _ = images(torch.arange(KNOWN), EACH, 2)
    unknown, _ = images(torch.arange(KNOWN, KNOWN + UNKNOWN), EACH, 3)
    _, sums = fitted()
    plain = [Discriminant.of(sums).distances(SHRINKAGE)(some).mul(-0.5).softmax(1).amax(1) for some in (known, unknown)]
    found = auroc(novelty_of(known), novelty_of(unknown))
    assert found > auroc(-plain[0], -plain[1]) + 0.03
    assert found > 0.9


@pytest.mark.parametrize("scale", [20.0, 1e4])
def test_something_else_altogether_is_found(scale: float) -> None:
    known, _ = images(torch.arange(KNOWN), EACH, 2)
    far = scale * torch.randn(50, WIDTH, generator=seeded(9), dtype=torch.float64)
    assert auroc(novelty_of(known), novelty_of(far)) > 0.999


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.3])
def test_further_known_images_exceed_the_threshold_at_the_stated_rate(rate: float) -> None:
    novelty, _ = fitted()
    known, _ = images(torch.arange(KNOWN), 500, 2)
    alarms = (novelty_of(known) > threshold_at(novelty.known, rate)).double().mean().item()
    deviation = math.sqrt(rate * (1 - rate) / (KNOWN * EACH))  # of the threshold, the larger part
    assert alarms == pytest.approx(rate, abs=4 * deviation)


def test_the_three_numbers_of_a_plain_loop() -> None:
    distances = torch.tensor([[4.0, 9.0, 1.0], [2.0, 2.0, 8.0]], dtype=torch.float64)
    background = torch.tensor([16.0, 25.0], dtype=torch.float64)
    described = _describe(distances, background, temperature=2.0)
    for row, squares, behind in zip(described, distances.tolist(), [16.0, 25.0], strict=True):
        shares = [math.exp(-square / 4) for square in squares]
        top = max(shares) / sum(shares)
        assert row.tolist() == pytest.approx([-math.log(top / (1 - top)), math.sqrt(min(squares)), math.sqrt(behind)])


def test_few_classes_or_images_leave_the_distance_alone() -> None:
    distances = torch.rand(10, 1, generator=seeded(), dtype=torch.float64)
    novelty = Novelty.fit(distances, distances[:, 0], torch.zeros(10, dtype=torch.int64), 1.0)
    assert not novelty.weights.any()
    assert torch.equal(novelty(distances, distances[:, 0]).argsort(), distances[:, 0].argsort())
    assert novelty.known.mean().item() == pytest.approx(-FAR)
