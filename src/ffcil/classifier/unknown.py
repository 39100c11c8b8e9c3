"""`Detection`: how well a classifier tells images of unknown classes from those of known ones."""

from dataclasses import dataclass

from torch import Tensor

from ffcil.calibration import auroc
from ffcil.errors import InputError


@dataclass(frozen=True)
class Detection:
    """Measured on images of known and of unknown classes. Shares are in percent."""

    images: int
    """Number of images of unknown classes."""
    auroc: float
    """Area under the receiver operating characteristic of the novelty: 100 is perfect, 50 is chance."""
    found: float
    """Share of images of unknown classes that are called unknown."""
    false_alarms: float
    """Share of images of known classes that are called unknown."""
    softmax_auroc: float
    """The area for the usual baseline: the highest probability of an image is low."""
    softmax_found: float
    """Share that this baseline finds with as many false alarms."""


def check_rate(false_alarms: float) -> float:
    """The share of images of known classes that may be called unknown, if it is one."""
    if not 0 < false_alarms < 1:
        raise InputError(f"The rate of false alarms is {false_alarms}: choose one between 0 and 1, such as 0.05.")
    return false_alarms


def measure_detection(known: tuple[Tensor, Tensor], unknown: tuple[Tensor, Tensor], limit: float) -> Detection:
    """Compare scores [N, C] and novelties [N] of images of known classes with those of unknown ones.

    Args:
        limit: Novelty above which an image is called unknown.
    """
    doubts, other_doubts = (1 - scores.softmax(dim=1).amax(dim=1) for scores, _ in (known, unknown))
    alarms = int((known[1] > limit).sum())
    in_order = doubts.sort(descending=True).values
    softmax_found = (other_doubts > in_order[alarms]).double().mean() if alarms < len(in_order) else 1.0
    return Detection(
        images=len(other_doubts),
        auroc=100 * auroc(known[1], unknown[1]),
        found=100 * float((unknown[1] > limit).double().mean()),
        false_alarms=100 * alarms / len(doubts),
        softmax_auroc=100 * auroc(doubts, other_doubts),
        softmax_found=100 * float(softmax_found),
    )
