"""Head-Agnostic Alignment compared with plain computations."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import SHORT, Make, seeded, small_config, small_stream
from ffcil.config.settings import HaSettings
from ffcil.errors import InputError
from ffcil.ha import ClassStatistics, HeadAgnosticAlignment, alignment_loss, draw_surrogates
from ffcil.losses import REDUCTIONS, mean
from ffcil.methods import METHODS
from ffcil.methods.framework import Framework
from ffcil.methods.parts.ha_training import AlignmentTraining
from ffcil.models.heads import cosine
from ffcil.runs.run import evaluate
from ffcil.training.engine import Engine
from oracles import cross_entropy, reduced


def test_it_starts_as_the_identity() -> None:
    features = torch.randn(5, 12)
    assert torch.equal(HeadAgnosticAlignment(12)(features), features)


def test_the_map() -> None:
    alignment = HeadAgnosticAlignment(6, bottleneck=3)
    torch.nn.init.normal_(alignment.up.weight)
    h = torch.randn(6)
    normed = (h - h.mean()) / (h.var(unbiased=False) + 1e-5).sqrt()
    hidden = alignment.down.weight @ normed + alignment.down.bias
    gelu = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
    torch.testing.assert_close(alignment(h), h + alignment.up.weight @ gelu)


def test_statistics_equal_those_of_numpy() -> None:
    features, targets = torch.randn(30, 4), torch.tensor([3, 1, 2, 1, 3] * 6)
    targets[0] = 0  # a class with one image
    statistics = ClassStatistics(4)
    statistics.grow(5)
    statistics.remember(features, targets)
    for label in range(4):
        of_class = features[targets == label].numpy()
        np.testing.assert_allclose(statistics.means[label], of_class.mean(0), rtol=1e-4, atol=1e-6)
        expected = of_class.std(0, ddof=1) if len(of_class) > 1 else np.zeros(4)
        np.testing.assert_allclose(statistics.spreads[label], expected, rtol=1e-4, atol=1e-6)
    assert statistics.means[4].eq(0).all()


class LargestTensor(TorchDispatchMode):
    """The number of elements of the largest result of an operation."""

    largest = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        values = result if isinstance(result, tuple | list) else [result]
        self.largest = max([self.largest, *(value.numel() for value in values if isinstance(value, Tensor))])
        return result


def test_statistics_of_many_classes_need_no_matrix_of_classes_and_images() -> None:
    classes, images = 1000, 2000
    targets = torch.cat([torch.arange(classes), torch.randint(classes, (images - classes,), generator=seeded())])
    features = torch.randn(images, 4, generator=seeded(1))
    statistics = ClassStatistics(4)
    statistics.grow(classes)
    with LargestTensor() as seen:
        statistics.remember(features, targets)
    assert seen.largest < classes * images / 10
    for label in (0, 63, 64, 500, 999):
        of_class = features[targets == label].double()
        torch.testing.assert_close(statistics.means[label].double(), of_class.mean(0), rtol=1e-5, atol=1e-5)
        expected = of_class.std(0) if len(of_class) > 1 else torch.zeros(4).double()
        torch.testing.assert_close(statistics.spreads[label].double(), expected, rtol=1e-4, atol=1e-4)


def test_surrogates_have_the_stored_moments() -> None:
    statistics = ClassStatistics(3)
    statistics.grow(2)
    statistics.means.copy_(torch.tensor([[0.0, 5.0, -5.0], [1.0, 1.0, 1.0]]))
    statistics.spreads.copy_(torch.tensor([[1.0, 0.0, 3.0], [0.0, 0.0, 0.0]]))
    drawn, targets = draw_surrogates(statistics, 2, 4000, seeded())
    assert drawn.shape == (8000, 3)
    assert targets.bincount().tolist() == [4000, 4000]
    torch.testing.assert_close(drawn[targets == 0].mean(0), statistics.means[0], atol=0.2, rtol=0)
    torch.testing.assert_close(drawn[targets == 0].std(0), statistics.spreads[0], atol=0.2, rtol=0)
    assert (drawn[targets == 1] == 1).all()


@pytest.mark.parametrize("identity", [1.0, 0.3, 0.0])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_the_loss(identity: float, reduction: str) -> None:
    alignment = HeadAgnosticAlignment(4, 3)
    torch.nn.init.normal_(alignment.up.weight)
    features, targets, rows = torch.randn(5, 4), torch.tensor([0, 0, 1, 2, 0]), torch.randn(3, 4)
    values = []
    for h, y in zip(features, targets, strict=True):
        aligned = alignment(h[None])[0]
        values.append(cross_entropy(rows @ aligned, int(y)) + ((aligned - h) ** 2).sum() * identity)
    expected = reduced(values, targets.tolist(), reduction)
    got = alignment_loss(alignment, features, targets, lambda f: f @ rows.T, identity, REDUCTIONS[reduction])
    torch.testing.assert_close(got, expected.float())


def shifted_world() -> tuple[Tensor, Tensor, ClassStatistics, Tensor]:
    """Old classes whose features agree with their prototypes, and new ones whose features have moved away."""
    prototypes = torch.randn(6, 16, generator=seeded(1)) * 2
    statistics = ClassStatistics(16)
    statistics.grow(6)
    statistics.means[:4], statistics.spreads[:4] = prototypes[:4], 0.3
    targets = torch.tensor([4, 5]).repeat(50)
    features = prototypes[targets] + torch.randn(100, 16, generator=seeded(2)) * 0.3 + prototypes[0] * 0.8
    return features, targets, statistics, prototypes


def right(prototypes: Tensor, features: Tensor, targets: Tensor) -> float:
    return (cosine(features, prototypes).argmax(1) == targets).float().mean().item()


def train_alignment(
    alignment: HeadAgnosticAlignment,
    features: Tensor,
    targets: Tensor,
    statistics: ClassStatistics,
    old_classes: int,
    classify: Callable[[Tensor], Tensor],
    epochs: int = 10,
    surrogates: int = 20,
    **loss_settings: Any,
) -> float:
    """The loop of the module's docstring. Returns the mean loss of the last epoch."""
    generator = seeded()
    optimiser = torch.optim.Adam(alignment.parameters(), 1e-3)
    for _ in range(epochs):
        drawn, drawn_classes = draw_surrogates(statistics, old_classes, surrogates, generator)
        pool, labels = torch.cat([features, drawn]), torch.cat([targets, drawn_classes])
        losses = []
        for rows in torch.randperm(len(pool), generator=generator).split(128):
            loss = alignment_loss(alignment, pool[rows], labels[rows], classify, **loss_settings)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            losses.append(loss.item())
    return sum(losses) / len(losses)


