"""Probabilities from scores, their error, and thresholds. This module needs torch and nothing else of ffcil.

Scores of a classifier's own training images are too good. `fit_calibration` and `threshold_at` need scores of images
that the classifier was not fitted to: of held-out images, or leave-one-out scores of the training images.

    calibration = fit_calibration(scores, targets)               # [N, C] and [N]
    probabilities = calibration(new_scores)                      # rows sum to 1, the highest class is the same
    threshold = threshold_at(novelty_of_known_images, false_alarms=0.05)
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Number of elements of a matrix that are in memory in double precision at a time."""
GROUPS = 12
"""Number of points that map the log-odds of the highest class. Cross-validated on left-out scores of Cars, 8 to 40 have
the same likelihood."""
LEAST = 25
"""Smallest number of images for one of these points."""
CLOSE = 1e-6
"""Smallest difference between the log-odds of two of these points, so that the line between them has a slope."""
RIDGE = 1e-3
"""Penalty of a logistic regression per row."""
MOST_ODDS = 50.0
"""Bound on log-odds in a regression. With a single class, for example, they are infinite."""
FLAT = 1e-12
"""Derivative of the likelihood that counts as 0, in units of the mean gap to the highest score."""
FARTHEST = 1e150
"""Gap that stands for a score of -inf. Its square is still finite."""
LIMIT = 12.0
"""Bound on the logarithm of a temperature, in units of the mean gap to the highest score."""


