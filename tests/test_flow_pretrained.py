"""Parts of the framework `flow` for pre-trained methods, compared with plain loops: spaces, comparable scores, the
shared ridge. tests/test_flow_waiting.py has the methods with them."""

import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import seeded
from ffcil.comparable import ComparableScores
from ffcil.methods.parts.spaces import WaitingFeatures, space_boundaries, tuning_steps
from ffcil.models.analytic import RIDGES, AnalyticHead
from oracles import ridge_weights

# --- spaces ---------------------------------------------------------------------------------------------------------

SIZES = st.lists(st.integers(1, 8), min_size=1, max_size=12)


def naive_spaces(sizes: list[int], enough: int) -> tuple[list[bool], list[list[int]]]:
    """Which steps tune, and the classes of each space."""
    tunes, spaces, first = [], [[]], 0
    for size in sizes:
        tunes.append(size >= enough)
        if tunes[-1] and any(tunes[:-1]):
            spaces.append([])
        spaces[-1] += range(first, first + size)
        first += size
    return tunes, spaces


@given(SIZES, st.integers(1, 9))
def test_spaces_are_those_of_a_plain_loop(sizes: list[int], enough: int) -> None:
    boundaries = [sum(sizes[: k + 1]) for k in range(len(sizes))]
    tunes, spaces = naive_spaces(sizes, enough)
    assert tuning_steps(boundaries, enough) == tunes
    assert space_boundaries(boundaries, enough) == [space[-1] + 1 for space in spaces]
    assert space_boundaries(boundaries, 1) == boundaries
    assert space_boundaries([], enough) == tuning_steps([], enough) == []


def test_waiting_features_and_their_state() -> None:
    waiting = WaitingFeatures(3, torch.device("cpu"))
    assert waiting.state() == {}
    parts = [(torch.randn(n, 3, generator=seeded(n)), torch.arange(n)) for n in (2, 4)]
    for features, targets in parts:
        waiting.add(features, targets)
    again = WaitingFeatures(3, torch.device("cpu"))
    again.add(torch.ones(1, 3), torch.ones(1, dtype=torch.int64))
    again.restore(waiting.state())
    assert len(again) == 6
    assert torch.equal(again.features, torch.cat([features for features, _ in parts]))
    assert again.targets.tolist() == [0, 1, 0, 1, 2, 3]
    again.restore({})
    assert len(again) == 0
    assert again.state() == {}


# --- comparable scores ----------------------------------------------------------------------------------------------

SPACE_OF = [0, 0, 1, 1, 1, 2]
TARGETS = torch.tensor([0, 1, 2, 3, 4, 5] * 5)


def some_scores(seed: int = 0) -> Tensor:
    """Scores of 30 images whose level and spread depend on the space of a class."""
    level, spread = torch.tensor([5.0, -2.0, 11.0]), torch.tensor([1.0, 3.0, 0.2])
    noise = torch.randn(30, 6, generator=seeded(seed), dtype=torch.float64)
    return level[SPACE_OF] + spread[SPACE_OF] * noise


def observed(scores: Tensor, space_of: list[int] = SPACE_OF, spaces: int = 3) -> ComparableScores:
    made = ComparableScores()
    made.grow(1)
    made.grow(spaces)
    for rows in (slice(0, 11), slice(11, 30)):
        made.observe(scores[rows], TARGETS[rows], torch.tensor(space_of))
    return made


def wrong_scores(scores: Tensor, space: int) -> list[float]:
    return [
        scores[image, label].item()
        for image in range(30)
        for label in range(6)
        if SPACE_OF[label] == space and TARGETS[image] != label
    ]


def test_scores_are_standardised_as_by_a_plain_loop() -> None:
    scores, others = some_scores(), some_scores(1)
    made = observed(scores)
    known = [
        (statistics.fmean(wrong), statistics.pstdev(wrong)) for wrong in (wrong_scores(scores, s) for s in range(3))
    ]
    level = statistics.fmean(deviation for _, deviation in known)
    got = made(others, torch.tensor(SPACE_OF))
    for label, space in enumerate(SPACE_OF):
        mean, deviation = known[space]
        expected = (others[:, label] - mean) / deviation * level
        torch.testing.assert_close(got[:, label], expected)
    torch.testing.assert_close(made(others.view(5, 6, 6), torch.tensor(SPACE_OF)), got.view(5, 6, 6))
    for labels in ([0, 1], [2, 3, 4]):  # scores of one space keep their order
        assert torch.equal(got[:, labels].argsort(dim=1), others[:, labels].argsort(dim=1))
    assert not torch.equal(got.argmax(dim=1), others.argmax(dim=1))


def test_level_and_scale_of_a_space_do_not_matter() -> None:
    scores, space_of = some_scores(), torch.tensor(SPACE_OF)
    expected = observed(scores)(scores, space_of)
    raised = scores + 40.0 * (space_of == 1)
    torch.testing.assert_close(observed(raised)(raised, space_of), expected)
    scaled = scores * torch.where(space_of == 1, 7.0, 1.0)
    got = observed(scaled)(scaled, space_of)  # the common level has changed, which changes no comparison
    torch.testing.assert_close(got / got.std(), expected / expected.std())