def test_it_corrects_new_features_and_keeps_old_ones() -> None:
    features, targets, statistics, prototypes = shifted_world()
    old, of_old = draw_surrogates(statistics, 4, 50, seeded(3))

    def trained(**settings: Any) -> tuple[float, float, float]:
        torch.manual_seed(0)
        alignment = HeadAgnosticAlignment(16)

        def train(epochs: int) -> float:
            return train_alignment(
                alignment, features, targets, statistics, 4, lambda f: 20 * cosine(f, prototypes), epochs, **settings
            )

        assert train(1) > train(30)
        with torch.no_grad():
            moved = (alignment(old) - old).norm(dim=1).mean().item()
            return right(prototypes, alignment(features), targets), right(prototypes, alignment(old), of_old), moved

    before = right(prototypes, features, targets)
    full = trained()
    assert full[0] >= before
    assert full[1] > 0.95
    alone = trained(surrogates=0)
    assert full[1] >= alone[1]  # without surrogates nothing protects the old classes
    free, loose = trained(identity_weight=0.0), trained(identity_weight=0.01)
    assert full[2] < loose[2] < free[2]  # the identity term holds features near themselves


def test_the_first_step_may_have_one_class() -> None:
    statistics = ClassStatistics(4)
    statistics.grow(1)
    targets = torch.zeros(3, dtype=torch.int64)
    alignment = HeadAgnosticAlignment(4)
    assert np.isfinite(train_alignment(alignment, torch.randn(3, 4), targets, statistics, 0, lambda f: f[:, :1]))


