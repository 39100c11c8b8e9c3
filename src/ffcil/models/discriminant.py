"""A linear discriminant from sums: the same for any order of the images and any division into steps.

With class means mu_c, a covariance S shared by all classes and equal priors, the score of class c is
mu_c' S^-1 x - mu_c' S^-1 mu_c / 2. The number of images of a class has no weight in the scores; it only makes the mean
more precise. The covariance is shrunk towards a diagonal matrix, S = (1 - a) W + a V, where W is the covariance within
classes. With many images V is the diagonal of W, with few images it has similar variances for all features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

ROWS = 4096
"""Number of images whose features are converted to float64 at a time."""
BLOCK = 256
"""Number of columns of a triangular matrix that are stored together."""
LEAST = 0.001
"""Smallest shrinkage that is estimated from sums."""


class ClassSums(nn.Module):
    """Number of images and sum of features of each class, and one scatter around the class means.

    Images can be added and removed in any order. The scatter is updated by deviations from means (Chan et al., 1983),
    not as a difference of large sums, so that no digits are lost.
    """

    counts: Tensor
    sums: Tensor
    scatter: Tensor

    def __init__(self, features: int, classes: int = 0) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.float64))
        """Number of images of each class, [C]"""
        self.register_buffer("sums", torch.zeros(classes, features, dtype=torch.float64))
        """Sum of the features of each class, [C, D]"""
        self.register_buffer("scatter", torch.zeros(features, features, dtype=torch.float64))
        """Sum over all images of the outer product of x - mu_c, [D, D]"""

    @property
    def means(self) -> Tensor:
        """Class means, [C, D]; 0 for a class without images."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    def grow(self, classes: int) -> None:
        """Add classes without images, up to `classes`."""
        new = classes - len(self.counts)
        self.counts = torch.cat([self.counts, self.counts.new_zeros(new)])
        self.sums = torch.cat([self.sums, self.sums.new_zeros(new, self.sums.shape[1])])

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add images: features [N, D] and their classes [N]."""
        for rows, labels in zip(features.split(ROWS), targets.split(ROWS), strict=True):
            self._merge(rows.double(), labels, sign=1)

    @torch.no_grad()
    def remove(self, features: Tensor, targets: Tensor) -> None:
        """Remove images that were added before."""
        for rows, labels in zip(features.split(ROWS), targets.split(ROWS), strict=True):
            self._merge(rows.double(), labels, sign=-1)

    def _merge(self, rows: Tensor, labels: Tensor, sign: int) -> None:
        """Add (sign 1) or remove (sign -1) features [N, D] of the classes [N]."""
        present, position = labels.unique(return_inverse=True)
        count = torch.zeros(len(present), dtype=torch.float64, device=rows.device)
        count.index_add_(0, position, torch.ones_like(rows[:, 0]))
        total = rows.new_zeros(len(present), rows.shape[1]).index_add_(0, position, rows)
        mean = total / count[:, None]
        deviations = rows - mean[position]
        # the other images of these classes: the present ones when adding, the remaining ones when removing
        others = self.counts[present] + (0 if sign > 0 else -count)
        other_mean = (self.sums[present] + (0 if sign > 0 else -total)) / others.clamp_min(1)[:, None]
        weight = others * count / (others + count).clamp_min(1)
        gaps = (mean - other_mean) * weight.sqrt()[:, None]
        parts = torch.cat([deviations, gaps])  # [N + classes here, D]
        self.scatter.addmm_(parts.mT, parts, alpha=sign)
        self.counts.index_add_(0, present, count, alpha=sign)
        self.sums.index_add_(0, present, total, alpha=sign)

    def restart(self) -> None:
        """Remove all images."""
        for values in (self.counts, self.sums, self.scatter):
            values.zero_()

    def merged(self) -> Self:
        """The sums of all images as one class."""
        whole = type(self)(self.sums.shape[1], 1).to(self.sums.device)
        whole.counts, whole.sums = self.counts.sum(dim=0, keepdim=True), self.sums.sum(dim=0, keepdim=True)
        between = (self.means - whole.means) * self.counts.sqrt()[:, None]
        whole.scatter = self.scatter + between.mT @ between
        return whole

    def select(self, classes: Tensor) -> None:
        """Keep only these classes, int64 [K]. The images of all others must have been removed."""
        self.counts, self.sums = self.counts[classes], self.sums[classes]


@dataclass(frozen=True)
class Discriminant:
    """The discriminants with all shrinkages. Features are standardised: centred, with variance 1 within classes.

    Make it with `Discriminant.of(sums)`, choose a shrinkage with `left_out_distances`, then call `linear` for weights.
    """

    centre: Tensor
    """Mean of the class means, [D]"""
    deviations: Tensor
    """Standard deviations within classes, [D]; similar for all features if there are few images."""
    covariance: Tensor
    """Covariance within classes of the standardised features, [D, D]"""
    means: Tensor
    """Class means of the standardised features, [C, D]; 0 for a class without images."""
    counts: Tensor
    """Number of images of each class, [C]"""
    freedom: float
    """Number of images minus number of classes."""

    @classmethod
    def of(cls, sums: ClassSums) -> Self:
        freedom = float(sums.counts.sum() - (sums.counts > 0).sum())
        return cls.of_scatter(sums.scatter, freedom, sums.means, sums.counts)

    @classmethod
    @torch.no_grad()
    def of_scatter(cls, scatter: Tensor, freedom: float, means: Tensor, counts: Tensor | None = None) -> Self:
        """Make it from a scatter and class means.

        Args:
            scatter: Scatter within classes, [D, D].
            freedom: Number of images minus number of classes.
            means: Class means, [C, D].
            counts: Number of images of each class, [C]; None if every class has images.
        """
        counts = torch.ones_like(means[:, 0]) if counts is None else counts
        seen = counts > 0
        centre = means[seen].mean(dim=0)
        covariance = scatter / max(freedom, 1)
        deviations = _deviations(covariance.diagonal(), means[seen], freedom)
        covariance = covariance / deviations / deviations[:, None]
        if not freedom:  # no class has two images: all features count alike
            covariance = torch.eye(len(deviations)).to(deviations)
        standard = torch.where(seen[:, None], (means - centre) / deviations, 0)
        return cls(centre, deviations, covariance, standard, counts, freedom)

    @torch.no_grad()
    def linear(self, shrinkage: float) -> tuple[Tensor, Tensor]:
        """Weights [C, D] and biases [C] of the scores of features: `features @ weights.mT + biases`.

        A class without images has the bias -inf, so that it is never predicted."""
        factor = self._factor(1 - shrinkage, shrinkage)
        white = _whitened(factor, self.means)
        weights = torch.linalg.solve_triangular(factor.mT, white.mT, upper=True).mT / self.deviations
        biases = -white.square().sum(dim=1) / 2 - weights @ self.centre
        return weights, torch.where(self.counts > 0, biases, -torch.inf)

    def can_be_left_out(self, targets: Tensor) -> Tensor:
        """Whether each image can be left out, [N]: its class still has images, and the covariance still exists."""
        return (self.counts[targets] > 1) & (self.freedom > 1)

    @torch.no_grad()
    def distances(self, shrinkage: float) -> Callable[[Tensor], Tensor]:
        """A function from features [N, D] to their squared Mahalanobis distances to all class means, [N, C]. The score
        of a class is minus half of the distance, up to a constant per image."""
        factor = self._factor(1 - shrinkage, shrinkage)
        means = _whitened(factor, self.means)
        whiten = _whitened(factor, torch.eye(len(factor), dtype=factor.dtype, device=factor.device))  # [D, D]
        # Stored in the precision of the features and without most of the zeros below the diagonal, because for a single
        # image, reading this matrix takes most of the time.
        columns = [
            part[: start + BLOCK].float().contiguous()
            for start, part in zip(range(0, len(whiten), BLOCK), whiten.split(BLOCK, dim=1), strict=True)
        ]
        lengths = means.square().sum(dim=1)

        def squares(features: Tensor) -> Tensor:
            # only products: ONNX has no triangular solver, and `cdist` computes differently for few images
            rows = ((features.double() - self.centre) / self.deviations).float()
            images = torch.cat([rows[:, : len(part)] @ part for part in columns], dim=1).double()
            found = images.square().sum(dim=1, keepdim=True) - 2 * images @ means.mT + lengths
            return found.clamp_min(0).masked_fill(self.counts == 0, torch.inf)

        return squares

    @torch.no_grad()
    def whitened(self, features: Tensor, shrinkage: float) -> Tensor:
        """Centred features whose covariance within classes is the identity: [N, D] -> [N, D]"""
        factor = self._factor(1 - shrinkage, shrinkage)
        parts = ((rows.double() - self.centre) / self.deviations for rows in features.split(ROWS))
        return torch.cat([_whitened(factor, rows) for rows in parts])

    @torch.no_grad()
    def left_out_distances(self, features: Tensor, targets: Tensor, shrinkage: float) -> Tensor:
        """Squared Mahalanobis distances to all class means, [N, C], of images in the sums, each by the discriminant
        that has not seen it.

        `can_be_left_out` must hold for each image. Its class mean and the covariance are those without it, but the
        diagonal towards which the covariance is shrunk is that of all images. Without image x of class c, the scatter
        loses n / (n - 1) d d' with d = x - mu_c, so the inverse covariance A changes by a rank-one term. All products
        below are products of whitened vectors, u' A v.
        """
        each = (1 - shrinkage) / (self.freedom - 1)  # factor on the scatter of standardised features
        factor = self._factor(each * self.freedom, shrinkage)
        means = _whitened(factor, self.means)
        images = _whitened(factor, (features.double() - self.centre) / self.deviations)
        count = self.counts[targets]
        deviation = images - means[targets]  # d, [N, D]
        strength = each * count / (count - 1)
        own = deviation.square().sum(dim=1)  # d' A d
        gain = strength / (1 - strength * own)  # factor on A d d' A in the inverse without the image
        along = (images * deviation).sum(dim=1)  # x' A d
        onto = deviation @ means.mT  # mu_k' A d, [N, C]
        lengths = means.square().sum(dim=1)  # mu_k' A mu_k, [C]
        scores = images @ means.mT - lengths / 2
        scores += gain[:, None] * onto * (along[:, None] - onto / 2)
        # the mean of the own class changes to m = mu_c - d / (n - 1)
        short, onto_own = 1 / (count - 1), onto.gather(1, targets[:, None])[:, 0]
        mean_x = (means[targets] * images).sum(dim=1) - short * along  # m' A x
        mean_d = onto_own - short * own  # m' A d
        mean_mean = lengths[targets] - 2 * short * onto_own + short.square() * own  # m' A m
        alone = mean_x - mean_mean / 2 + gain * mean_d * (along - mean_d / 2)
        scores.scatter_(1, targets[:, None], alone[:, None])
        lengths_of_images = images.square().sum(dim=1) + gain * along.square()  # x' A x
        squares = lengths_of_images[:, None] - 2 * scores
        return squares.masked_fill_(self.counts == 0, torch.inf)

    def shrinkage_from_sums(self) -> float:
        """A shrinkage estimated from the sums alone: the expected squared error of the correlations, divided by their
        sum of squares (Schaefer and Strimmer, 2005). The variance of a correlation r is that of normal variables, about
        (1 - 2 r^2) / n."""
        features = len(self.deviations)
        own = self.covariance.diagonal()
        varying = own > 0
        squares = float((self.covariance.square() / own / own[:, None])[varying][:, varying].sum() - varying.sum())
        errors = (features * (features - 1) - 2 * squares) / max(self.freedom, 1)
        return min(max(errors / max(squares, 1e-12), LEAST), 1.0) if self.freedom else 1.0

    def _factor(self, kept: float, shrinkage: float) -> Tensor:
        """Cholesky factor of `kept` times the covariance plus `shrinkage` times the identity."""
        matrix = kept * self.covariance
        matrix.diagonal().add_(shrinkage)
        factor: Tensor = torch.linalg.cholesky(matrix)
        return factor


def _whitened(factor: Tensor, rows: Tensor) -> Tensor:
    """L^-1 applied to each row, [N, D]"""
    white: Tensor = torch.linalg.solve_triangular(factor, rows.mT, upper=False)
    return white.mT


def _deviations(variances: Tensor, means: Tensor, freedom: float) -> Tensor:
    """Positive standard deviations [D] from variances within classes [D].

    Variances estimated from few images differ by chance. They are shrunk towards their mean, by the expected squared
    error divided by the sum of squared differences (Schaefer and Strimmer, 2005). The variance of a variance v is that
    of normal values, 2 v^2 / n. So with few images all features have similar deviations, and with many images each has
    its own. A feature that does not vary within classes gets a thousandth of the typical deviation. If no feature
    varies, all get the deviation of the class means, or 1."""
    typical = variances.mean()
    if typical <= 0:
        typical = means.var(dim=0, correction=0).mean()
        return torch.where(typical > 0, typical, torch.ones_like(typical)).sqrt().expand(len(variances)).clone()
    differences = (variances - typical).square().sum().clamp_min(1e-12 * typical.square())
    share = (2 * variances.square().sum() / freedom / differences).clamp(max=1)
    return torch.lerp(variances, typical, share).clamp_min(1e-6 * float(typical)).sqrt()
