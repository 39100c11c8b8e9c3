"""Names of tensors in states of earlier versions."""

from collections.abc import Mapping
from typing import Any

FORMER_KEYS = {
    "statistics.deviations": "statistics.spreads",
    "gaussians.factors": "gaussians.spreads",
    "metrics.metrics": "metrics.spreads",
    "metrics.spread": "metrics.varied",
    "prototypes": "prototypes.means",
    "adapters.": "steps.newest.",
    "kept.": "steps.kept.",
}
"""Prefixes of keys in states of earlier versions, with their present form."""


def present_key(key: str, known: Mapping[str, Any]) -> str:
    """The present form of a key of a state, which may be of an earlier version. `known` has all present keys."""
    if key in known:
        return key
    renamed = (new + key.removeprefix(old) for old, new in FORMER_KEYS.items() if key.startswith(old))
    return next((name for name in renamed if name in known), key)