# --- in a learner ---------------------------------------------------------------------------------------------------


def test_the_papers_framework_turns_ha_on_for_pretrained_methods() -> None:
    assert (
        Framework.resolve(small_config(method="simplecil", framework="paper"), "none", pretrained=True).ha is not None
    )
    assert Framework.resolve(small_config(method="simplecil"), "none", pretrained=True).ha is None
    asked = small_config(method="simplecil", ha={"use": True})
    assert Framework.resolve(asked, "none", pretrained=True).ha is not None
    with pytest.raises(InputError, match=r"ha.use=true is not supported by 'icarl'"):
        Framework.resolve(small_config(method="icarl", ha={"use": True}), "wa")
    with pytest.raises(InputError, match=r"alignment=wa is not supported by 'simplecil'"):
        Framework.resolve(small_config(method="simplecil", alignment="wa"), "none", pretrained=True)


def test_ha_changes_nothing_but_its_own_parameters(make_learner: Make) -> None:
    """The prototypes are the same with and without HA."""
    learners = [make_learner(method="simplecil", ha={"use": use}) for use in (False, True)]
    for learner in learners:
        for increment in small_stream([2, 1, 2]):
            learner.learn(increment)
            evaluate(learner, increment)
    plain, aligned = learners
    assert torch.equal(plain.prototypes.means, aligned.prototypes.means)
    assert torch.equal(plain.statistics.means, aligned.statistics.means)
    assert plain.ha is None
    assert aligned.ha is not None
    assert aligned.ha.up.weight.ne(0).any()
    assert not any(parameter.requires_grad for parameter in aligned.ha.parameters())


