"""Probabilities from scores, and novelty from class sums. This module needs torch and nothing else of ffcil.

Scores of images that a classifier was fitted to are too good. `fit_calibration` needs scores of images that it was not
fitted to: of held-out images, or leave-one-out scores of the training images. The same holds for `threshold_at`.

    calibration = fit_calibration(scores, targets)               # [N, C] and [N]
    probabilities = calibration(new_scores)                      # rows sum to 1, the highest class is the same

    novelty = RelativeMahalanobis.of(counts, sums, products)     # sums over images, for each class and in all
    threshold = threshold_at(novelty.leave_one_out(features, targets), false_alarms=0.05)
    unknown = novelty(new_features) > threshold
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Number of elements of a matrix that are held in double precision at a time."""
GROUPS = 12
"""Number of points that map the log-odds of the highest class. Cross-validated on left-out scores of Cars, 8 to 40 have
the same likelihood."""
LEAST = 25
"""Fewest images for one such point."""
LIMIT = 12.0
"""Bound on the logarithm of a temperature, in units of the mean gap to the highest score."""


def _chunks(rows: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Parts of a matrix [N, C] in double precision, and the parts of other tensors [N, ...]."""
    if torch.compiler.is_exporting():  # a graph for any number of rows has no loop over them
        yield rows.double(), *others
        return
    size = max(1, CHUNK // max(1, rows.shape[1]))
    for first, *parts in zip(rows.split(size), *(other.split(size) for other in others), strict=True):
        yield first.double(), *parts


def _gaps(scores: Tensor) -> Tensor:
    """Distances of scores [N, C] from the highest score of their row."""
    return scores.amax(dim=1, keepdim=True) - scores


# --- the temperature ------------------------------------------------------------------------------------------------


def fit_temperature(scores: Tensor, targets: Tensor) -> float:
    """The temperature T with the smallest negative log-likelihood of `softmax(scores / T)`.

    Newton's iteration in log T finds where the derivative is 0. The derivative is monotone, so a step that leaves the
    interval known to contain the zero is replaced by a bisection. If all highest scores are right, there is no smallest
    value, and the temperature is tiny.

    Args:
        scores: Scores of images that the classifier was not fitted to, [N, C].
        targets: Their classes, [N], whose scores are finite. Other classes may have the score -inf.
    """
    total, number = 0.0, 0
    for (rows,) in _chunks(scores):
        gaps = _gaps(rows)
        here = gaps.isfinite() & (gaps > 0)
        total, number = total + gaps[here].sum().item(), number + int(here.sum())
    scale = total / max(1, number)
    if not scale:  # every row has equal scores
        return 1.0
    low, high, at = -LIMIT, LIMIT, 0.0  # of the logarithm of the sharpness scale / T
    for _ in range(60):
        slope, change = _derivatives(scores, targets, math.exp(at) / scale)
        low, high = (low, at) if slope > 0 else (at, high)
        newton = at - slope / change if change > 0 else math.inf
        following = newton if low < newton < high else (low + high) / 2
        moved, at = abs(following - at), following
        if moved < 1e-9:
            break
    return scale / math.exp(at)


def _derivatives(scores: Tensor, targets: Tensor, sharpness: float) -> tuple[float, float]:
    """Derivative of the mean negative log-likelihood of softmax(-sharpness * gaps) by the sharpness, and the derivative
    of that by log(sharpness)."""
    slope = change = 0.0
    for rows, labels in _chunks(scores, targets):
        gaps = _gaps(rows)
        own = gaps.gather(1, labels[:, None])[:, 0]
        shares = torch.softmax(-sharpness * gaps, dim=1)
        gaps.masked_fill_(gaps.isinf(), 0)
        mean = (shares * gaps).sum(dim=1)
        slope += (own - mean).sum().item()
        change += ((shares * gaps.square()).sum(dim=1) - mean.square()).sum().item() * sharpness
    return slope / len(scores), change / len(scores)


# --- probabilities --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """A map from scores [N, C] to probabilities [N, C] that keeps the order of the classes.

    The softmax of the scores over the temperature comes first. Then the log-odds of the highest probability are mapped
    by a line through points, which never falls, and the other probabilities are scaled so that the sum is 1. Beyond the
    first and the last point the line is level: no image is more certain than those that were tested.

    `dataclasses.asdict` makes the state, and `Calibration(**state)` reads it.
    """

    temperature: float = 1.0
    """Temperature T."""
    odds: tuple[float, ...] = ()
    """Log-odds of the highest probability at the points, which increase; none: no map."""
    levels: tuple[float, ...] = ()
    """Log-odds of being right at the points."""

    def __call__(self, scores: Tensor) -> Tensor:
        """Probabilities of all classes: [N, C] -> [N, C]"""
        dtype = torch.promote_types(scores.dtype, torch.float32)
        if scores.shape[1] < 2:
            return torch.ones_like(scores, dtype=dtype)
        return torch.cat([self._probabilities(rows).to(dtype) for (rows,) in _chunks(scores)])

    def _probabilities(self, scores: Tensor) -> Tensor:
        others, odds = self._top_odds(scores)
        shares = torch.softmax(others, dim=1)
        # with this minimum, the highest class stays the highest, also against the strongest of the others
        mapped = torch.maximum(self._mapped(odds), shares.amax(dim=1).log() + 1e-6)
        probabilities = shares * torch.sigmoid(-mapped)[:, None]
        return probabilities.scatter(1, scores.argmax(dim=1, keepdim=True), torch.sigmoid(mapped)[:, None])

    def _top_odds(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the classes without the highest one, whose place has -inf, [N, C], and the log-odds of that class
        before they are mapped, [N]."""
        logits = -_gaps(scores) / self.temperature
        others = logits.scatter(1, scores.argmax(dim=1, keepdim=True), -torch.inf)
        return others, -others.logsumexp(dim=1)  # the highest logit is 0

    def _mapped(self, odds: Tensor) -> Tensor:
        if len(self.odds) < 2:
            return torch.full_like(odds, self.levels[0]) if self.odds else odds
        points, levels = (torch.tensor(values).to(odds) for values in (self.odds, self.levels))
        # the place of `torch.searchsorted`, which ONNX does not have
        after = (points < odds[:, None]).sum(dim=1).clamp(1, len(points) - 1)
        share = ((odds - points[after - 1]) / (points[after] - points[after - 1])).clamp(0, 1)
        return torch.lerp(levels[after - 1], levels[after], share)


def fit_calibration(scores: Tensor, targets: Tensor) -> Calibration:
    """Fit a calibration: the temperature to the classes by maximum likelihood, then the points of the line to
    whether the highest class is right.

    Args:
        scores: Scores of images that the classifier was not fitted to, [N, C].
        targets: Their classes, [N], whose scores are finite. Other classes may have the score -inf.
    """
    if scores.shape[1] < 2 or not len(scores):
        return Calibration()
    by_class = Calibration(fit_temperature(scores, targets))
    odds = torch.cat([by_class._top_odds(rows)[1] for (rows,) in _chunks(scores)])
    points, levels = _fit_line(odds, (scores.argmax(dim=1) == targets).double())
    return replace(by_class, odds=points, levels=levels)


def _fit_line(odds: Tensor, right: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a line that never falls, from log-odds [N] to the log-odds of being right: isotonic regression of the
    shares of right rows [N] in groups of equal size with similar odds. Two rows are added to every group, one of them
    right, so that no share is 0 or 1."""
    points: list[float] = []
    blocks: list[tuple[float, int]] = []  # share, and number of groups that have it
    for rows in odds.argsort(stable=True).tensor_split(min(GROUPS, len(odds) // LEAST)) if len(odds) >= LEAST else ():
        share, width = (right[rows].sum().item() + 1) / (len(rows) + 2), 1
        point = odds[rows].mean().item()
        if points and point <= points[-1]:  # odds that are all equal
            continue
        points.append(point)
        while blocks and blocks[-1][0] >= share:  # pool adjacent violators
            earlier, groups = blocks.pop()
            share, width = (earlier * groups + share * width) / (groups + width), groups + width
        blocks.append((share, width))
    return tuple(points), tuple(math.log(share / (1 - share)) for share, width in blocks for _ in range(width))


# --- measures -------------------------------------------------------------------------------------------------------


def expected_calibration_error(probabilities: Tensor, targets: Tensor, bins: int = 15) -> float:
    """Mean absolute difference of confidence and accuracy over bins of equal width, weighted by their images.

    The confidence is the highest probability of a row of `probabilities` [N, C]."""
    confidence, predicted = probabilities.double().max(dim=1)
    surplus = confidence - (predicted == targets).double()
    of_bin = (confidence * bins).ceil().long().clamp(1, bins) - 1  # a bin contains its upper end
    sums = torch.zeros(bins, dtype=torch.float64, device=surplus.device).index_add(0, of_bin, surplus)
    return sums.abs().sum().item() / len(targets)


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Probability that an unknown image has a higher novelty than a known one, where ties count half: the area under
    the receiver operating characteristic of novelties [N] and [M]."""
    in_order = known.double().sort().values
    below = torch.searchsorted(in_order, unknown.double(), right=False)
    not_above = torch.searchsorted(in_order, unknown.double(), right=True)
    return (below + not_above).double().mean().item() / (2 * len(known))


def threshold_at(known: Tensor, false_alarms: float) -> float:
    """The threshold above which the novelty of an image means "unknown", for a rate of false alarms between 0 and 1.

    A further known image exceeds it with at most that probability, because its rank among the novelties `known` [N],
    which are of images of the same kind, is uniform. With too few images for the rate, the threshold is infinite.
    """
    rank = math.ceil((len(known) + 1) * (1 - false_alarms) - 1e-9)
    if rank < 1:
        return -math.inf
    return math.inf if rank > len(known) else known.double().kthvalue(rank).values.item()


# --- novelty --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RelativeMahalanobis:
    """Novelty of features: the squared Mahalanobis distance to the nearest class, minus that to one Gaussian of all
    images. The difference cancels directions in which all images vary (Ren et al., 2021, arXiv:2106.09022).

    `of` makes it from sums. All tensors are in double precision.
    """

    counts: Tensor
    """Number of images of each class, [C]."""
    within: "_Scatter"
    """Deviations of the images from the means of their classes."""
    means: Tensor
    """Whitened means of the classes, [C, D]."""
    total: "_Scatter"
    """Deviations of the images from the mean of all."""
    centre: Tensor
    """Whitened mean of all images, [D]."""

    @classmethod
    def of(cls, counts: Tensor, sums: Tensor, products: Tensor, shrinkage: float = 0.03) -> Self:
        """Compute it from sums over images.

        Args:
            counts: Number of images of each class, [C]. A class without images is never the nearest.
            sums: Sum of the features of each class, [C, D].
            products: Sum of the products f f^T of all images, [D, D].
            shrinkage: Share of the diagonal in both covariance matrices; above 0 unless there are many images.
        """
        counts, sums, products = counts.double(), sums.double(), products.double()
        means, centre = sums / counts.clamp_min(1)[:, None], sums.sum(dim=0) / counts.sum()
        total = products - counts.sum() * torch.outer(centre, centre)
        freedom = int(counts.sum() - (counts > 0).sum())
        # if every class has one image, only deviations from the centre are known
        within = products - sums.mT @ means if freedom else total
        floor = 1e-10 * total.diagonal().mean().item() + torch.finfo(torch.float64).tiny
        whiten = _Scatter.of(within, freedom or len(counts), shrinkage, floor)
        whiten_all = _Scatter.of(total, counts.sum().item(), shrinkage, floor)
        return cls(counts, whiten, whiten(means), whiten_all, whiten_all(centre))

    def __call__(self, features: Tensor) -> Tensor:
        """Novelty of features: [N, D] -> [N]"""
        return torch.cat([self._novelty(rows) for (rows,) in _chunks(features)])

    def _novelty(self, rows: Tensor) -> Tensor:
        whitened = self.within(rows)
        # not `torch.cdist`, whose formula depends on the number of rows, so that it cannot be exported
        lengths = whitened.square().sum(dim=1, keepdim=True) + self.means.square().sum(dim=1)
        distances = (lengths - 2 * whitened @ self.means.mT) * self.within.freedom
        background = (self.total(rows) - self.centre).square().sum(dim=1) * self.total.freedom
        return distances.masked_fill(self.counts == 0, torch.inf).amin(dim=1) - background

    def leave_one_out(self, features: Tensor, targets: Tensor) -> Tensor:
        """Novelty of images that are in the sums, [N, D] of the classes [N], each as if it were not: [N].

        Removing an image changes the means and, by a matrix of rank one, both scatter matrices; only the diagonal that
        they are shrunk to is that of all images. A class that has only this image is not there without it.
        """
        return torch.cat([self._without(rows, labels) for rows, labels in _chunks(features, targets)])

    def _without(self, rows: Tensor, labels: Tensor) -> Tensor:
        counts = self.counts[labels]
        whitened = self.within(rows)
        own = whitened - self.means[labels]
        alone = counts < 2
        growth = torch.where(alone, 1.0, counts / (counts - 1).clamp_min(1))  # of the distance to the own mean
        correction = self.within.correction(own, growth)
        along = (own * whitened).sum(dim=1, keepdim=True) - own @ self.means.mT  # own^T (x - mean of each class)
        distances = torch.cdist(whitened, self.means).square() + correction[:, None] * along.square()
        nearest = distances.scatter_reduce(1, labels[:, None], growth.square()[:, None], "prod")
        nearest = torch.where(
            (self.counts == 0) | (alone[:, None] & (labels[:, None] == torch.arange(len(self.counts)).to(labels))),
            torch.inf,
            nearest,
        ).amin(dim=1)
        freedom = torch.where(alone, self.within.freedom, max(self.within.freedom - 1, 1))

        offset = self.total(rows) - self.centre
        images = self.counts.sum()
        growth = (images / (images - 1).clamp_min(1)).expand(len(rows))
        squares = offset.square().sum(dim=1)
        background = growth.square() * (squares + self.total.correction(offset, growth) * squares.square())
        return nearest * freedom - background * max(self.total.freedom - 1, 1)


@dataclass(frozen=True)
class NewClassRatio:
    """Novelty of features: the log-likelihood ratio of "an image of a new class" and "an image of the likeliest class".

    The model has two covariances: images scatter around the mean of their class, and class means around one centre. A
    new class has a mean drawn from the second; the mean of a known class is known up to the error of its n images. So
    only directions in which classes differ count, and a class of few images is less certain than one of many. (It is
    the score of probabilistic linear discriminant analysis; Ioffe, 2006.)

    There is no leave-one-out form: the directions depend on every image. `held_out_novelty` fits it to parts.
    """

    counts: Tensor
    """Number of images of each class, [C]."""
    directions: Tensor
    """Directions in which classes differ, scaled to unit scatter within classes, [D, K]."""
    centre: Tensor
    """Mean of all images along them, [K]."""
    means: Tensor
    """Means of the classes along them, from the centre, [C, K]."""
    between: Tensor
    """Variances of class means along them, [K]."""
    within: float
    """Variance of images that are not in the sums around the mean of their class."""

    @classmethod
    def of(cls, counts: Tensor, sums: Tensor, products: Tensor, shrinkage: float = 0.1) -> Self:
        """Compute it from sums over images; the arguments are those of `RelativeMahalanobis.of`."""
        counts, sums, products = counts.double(), sums.double(), products.double()
        images, classes = counts.sum(), int((counts > 0).sum())
        means, centre = sums / counts.clamp_min(1)[:, None], sums.sum(dim=0) / images
        total = products - images * torch.outer(centre, centre)
        freedom = int(images) - classes
        scatter = products - sums.mT @ means if freedom else total
        floor = 1e-10 * total.diagonal().mean().item() + torch.finfo(torch.float64).tiny
        freedom = freedom or classes
        whitening = _Scatter.of(scatter, freedom, shrinkage, floor).whitening * math.sqrt(freedom)
        share = (counts / images).sqrt()[:, None]
        _, deviations, axes = torch.linalg.svd(share * ((means - centre) @ whitening), full_matrices=False)
        rank = min(classes - 1, len(deviations))
        directions = whitening @ axes[:rank].mT
        # Images in the sums are closer to their means than others are, by the leverage of an image.
        variances = scatter.diagonal()[:, None] / freedom
        kept = 1 - shrinkage * (variances * whitening.square()).sum(dim=1).sum() / len(variances)
        leverage = min(kept.item() * len(variances) / freedom, 0.9)
        inside = 1 - shrinkage * (variances * directions.square()).sum(dim=0).mean() if rank else torch.ones(())
        within = inside.item() / max(1 - shrinkage, 1e-3) / (1 - leverage) ** 2
        between = (deviations[:rank].square() - within * classes / images).clamp_min(0)
        return cls(counts, directions, centre @ directions, (means - centre) @ directions, between, within)

    def __call__(self, features: Tensor) -> Tensor:
        """Novelty of features: [N, D] -> [N]"""
        return torch.cat([self._novelty(rows @ self.directions - self.centre) for (rows,) in _chunks(features)])

    def _novelty(self, rows: Tensor) -> Tensor:
        noise = self.within / self.counts.clamp_min(1)[:, None]  # variance of a mean, [C, 1]
        known = self.between / (self.between + noise)  # what a mean of n images tells of the class, [C, K]
        precision = 1 / (self.within + known * noise)
        expected = known * self.means
        squares = rows.square() @ precision.mT - 2 * rows @ (precision * expected).mT
        squares = squares + (precision * expected.square()).sum(dim=1) - precision.log().sum(dim=1)  # [N, C]
        nearest = squares.masked_fill(self.counts == 0, torch.inf).amin(dim=1)
        spread = self.within + self.between
        return (nearest - (rows.square() / spread).sum(dim=1) - spread.log().sum()) / 2


class FromSums(Protocol):
    """What makes a novelty from the sums of `RelativeMahalanobis.of`."""

    def __call__(self, counts: Tensor, sums: Tensor, products: Tensor) -> Callable[[Tensor], Tensor]: ...


def held_out_novelty(fit: FromSums, features: Tensor, targets: Tensor, classes: int, folds: int = 10) -> Tensor:
    """Novelty of images [N, D] of the classes [N], each by a fit to the other parts of the images: [N].

    Every class is divided evenly by the order of the first feature, so that the order of the images does not matter.

    Args:
        fit: For example `NewClassRatio.of`.
    """
    order = features[:, 0].argsort(stable=True)
    order = order[targets[order].argsort(stable=True)]
    starts = torch.bincount(targets, minlength=classes).cumsum(0) - torch.bincount(targets, minlength=classes)
    fold = torch.empty_like(targets)
    fold[order] = (torch.arange(len(targets), device=targets.device) - starts[targets[order]]) % folds
    parts = [_sums(features[fold == part], targets[fold == part], classes) for part in range(folds)]
    whole = [torch.stack(values).sum(dim=0) for values in zip(*parts, strict=True)]
    novelty = torch.empty(len(features), dtype=torch.float64, device=features.device)
    for part, left_out in enumerate(parts):
        counts, sums, products = (all_of - part_of for all_of, part_of in zip(whole, left_out, strict=True))
        if (fold == part).any():
            novelty[fold == part] = fit(counts, sums, products)(features[fold == part])
    return novelty


def _sums(features: Tensor, targets: Tensor, classes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Counts [C], sums [C, D] and products [D, D] of images."""
    rows = features.double()
    sums = rows.new_zeros(classes, rows.shape[1]).index_add_(0, targets, rows)
    return torch.bincount(targets, minlength=classes).double(), sums, rows.mT @ rows


@dataclass(frozen=True)
class _Scatter:
    """A scatter matrix, shrunk to its diagonal, as the map that whitens by it."""

    whitening: Tensor
    """Transposed inverse of the Cholesky factor, [D, D]."""
    freedom: float
    """What the matrix is divided by to be a covariance."""
    kept: float
    """Share of the matrix in the shrunk one."""

    @classmethod
    def of(cls, scatter: Tensor, freedom: float, shrinkage: float, floor: float) -> Self:
        shrunk = (1 - shrinkage) * scatter
        shrunk.diagonal().copy_(scatter.diagonal() + floor)
        factor = torch.linalg.cholesky(shrunk)
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return cls(torch.linalg.solve_triangular(factor, identity, upper=False).mT, max(freedom, 1), 1 - shrinkage)

    def __call__(self, features: Tensor) -> Tensor:
        """Whiten features: [..., D] -> [..., D]"""
        return features @ self.whitening

    def correction(self, own: Tensor, growth: Tensor) -> Tensor:
        """Factor [N] on (own^T v)^2 that the squared length of a whitened vector v gains if an image with the whitened
        deviation `own` [N, D] leaves, and with it `growth * own own^T` of the scatter (Sherman and Morrison)."""
        removed = self.kept * growth
        return removed / (1 - removed * own.square().sum(dim=1)).clamp_min(torch.finfo(own.dtype).eps)
