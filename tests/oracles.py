"""Slow, plain versions of what the package computes: loops over samples, classes and steps to compare it with."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ffcil.methods import Learner
from ffcil.stream import Increment

# --- losses -----------------------------------------------------------------------------------------------------------


def class_wise_mean(values: Sequence[Any], targets: Sequence[int], weights: Sequence[float] | None = None) -> Any:
    """Mean over classes of the weighted mean of each class, equation (6) of the paper. Samples of weight 0 are out."""
    by_class: dict[int, list[tuple[Any, float]]] = {}
    for value, target, weight in zip(values, targets, weights or [1.0] * len(values), strict=True):
        if weight > 0:
            by_class.setdefault(int(target), []).append((value, weight))
    means = [sum(value * weight for value, weight in of) / sum(weight for _, weight in of) for of in by_class.values()]
    return sum(means) / len(means) if means else 0.0


def reduced(values: Sequence[Any], targets: Sequence[int], reduction: str) -> Any:
    """Losses of samples, numbers or scalar tensors, reduced by the name of a reduction. No samples give 0."""
    if reduction == "class_wise_mean":
        return class_wise_mean(values, targets)
    return sum(values) / len(values) if values else 0.0


def cross_entropy(logits: Tensor, target: int) -> Tensor:
    """Cross-entropy of one sample, in float64."""
    return logits.double().exp().sum().log() - logits[target].double()


def distillation(logits: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Cross-entropy of one sample's softened distribution under that of its teacher, in float64."""
    student, soft = (((scores.double() / temperature).exp()) for scores in (logits, teacher))
    return -(soft / soft.sum() * (student / student.sum()).log()).sum()


# --- features ---------------------------------------------------------------------------------------------------------


def class_means(features: Tensor, labels: Tensor, classes: Sequence[int]) -> Tensor:
    """Mean feature of each class, [classes, D]."""
    return torch.stack([features[labels == label].mean(0) for label in classes])


def ridge_weights(rows: Tensor, wanted: Tensor, ridge: float) -> Tensor:
    """Weights of a ridge regression, from its normal equations."""
    return torch.linalg.solve(rows.T @ rows + ridge * torch.eye(rows.shape[1], dtype=rows.dtype), rows.T @ wanted)


def nearest_mean_accuracy(train: ArrayLike, test: ArrayLike, classes: int) -> float:
    """Share of test rows whose nearest class mean is that of their class. All rows are sorted by class."""
    train, test = np.asarray(train), np.asarray(test)
    means = train.reshape(classes, -1, train.shape[1]).mean(1)
    squared_distance = (means**2).sum(1) - 2 * test @ means.T  # without the part that is equal for all means
    return float((squared_distance.argmin(1) == np.arange(classes).repeat(len(test) // classes)).mean())


# --- images -----------------------------------------------------------------------------------------------------------


def grey_levels(normalised: Tensor, mean: Sequence[float] = (0, 0, 0), std: Sequence[float] = (1, 1, 1)) -> Tensor:
    """The uint8 images before normalisation. Fails if a value is not a whole grey level."""
    scale, shift = (torch.tensor(values, dtype=torch.float64).view(3, 1, 1) for values in (std, mean))
    values = (normalised.double() * scale + shift) * 255
    assert (values - values.round()).abs().max() < 1e-3
    return values.round().to(torch.uint8)


# --- metrics ----------------------------------------------------------------------------------------------------------

Samples = list[tuple[int, int]]
"""True and predicted classes of test images."""


def accuracy(samples: Samples, classes: Sequence[int] | set[int] | None = None) -> float | None:
    """Accuracy in percent over the test images of some classes, default all; None if they have no images."""
    hits = [true == predicted for true, predicted in samples if classes is None or true in classes]
    return 100 * sum(hits) / len(hits) if hits else None


class StreamMetrics(NamedTuple):
    curve: list[float | None]
    average: float | None
    last: float | None
    forgetting_by_step: list[float | None]
    forgetting: float | None


def stream_metrics(sizes: Sequence[int], steps: Sequence[Samples]) -> StreamMetrics:
    """Metrics of a stream of `sizes`, from the predictions after each step, by loops over single test images."""
    curve = [accuracy(samples) for samples in steps]
    lost: list[float | None] = []
    for j in range(len(sizes) - 1):
        group = range(sum(sizes[:j]), sum(sizes[: j + 1]))
        known = [value for samples in steps[j:] if (value := accuracy(samples, group)) is not None]
        lost.append(max(known) - known[-1] if known else None)
    averages = [mean(known) if (known := [v for v in values if v is not None]) else None for values in (curve, lost)]
    return StreamMetrics(curve, averages[0], curve[-1], lost, averages[1])


def predicted_samples(learner: Learner, increment: Increment) -> dict[str, Samples]:
    """True and predicted classes of all test images of an increment, by classifier."""
    labels = increment.test.labels[increment.test_rows].tolist()
    predicted = learner.predictions(increment)
    return {name: list(zip(labels, classes.tolist(), strict=True)) for name, classes in predicted.items()}
