"""Estimated duration of runs, from earlier runs of the same kind."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from ffcil.config.settings import RunConfig
from ffcil.runs.folder import RunFolder, find_folders

ALIKE = ("dataset", "method", "backbone", "image_size", "memory", "train", "options")
"""Fields on which the duration of a run depends, besides its schedule."""


def in_words(seconds: float) -> str:
    """A duration as text: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 100:
        return f"{max(seconds, 0):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


class RuntimeHistory:
    """Durations of the finished runs below some folders, by the fields on which they depend."""

    def __init__(self, places: Iterable[Path], on_gpu: bool) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)
        folders = sorted({folder.resolve() for place in places for folder in find_folders(place)})
        for files in filter(lambda files: files.done, map(RunFolder, folders)):
            try:
                config = RunConfig.model_validate(files.peek("config.json"))
            except ValidationError:
                continue  # the run is damaged or of another version
            seconds, device = files.peek("summary.json").get("seconds"), files.peek("environment.json").get("device")
            if seconds is not None and device is not None and device.startswith("CPU") != on_gpu:
                self.seconds[_kind(config)].append(seconds)

    def estimate(self, config: RunConfig) -> float | None:
        """Mean seconds of earlier runs like this one; None if there are none."""
        found = self.seconds.get(_kind(config))
        return sum(found) / len(found) if found else None


def _kind(config: RunConfig) -> str:
    """Everything that the duration of a run depends on, as a key."""
    fields = config.model_dump(mode="json")
    schedule = [fields["arrivals"].get(name) for name in ("classes", "steps", "sizes", "trace")]
    schedule.append(config.arrivals.kind == "trickle")  # it has more steps than its field `steps`
    return json.dumps([*(fields[name] for name in ALIKE), schedule], sort_keys=True)
