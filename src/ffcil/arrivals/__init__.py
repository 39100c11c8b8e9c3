"""Arrivals: how many new classes each step brings."""

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