def _chunks(rows: Tensor, *others: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split a matrix [N, C] into parts in double precision, and other tensors [N, ...] into the same rows."""
    if torch.compiler.is_exporting():  # a graph for any number of rows cannot loop over them
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

    Newton's iteration in log T finds the zero of the derivative. The derivative is monotone, so a step that leaves the
    interval known to contain the zero is replaced by a bisection. If all highest scores are right, there is no minimum,
    and the iteration ends where lower temperatures have no noticeable effect.

    Args:
        scores: Scores of images that the classifier was not fitted to, [N, C].
        targets: Their classes, [N], whose scores are finite. Other classes may have the score -inf.
    """
    parts, total, number = [], 0.0, 0
    for rows, labels in _chunks(scores, targets):
        gaps = _gaps(rows)
        here = gaps.isfinite() & (gaps > 0)
        total, number = total + gaps[here].sum().item(), number + int(here.sum())
        gaps.clamp_(max=FARTHEST)
        parts.append((gaps, gaps.gather(1, labels[:, None])[:, 0]))
    scale = total / max(1, number)
    if not scale:  # every row has equal scores
        return 1.0
    low, high, at = -LIMIT, LIMIT, 0.0  # of the logarithm of the sharpness scale / T
    for _ in range(60):
        slope, change = _derivatives(parts, math.exp(at) / scale)
        if abs(slope) < FLAT * scale:
            break
        low, high = (low, at) if slope > 0 else (at, high)
        newton = at - slope / change if change > 0 else math.inf
        following = newton if low < newton < high else (low + high) / 2
        moved, at = abs(following - at), following
        if moved < 1e-9:
            break
    return scale / math.exp(at)


def _derivatives(parts: Sequence[tuple[Tensor, Tensor]], sharpness: float) -> tuple[float, float]:
    """First derivative of the mean negative log-likelihood of softmax(-sharpness * gaps) by the sharpness, and the
    derivative of the first one by log(sharpness). Each part has the gaps of all classes [N, C] and of the right class
    [N]."""
    slope = change = 0.0
    for gaps, own in parts:
        weighted = torch.softmax(-sharpness * gaps, dim=1).mul_(gaps)
        mean = weighted.sum(dim=1)
        slope += (own - mean).sum().item()
        change += (weighted.mul_(gaps).sum(dim=1) - mean.square()).sum().item() * sharpness
    images = sum(len(own) for _, own in parts)
    return slope / images, change / images


# --- probabilities --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Calibration:
    """A map from scores [N, C] to probabilities [N, C] that keeps the order of the classes.

    The first stage is the softmax of the scores divided by the temperature. In the second stage, a logistic regression
    predicts whether the highest class is right, from its log-odds and from the share of the second class in the rest.
    The log-odds of the regression are then mapped by a line through points, which never falls. Beyond the first and the
    last point the line is constant: no image is more certain than those that were tested. The other probabilities are
    scaled so that the sum is 1.

    `dataclasses.asdict` makes the state, and `Calibration(**state)` reads it.
    """

    temperature: float = 1.0
    """Temperature T."""
    odds: tuple[float, ...] = ()
    """Log-odds of the regression at the points, in increasing order; empty for no map."""
    levels: tuple[float, ...] = ()
    """Log-odds of being right at the points."""
    weights: tuple[float, ...] = ()
    """Weights of the four numbers of `_evidence`, and a constant; empty for the log-odds of the highest probability."""

    def __call__(self, scores: Tensor) -> Tensor:
        """Probabilities of all classes: [N, C] -> [N, C]"""
        dtype = torch.promote_types(scores.dtype, torch.float32)
        if scores.shape[1] < 2:
            return scores.to(dtype).softmax(dim=1)  # ones, through which gradients can reach the scores
        return torch.cat([self._probabilities(rows).to(dtype) for (rows,) in _chunks(scores)])

    def _probabilities(self, scores: Tensor) -> Tensor:
        others, odds = self._top_odds(scores)
        alone = odds == torch.inf  # all other classes have the score -inf
        shares = torch.softmax(others, dim=1).masked_fill(alone[:, None], 0)
        # with this minimum, the highest class stays above the second one
        mapped = torch.maximum(self._mapped(self._regressed(others, odds)), shares.amax(dim=1).log() + 1e-6)
        mapped = mapped.masked_fill(alone, torch.inf)
        probabilities = shares * torch.sigmoid(-mapped)[:, None]
        return probabilities.scatter(1, scores.argmax(dim=1, keepdim=True), torch.sigmoid(mapped)[:, None])

    def _top_odds(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of the classes without the highest one, whose place has -inf, [N, C], and the log-odds of that class
        before they are mapped, [N]."""
        logits = -_gaps(scores) / self.temperature
        others = logits.scatter(1, scores.argmax(dim=1, keepdim=True), -torch.inf)
        return others, -others.logsumexp(dim=1)  # the highest logit is 0

    def _regressed(self, others: Tensor, odds: Tensor) -> Tensor:
        """Log-odds of being right by the regression, [N]."""
        if not self.weights:
            return odds
        *weights, constant = self.weights
        return _evidence(others, odds) @ torch.tensor(weights, dtype=odds.dtype, device=odds.device) + constant

    def _mapped(self, odds: Tensor) -> Tensor:
        if len(self.odds) < 2:
            return torch.full_like(odds, self.levels[0]) if self.odds else odds
        points, levels = (
            torch.tensor(values, dtype=odds.dtype, device=odds.device) for values in (self.odds, self.levels)
        )
        # as `torch.searchsorted`, which ONNX does not have
        after = (points < odds[:, None]).sum(dim=1).clamp(1, len(points) - 1)
        share = ((odds - points[after - 1]) / (points[after] - points[after - 1])).clamp(0, 1)
        return torch.lerp(levels[after - 1], levels[after], share)


def fit_calibration(scores: Tensor, targets: Tensor) -> Calibration:
    """Fit a calibration: the temperature to the classes by maximum likelihood, then the regression and the points of
    the line to whether the highest class is right.

    Args:
        scores: Scores of images that the classifier was not fitted to, [N, C].
        targets: Their classes, [N], whose scores are finite. Other classes may have the score -inf.
    """
    if scores.shape[1] < 2 or not len(scores):
        return Calibration()
    by_class = Calibration(fit_temperature(scores, targets))
    evidence = torch.cat([_evidence(*by_class._top_odds(rows)) for (rows,) in _chunks(scores)])
    right = (scores.argmax(dim=1) == targets).double()
    if len(right) < LEAST:
        return by_class
    weights = logistic_regression(evidence, right)
    points, levels = _fit_line(evidence @ weights[:-1] + weights[-1], right)
    return replace(by_class, odds=points, levels=levels, weights=tuple(weights.tolist()))


def _evidence(others: Tensor, odds: Tensor) -> Tensor:
    """Four numbers from which the regression predicts whether the highest class is right: the logarithms of its
    probability and of the rest, the logarithm of the share that the second class has in the rest, and the product of
    this logarithm with the log-odds. [N, C], [N] -> [N, 4]

    Cross-validated on left-out scores of Cars, the last two lower the log loss of this prediction by 2 to 3 %."""
    odds = odds.clamp(-MOST_ODDS, MOST_ODDS)
    share = (others.amax(dim=1).clamp_min(-MOST_ODDS) + odds).clamp_max(0)
    top = -torch.log1p(torch.exp(-odds))
    return torch.stack([top, top - odds, share, share * odds], dim=1)


def logistic_regression(rows: Tensor, wanted: Tensor) -> Tensor:
    """Weights and constant [D + 1] of a logistic regression with a small penalty, found by Newton's iteration.

    Args:
        rows: Inputs, [N, D].
        wanted: 0 or 1, [N].
    """
    centre, scale = rows.mean(dim=0), rows.std(dim=0).clamp_min(1e-12)
    inputs = torch.cat([(rows - centre) / scale, torch.ones_like(rows[:, :1])], dim=1)
    penalty = RIDGE * len(rows)
    weights = rows.new_zeros(inputs.shape[1])
    for _ in range(25):
        chance = torch.sigmoid(inputs @ weights)
        slope = inputs.mT @ (chance - wanted) + penalty * weights
        change = (inputs * (chance * (1 - chance))[:, None]).mT @ inputs
        change.diagonal().add_(penalty)
        weights = weights - torch.linalg.solve(change, slope)
    weights[:-1] /= scale
    weights[-1] -= weights[:-1] @ centre
    return weights


def _fit_line(odds: Tensor, right: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Points of a line that never falls, from log-odds [N] to the log-odds of being right.

    It is an isotonic regression of the shares of right rows in groups of equal size with similar log-odds. Two rows are
    added to every group, one of them right, so that no share is 0 or 1. There must be at least `LEAST` rows."""
    points: list[float] = []
    blocks: list[tuple[float, int]] = []  # share, and number of groups that have it
    for rows in odds.argsort(stable=True).tensor_split(min(GROUPS, len(odds) // LEAST)):
        share, width = (right[rows].sum().item() + 1) / (len(rows) + 2), 1
        point = odds[rows].mean().item()
        if points and point <= points[-1] + CLOSE:  # all odds of two groups are equal
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
    """Area under the receiver operating characteristic of the novelties of known [N] and unknown [M] images: the
    probability that an unknown image has a higher novelty than a known one, where ties count half."""
    in_order = known.double().sort().values
    below = torch.searchsorted(in_order, unknown.double(), right=False)
    not_above = torch.searchsorted(in_order, unknown.double(), right=True)
    return (below + not_above).double().mean().item() / (2 * len(known))


def threshold_at(known: Tensor, false_alarms: float) -> float:
    """The threshold above which the novelty of an image means "unknown", for a rate of false alarms between 0 and 1.

    A further known image exceeds it with at most this probability, because its rank among the novelties `known` [N] of
    images of the same kind is uniform. With too few images for the rate, the threshold is infinite.
    """
    rank = math.ceil((len(known) + 1) * (1 - false_alarms) - 1e-9)
    if rank < 1:
        return -math.inf
    return math.inf if rank > len(known) else known.double().kthvalue(rank).values.item()
