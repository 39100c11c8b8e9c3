"""Calibration and measures compared with naive loops and closed forms."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import seeded
from ffcil.calibration import (
    Calibration,
    auroc,
    expected_calibration_error,
    fit_calibration,
    fit_temperature,
    logistic_regression,
    threshold_at,
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def drawn(probabilities: Tensor, seed: int = 1) -> Tensor:
    """Classes with these probabilities, [N, C] -> [N]."""
    return torch.multinomial(probabilities, 1, generator=seeded(seed))[:, 0]


def likelihood(scores: Tensor, targets: Tensor, temperature: float) -> float:
    return -(scores / temperature).log_softmax(dim=1)[range(len(targets)), targets].mean().item()


# --- the temperature ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.02, 1.0, 700.0])
def test_the_temperature_has_the_smallest_loss(temperature: float) -> None:
    scores = 3 * normal(400, 7)
    targets = drawn((scores / 2).softmax(dim=1))
    scores = scores * temperature + 1000 * normal(400, 1, seed=5)  # the level of a row does not matter
    fitted = fit_temperature(scores, targets)
    best = likelihood(scores, targets, fitted)
    for factor in (0.5, 0.99, 0.9999, 1.0001, 1.01, 2):
        assert likelihood(scores, targets, factor * fitted) > best
    assert fitted == pytest.approx(2 * temperature, rel=0.2)


def test_the_temperature_needs_few_passes_and_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = 3 * normal(400, 7)
    targets, passes = drawn(scores.softmax(dim=1)), []
    expected = fit_temperature(scores, targets)
    plain = torch.softmax

    def noted(rows: Tensor, dim: int) -> Tensor:
        passes.append(len(rows))
        return plain(rows, dim=dim)

    monkeypatch.setattr("torch.softmax", noted)
    monkeypatch.setattr("ffcil.calibration.CHUNK", 700)
    assert fit_temperature(scores.float(), targets) == pytest.approx(expected, rel=1e-5)
    assert max(passes) == 100
    assert sum(passes) <= 12 * 400


def test_temperatures_without_a_smallest_loss() -> None:
    scores = normal(20, 5)
    right = fit_temperature(scores, scores.argmax(dim=1))
    assert 0 < right < 1e-3
    wrong = fit_temperature(scores, scores.argmin(dim=1))
    assert 1e3 < wrong < math.inf
    assert fit_temperature(torch.ones(4, 3), torch.tensor([0, 1, 2, 0])) == 1


# --- probabilities --------------------------------------------------------------------------------------------------


def naive_line(odds: float, points: list[tuple[float, float]]) -> float:
    if odds <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if odds <= right:
            return low + (high - low) * (odds - left) / (right - left)
    return points[-1][1]


def naive_evidence(weights: list[float], top: int) -> list[float]:
    """The probability of the highest class, that of the rest, and the share of the second class in the rest."""
    rest = sum(weights) - weights[top]
    chance = weights[top] / (weights[top] + rest)
    share = math.log(max(weight for k, weight in enumerate(weights) if k != top) / rest)
    return [math.log(chance), math.log(1 - chance), share, share * math.log(weights[top] / rest)]


def naive_probabilities(calibration: Calibration, scores: list[float]) -> list[float]:
    top = max(range(len(scores)), key=lambda k: scores[k])
    gaps = [scores[top] - score for score in scores]
    weights = [math.exp(-gap / calibration.temperature) for gap in gaps]
    rest = sum(weights) - weights[top]
    odds = math.log(weights[top] / rest)
    if calibration.weights:
        odds = sum(w * v for w, v in zip(calibration.weights, [*naive_evidence(weights, top), 1], strict=True))
    if calibration.odds:
        odds = naive_line(odds, list(zip(calibration.odds, calibration.levels, strict=True)))
    second = max(weight for k, weight in enumerate(weights) if k != top)
    mapped = 1 / (1 + math.exp(-max(odds, math.log(second / rest))))
    return [mapped if k == top else weight / rest * (1 - mapped) for k, weight in enumerate(weights)]


WEIGHTS = (0.5, -1.5, 0.3, 0.2, -0.4)
LINE = ((-1.5, 0.0, 2.0), (-1.0, -1.0, 4.0))


@pytest.mark.parametrize(
    "calibration",
    [
        Calibration(),
        Calibration(2.0, *LINE),
        Calibration(0.5, *LINE),
        Calibration(1, (1,), (2,)),
        Calibration(2.0, *LINE, WEIGHTS),
    ],
)
def test_probabilities_are_those_of_a_plain_loop(calibration: Calibration) -> None:
    scores = normal(30, 6)
    expected = torch.tensor([naive_probabilities(calibration, row) for row in scores.tolist()]).double()
    torch.testing.assert_close(calibration(scores), expected, rtol=2e-6, atol=1e-6)
    assert Calibration(**asdict(calibration)) == calibration


@given(
    st.lists(st.lists(st.floats(-50, 50, width=32), min_size=4, max_size=4), min_size=1, max_size=5),
    st.builds(Calibration, st.floats(1e-2, 1e2), st.just(LINE[0]), st.just(LINE[1]), st.sampled_from([(), WEIGHTS])),
)
def test_probabilities_sum_to_one_and_keep_the_class(rows: list[list[float]], calibration: Calibration) -> None:
    scores = torch.tensor(rows)
    got = calibration(scores)
    torch.testing.assert_close(got.sum(dim=1), torch.ones(len(rows)))
    assert torch.equal(got.argmax(dim=1), scores.argmax(dim=1))
    assert got.ge(0).all()


def test_classes_that_are_not_there() -> None:
    """Their score is -inf, and nothing else changes."""
    scores = 3 * normal(300, 4)
    targets = drawn(scores.softmax(dim=1))
    more = torch.cat([scores, torch.full((300, 1), -torch.inf)], dim=1)
    expected, got = fit_calibration(scores, targets), fit_calibration(more, targets)
    torch.testing.assert_close(got(more)[:, :4], expected(scores))
    assert got(more)[:, 4].eq(0).all()
    assert fit_temperature(more, targets) == pytest.approx(fit_temperature(scores, targets))


def test_one_class_is_certain() -> None:
    assert fit_calibration(normal(3, 1), torch.zeros(3, dtype=torch.int64))(normal(2, 1)).eq(1).all()


def test_one_class_among_others_that_are_not_there_is_certain() -> None:
    scores = 3 * normal(300, 4)
    fitted = fit_calibration(scores, drawn(scores.softmax(dim=1)))
    alone = torch.tensor([[-torch.inf, 2.0, -torch.inf]])
    for calibration in (Calibration(), fitted):
        assert calibration(alone).tolist() == [[0, 1, 0]]


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_a_calibration_is_found(heavy_tails: bool) -> None:
    """Classes are drawn with the probabilities of a map of the scores. One temperature fits only the one map."""
    scores = 10 * normal(12_000, 8)
    gaps = scores.amax(dim=1, keepdim=True) - scores
    logits = -2 * torch.asinh(gaps) if heavy_tails else -gaps / 4
    targets = drawn(logits.softmax(dim=1))
    calibration = fit_calibration(scores[:8000], targets[:8000])
    error = expected_calibration_error(calibration(scores[8000:]), targets[8000:])
    assert error < expected_calibration_error(logits[8000:].softmax(dim=1), targets[8000:]) + 0.02
    single = (scores[8000:] / fit_temperature(scores[:8000], targets[:8000])).softmax(dim=1)
    assert (expected_calibration_error(single, targets[8000:]) > 2 * error) == heavy_tails
    assert (calibration(scores) - logits.softmax(dim=1)).abs().mean() < 0.01


def test_a_top_class_that_is_less_often_right_than_it_seems() -> None:
    """The likelihood of all classes is best at a temperature that is wrong for the highest class."""
    scores = 4 * normal(12_000, 10)
    targets = scores.argmax(dim=1)
    random = torch.randint(0, 10, (12_000,), generator=seeded(3))
    targets = torch.where(torch.rand(12_000, generator=seeded(4)) < 0.3, random, targets)
    calibration = fit_calibration(scores[:8000], targets[:8000])
    assert expected_calibration_error(calibration(scores[8000:]), targets[8000:]) < 0.03


def test_the_line_is_that_of_a_plain_isotonic_regression() -> None:
    """Shares of right rows in groups: the best sequence that never falls, max over starts of min over ends."""
    scores = 3 * normal(1000, 5)
    targets = torch.where(torch.rand(1000, generator=seeded(2)) < 0.5, scores.argmax(dim=1), 4)
    calibration = fit_calibration(scores, targets)
    logits = (scores / calibration.temperature).exp().tolist()
    evidence = torch.tensor([naive_evidence(row, row.index(max(row))) for row in logits]).double()
    weights = torch.tensor(calibration.weights).double()
    found = evidence @ weights[:4] + weights[4]
    order = sorted(range(1000), key=lambda i: found[i].item())
    size = [84] * 4 + [83] * 8
    groups = [order[sum(size[:k]) : sum(size[: k + 1])] for k in range(12)]
    shares = [(sum(int(scores[i].argmax() == targets[i]) for i in rows) + 1) / (len(rows) + 2) for rows in groups]
    expected = [
        max(min(sum(shares[a : b + 1]) / (b + 1 - a) for b in range(k, 12)) for a in range(k + 1)) for k in range(12)
    ]
    assert list(torch.tensor(calibration.levels).sigmoid()) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 1
    assert shares != sorted(shares)
    means = [torch.stack([found[i] for i in rows]).mean().item() for rows in groups]
    assert calibration.odds == pytest.approx(means, rel=1e-4)


def test_the_regression_has_no_slope_left() -> None:
    rows = torch.cat([normal(60, 3, seed=seed) + seed for seed in (0, 1)])
    wanted = torch.cat([torch.zeros(60), torch.ones(60)]).double()
    weights = logistic_regression(rows, wanted)
    chance = torch.sigmoid(rows @ weights[:3] + weights[3])
    assert ((chance - wanted).mean() / wanted.mean()).abs() < 0.01
    assert (rows - rows.mean(0)).mT.matmul(chance - wanted).div(len(rows)).abs().max() < 0.01


def test_a_close_second_class_is_told_from_many_far_ones() -> None:
    """With equal odds, the highest class is right less often if all of the rest is one class."""
    rivals = torch.arange(8000) % 2 == 0
    many = -math.log(3)  # three classes that have as much together as the rival alone
    scores = torch.where(rivals[:, None], torch.tensor([1.0, 0, -50, -50]), torch.tensor([1.0, many, many, many]))
    scores = scores + 0.1 * normal(8000, 4)
    right = torch.rand(8000, generator=seeded(6)) < torch.where(rivals, 0.5, 0.9)
    targets = torch.where(right, scores.argmax(dim=1), scores.topk(2).indices[:, 1])
    found = fit_calibration(scores[:4000], targets[:4000])(scores[4000:]).amax(dim=1)
    assert found[rivals[4000:]].mean().item() == pytest.approx(0.5, abs=0.05)
    assert found[~rivals[4000:]].mean().item() == pytest.approx(0.9, abs=0.05)


def test_few_images_have_no_line() -> None:
    scores = normal(24, 4)
    assert fit_calibration(scores, scores.argmin(dim=1)).odds == ()
    assert len(fit_calibration(normal(49, 4), torch.arange(49) % 4).odds) == 1
    equal = fit_calibration(torch.eye(4).repeat(50, 1), torch.arange(4).repeat(50))
    assert len(equal.odds) == 1


@pytest.mark.parametrize("right", [True, False])
def test_all_right_or_all_wrong_gives_finite_numbers(right: bool) -> None:
    scores = normal(50, 4)
    calibration = fit_calibration(scores, scores.argmax(dim=1) if right else scores.argmin(dim=1))
    got = calibration(scores)
    assert got.isfinite().all()
    assert (got.amax(dim=1).mean() > 0.9) if right else (got.amax(dim=1).mean() < 0.6)


# --- measures -------------------------------------------------------------------------------------------------------


def test_the_calibration_error_of_a_plain_loop() -> None:
    probabilities = (2 * normal(300, 4)).softmax(dim=1)
    targets, bins = torch.randint(0, 4, (300,), generator=seeded(2)), 15
    expected = 0.0
    for k in range(bins):
        inside = [i for i in range(300) if k / bins < probabilities[i].max() <= (k + 1) / bins]
        if inside:
            confidence = sum(probabilities[i].max().item() for i in inside) / len(inside)
            accuracy = sum(int(probabilities[i].argmax() == targets[i]) for i in inside) / len(inside)
            expected += len(inside) / 300 * abs(confidence - accuracy)
    assert expected_calibration_error(probabilities, targets) == pytest.approx(expected)
    assert expected_calibration_error(torch.eye(3), torch.arange(3)) == 0
    assert expected_calibration_error(torch.eye(3), torch.tensor([1, 2, 0])) == 1


@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.lists(st.integers(0, 6), min_size=1, max_size=12))
def test_auroc_is_the_statistic_of_mann_and_whitney(known: list[int], unknown: list[int]) -> None:
    wins = sum((new > old) + (new == old) / 2 for old in known for new in unknown)
    expected = wins / (len(known) * len(unknown))
    assert auroc(torch.tensor(known), torch.tensor(unknown)) == pytest.approx(expected)


@pytest.mark.parametrize("false_alarms", [0.01, 0.05, 0.25, 1.0])
def test_the_threshold_keeps_the_rate_of_false_alarms(false_alarms: float) -> None:
    """Of n + 1 exchangeable images, the last one exceeds the threshold of the others at most that often."""
    for count in (3, 19, 20, 99, 150):
        values = torch.randperm(count + 1, generator=seeded(count)).double()
        alarms = sum(
            values[i] > threshold_at(torch.cat([values[:i], values[i + 1 :]]), false_alarms) for i in range(count + 1)
        )
        assert alarms <= false_alarms * (count + 1) + 1e-6
        assert alarms > false_alarms * (count + 1) - 1 - 1e-6  # and no lower threshold does


def test_points_that_are_close_have_finite_gradients() -> None:
    """HA is trained through the calibration. In single precision these two points would be one."""
    calibration = Calibration(1.0, odds=(20.0, 20.0 + 1e-6), levels=(1.0, 2.0))
    scores = torch.tensor([[20.0000005, 0.0], [20.0, 0.0], [30.0, 0.0]], dtype=torch.float64, requires_grad=True)
    calibration(scores).log().sum().backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
