"""WA, DIWA and shrunk WA compared with equations (10) to (13) of the paper."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SHORT, Make, seeded, small_stream
from ffcil.alignment import diwa, intervention, row_norms, shrunk_alignment, weight_alignment


def head(old: int, new: int, seed: int = 0) -> torch.Tensor:
    weight = torch.randn(old + new, 7, generator=seeded(seed), dtype=torch.float64)
    weight[old:] *= 1.7
    return weight


def naive_norms(weight: torch.Tensor, old: int) -> tuple[float, float]:
    norms = [math.sqrt(sum(float(x) ** 2 for x in row)) for row in weight]
    return sum(norms[:old]) / old, sum(norms[old:]) / (len(norms) - old)


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_norms_are_equation_10(old: int, new: int, seed: int) -> None:
    weight = head(old, new, seed)
    assert row_norms(weight, old) == pytest.approx(naive_norms(weight, old))


def test_variance_of_the_new_norm_falls_as_in_equation_11() -> None:
    """Var(mu_new) is sigma^2 / C_t, the motivation of DIWA."""
    generator = seeded()
    norms = 1 + 0.2 * torch.randn(4000, 16, generator=generator, dtype=torch.float64)
    for classes in (1, 4, 16):
        means = [row_norms(torch.cat([torch.ones(1), row[:classes]])[:, None], 1)[1] for row in norms]
        assert torch.tensor(means).var().item() == pytest.approx(0.04 / classes, rel=0.1)


@pytest.mark.parametrize(("classes", "expected"), [(1, 0.1), (6, 1 - 0.9 / math.e), (1000, 1.0)])
def test_intervention_is_equation_12(classes: int, expected: float) -> None:
    assert intervention(classes, eta_min=0.1, tau=5.0) == pytest.approx(expected)


@given(st.integers(1, 60), st.floats(0, 1), st.floats(0.1, 50))
def test_intervention_increases_with_the_step_within_bounds(classes: int, eta_min: float, tau: float) -> None:
    now, later = intervention(classes, eta_min, tau), intervention(classes + 1, eta_min, tau)
    assert eta_min - 1e-12 <= now <= later <= 1


@given(st.integers(1, 30), st.integers(1, 30), st.floats(0, 1))
@settings(deadline=None, max_examples=50)
def test_scaling_is_equation_13(old: int, new: int, eta: float) -> None:
    weight = head(old, new)
    before, (old_norm, new_norm) = weight.clone(), naive_norms(weight, old)
    done = weight_alignment(weight, old, eta)
    gamma = (1 - eta) + eta * old_norm / new_norm
    assert done is not None
    assert done.gamma == pytest.approx(gamma)
    torch.testing.assert_close(weight[old:], before[old:] * gamma)
    assert torch.equal(weight[:old], before[:old])


def test_full_alignment_makes_the_mean_norms_equal() -> None:
    weight = head(10, 3)
    weight_alignment(weight, 10)
    old_norm, new_norm = row_norms(weight, 10)
    assert new_norm == pytest.approx(old_norm)


def test_diwa_with_eta_1_is_wa() -> None:
    one, other = head(10, 3), head(10, 3)
    assert weight_alignment(one, 10) == diwa(other, 10, eta_min=1.0)
    assert torch.equal(one, other)


def test_diwa_uses_the_size_of_the_step() -> None:
    done = diwa(head(10, 3), 10, eta_min=0.2, tau=4.0)
    assert done is not None
    assert done.eta == pytest.approx(1 - 0.8 * math.exp(-2 / 4))


def test_without_old_or_new_classes_nothing_is_aligned() -> None:
    weight = head(4, 0)
    before = weight.clone()
    for align in (weight_alignment, diwa):
        assert align(weight, 0) is None
        assert align(weight, 4) is None
    assert torch.equal(weight, before)


def test_rows_of_zero_stay_finite() -> None:
    weight = head(4, 2)
    weight[4:] = 0
    weight_alignment(weight, 4)
    assert weight.isfinite().all()


def test_a_layer_that_requires_gradients() -> None:
    layer = torch.nn.Linear(5, 6)
    bias = layer.bias.detach().clone()
    diwa(layer.weight, 4)
    assert torch.equal(layer.bias, bias)
    assert layer.weight.requires_grad
    assert layer.weight.grad_fn is None


@pytest.mark.parametrize(("old", "eta"), [(-1, 1.0), (9, 1.0), (3, 1.5), (3, -0.1)])
def test_invalid_arguments_are_an_error(old: int, eta: float) -> None:
    with pytest.raises(ValueError, match="is not valid"):
        weight_alignment(head(3, 2), old, eta)
    with pytest.raises(ValueError, match="tau above 0"):
        intervention(3, tau=0)


@pytest.mark.parametrize("past", [[], [(10, 0.6)], [(10, 0.6), (2, 0.8), (7, 0.5)]])
def test_shrunk_alignment_is_a_weighted_geometric_mean_of_ratios(past: list[tuple[int, float]]) -> None:
    torch.manual_seed(0)
    weight = torch.cat([torch.randn(6, 4), 3 * torch.randn(2, 4)])
    original = weight.clone()
    done = shrunk_alignment(weight, 6, past, trust=5.0)
    assert done is not None
    ratio = original[:6].norm(dim=1).mean() / original[6:].norm(dim=1).mean()
    expected = ratio.item()
    if past:
        logs = [math.log(past_ratio) for size, past_ratio in past for _ in range(size)]
        expected = math.exp((2 * math.log(ratio) + 5 * sum(logs) / len(logs)) / 7)
    assert done.gamma == pytest.approx(expected, rel=1e-5)
    torch.testing.assert_close(weight[6:], expected * original[6:])
    assert torch.equal(weight[:6], original[:6])
    assert shrunk_alignment(weight, 0, past) is None


@pytest.mark.parametrize("alignment", ["none", "wa", "diwa", "shrunk"])
def test_a_step_with_known_classes_only_is_not_aligned(make_learner: Make, alignment: str) -> None:
    """As in a method with `takes_known_classes`."""
    learner, first = make_learner(method="icarl", alignment=alignment, train=SHORT), small_stream([3])[0]
    learner.learn(first)
    notes = learner.learn(replace(first, step=2, seen_before=3))
    assert (notes["row_norms"], notes["alignment"]) == (None, None)


def test_shrunk_alignment_uses_the_steps_of_its_own_run(make_learner: Make) -> None:
    """A restored learner goes on as the uninterrupted one."""
    learner, stream = make_learner(method="icarl", alignment="shrunk"), small_stream([2, 2, 1])
    notes = [learner.learn(increment) for increment in stream]
    ratios = [(done["alignment"]["old_norm"] / done["alignment"]["new_norm"]) for done in notes[1:]]
    by_hand = math.exp((1 * math.log(ratios[1]) + 5 * math.log(ratios[0])) / 6)
    assert notes[2]["alignment"]["gamma"] == pytest.approx(by_hand)
    again = make_learner(method="icarl", alignment="shrunk")
    for increment in stream:
        again.begin(increment)
    again.restore(learner.state())
    assert again.past_ratios == learner.past_ratios
    assert len(again.past_ratios) == 2