@pytest.mark.parametrize("constant", [True, False])
def test_a_space_without_statistics_gets_the_mean_of_the_others(constant: bool) -> None:
    scores, space_of = some_scores(), torch.tensor(SPACE_OF)
    if constant:  # one and the same score for every image tells nothing about the spread
        scores[:, 5] = 11.0
        made = observed(scores)
    else:
        made = observed(scores[:, :5], SPACE_OF[:5])
    known = [wrong_scores(scores, space) for space in (0, 1)]
    shift = statistics.fmean(statistics.fmean(wrong) for wrong in known)
    torch.testing.assert_close(made(scores, space_of)[:, 5], scores[:, 5] - shift)
    nothing = ComparableScores()
    nothing.grow(3)
    assert torch.equal(nothing(scores, space_of), scores)


def test_the_state_of_comparable_scores() -> None:
    made, scores = observed(some_scores()), some_scores(1).float()
    again = ComparableScores()
    again.grow(3)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(scores, torch.tensor(SPACE_OF)), made(scores, torch.tensor(SPACE_OF)))
    assert again(scores, torch.tensor(SPACE_OF)).dtype == torch.float32


# --- the shared ridge -----------------------------------------------------------------------------------------------


def analytic(classes: int, shared: bool = True) -> AnalyticHead:
    head = AnalyticHead(6, 20, lambda empty: empty.normal_(generator=seeded(9)), shared)
    head.grow(classes)
    return head


def call(head: AnalyticHead, count: int, classes: int, seed: int, weights: Tensor | None = None) -> Tensor:
    """Choose a ridge from random features. Returns the squared errors of each ridge, from a loop of solutions."""
    features = torch.randn(count, 6, generator=seeded(seed), dtype=torch.float64)
    targets = torch.randint(0, classes, (count,), generator=seeded(seed + 1))
    head.grow(classes)
    head.choose(features, targets, seeded(seed), weights)
    order = torch.randperm(count, generator=seeded(seed))
    rows = (features[order] @ head.projection.double().T).clamp_min(0)
    wanted = (targets[order, None] == torch.arange(classes)).double()
    scale = torch.ones(count, dtype=torch.float64) if weights is None else weights[order].double()
    rows, wanted = rows * scale.sqrt()[:, None], wanted * scale.sqrt()[:, None]
    fitted, errors = int(0.8 * count), []
    for ridge in RIDGES:
        weight = ridge_weights(rows[:fitted], wanted[:fitted], ridge)
        errors.append(
            sum((row @ weight - y).square().sum() for row, y in zip(rows[fitted:], wanted[fitted:], strict=True))
        )
    return torch.stack(errors)


def test_the_ridge_has_the_smallest_sum_of_squared_errors_of_all_calls() -> None:
    head, sums = analytic(2), torch.zeros(len(RIDGES), dtype=torch.float64)
    for count, classes, seed in ((40, 2, 1), (90, 4, 3), (30, 5, 5)):
        sums += call(head, count, classes, seed, torch.rand(count, generator=seeded(seed)) if seed == 3 else None)
        torch.testing.assert_close(head.errors, sums, rtol=1e-5, atol=0)
        assert head.ridge.item() == RIDGES[int(sums.argmin())]


def test_the_order_of_calls_does_not_matter_but_a_restart_does() -> None:
    calls = [(40, 4, 1), (90, 4, 3), (30, 4, 5)]
    heads = [analytic(4), analytic(4)]
    for head, order in zip(heads, (calls, calls[::-1]), strict=True):
        for each in order:
            call(head, *each)
    torch.testing.assert_close(heads[0].errors, heads[1].errors)
    head, features = heads[0], torch.randn(9, 6, generator=seeded())
    head.add(features, torch.arange(9) % 4)
    head.restart()
    for sums in (head.gram, head.moments, head.errors):
        assert sums.eq(0).all()
    expected = call(head, 40, 4, 1)
    torch.testing.assert_close(head.errors, expected, rtol=1e-5, atol=0)


def test_a_single_class_has_little_to_say_about_the_ridge() -> None:
    """Alone, it would choose another ridge."""
    alone, own, shared = analytic(5, shared=False), analytic(5, shared=False), analytic(5)
    for head in (own, shared):
        call(head, 200, 5, 3)
    chosen = own.ridge.item()
    assert shared.ridge.item() == chosen
    lone = torch.randn(10, 6, generator=seeded(2), dtype=torch.float64) + 3
    for head in (alone, own, shared):
        head.choose(lone, torch.full((10,), 4), seeded(2))
    assert own.ridge.item() == alone.ridge.item() != chosen
    assert shared.ridge.item() == chosen
    assert alone.errors is None
    assert "errors" not in alone.state_dict()  # states of earlier versions fit
    alone.restart()


def test_a_single_image_is_counted_once() -> None:
    head = analytic(3)
    features = torch.randn(1, 6, generator=seeded(), dtype=torch.float64)
    head.choose(features, torch.tensor([2]), seeded())
    row = (features @ head.projection.double().T).clamp_min(0)[0]
    expected = [(1 - (row @ row / (row @ row + ridge))) ** 2 for ridge in RIDGES]  # of ridge regression on one row
    torch.testing.assert_close(head.errors, torch.stack(expected), rtol=1e-3, atol=1e-20)
