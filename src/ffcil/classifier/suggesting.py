"""`suggest` and `doubt_labels`: images to label next, unknown images that look alike, and labels that look wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from scipy.cluster.hierarchy import fcluster, linkage
from torch import Tensor
from torch.nn.functional import normalize

from ffcil.classifier.answers import Guess
from ffcil.classifier.classifier import Classifier
from ffcil.classifier.reading import names_read
from ffcil.classifier.unknown import check_rate

SMALLEST_GROUP = 3
"""Smallest number of unknown images that are proposed as a new class."""
COMPARED = 2_000
"""Approximate number of known images, and largest number of unknown images (the most novel ones), whose distances to
each other are computed."""

RATE = 0.05
"""Rate of wrong labels with which its estimation starts."""
ROUNDS = 50
"""Number of rounds of this estimation."""
TEMPERATURES = tuple(10 ** (k / 10) for k in range(-30, 11))
"""Temperatures that are tried, in units of the mean gap to the highest score."""


@dataclass(frozen=True)
class Suggestion:
    """The suggestion for an image without a label."""

    image: int
    """Position in the list of images."""
    order: int | None
    """1 for the image to label first, and so on; None: it can wait."""
    group: int | None
    """Number of the group of similar unknown images that it is in, from 1 for the largest."""
    unknown: bool
    guess: Guess
    """Its most likely class."""


@dataclass(frozen=True)
class Doubt:
    """A label that looks wrong."""

    image: str
    label: Guess
    """The label, with its score."""
    instead: Guess
    """The most likely other class, with its score."""
    wrong: float
    """Probability that the label is wrong."""


def suggest(
    classifier: Classifier,
    images: Sequence[Path],
    count: int = 10,
    false_alarms: float | None = None,
    skip_bad: bool = False,
) -> list[Suggestion]:
    """Choose `count` images to label next, and groups of unknown images. The other images are not in the list.

    Images to label are uncertain (the two best classes have similar scores, or the image is unknown), and they differ
    from each other. Unknown images are grouped if they are closer to each other than images of two known classes are.
    """
    seen = classifier.describe(images, skip_bad)
    probabilities = seen.scores.softmax(dim=1)
    best = probabilities.topk(min(2, probabilities.shape[1]), dim=1)
    margin = best.values[:, 0] - best.values[:, 1] if best.values.shape[1] > 1 else torch.zeros(len(seen.scores))
    limit = torch.inf if false_alarms is None else classifier.learner.novelty_limit(check_rate(false_alarms))
    novelty = torch.zeros(len(seen.scores)) if seen.novelty is None else seen.novelty
    unknown = novelty > limit
    directions = _directions(classifier, seen.features)
    order = {
        row: place for place, row in enumerate(spread(torch.where(unknown, 1.0, 1 - margin), directions, count), 1)
    }
    groups: dict[int, int] = {}
    if (known := classifier.learner.known_features()) and unknown.any():
        novel = unknown.nonzero().flatten()
        novel = novel[novelty[novel].argsort(descending=True)[:COMPARED]]
        step = max(1, len(known[1]) // COMPARED)
        far = distance_between_classes(_directions(classifier, known[0][::step]), known[1][::step].cpu())
        groups = {int(novel[k]): number for number, rows in enumerate(alike(directions[novel], far), 1) for k in rows}
    return [
        Suggestion(
            seen.read[row],
            order.get(row),
            groups.get(row),
            bool(unknown[row]),
            Guess(classifier.class_names[int(best.indices[row, 0])], float(best.values[row, 0])),
        )
        for row in sorted(
            {*order, *groups}, key=lambda row: (order.get(row, len(unknown) + 1), groups.get(row, 0), row)
        )
    ]


def _directions(classifier: Classifier, features: Tensor) -> Tensor:
    """Unit vectors [N, D] whose products compare images, on the CPU."""
    return normalize(classifier.learner.comparable_features(features.to(classifier.engine.device))).cpu()


def spread(uncertainty: Tensor, directions: Tensor, count: int) -> list[int]:
    """Rows of images that are uncertain and far from each other: the next one has the largest product of its
    uncertainty [N] and its cosine distance to the nearest one that is chosen, by unit vectors [N, D]."""
    chosen: list[int] = []
    nearest = torch.ones(len(uncertainty))
    for _ in range(min(count, len(uncertainty))):
        gain = (uncertainty + 1e-9) * (nearest + 1e-9)
        gain[chosen] = -1
        chosen.append(int(gain.argmax()))
        nearest = torch.minimum(nearest, 1 - directions @ directions[chosen[-1]])
    return chosen


def alike(directions: Tensor, far: float) -> list[list[int]]:
    """Groups of rows of unit vectors [N, D] whose mean cosine distance is below `far`, the largest first: average
    linkage."""
    if len(directions) < SMALLEST_GROUP:
        return []
    labels = torch.from_numpy(fcluster(linkage(directions.numpy(), "average", "cosine"), far, "distance"))
    groups = [(labels == label).nonzero().flatten().tolist() for label in labels.unique()]
    return sorted((rows for rows in groups if len(rows) >= SMALLEST_GROUP), key=lambda rows: (-len(rows), rows[0]))


def distance_between_classes(directions: Tensor, targets: Tensor) -> float:
    """The middle between the mean cosine distance of images of one class and that of images of two classes, for unit
    vectors [N, D] of the classes [N]."""
    distances = 1 - directions @ directions.mT
    same = targets == targets[:, None]
    within = distances[same & ~torch.eye(len(targets), dtype=torch.bool)]
    between = distances[~same]
    means = [part.mean().item() for part in (within, between) if len(part)]
    return sum(means) / len(means) if means else 0.5


def doubt_labels(
    classifier: Classifier, images: Path, allow_outside: bool = False, skip_bad: bool = False
) -> list[Doubt]:
    """Labelled images whose label is more likely wrong than right, the most doubtful first. Images that were learned
    are scored as if they had not been, if the method can. `allow_outside` and `skip_bad` are those of
    `Classifier.read`."""
    scores, labels = classifier.unlearned_scores(images, allow_outside, skip_bad)
    names = names_read(images, classifier.size)
    wrong, probabilities = probably_wrong(scores, labels)
    instead = probabilities.scatter(1, labels[:, None], -1).argmax(dim=1)

    def guess(row: int, label: Tensor) -> Guess:
        return Guess(classifier.class_names[int(label)], float(probabilities[row, label]))

    rows = [row for row in wrong.argsort(descending=True, stable=True).tolist() if wrong[row] > 0.5]
    return [Doubt(names[row], guess(row, labels[row]), guess(row, instead[row]), float(wrong[row])) for row in rows]


def probably_wrong(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Probability that each of the labels [N] is wrong, [N], and that of each class without the label, [N, C], from
    scores [N, C].

    The label is evidence, too: it is wrong at one rate for all images, and a wrong label is any other class alike. The
    rate and the temperature of the scores are those with the highest likelihood of all labels. So labels that are wrong
    do not make the scores seem uncertain.
    """
    gaps = (scores.amax(dim=1, keepdim=True) - scores).double()
    scale = gaps[gaps.isfinite() & (gaps > 0)].mean().nan_to_num(1.0)
    found: tuple[float, Tensor, Tensor] | None = None
    for factor in TEMPERATURES:
        probabilities = torch.softmax(-gaps / (factor * scale), dim=1)
        likelihood, wrong = _fit_rate(probabilities.gather(1, labels[:, None])[:, 0], scores.shape[1])
        if found is None or likelihood > found[0]:
            found = likelihood, wrong, probabilities
    assert found is not None
    return found[1:]


def _fit_rate(own: Tensor, classes: int) -> tuple[float, Tensor]:
    """Log-likelihood of labels with probabilities `own` [N] at the best rate of wrong ones, and the probability that
    each of them is wrong, [N]: expectation-maximisation."""
    others = (1 - own) / max(classes - 1, 1)
    tiny, rate = torch.finfo(own.dtype).tiny, RATE
    for _ in range(ROUNDS):
        mixture = (rate * others + (1 - rate) * own).clamp_min(tiny)
        wrong = rate * others / mixture
        rate = wrong.mean().item()
    return mixture.log().sum().item(), wrong
