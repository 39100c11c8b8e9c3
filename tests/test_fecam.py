"""FeCAM compared with the distance of one image to one class at a time, in float64 with numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import ffcil.methods.fecam
from conftest import Make, seeded, small_stream
from ffcil.errors import InputError
from ffcil.methods.fecam import SCALE, ClassMetrics, FeCAM, FeCAMConfig, correlation, unit

Array = np.ndarray[Any, Any]
SHRINKAGES = [(1.0, 1.0), (1.0, 0.0), (10.0, 10.0), (0.5, 0.25)]


def some_features(count: int, seed: int, width: int = 7) -> Tensor:
    """Correlated features of both signs, with a mean of their own."""
    generator = seeded(seed)
    mixing, mean = torch.randn(width, width, generator=generator), torch.randn(width, generator=generator)
    return torch.randn(count, width, generator=generator) @ mixing + 3 * mean


def naive_transform(feature: Array, tukey: float) -> Array:
    powered = np.array([np.sign(x) * abs(x) ** tukey for x in feature])
    return powered / np.sqrt((powered**2).sum())


def naive_distance(image: Array, of_class: Array, tukey: float, gammas: tuple[float, float]) -> float:
    """The paper's steps, entry by entry: shrink the covariance, divide by the deviations, invert."""
    rows = np.stack([naive_transform(row, tukey) for row in of_class])
    covariance, width = np.cov(rows.T), rows.shape[1]
    off = ~np.eye(width, dtype=bool)
    mean_variance, mean_covariance = np.diag(covariance).mean(), covariance[off].mean()
    shrunk = np.empty_like(covariance)
    for i in range(width):
        for j in range(width):
            extra = gammas[0] * mean_variance if i == j else gammas[1] * mean_covariance
            shrunk[i, j] = covariance[i, j] + extra
    normalised = np.empty_like(shrunk)
    for i in range(width):
        for j in range(width):
            normalised[i, j] = shrunk[i, j] / np.sqrt(shrunk[i, i] * shrunk[j, j])
    apart = naive_transform(image, tukey) - rows.mean(0)
    return float(apart @ np.linalg.pinv(normalised) @ apart)


def metrics_of(features: Tensor, targets: Tensor, gammas: tuple[float, float] = (1.0, 1.0)) -> ClassMetrics:
    metrics = ClassMetrics(features.shape[1], *gammas)
    metrics.grow(int(targets.max()) + 1)
    metrics.remember(unit(features, 1), targets)
    return metrics


def make_fecam(make: Make, **fields: Any) -> FeCAM:
    short = {"epochs": 1, "learning_rate": 0.05}
    learner = make(method="fecam", train={"first": short, "later": short}, **fields)
    return learner


@pytest.mark.parametrize("tukey", [1.0, 0.5])
@pytest.mark.parametrize("gammas", SHRINKAGES)
@pytest.mark.parametrize("counts", [(30, 20), (3, 2)])  # also with fewer images than features
def test_distances(counts: tuple[int, int], gammas: tuple[float, float], tukey: float) -> None:
    classes = [some_features(count, seed) for seed, count in enumerate(counts)]
    metrics = ClassMetrics(7, *gammas)
    metrics.grow(2)
    targets = torch.tensor([0] * counts[0] + [1] * counts[1])
    metrics.remember(unit(torch.cat(classes), tukey), targets)
    images = some_features(5, 9)
    got = metrics(unit(images, tukey))
    for k, image in enumerate(images.double().numpy()):
        for label, of_class in enumerate(classes):
            expected = naive_distance(image, of_class.double().numpy(), tukey, gammas)
            assert got[k, label].item() == pytest.approx(expected, rel=1e-3)


def test_scores_of_the_learner(make_learner: Make) -> None:
    """With the network, several steps and cached test features."""
    options = {"variance_shrinkage": 2.0, "covariance_shrinkage": 0.5, "tukey": 0.8}
    learner, stream = make_fecam(make_learner, options=options), small_stream([2, 1, 2])
    for increment in stream:
        learner.learn(increment)
    plain = learner.settings.augmentation.plain
    with torch.no_grad():
        train, test = (learner.features(plain(images)).double() for images in (stream.train.images, stream.test.images))
        scores = torch.cat([batch["mahalanobis"] for batch in learner.test_scores(stream[2])])
    by_class = [train[stream.train.labels == label].numpy() for label in range(5)]
    rows = stream[2].test_rows[::7]
    for row in rows.tolist():
        got = scores[(stream[2].test_rows == row).nonzero().item()]
        for label in range(5):
            expected = naive_distance(test[row].numpy(), by_class[label], 0.8, (2.0, 0.5))
            assert got[label].item() == pytest.approx(-SCALE * expected, rel=5e-3)
    assert (scores.argmax(1) == stream.test.labels[stream[2].test_rows]).float().mean() > 0.5


