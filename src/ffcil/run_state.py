"""How far a run is, read from its own files; nothing here needs torch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class RunState:
    """What a run's folder says at this moment."""

    sizes: tuple[int, ...] = ()
    """new classes of every step; empty before the run has begun"""
    records: tuple[dict[str, Any], ...] = ()
    now: dict[str, Any] | None = None
    """the step that is being learned: epoch of epochs, images/s"""
    done: bool = False

    @property
    def share(self) -> float:
        """Done, between 0 and 1, counted in classes."""
        if self.done or not self.sizes:
            return float(self.done)
        seen = float(sum(self.sizes[: len(self.records)]))
        if self.now and self.now["step"] == len(self.records) + 1:
            seen += self.sizes[len(self.records)] * self.now["epoch"] / max(self.now["epochs"], self.now["epoch"])
        return seen / sum(self.sizes)

    @property
    def seconds(self) -> float:
        """Spent so far."""
        recorded = sum(sum(record["seconds"].values()) for record in self.records)
        return recorded + (self.now["seconds"] if self.now and self.now["step"] > len(self.records) else 0.0)

    @property
    def total_seconds(self) -> float | None:
        """Of the whole run, as far as can be told; None before there is anything to tell by."""
        return self.seconds / self.share if self.share and self.seconds else None


def read_state(folder: Path) -> RunState:
    """Files are read while others write them: half a line, or a file that has just gone, is not there yet."""
    schedule = _json(folder / "arrivals.json")
    if schedule is None:
        return RunState()
    records = folder / "records.jsonl"
    lines = records.read_text(encoding="utf-8").split("\n")[:-1] if records.exists() else []
    return RunState(
        sizes=tuple(schedule["sizes"]),
        records=tuple(json.loads(line) for line in lines),
        now=_json(folder / "progress.json"),
        done=(folder / "done").exists(),
    )


def _json(path: Path) -> dict[str, Any] | None:
    try:
        value: dict[str, Any] = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    return value
