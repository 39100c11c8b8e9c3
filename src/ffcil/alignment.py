"""Weight alignment (WA) of a linear head after a step, Dynamic Intervention Weight Alignment (DIWA), and shrunk WA.

All of them multiply the rows of the new classes by one factor, which brings their mean norm closer to that of the old
classes. Biases do not change. If a step has few new classes, their mean norm is a poor estimate (paper eq. (11)). DIWA
then moves the factor towards 1, which leaves the bias towards new classes. Shrunk WA moves it towards the factors of
earlier steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Alignment:
    """Quantities of an alignment."""

    old_norm: float
    """Mean row norm of the old classes, paper eq. (10)."""
    new_norm: float
    """Mean row norm of the new classes before the alignment, paper eq. (10)."""
    eta: float
    """Strength of the intervention, paper eq. (12); 1 is plain weight alignment."""
    gamma: float
    """Factor of the new rows, paper eq. (13)."""

    @property
    def ratio(self) -> float:
        """Mean norm of the old rows, divided by that of the new ones; 1 if the new rows are zero."""
        return self.old_norm / self.new_norm if self.new_norm > 0 else 1.0


def intervention(new_classes: int, eta_min: float = 0.1, tau: float = 5.0) -> float:
    """Strength eta of DIWA for a step with `new_classes` classes, paper eq. (12): eta_min for one, near 1 for many."""
    if not 0 <= eta_min <= 1 or tau <= 0:
        raise ValueError(f"eta_min must lie in [0, 1] and tau above 0, not {eta_min} and {tau}")
    return 1.0 - (1.0 - eta_min) * math.exp(-(new_classes - 1) / tau)


def row_norms(weight: Tensor, old_classes: int) -> tuple[float, float]:
    """Mean norm of the first `old_classes` rows, and of the others, paper eq. (10)."""
    norms = weight.detach().double().norm(dim=1)
    return norms[:old_classes].mean().item(), norms[old_classes:].mean().item()


@torch.no_grad()
def weight_alignment(weight: Tensor, old_classes: int, eta: float = 1.0) -> Alignment | None:
    """Scale the rows of the new classes in place by `(1 - eta) + eta * old_norm / new_norm`, paper eq. (13).

    Args:
        weight: Weight of a linear head, [classes, features], old classes first.
        old_classes: Number of classes of earlier steps.
        eta: Strength; 1 is WA, 0 changes nothing.

    Returns:
        Quantities of the alignment; None if there are no old or no new classes.
    """
    if not 0 <= old_classes <= len(weight) or not 0 <= eta <= 1:
        raise ValueError(f"old_classes={old_classes} of {len(weight)} rows with eta={eta} is not valid")
    if old_classes == 0 or old_classes == len(weight):
        return None
    old_norm, new_norm = row_norms(weight, old_classes)
    # rows of norm zero cannot be aligned
    gamma = (1.0 - eta) + eta * old_norm / new_norm if new_norm > 0 else 1.0
    weight[old_classes:] *= gamma
    return Alignment(old_norm, new_norm, eta, gamma)


def diwa(weight: Tensor, old_classes: int, eta_min: float = 0.1, tau: float = 5.0) -> Alignment | None:
    """Dynamic Intervention Weight Alignment in place: WA with a strength that depends on the number of new classes."""
    new_classes = max(len(weight) - old_classes, 1)  # without new classes, nothing is aligned whatever the strength
    return weight_alignment(weight, old_classes, intervention(new_classes, eta_min, tau))


@torch.no_grad()
def shrunk_alignment(
    weight: Tensor, old_classes: int, past: Sequence[tuple[int, float]], trust: float = 5.0
) -> Alignment | None:
    """Scale the rows of the new classes in place by a mean of this step's ratio of norms and those of earlier steps.

    It is the geometric mean: this step has its number of new classes as its weight, and all earlier steps together have
    the weight `trust`. Without an earlier ratio, this is WA.

    Args:
        weight: Weight of a linear head, [classes, features], old classes first.
        old_classes: Number of classes of earlier steps.
        past: Number of new classes and `ratio` of every earlier alignment.
        trust: Number of new classes at which this step and all earlier ones have the same weight.

    Returns:
        Quantities of the alignment; None if there are no old or no new classes.
    """
    new_classes = len(weight) - old_classes
    if old_classes == 0 or new_classes == 0:
        return None
    share = new_classes / (new_classes + trust) if past else 1.0
    measured = Alignment(*row_norms(weight, old_classes), eta=share, gamma=1.0)
    if measured.ratio == 0:  # rows of norm zero cannot be aligned
        return measured
    usable = [(size, math.log(ratio)) for size, ratio in past if ratio > 0]
    before = sum(size * log for size, log in usable) / max(sum(size for size, _ in usable), 1)
    gamma = math.exp(share * math.log(measured.ratio) + (1 - share) * before)
    weight[old_classes:] *= gamma
    return replace(measured, gamma=gamma)
