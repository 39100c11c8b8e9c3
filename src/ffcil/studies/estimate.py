"""How long runs will take, from the records of earlier ones with the same recipe and method."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel

from ffcil.config.settings import RunConfig

ALIKE = ("dataset", "method", "backbone", "image_size", "memory", "train", "options")
"""what a run's time depends on, besides its number of classes and steps"""


def in_words(seconds: float) -> str:
    """`40 s`, `12 min`, `3.5 h`"""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class Earlier:
    """Seconds of finished runs below some folders, by what their time depends on."""

    def __init__(self, places: Iterable[Path], on_gpu: bool) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        for folder in sorted({done.resolve().parent for place in places for done in place.rglob("done")}):
            try:
                config = RunConfig.model_validate_json((folder / "config.json").read_bytes())
                seconds = _Summary.model_validate_json((folder / "summary.json").read_bytes()).seconds
                device = _Environment.model_validate_json((folder / "environment.json").read_bytes()).device
            except (OSError, ValueError):
                continue  # damaged, or of another version: it tells nothing about time
            if device.startswith("CPU") != on_gpu:
                self.seconds[_kind(config)].append(seconds)

    def of(self, config: RunConfig) -> float | None:
        """The mean of runs like this one; None where there are none."""
        found = self.seconds.get(_kind(config))
        return sum(found) / len(found) if found else None


class _Summary(BaseModel):
    seconds: float


class _Environment(BaseModel):
    device: str


def _kind(config: RunConfig) -> str:
    fields = config.model_dump(mode="json")
    size = [fields["arrivals"].get(name) for name in ("classes", "steps", "sizes", "trace")]
    return json.dumps([*(fields[name] for name in ALIKE), size], sort_keys=True)