def test_distances_in_parts_equal_distances_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = some_features(60, 0), torch.arange(60) % 6
    metrics, images = metrics_of(features, targets), unit(some_features(4, 1), 1)
    whole = metrics(images)
    for numbers in (1, 2 * images.numel(), 4 * images.numel()):
        monkeypatch.setattr(ffcil.methods.fecam, "AT_ONCE", numbers)
        torch.testing.assert_close(metrics(images), whole)
    assert metrics(images[:0]).shape == (0, 6)


def test_the_order_of_classes_does_not_matter() -> None:
    features = some_features(41, 0)
    targets = torch.tensor([0] * 20 + [1] * 1 + [2] * 20)  # a class of one image among them
    together, apart = metrics_of(features, targets), ClassMetrics(7, 1.0, 1.0)
    came = [1, 2, 0]
    for classes, label in enumerate(came):
        apart.grow(classes + 1)
        mine = targets == label
        apart.remember(unit(features[mine], 1), torch.full((int(mine.sum()),), classes))
    images = unit(some_features(5, 3), 1)
    torch.testing.assert_close(apart(images), together(images)[:, came])


@pytest.mark.parametrize("copies", [1, 3])
def test_a_class_without_variation_has_the_mean_metric_of_others(copies: int) -> None:
    """A class with a single image, or with copies of one."""
    features, targets = some_features(21, 0), torch.tensor([0] * 10 + [1] + [2] * 10)
    times = torch.ones(21, dtype=torch.int64)
    times[10] = copies
    metrics = metrics_of(features.repeat_interleave(times, dim=0), targets.repeat_interleave(times))
    torch.testing.assert_close(metrics.spreads[1], (metrics.spreads[0] + metrics.spreads[2]) / 2)
    assert not torch.allclose(metrics.spreads[0], metrics.spreads[2])
    own = metrics(unit(features[10:11], 1))
    assert own[0, 1].item() == pytest.approx(0, abs=1e-6)
    assert own.isfinite().all()


@pytest.mark.parametrize("images", [1, 4])
def test_without_any_spread_distances_are_euclidean(images: int) -> None:
    """Equal images count as a single image."""
    features = some_features(2, 0).repeat_interleave(images, dim=0)
    metrics = metrics_of(features, torch.arange(2).repeat_interleave(images))
    queries = unit(some_features(5, 1), 1)
    torch.testing.assert_close(metrics(queries), torch.cdist(queries, metrics.means) ** 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("images", [2, 3])
def test_few_images_leave_no_direction_without_spread(images: int) -> None:
    """With equal shrinkages there is such a direction: the one in which all features vary together."""
    shrinkage = FeCAMConfig().variance_shrinkage, FeCAMConfig().covariance_shrinkage
    classes = [unit(some_features(images, seed, width=60), 1) for seed in range(200)]
    assert min(torch.linalg.eigvalsh(correlation(units, *shrinkage))[0] for units in classes) > 0.05
    assert min(torch.linalg.eigvalsh(correlation(units, 1.0, 1.0))[0] for units in classes) < 0.01


def test_a_correlation_matrix() -> None:
    matrix = correlation(unit(some_features(4, 0, width=30), 1), 1.0, 1.0)
    torch.testing.assert_close(matrix.diagonal(), torch.ones(30, dtype=torch.float64))
    assert torch.linalg.eigvalsh(matrix)[0] > 0.01  # four images, thirty features
    wide = unit(some_features(50, 1), 1)
    torch.testing.assert_close(correlation(wide, 1e-9, 0.0), torch.corrcoef(wide.double().T), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("tukey", [1.0, 0.5])
def test_gradients_reach_the_features(make_learner: Make, tukey: float) -> None:
    learner = make_fecam(make_learner, options={"tukey": tukey})
    learner.learn(small_stream([3])[0])
    features = torch.randn(4, learner.feature_dim, generator=seeded())
    features[:, 0] = 0.0
    features.requires_grad_()
    learner.classify(features)[:, 1].sum().backward()
    assert features.grad.isfinite().all()
    assert features.grad[:, 1:].abs().min() > 0


def test_covariance_shrinkage_above_variance_shrinkage_is_an_error(make_learner: Make) -> None:
    with pytest.raises(InputError, match=r"covariance_shrinkage=2.0 is above options.variance_shrinkage=1.0"):
        make_fecam(make_learner, options={"covariance_shrinkage": 2.0})
