"""The linear discriminant compared with one that is fitted from scratch, image by image left out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from conftest import seeded
from ffcil.models.discriminant import ClassSums, Discriminant

SHRINKAGES = [0.003, 0.1, 1.0]


def some_images(count: int = 40, classes: int = 4, width: int = 9, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Correlated features with class means of their own, and classes of unequal sizes."""
    generator = seeded(seed)
    targets = (torch.arange(count) ** 2 // count) % classes
    mixing = torch.randn(width, width, generator=generator, dtype=torch.float64)
    means = 2 * torch.randn(classes, width, generator=generator, dtype=torch.float64)
    return torch.randn(count, width, generator=generator, dtype=torch.float64) @ mixing + means[targets] + 5, targets


def summed(features: Tensor, targets: Tensor, classes: int = 4) -> ClassSums:
    sums = ClassSums(features.shape[1], classes)
    sums.add(features, targets)
    return sums


def naive_scores(
    image: Tensor, features: Tensor, targets: Tensor, shrinkage: float, variances: Tensor, classes: int = 4
) -> Tensor:
    """log N(x; mu_c, S) up to a constant, with a covariance that is shrunk to `variances`."""
    means = torch.stack([features[targets == label].mean(0) for label in range(classes)])
    scatter = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for row, label in zip(features, targets, strict=True):
        scatter += torch.outer(row - means[label], row - means[label])
    covariance = (1 - shrinkage) * scatter / (len(features) - classes) + shrinkage * variances.diag()
    apart = image - means
    return -(apart * torch.linalg.solve(covariance, apart.T).T).sum(1) / 2


def variances_of(features: Tensor, targets: Tensor) -> Tensor:
    """Variances within classes, shrunk towards their mean by their expected error over their differences."""
    deviations = [features[targets == label] - features[targets == label].mean(0) for label in range(4)]
    variances = (torch.cat(deviations).square().sum(0) / (len(features) - 4)).tolist()
    mean = sum(variances) / len(variances)
    errors = sum(2 * variance**2 / (len(features) - 4) for variance in variances)
    share = min(1.0, errors / sum((variance - mean) ** 2 for variance in variances))
    return torch.tensor([(1 - share) * variance + share * mean for variance in variances], dtype=torch.float64)


def differences(scores: Tensor) -> Tensor:
    return scores - scores[..., :1]


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
def test_scores_are_those_of_normal_distributions_with_one_covariance(shrinkage: float) -> None:
    features, targets = some_images()
    discriminant = Discriminant.of(summed(features, targets))
    weights, biases = discriminant.linear(shrinkage)
    variances = variances_of(features, targets)
    for image in torch.randn(5, 9, generator=seeded(3), dtype=torch.float64):
        expected = naive_scores(image, features, targets, shrinkage, variances)
        found = -discriminant.distances(shrinkage)(image[None])[0] / 2  # from features in float32
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-5)
        torch.testing.assert_close(differences(weights @ image + biases), differences(expected), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shrinkage", SHRINKAGES)
def test_left_out_distances_are_those_to_a_discriminant_without_the_image(shrinkage: float) -> None:
    features, targets = some_images()
    found = Discriminant.of(summed(features, targets)).left_out_distances(features, targets, shrinkage)
    variances = variances_of(features, targets)
    for k in range(len(features)):
        rest = torch.arange(len(features)) != k
        expected = naive_scores(features[k], features[rest], targets[rest], shrinkage, variances)
        torch.testing.assert_close(-found[k] / 2, expected, rtol=1e-8, atol=1e-8)


def test_sums_do_not_depend_on_order_or_parts_and_images_can_be_removed() -> None:
    features, targets = some_images()
    whole, parts, less = summed(features, targets), ClassSums(9, 4), summed(features, targets)
    order = torch.randperm(len(targets), generator=seeded(1))
    for rows in order.split([1, 7, 12, 20]):
        parts.add(features[rows], targets[rows])
    less.remove(features[order[:25]], targets[order[:25]])
    for name, value in whole.named_buffers():
        torch.testing.assert_close(parts.get_buffer(name), value, rtol=1e-12, atol=1e-10)
    for name, value in summed(features[order[25:]], targets[order[25:]]).named_buffers():
        torch.testing.assert_close(less.get_buffer(name), value, rtol=1e-12, atol=1e-10)


def test_merged_sums_are_those_of_one_class() -> None:
    features, targets = some_images()
    expected = summed(features, torch.zeros_like(targets), classes=1)
    for name, value in summed(features, targets, classes=5).merged().named_buffers():
        torch.testing.assert_close(value, expected.get_buffer(name), rtol=1e-12, atol=1e-10)


def test_the_scatter_keeps_its_precision_far_from_zero() -> None:
    features, targets = some_images()
    near, far = summed(features, targets), summed(features + 1e7, targets)
    torch.testing.assert_close(far.scatter, near.scatter, rtol=1e-6, atol=1e-6)


def test_features_count_alike_with_few_images_and_by_their_deviations_with_many() -> None:
    scale = torch.linspace(0.5, 2, 400, dtype=torch.float64)
    ratios = []
    for count in (4, 20_000):
        features = scale * torch.randn(count, 400, generator=seeded(), dtype=torch.float64)
        deviations = Discriminant.of(summed(features, torch.arange(count) % 2, 2)).deviations
        ratios.append(float(deviations.std() / deviations.mean() / (scale.std() / scale.mean())))
    assert ratios[0] < 0.6
    assert ratios[1] == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("per_class", [1, 2])
def test_few_images_give_finite_scores_and_right_answers(per_class: int) -> None:
    targets = torch.arange(3).repeat(per_class)
    features = 10 * torch.eye(3, 6, dtype=torch.float64)[targets]
    features += 0.1 * torch.randn(features.shape, generator=seeded(), dtype=torch.float64)
    discriminant = Discriminant.of(summed(features, targets, 3))
    for shrinkage in (0.003, 1.0, discriminant.shrinkage_from_sums()):
        weights, biases = discriminant.linear(shrinkage)
        assert (features @ weights.T + biases).argmax(1).equal(targets)
    assert bool(discriminant.can_be_left_out(targets).any()) == (per_class == 2)


def test_equal_images_give_finite_scores() -> None:
    features, targets = torch.ones(4, 3, dtype=torch.float64), torch.tensor([0, 0, 1, 1])
    weights, biases = Discriminant.of(summed(features, targets, 2)).linear(0.1)
    assert (features @ weights.T + biases).isfinite().all()


def test_a_class_without_images_is_never_predicted() -> None:
    features, targets = some_images()
    discriminant = Discriminant.of(summed(features, targets, classes=5))
    weights, biases = discriminant.linear(0.1)
    assert (features @ weights.T + biases)[:, 4].eq(-torch.inf).all()
    assert discriminant.left_out_distances(features, targets, 0.1)[:, 4].eq(torch.inf).all()
    assert discriminant.distances(0.1)(features)[:, 4].eq(torch.inf).all()


def test_the_shrinkage_from_sums_follows_the_number_of_images() -> None:
    """The estimate is compared with the plain sums over pairs of features."""
    estimates = []
    for count in (40, 400):
        features, targets = some_images(count)
        sums = summed(features, targets)
        estimates.append(Discriminant.of(sums).shrinkage_from_sums())
        deviations = sums.scatter.diagonal().sqrt()
        squares = [
            float(sums.scatter[i, j] / deviations[i] / deviations[j]) ** 2 for i in range(9) for j in range(9) if i != j
        ]
        expected = sum(1 - 2 * square for square in squares) / (count - 4) / sum(squares)
        assert estimates[-1] == pytest.approx(min(max(expected, 0.001), 1))
    assert estimates[1] < estimates[0] / 5
