"""Arrivals: the number of new classes of each step."""

from ffcil.arrivals.schedule import (
    Arrivals,
    equal_arrivals,
    free_flow,
    from_trace,
    given_arrivals,
    half_arrivals,
    trickle_arrivals,
)

__all__ = [
    "Arrivals",
    "equal_arrivals",
    "free_flow",
    "from_trace",
    "given_arrivals",
    "half_arrivals",
    "trickle_arrivals",
]
