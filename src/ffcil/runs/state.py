"""Progress of a run, read from its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffcil.runs.folder import RunFolder


@dataclass(frozen=True)
class RunState:
    """Progress of a run at one moment."""

    sizes: tuple[int, ...] = ()
    """Number of new classes of every step; empty before the run has started."""
    records: tuple[dict[str, Any], ...] = ()
    """Records of the finished steps."""
    now: dict[str, Any] | None = None
    """Progress within the current step: epoch, epochs, images per second."""
    done: bool = False

    @property
    def share(self) -> float:
        """Finished share of the run, from 0 to 1, measured in classes."""
        if self.done or not self.sizes:
            return float(self.done)
        seen = float(sum(self.sizes[: len(self.records)]))
        if self.now and self.now["step"] == len(self.records) + 1:
            seen += self.sizes[len(self.records)] * self.now["epoch"] / max(self.now["epochs"], self.now["epoch"])
        return seen / sum(self.sizes)

    @property
    def seconds(self) -> float:
        """Seconds spent so far."""
        recorded = sum(sum(record["seconds"].values()) for record in self.records)
        return recorded + (self.now["seconds"] if self.now and self.now["step"] > len(self.records) else 0.0)

    @property
    def total_seconds(self) -> float | None:
        """Estimated seconds of the whole run; None before any progress."""
        return self.seconds / self.share if self.share and self.seconds else None


def read_state(folder: Path) -> RunState:
    """Progress of the run in a folder, which other processes may write at the same time.

    Incomplete and damaged files are treated as missing; the run itself and the report name them.
    """
    files = RunFolder(folder)
    done, sizes = files.done, files.peek("arrivals.json").get("sizes")
    if not sizes:
        return RunState(done=done)
    return RunState(tuple(sizes), files.peek_records(), files.peek("progress.json") or None, done)
