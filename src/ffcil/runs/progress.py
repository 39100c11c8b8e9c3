"""What a person sees of a run while it runs: bars in a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn


class Listener:
    """Told of a run's progress. This one says nothing; subclass it and override what you want to hear of."""

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None: ...
    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None: ...
    def looked_at(self, done: int, total: int) -> None: ...
    def epoch_done(self, epoch: int, loss: float, images_per_second: float) -> None: ...
    def step_done(self, record: Mapping[str, Any]) -> None: ...
    def finished(self) -> None: ...


class Several(Listener):
    """Tells each of several listeners."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        for listener in self.listeners:
            listener.started(folder, steps, finished, epoch)

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        for listener in self.listeners:
            listener.step_started(step, new, seen, epochs)

    def looked_at(self, done: int, total: int) -> None:
        for listener in self.listeners:
            listener.looked_at(done, total)

    def epoch_done(self, epoch: int, loss: float, images_per_second: float) -> None:
        for listener in self.listeners:
            listener.epoch_done(epoch, loss, images_per_second)

    def step_done(self, record: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener.step_done(record)

    def finished(self) -> None:
        for listener in self.listeners:
            listener.finished()


class Noted(Listener):
    """Keeps `progress.json` in the run's folder while it runs: what others see of it between two records."""

    every = 1.0

    def __init__(self) -> None:
        self.step: dict[str, int] = {}
        self.last = 0.0

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        self.file = Path(folder) / "progress.json"

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.step = {"step": step, "epochs": epochs}
        self.began = time.monotonic()

    def epoch_done(self, epoch: int, loss: float, images_per_second: float) -> None:
        if time.monotonic() - self.last < self.every:
            return
        self.last = time.monotonic()
        draft = self.file.with_name(".progress.json.draft")
        seconds = time.monotonic() - self.began
        now = {**self.step, "epoch": epoch, "images_per_second": images_per_second, "seconds": seconds}
        draft.write_text(json.dumps(now))
        draft.replace(self.file)

    def finished(self) -> None:
        self.file.unlink(missing_ok=True)


def accuracies(record: Mapping[str, Any]) -> str:
    """`linear 61.2 %, nearest-mean 63.0 %`"""
    return ", ".join(f"{name} {value:.1f} %" for name, value in record["accuracy"].items() if value is not None)


def bars(console: Console, clock: ProgressColumn, transient: bool = False) -> Progress:
    """Bars with a description, a field `note` and a clock; nothing at all where there is no terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        clock,
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


def pace(seconds: float, images_per_second: float) -> str:
    """Time, and speed where anything was trained."""
    return f"{seconds:.1f} s" + (f", {images_per_second:,.0f} images/s" if images_per_second else "")


class Shown(Listener):
    """Lines for finished steps; between them a bar in a terminal, or a plain line every ten seconds."""

    every = 10.0
    slow = 2.0
    """seconds after which an epoch, or a look at many images, is told of before it is done"""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = bars(console, TimeRemainingColumn(), transient=True)
        self.task: TaskID | None = None
        self.steps = self.epochs = self.step = 0
        self.note = ""
        self.last_line = self.last_note = time.monotonic()

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        self.steps = steps
        taken_up = f", taken up after step {finished}" + (f" and {epoch} epoch(s)" if epoch else "")
        self._line(f"{folder}: {steps} steps{taken_up if finished or epoch else ''}")
        self.bars.start()

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.step, self.epochs, self.note = step, epochs, ""
        if self.task is not None:
            self.bars.remove_task(self.task)
        text = f"step {self._numbered(step)} (+{new} = {seen} classes)"
        self.task = self.bars.add_task(text, total=epochs, note="")

    def epoch_done(self, epoch: int, loss: float, images_per_second: float) -> None:
        self.note = f"epoch {epoch}/{self.epochs}, loss {loss:.3f}, {images_per_second:,.0f} images/s"
        self._tell(self.note, completed=epoch)

    def looked_at(self, done: int, total: int) -> None:
        if time.monotonic() - self.last_note > self.slow:
            self._tell(f"{self.note}{', then ' if self.note else ''}{done:,} of {total:,} images")

    def step_done(self, record: Mapping[str, Any]) -> None:
        taken = pace(sum(record["seconds"].values()), record["images_per_second"])
        self._line(
            f"step {record['step']}/{self.steps}: +{record['new_classes']} = {record['seen_classes']} classes, "
            f"{accuracies(record)} ({taken})"
        )

    def finished(self) -> None:
        self.bars.stop()

    def _tell(self, note: str, completed: int | None = None) -> None:
        """In the bar, and where there is none, now and then in a line."""
        assert self.task is not None
        self.last_note = time.monotonic()
        self.bars.update(self.task, completed=completed, note=note)
        if not self.console.is_terminal and time.monotonic() - self.last_line > self.every:
            self._line(f"step {self._numbered(self.step)}, {note}")

    def _numbered(self, step: int) -> str:
        """Of how many, where that is known."""
        return f"{step}/{self.steps}" if self.steps else str(step)

    def _line(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(text, highlight=False, soft_wrap=True, markup=False)
