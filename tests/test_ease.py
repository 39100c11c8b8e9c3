"""EASE compared with plain loops: synthesised prototypes, weights of the subspaces, steps with a single class."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Make, begin_second_step, seeded, small_stream
from ffcil.methods.ease import EASE, synthesise
from ffcil.methods.parts.prototypes import SCALE
from ffcil.models.tuners import Adapter
from ffcil.stream import Stream
from oracles import cross_entropy, reduced

SIZES = (2, 3, 1, 2)
STEP_OF = [step for step, size in enumerate(SIZES) for _ in range(size)]
SHORT = {"first": {"epochs": 1, "learning_rate": 0.05}, "later": {"epochs": 1, "learning_rate": 0.05}}


def make_ease(make: Make, **fields: Any) -> EASE:
    learner = make(method="ease", **{"train": SHORT, **fields})
    return learner


def learned(learner: EASE, stream: Stream) -> EASE:
    """Learn a stream with adapters that differ much between steps; a short training hardly changes them."""
    for increment in stream:
        learner.begin(increment)
        with torch.no_grad():
            for k, parameter in enumerate(learner.steps.newest.parameters()):
                parameter.add_(torch.randn(parameter.shape, generator=seeded(100 * increment.step + k)) * 0.3)
        learner.eval()
        with torch.no_grad():
            learner.finish(increment)
    return learner


def features_by_step(learner: EASE, images: Tensor) -> list[np.ndarray[Any, Any]]:
    plain = learner.settings.augmentation.plain(images)
    with torch.no_grad():
        return [learner.adapted(adapters, plain).double().numpy() for adapters in learner.steps]


def cosine(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    return float(a @ b / math.sqrt(a @ a) / math.sqrt(b @ b))


def synthesised(
    old: np.ndarray[Any, Any], new: Sequence[np.ndarray[Any, Any]], new_there: Sequence[np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """The synthesised prototype of one old class, by a loop over new classes."""
    alike = [math.exp(cosine(old, other)) for other in new]
    total = np.zeros_like(old)
    for weight, there in zip(alike, new_there, strict=True):
        total += weight / sum(alike) * there
    return total


def naive_prototypes(learner: EASE, stream: Stream, refresh: bool) -> np.ndarray[Any, Any]:
    by_step = features_by_step(learner, stream.train.images)
    labels = stream.train.labels.numpy()
    classes, steps = len(STEP_OF), len(SIZES)
    mean = [[features[labels == label].mean(0) for features in by_step] for label in range(classes)]
    result = np.zeros((classes, steps, learner.feature_dim))
    for label in range(classes):
        own = STEP_OF[label]
        for step in range(steps):
            if step <= own:
                result[label, step] = mean[label][step]
                continue
            donors = [k for k in range(classes) if (STEP_OF[k] >= step if refresh else STEP_OF[k] == step)]
            result[label, step] = synthesised(
                mean[label][own], [mean[k][own] for k in donors], [mean[k][step] for k in donors]
            )
    return result


def test_a_synthesised_prototype() -> None:
    old, new, there = (torch.randn(n, 5, generator=seeded(n), dtype=torch.float64) for n in (3, 4, 4))
    got = synthesise(old, new, there[[0, 1, 2, 3]])
    for k in range(3):
        np.testing.assert_allclose(got[k], synthesised(old[k].numpy(), list(new.numpy()), list(there.numpy())))
    turned = [2, 0, 3, 1]
    reordered, rescaled = synthesise(old, new[turned], there[turned]), synthesise(7 * old, new / 3, there)
    torch.testing.assert_close(reordered, got)  # the order of the new classes does not matter
    torch.testing.assert_close(rescaled, got)  # only directions are compared


@pytest.mark.parametrize("refresh", [False, True])
def test_prototypes(make_learner: Make, refresh: bool) -> None:
    stream = small_stream(SIZES)
    learner = learned(make_ease(make_learner, options={"refresh": refresh}), stream)
    expected = naive_prototypes(learner, stream, refresh)
    np.testing.assert_allclose(learner.prototypes, expected, rtol=1e-3, atol=1e-4)
    other = naive_prototypes(learner, stream, not refresh)
    assert np.abs(other - expected).max() > 0.01  # the two differ


@pytest.mark.parametrize("framework", ["none", "paper"])
@pytest.mark.parametrize("alpha", [0.1, 0.7])
def test_scores(make_learner: Make, alpha: float, framework: str) -> None:
    stream = small_stream(SIZES)
    learner = learned(make_ease(make_learner, options={"other_weight": alpha}, framework=framework), stream)
    images = stream.test.images[::5]
    by_step = [torch.from_numpy(features).float() for features in features_by_step(learner, images)]
    with torch.no_grad():
        aligned = [learner.aligned(features).double().numpy() for features in by_step]
        scores = learner.logits(learner.settings.augmentation.plain(images))["prototype"]
    prototypes = learner.prototypes.double().numpy()
    for k in range(len(images)):
        for label, own in enumerate(STEP_OF):
            others = [cosine(aligned[s][k], prototypes[label, s]) for s in range(len(SIZES)) if s != own]
            expected = cosine(aligned[own][k], prototypes[label, own]) + alpha * sum(others) / len(others)
            assert scores[k, label].item() == pytest.approx(SCALE * expected, abs=1e-3)
    if framework == "paper":
        assert not all(np.allclose(a, b) for a, b in zip(aligned, by_step, strict=True))


@pytest.mark.parametrize("framework", ["none", "paper"])
def test_scores_from_cached_features_equal_those_from_images(make_learner: Make, framework: str) -> None:
    stream = small_stream(SIZES)
    learner = learned(make_ease(make_learner, framework=framework), stream)
    with torch.no_grad():
        cached = torch.cat([batch["prototype"] for batch in learner.test_scores(stream[len(SIZES) - 1])])
        fresh = learner.logits(learner.settings.augmentation.plain(stream.test.images))["prototype"]
    torch.testing.assert_close(cached, fresh[stream[len(SIZES) - 1].test_rows], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_the_loss_is_over_the_new_classes(make_learner: Make, reduction: str) -> None:
    learner = make_ease(make_learner, reduction=reduction)
    begin_second_step(learner)
    images = torch.randn(6, 3, 32, 32, generator=seeded(1))
    targets = torch.tensor([2, 2, 2, 3, 4, 4])
    with torch.no_grad():
        features, rows = learner.features(images).double().numpy(), learner.head.weight.double().numpy()
        got = learner.loss(images, targets).item()
    assert len(rows) == 3
    logits = torch.tensor([[cosine(feature, row) for row in rows] for feature in features])  # the head's scale is 1
    values = [cross_entropy(scores, int(target) - 2).item() for scores, target in zip(logits, targets, strict=True)]
    assert got == pytest.approx(reduced(values, targets.tolist(), reduction), rel=1e-4)


def test_every_step_starts_with_fresh_adapters(make_learner: Make) -> None:
    learner = make_ease(make_learner)
    first, second, third = small_stream([2, 2, 2])
    learner.learn(first)
    trained = [parameter.detach().clone() for parameter in learner.steps.newest.parameters()]
    down = cast(Adapter, learner.steps.newest[0]).down.weight.detach().clone()
    learner.begin(second)
    for was, kept in zip(trained, learner.steps.kept[0].parameters(), strict=True):
        assert torch.equal(was, kept)
        assert not kept.requires_grad
    for adapter in cast(list[Adapter], list(learner.steps.newest)):
        assert not adapter.up.weight.any()
        assert adapter.up.weight.requires_grad
    assert not torch.equal(cast(Adapter, learner.steps.newest[0]).down.weight, down)
    learner.begin(third)
    assert len(learner.steps.kept) == 2


def test_a_step_with_a_single_class_trains_nothing_and_gives_older_classes_its_prototype(make_learner: Make) -> None:
    learner, stream = make_ease(make_learner), small_stream([3, 1])
    learner.learn(stream[0])
    assert cast(Adapter, learner.steps.newest[0]).up.weight.any()
    notes = learner.learn(stream[1])
    assert notes["loss"] == notes["trained_parameters"] == 0
    assert learner.training_plan(stream[1]) is None
    assert not any(cast(Adapter, adapter).up.weight.any() for adapter in learner.steps.newest)
    plain = learner.settings.augmentation.plain(stream.train.images[stream[1].rows])
    with torch.no_grad():
        alone = learner.vit_features(plain).mean(dim=0)
    for label in range(4):
        torch.testing.assert_close(learner.prototypes[label, 1], alone, rtol=1e-4, atol=1e-4)


def test_single_class_steps_without_other_subspaces_equal_simplecil(make_learner: Make) -> None:
    stream = small_stream([1, 1, 1], [16, 1, 16])
    learner, simple = make_ease(make_learner, options={"other_weight": 0}), make_learner(method="simplecil")
    for increment in stream:
        learner.learn(increment)
        simple.learn(increment)
    images = learner.settings.augmentation.plain(stream.test.images)
    with torch.no_grad():
        got, expected = (each.logits(images)["prototype"] for each in (learner, simple))
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
