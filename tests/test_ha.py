"""Head-Agnostic Alignment against sums by hand."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import small_config, small_stream
from ffcil.errors import InputError
from ffcil.ha import AlignmentTraining, ClassStatistics, HeadAgnosticAlignment, _loss, align_features
from ffcil.losses import class_wise_mean, mean
from ffcil.methods.framework import Robustness
from ffcil.methods.learner import Learner
from ffcil.methods.pretrained import Pretrained
from ffcil.models.heads import cosine
from ffcil.runs.run import evaluate

Make = Callable[..., Learner]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_it_begins_as_the_identity() -> None:
    features = torch.randn(5, 12)
    assert torch.equal(HeadAgnosticAlignment(12)(features), features)


def test_the_map_by_hand() -> None:
    alignment = HeadAgnosticAlignment(6, bottleneck=3)
    torch.nn.init.normal_(alignment.up.weight)
    h = torch.randn(6)
    normed = (h - h.mean()) / (h.var(unbiased=False) + 1e-5).sqrt()
    hidden = alignment.down.weight @ normed + alignment.down.bias
    gelu = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    torch.testing.assert_close(alignment(h), h + alignment.up.weight @ gelu)


def test_statistics_are_numpys() -> None:
    features, targets = torch.randn(30, 4), torch.tensor([3, 1, 2, 1, 3] * 6)
    targets[0] = 0  # a class with one image
    statistics = ClassStatistics(4)
    statistics.grow(5)
    statistics.remember(features, targets)
    for label in range(4):
        of_class = features[targets == label].numpy()
        np.testing.assert_allclose(statistics.means[label], of_class.mean(0), rtol=1e-4, atol=1e-6)
        expected = of_class.std(0, ddof=1) if len(of_class) > 1 else np.zeros(4)
        np.testing.assert_allclose(statistics.deviations[label], expected, rtol=1e-4, atol=1e-6)
    assert statistics.means[4].eq(0).all()


def test_surrogates_have_the_moments() -> None:
    statistics = ClassStatistics(3)
    statistics.grow(2)
    statistics.means.copy_(torch.tensor([[0.0, 5.0, -5.0], [1.0, 1.0, 1.0]]))
    statistics.deviations.copy_(torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0]]))
    drawn, targets = statistics.surrogates(2, 4000, seeded())
    assert drawn.shape == (8000, 3)
    assert targets.bincount().tolist() == [4000, 4000]
    torch.testing.assert_close(drawn[targets == 0].mean(0), statistics.means[0], atol=0.2, rtol=0)
    torch.testing.assert_close(drawn[targets == 0].std(0), statistics.deviations[0], atol=0.2, rtol=0)
    assert (drawn[targets == 1] == 1).all()


@pytest.mark.parametrize("identity", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("reduce", [mean, class_wise_mean])
def test_the_loss_by_hand(identity: float, reduce: Any) -> None:
    alignment = HeadAgnosticAlignment(4, 3)
    torch.nn.init.normal_(alignment.up.weight)
    features, targets, rows = torch.randn(5, 4), torch.tensor([0, 0, 1, 2, 0]), torch.randn(3, 4)
    values = []
    for h, y in zip(features, targets, strict=True):
        aligned = alignment(h[None])[0]
        value = -(rows @ aligned).log_softmax(0)[y]
        values.append(value + ((aligned - h) ** 2).sum() * identity)
    by_class = [torch.stack([v for v, y in zip(values, targets, strict=True) if y == c]).mean() for c in range(3)]
    expected = torch.stack(values if reduce is mean else by_class).mean()
    got = _loss(alignment, features, targets, lambda f: f @ rows.T, identity, reduce)
    torch.testing.assert_close(got, expected)


def shifted_world() -> tuple[Tensor, Tensor, ClassStatistics, Tensor]:
    """Old classes as their prototypes say; new ones whose features have moved away from theirs."""
    prototypes = torch.randn(6, 16, generator=seeded(1)) * 2
    statistics = ClassStatistics(16)
    statistics.grow(6)
    statistics.means[:4], statistics.deviations[:4] = prototypes[:4], 0.3
    targets = torch.tensor([4, 5]).repeat(50)
    features = prototypes[targets] + torch.randn(100, 16, generator=seeded(2)) * 0.3 + prototypes[0] * 0.8
    return features, targets, statistics, prototypes


def right(prototypes: Tensor, features: Tensor, targets: Tensor) -> float:
    return (cosine(features, prototypes).argmax(1) == targets).float().mean().item()


def test_it_corrects_new_features_and_keeps_old_ones() -> None:
    features, targets, statistics, prototypes = shifted_world()
    old, of_old = statistics.surrogates(4, 50, seeded(3))

    def trained(training: AlignmentTraining) -> tuple[float, float, float]:
        torch.manual_seed(0)
        alignment = HeadAgnosticAlignment(16)
        first = align_features(
            alignment, features, targets, statistics, 4, lambda f: 20 * cosine(f, prototypes),
            replace(training, epochs=1), seeded(),
        )  # fmt: skip
        last = align_features(
            alignment, features, targets, statistics, 4, lambda f: 20 * cosine(f, prototypes), training, seeded()
        )
        assert last < first
        with torch.no_grad():
            moved = (alignment(old) - old).norm(dim=1).mean().item()
            return right(prototypes, alignment(features), targets), right(prototypes, alignment(old), of_old), moved

    before = right(prototypes, features, targets)
    full = trained(AlignmentTraining(epochs=30))
    assert full[0] >= before
    assert full[1] > 0.95
    alone = trained(AlignmentTraining(epochs=30, surrogates=0))
    assert full[1] >= alone[1]  # without surrogates nothing defends the old classes
    free = trained(AlignmentTraining(epochs=30, identity=False))
    loose = trained(AlignmentTraining(epochs=30, identity_weight=0.01))
    assert full[2] < loose[2] < free[2]  # the identity term holds features near themselves


def test_the_first_step_may_have_one_class() -> None:
    statistics = ClassStatistics(4)
    statistics.grow(1)
    loss = align_features(
        HeadAgnosticAlignment(4), torch.randn(3, 4), torch.zeros(3, dtype=torch.int64), statistics, 0,
        lambda f: f[:, :1], AlignmentTraining(epochs=2), seeded(),
    )  # fmt: skip
    assert np.isfinite(loss)


def test_it_stands_alone() -> None:
    program = "import sys, ffcil.ha; print(sorted(m for m in sys.modules if m.startswith('ffcil.')))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ffcil.ha', 'ffcil.losses']"


# --- in a learner ---------------------------------------------------------------------------------------------------


def test_robust_means_ha_for_pretrained_methods() -> None:
    assert Robustness.resolve(small_config(method="simplecil", robust=True), "none", pretrained=True).ha is not None
    assert Robustness.resolve(small_config(method="simplecil"), "none", pretrained=True).ha is None
    asked = small_config(method="simplecil", ha={"use": True})
    assert Robustness.resolve(asked, "none", pretrained=True).ha is not None
    with pytest.raises(InputError, match=r"ha.use=true has no meaning for 'icarl'"):
        Robustness.resolve(small_config(method="icarl", ha={"use": True}), "wa")
    with pytest.raises(InputError, match=r"alignment=wa has no meaning for 'simplecil'"):
        Robustness.resolve(small_config(method="simplecil", alignment="wa"), "none", pretrained=True)


def test_ha_alone_changes_what_it_is_given(make_learner: Make) -> None:
    """Same prototypes with and without it; HA is trained, and nothing else moves."""
    learners = [make_learner(method="simplecil", ha={"use": use}) for use in (False, True)]
    for learner in learners:
        for increment in small_stream([2, 1, 2]):
            learner.learn(increment)
            evaluate(learner, increment)
    plain, aligned = learners
    assert isinstance(plain, Pretrained)
    assert isinstance(aligned, Pretrained)
    assert torch.equal(plain.prototypes, aligned.prototypes)  # type: ignore[arg-type]
    assert torch.equal(plain.statistics.means, aligned.statistics.means)
    assert plain.ha is None
    assert aligned.ha is not None
    assert aligned.ha.up.weight.ne(0).any()
    assert not any(parameter.requires_grad for parameter in aligned.ha.parameters())
