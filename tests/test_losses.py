"""Reductions and per-sample losses compared with plain loops and with equations (4) to (9) of the paper."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import oracles
from conftest import seeded
from ffcil.losses import centre_loss, class_wise_mean, cross_entropy, distillation, mean

samples = st.lists(
    st.tuples(st.floats(0, 50), st.integers(0, 9), st.sampled_from([0.0, 0.5, 1.0, 2.0])), min_size=1, max_size=60
)


@given(samples)
@settings(deadline=None)
def test_class_wise_mean_is_equation_6(drawn: list[tuple[float, int, float]]) -> None:
    losses, targets, weights = (list(column) for column in zip(*drawn, strict=True))
    tensors = torch.tensor(losses, dtype=torch.float64), torch.tensor(targets)
    plain = class_wise_mean(*tensors).item()
    assert plain == pytest.approx(oracles.class_wise_mean(losses, targets))
    weighted = class_wise_mean(*tensors, torch.tensor(weights, dtype=torch.float64)).item()
    assert weighted == pytest.approx(oracles.class_wise_mean(losses, targets, weights))


@given(samples)
@settings(deadline=None)
def test_weighted_mean(drawn: list[tuple[float, int, float]]) -> None:
    losses, targets, weights = (torch.tensor(c, dtype=torch.float64) for c in zip(*drawn, strict=True))
    assert mean(losses, targets).item() == pytest.approx(losses.mean().item())
    expected = (losses * weights).sum() / weights.sum() if weights.sum() else torch.tensor(0.0)
    assert mean(losses, targets, weights).item() == pytest.approx(expected.item())


def gradients(reduction: object, logits: Tensor, targets: Tensor) -> Tensor:
    parameter = logits.clone().requires_grad_()
    reduction(cross_entropy(parameter, targets), targets).backward()  # type: ignore[operator]
    assert parameter.grad is not None
    return parameter.grad


def test_gradients_are_equation_7() -> None:
    generator = seeded()
    targets = torch.tensor([0, 0, 0, 0, 0, 1, 1, 4])
    logits = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    of_sample = logits.softmax(1) - F.one_hot(targets, 5)  # closed form of d CE_i / d logits_i
    counts = {0: 5, 1: 2, 4: 1}
    expected_mean = of_sample / 8
    expected_cwm = torch.stack([of_sample[i] / (counts[int(c)] * 3) for i, c in enumerate(targets)])
    torch.testing.assert_close(gradients(mean, logits, targets), expected_mean)
    torch.testing.assert_close(gradients(class_wise_mean, logits, targets), expected_cwm)


def test_class_wise_mean_equals_mean_on_balanced_batches() -> None:
    losses, targets = torch.rand(60), torch.arange(60) % 12
    torch.testing.assert_close(class_wise_mean(losses, targets), losses.mean())


def test_all_classes_have_the_same_weight() -> None:
    losses = torch.tensor([1.0, *[3.0] * 8])  # exact in float32, because the weights are powers of two
    assert class_wise_mean(losses, torch.tensor([0, *[1] * 8])).item() == 2.0


def test_masking_all_samples_gives_zero_and_finite_gradients() -> None:
    losses = torch.rand(4, requires_grad=True)
    value = class_wise_mean(losses, torch.zeros(4, dtype=torch.int64), torch.zeros(4))
    value.backward()
    assert value.item() == 0
    assert losses.grad is not None
    assert losses.grad.isfinite().all()


def test_a_masked_loss_may_be_infinite() -> None:
    losses, targets, mask = torch.tensor([1.0, torch.inf, 3.0]), torch.tensor([0, 0, 1]), torch.tensor([1.0, 0, 1])
    assert class_wise_mean(losses, targets, mask).item() == pytest.approx(2.0)
    assert mean(losses, targets, mask).item() == pytest.approx(2.0)


def test_large_batches() -> None:
    generator = seeded(3)
    losses, weights = torch.rand(2, 3000, generator=generator, dtype=torch.float64)
    targets = torch.randint(0, 40, (3000,), generator=generator) ** 2
    weights[weights < 0.3] = 0
    expected = oracles.class_wise_mean(losses.tolist(), targets.tolist(), weights.tolist())
    assert class_wise_mean(losses, targets, weights).item() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_large_batches_are_exact_in_any_order_of_summation(dtype: torch.dtype) -> None:
    """All partial sums are multiples of 2^-15 below 2, which float32 represents exactly."""
    targets = torch.cat([torch.zeros(2**14), torch.ones(2**10)]).long()
    assert class_wise_mean((targets + 1).to(dtype), targets).item() == 1.5


def test_half_precision_losses_are_counted_in_float32() -> None:
    targets = torch.cat([torch.zeros(257), torch.ones(1)]).long()  # in bfloat16, 257 is rounded to 256
    rounding = len(targets) * torch.finfo(torch.float32).eps  # bound of the relative error of a sum of positive terms
    assert class_wise_mean((targets + 1).bfloat16(), targets).item() == pytest.approx(1.5, rel=rounding)


def test_distillation_has_the_gradient_of_the_kl_divergence() -> None:
    generator = seeded(1)
    student = torch.randn(6, 4, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    distillation(student, teacher, 2.0).mean().backward()
    other = student.detach().clone().requires_grad_()
    F.kl_div((other / 2).log_softmax(1), (teacher / 2).softmax(1), reduction="batchmean").backward()
    torch.testing.assert_close(student.grad, other.grad)


def test_distillation_of_two_classes() -> None:
    student, teacher = torch.tensor([[[2.0, 0.0]], [[0.0, 2.0]]], dtype=torch.float64)
    value = distillation(student, teacher, temperature=2.0).item()
    p = math.e / (1 + math.e)  # probability of the larger logit
    assert value == pytest.approx(-((1 - p) * math.log(p) + p * math.log(1 - p)))


def test_centre_loss_is_equation_8() -> None:
    generator = seeded(2)
    features = torch.randn(5, 3, generator=generator, requires_grad=True)
    centres, targets = torch.randn(4, 3, generator=generator), torch.tensor([3, 0, 0, 1, 2])
    values = features.tolist()
    expected = [sum((values[i][d] - centres.tolist()[int(targets[i])][d]) ** 2 for d in range(3)) for i in range(5)]
    per_sample = centre_loss(features, targets, centres)
    assert per_sample.tolist() == pytest.approx(expected, rel=1e-5)
    per_sample.mean().backward()
    torch.testing.assert_close(features.grad, 2 * (features - centres[targets]).detach() / 5)


def test_reductions_keep_float32_sums_under_autocast() -> None:
    losses, targets = torch.rand(700), torch.zeros(700, dtype=torch.int64)
    with torch.autocast("cpu", torch.bfloat16):
        value = class_wise_mean(losses, targets)
    torch.testing.assert_close(value, losses.mean())
