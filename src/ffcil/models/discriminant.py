"""A linear discriminant from sums: the same for any order and any cut of the images into steps.

With class means mu_c, a covariance S shared by all classes and equal priors, the score of class c is
mu_c' S^-1 x - mu_c' S^-1 mu_c / 2. The number of images of a class is the precision of its mean and no weight in the
scores. The covariance is shrunk towards a diagonal, S = (1 - a) W + a V, where W is the covariance within classes, and
V its diagonal if there are many images. With few images, V has similar variances for all features.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

ROWS = 4096
"""Number of images whose features are turned into float64 at a time."""
BLOCK = 256
"""Columns of a triangular matrix that are stored together."""
LEAST = 0.001
"""Smallest shrinkage that is estimated from sums."""


class ClassSums(nn.Module):
    """Number of images, sum of features and scatter around the mean, for classes that share one scatter.

    Images are added and removed in any order. Scatters are updated with deviations from means (Chan et al., 1983), not
    as differences of large sums, so that nothing cancels.
    """

    counts: Tensor
    sums: Tensor
    scatter: Tensor

    def __init__(self, features: int, classes: int = 0) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(classes, dtype=torch.float64))
        """[C]"""
        self.register_buffer("sums", torch.zeros(classes, features, dtype=torch.float64))
        """[C, D]"""
        self.register_buffer("scatter", torch.zeros(features, features, dtype=torch.float64))
        """Sum over all images of the outer product of x - mu_c, [D, D]"""

    @property
    def means(self) -> Tensor:
        """[C, D]; 0 for a class without images."""
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
        present, position = labels.unique(return_inverse=True)
        count = torch.zeros(len(present), dtype=torch.float64, device=rows.device)
        count.index_add_(0, position, torch.ones_like(rows[:, 0]))
        total = rows.new_zeros(len(present), rows.shape[1]).index_add_(0, position, rows)
        mean = total / count[:, None]
        deviations = rows - mean[position]
        # the images without these: those so far if they are added, those that remain if they are removed
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
        """Keep these classes only. The images of the others have been removed."""
        self.counts, self.sums = self.counts[classes], self.sums[classes]


@dataclass(frozen=True)
class Discriminant:
    """The discriminants of all shrinkages, for features that are centred and have variance 1 within classes.

    `Discriminant.of(sums)`, then `left_out_distances` for the choice of a shrinkage, then `linear` for its weights.
    """

    centre: Tensor
    """Mean of the class means, [D]"""
    deviations: Tensor
    """Standard deviations within classes, [D]; similar ones if there are few images."""
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
        """From the scatter within classes [D, D] of `freedom` images more than classes, and the class means [C, D].

        Args:
            counts: Number of images of each class, [C]; None: all have some.
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

        A class without images has the bias -inf: it is never predicted."""
        factor = self._factor(1 - shrinkage, shrinkage)
        white = _whitened(factor, self.means)
        weights = torch.linalg.solve_triangular(factor.mT, white.mT, upper=True).mT / self.deviations
        biases = -white.square().sum(dim=1) / 2 - weights @ self.centre
        return weights, torch.where(self.counts > 0, biases, -torch.inf)

    def can_be_left_out(self, targets: Tensor) -> Tensor:
        """Whether the class of each image still has images, and the covariance still exists, without the image."""
        return (self.counts[targets] > 1) & (self.freedom > 1)

    @torch.no_grad()
    def distances(self, shrinkage: float) -> Callable[[Tensor], Tensor]:
        """A function that gives squared Mahalanobis distances of images [N, D] to all class means, [N, C]. The score of
        a class is minus half of it, up to a constant per image."""
        factor = self._factor(1 - shrinkage, shrinkage)
        means = _whitened(factor, self.means)
        whiten = _whitened(factor, torch.eye(len(factor), dtype=factor.dtype, device=factor.device))  # [D, D]
        # In the precision of the features, and without most of the zeros below the diagonal: for one image, reading
        # this matrix takes most of the time.
        columns = [
            part[: start + BLOCK].float().contiguous()
            for start, part in zip(range(0, len(whiten), BLOCK), whiten.split(BLOCK, dim=1), strict=True)
        ]
        lengths = means.square().sum(dim=1)

        def squares(features: Tensor) -> Tensor:
            # products only: ONNX has no triangular solver, and the formula of `cdist` depends on the number of images
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
        """The same distances for images that were added, by discriminants that have not seen them, [N, C].

        `can_be_left_out` holds for each image. Its class mean and the covariance are those without it; the diagonal to
        which the covariance is shrunk stays. Without image x of class c, the scatter loses n / (n - 1) d d' with
        d = x - mu_c, so the inverse covariance A changes by a rank-one term. All products below are those of whitened
        vectors, u' A v.
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
        # the own class has another mean, m = mu_c - d / (n - 1)
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
        """A shrinkage that needs no image: the expected error of the correlations over their size (Schaefer and
        Strimmer, 2005), with the variance of a correlation between normal variables, about (1 - 2 r^2) / n."""
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
    """Standard deviations that no feature lacks, [D], from variances within classes [D].

    Variances that come from few images differ by chance. They are shrunk towards their mean, by their expected error
    over their differences (Schaefer and Strimmer, 2005), with the variance of a variance of normal values, 2 v^2 / n.
    So with a handful of images all features count alike, and with many each has its own deviation. A feature that does
    not vary within classes gets the smallest deviation that is not negligible; if none varies, all get the deviation
    of the class means, or 1."""
    typical = variances.mean()
    if typical <= 0:
        typical = means.var(dim=0, correction=0).mean()
        return torch.where(typical > 0, typical, torch.ones_like(typical)).sqrt().expand(len(variances)).clone()
    differences = (variances - typical).square().sum().clamp_min(1e-12 * typical.square())
    share = (2 * variances.square().sum() / freedom / differences).clamp(max=1)
    return torch.lerp(variances, typical, share).clamp_min(1e-6 * float(typical)).sqrt()
