"""How far a run is, read from its own files; nothing here needs torch."""

from __future__ import annotations

import itertools
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
    """Files are read while others write them: half a line, or a file that has just gone, is not there yet. A damaged
    one is not there either: the run itself, and the report, say what is wrong with it."""
    done = (folder / "done").exists()
    sizes = (_parsed(_content(folder / "arrivals.json")) or {}).get("sizes")
    if not sizes:
        return RunState(done=done)
    records = map(_parsed, _content(folder / "records.jsonl").split(b"\n")[:-1])
    return RunState(
        sizes=tuple(sizes),
        records=tuple(itertools.takewhile(lambda record: record is not None, records)),  # type: ignore[arg-type]
        now=_parsed(_content(folder / "progress.json")),
        done=done,
    )


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _parsed(text: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