@pytest.mark.parametrize(
    ("method", "identity"), [("simplecil", "sum"), ("ranpac", "sum"), ("simplecil", "mean"), ("simplecil", "none")]
)
def test_a_learner_trains_it_like_a_plain_loop(make_learner: Make, method: str, identity: str) -> None:
    """Compares the second step with a separate loop that draws the same random numbers."""
    settings = {"epochs": 3, "batch": 16, "surrogates": 5, "identity": identity, "identity_weight": 0.7}
    learner = make_learner(method=method, framework="paper", ha=settings)
    first, second = small_stream([2, 3])
    learner.learn(first)
    assert learner.ha is not None
    alignment, statistics = copy.deepcopy(learner.ha), copy.deepcopy(learner.statistics)
    notes = learner.learn(second)
    with torch.no_grad():
        features, targets = learner.extract_features(second)
    generator = learner.generator(second, "HA")
    optimiser = torch.optim.Adam(alignment.requires_grad_(True).parameters(), 1e-3)
    for _ in range(3):
        noise = torch.randn(5, 2, learner.feature_dim, generator=generator)
        drawn = torch.cat([statistics.means[:2] + eps * statistics.spreads[:2] for eps in noise])
        pool, labels = torch.cat([features, drawn]), torch.cat([targets, torch.tensor([0, 1] * 5)])
        losses = []
        for rows in torch.randperm(58, generator=generator).split(16):
            aligned = alignment(pool[rows])
            per_sample = F.cross_entropy(learner.classify(aligned), labels[rows], reduction="none")
            squares = (aligned - pool[rows]).square()
            distance = {"sum": squares.sum(1), "mean": squares.mean(1), "none": torch.zeros(())}[identity]
            per_sample = per_sample + 0.7 * distance
            loss = reduced(list(per_sample), labels[rows].tolist(), "class_wise_mean")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
    assert notes["ha_loss"] == pytest.approx(sum(losses) / 4, rel=1e-3)
    for ours, expected in zip(learner.ha.parameters(), alignment.parameters(), strict=True):
        torch.testing.assert_close(ours, expected.detach(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("harmful", [False, True])
def test_the_guard_keeps_only_what_helps_on_held_out_features(harmful: bool) -> None:
    """A useful HA separates two overlapping classes; a learning rate that destroys the features is undone."""
    torch.manual_seed(0)
    rate = 1e3 if harmful else 1e-2
    settings = HaSettings(use=True, guard=True, identity="none", epochs=20, batch=32, surrogates=0, learning_rate=rate)
    rows = torch.eye(8)[:2]
    targets = torch.arange(200) % 2
    # the classes differ in a direction that the classifier does not use
    features = torch.randn(200, 8) * 0.1 + 3 * torch.eye(8)[2 + targets]
    training = AlignmentTraining(
        settings, lambda aligned: aligned @ rows.T, mean, Engine.create("cpu", small_config().train)
    )
    alignment = HeadAgnosticAlignment(8)
    before = copy.deepcopy(alignment.state_dict())
    if harmful:  # perfect before the training
        features = features + 5 * rows[targets]
    known = (ClassStatistics(8), 0)
    notes = training.train(alignment, features, targets, known, torch.Generator().manual_seed(0))
    assert notes["ha_kept"] is not harmful
    unchanged = all(torch.equal(before[name], value) for name, value in alignment.state_dict().items())
    assert unchanged is harmful
    correct = (alignment(features) @ rows.T).argmax(dim=1) == targets
    assert correct.float().mean() > 0.95


def test_surrogates_of_all_classes_protect_them_when_images_of_one_class_come_again(
    make_learner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[tuple[Tensor, int]] = []

    def train(self: object, alignment: object, features: Tensor, targets: Tensor, known: Any, *_: object) -> Any:
        trained.append((targets, known[1]))
        return {}

    monkeypatch.setattr(AlignmentTraining, "train", train)
    learner, increment = make_learner(method="anyarrival", framework="paper"), small_stream([4])[0]
    learner.learn(increment)
    for label in (0, 2):
        again = (increment.train.labels == label).nonzero().flatten()[:3]
        learner.learn(replace(increment, step=2, seen_before=4, rows=again))
    assert [(set(targets.tolist()), earlier) for targets, earlier in trained] == [
        ({0, 1, 2, 3}, 0),
        ({0}, 4),
        ({2}, 4),
    ]


@pytest.mark.parametrize("method", sorted(name for name, method in METHODS.items() if method.pretrained))
def test_a_first_step_of_one_class_has_a_constant_loss(make_learner: Make, method: str) -> None:
    """Without the identity term, its gradient is 0 everywhere, and not missing."""
    learner = make_learner(method=method, ha={"use": True, "identity": "none", "epochs": 1}, train=SHORT)
    assert learner.learn(small_stream([1, 2])[0])["ha_loss"] == pytest.approx(0, abs=1e-6)


def test_statistics_of_a_class_that_comes_again_are_of_all_its_images(make_learner: Make) -> None:
    learner, increment = make_learner(method="anyarrival", framework="paper", ha={"epochs": 1}), small_stream([3])[0]
    rows = torch.arange(len(increment.train))
    later = (increment.train.labels == 1) & (rows % 4 == 0)
    learner.learn(replace(increment, rows=rows[~later]))
    learner.learn(replace(increment, step=2, seen_before=3, rows=rows[later]))
    features = torch.cat(list(learner.over(increment.train.images, rows, learner.features)))
    for label in range(3):
        own = features[increment.train.labels == label]
        torch.testing.assert_close(learner.statistics.means[label], own.mean(dim=0), rtol=1e-2, atol=1e-2)
        torch.testing.assert_close(learner.statistics.spreads[label], own.std(dim=0), rtol=1e-2, atol=1e-2)
