"""Parts of methods with an analytic head: their fields, and the step whose images choose the ridge."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

from pydantic import PositiveInt

from ffcil.methods.parts.adapters import AdapterConfig

SCALE = 20.0
"""Factor on scores whose regression targets are 0 and 1, for the softmax through which HA is trained. It does not
change which score is highest."""


class AnalyticConfig(AdapterConfig):
    """Fields of a method with an analytic head."""

    hidden: PositiveInt = 10000
    """Number of random features."""
    ridge_from: Literal["published", "largest"] = "published"
    """Step whose images choose the ridge lambda. `published`: every step chooses its own (RanPAC), or the first step
    chooses it (MoAL). `largest`: the step with the most classes so far, for streams of unequal steps, in which a step
    of one or two classes would choose badly for all others."""


def is_largest_step(boundaries: Sequence[int]) -> bool:
    """Whether the newest step has more classes than every step before it.

    Args:
        boundaries: Number of classes seen after each step.
    """
    *earlier, newest = (last - first for first, last in pairwise([0, *boundaries]))
    return newest > max(earlier, default=0)
