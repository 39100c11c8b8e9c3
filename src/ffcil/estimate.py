"""How long runs will take, from the records of earlier ones with the same recipe and method."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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
            config, summary = _read(folder / "config.json"), _read(folder / "summary.json")
            device = _read(folder / "environment.json").get("device", "")
            if config and summary and device.startswith("CPU") != on_gpu:
                self.seconds[_kind(config)].append(summary["seconds"])

    def of(self, config: Mapping[str, Any]) -> float | None:
        """The mean of runs like this one; None where there are none."""
        found = self.seconds.get(_kind(config))
        return sum(found) / len(found) if found else None


def _kind(config: Mapping[str, Any]) -> str:
    arrivals = config["arrivals"]
    size: Sequence[Any] = (arrivals.get("classes"), arrivals.get("steps"), arrivals.get("sizes"), arrivals.get("trace"))
    return json.dumps([*(config.get(field) for field in ALIKE), size], sort_keys=True)


def _read(path: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {}
    return value
