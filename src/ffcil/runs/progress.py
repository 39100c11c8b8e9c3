"""Listeners that show the progress of a run: in a terminal, in plain lines, and in a file for other processes."""

import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskID, TextColumn, TimeRemainingColumn

from ffcil.errors import printable
from ffcil.training.progress import FitProgress, Listener


class CompositeListener(Listener):
    """Forwards everything to several listeners, in order."""

    def __init__(self, *listeners: Listener) -> None:
        self.listeners = listeners

    def warned(self, sentence: str) -> None:
        for listener in self.listeners:
            listener.warned(sentence)

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        for listener in self.listeners:
            listener.started(folder, steps, finished, epoch)

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        for listener in self.listeners:
            listener.step_started(step, new, seen, epochs)

    def images_done(self, done: int, total: int) -> None:
        for listener in self.listeners:
            listener.images_done(done, total)

    def epoch_done(self, progress: FitProgress) -> None:
        for listener in self.listeners:
            listener.epoch_done(progress)

    def step_done(self, record: Mapping[str, Any]) -> None:
        for listener in self.listeners:
            listener.step_done(record)

    def finished(self) -> None:
        with ExitStack() as stack:  # calls all of them even if one fails
            for listener in reversed(self.listeners):
                stack.callback(listener.finished)


class ProgressFile(Listener):
    """Keeps `progress.json` in the run's folder up to date, so that other processes see the progress within a step."""

    interval = 1.0
    """Smallest number of seconds between two writes."""

    def __init__(self) -> None:
        self.step: dict[str, int] = {}
        self.last = 0.0

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        self.file = Path(folder) / "progress.json"

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.step = {"step": step, "epochs": epochs}
        self.began = time.monotonic()

    def epoch_done(self, progress: FitProgress) -> None:
        if time.monotonic() - self.last < self.interval:
            return
        self.last = time.monotonic()
        draft = self.file.with_name(".progress.json.draft")
        now = {
            **self.step,
            "epoch": progress.epoch,
            "images_per_second": progress.images_per_second,
            "seconds": time.monotonic() - self.began,
        }
        draft.write_text(json.dumps(now))
        draft.replace(self.file)

    def finished(self) -> None:
        self.file.unlink(missing_ok=True)


def format_classes(number: int) -> str:
    return "1 class" if number == 1 else f"{number} classes"


def format_accuracies(record: Mapping[str, Any]) -> str:
    """`linear 61.2 %, nearest-mean 63.0 %`"""
    return ", ".join(f"{name} {value:.1f} %" for name, value in record["accuracy"].items() if value is not None)


def progress_bars(console: Console, clock: ProgressColumn, transient: bool = False) -> Progress:
    """Bars with a description, a field `note` and a clock. Without a terminal nothing is shown."""
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        clock,
        console=console,
        transient=transient,
        disable=not console.is_terminal,
    )


def format_speed(seconds: float, images_per_second: float) -> str:
    """`12.3 s, 4,567 images/s`; without the speed if nothing was trained."""
    return f"{seconds:.1f} s" + (f", {images_per_second:,.0f} images/s" if images_per_second else "")


class ConsoleProgress(Listener):
    """Prints a line per finished step. Within a step, it shows a bar in a terminal, and otherwise prints a line from
    time to time."""

    line_interval = 10.0
    """Seconds between two lines without a terminal."""
    slow = 2.0
    """Seconds after which an epoch, or a pass over many images, is reported before it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = progress_bars(console, TimeRemainingColumn(), transient=True)
        self.task: TaskID | None = None
        self.steps = self.epochs = self.step = 0
        self.note = ""
        self.last_line = self.last_note = time.monotonic()

    def warned(self, sentence: str) -> None:
        self._print(f"ffcil: {sentence}")

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        self.steps = steps
        resumed = f", resumed after step {finished}" + (f" and {epoch} epoch(s)" if epoch else "")
        self._print(f"{folder}: {steps} steps{resumed if finished or epoch else ''}")
        self.bars.start()

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.step, self.epochs, self.note = step, epochs, ""
        if self.task is not None:
            self.bars.remove_task(self.task)
        text = f"step {self._numbered(step)} (+{new} = {format_classes(seen)})"
        self.task = self.bars.add_task(text, total=epochs, note="")

    def epoch_done(self, progress: FitProgress) -> None:
        speed = f"{progress.images_per_second:,.0f} images/s"
        self.note = f"epoch {progress.epoch}/{self.epochs}, loss {progress.loss:.3f}, {speed}"
        self._update(self.note, completed=progress.epoch)

    def images_done(self, done: int, total: int) -> None:
        if time.monotonic() - self.last_note > self.slow:
            self._update(f"{self.note}{', then ' if self.note else ''}{done:,} of {total:,} images")

    def step_done(self, record: Mapping[str, Any]) -> None:
        speed = format_speed(sum(record["seconds"].values()), record["images_per_second"])
        self._print(
            f"step {record['step']}/{self.steps}: +{record['new_classes']} = {format_classes(record['seen_classes'])}, "
            f"{format_accuracies(record)} ({speed})"
        )

    def finished(self) -> None:
        self.bars.stop()

    def _update(self, note: str, completed: int | None = None) -> None:
        """Update the bar. Without a terminal, print a line if the last one is old enough."""
        assert self.task is not None
        self.last_note = time.monotonic()
        self.bars.update(self.task, completed=completed, note=note)
        if not self.console.is_terminal and time.monotonic() - self.last_line > self.line_interval:
            self._print(f"step {self._numbered(self.step)}, {note}")

    def _numbered(self, step: int) -> str:
        """`3/10`, or `3` if the number of steps is not known."""
        return f"{step}/{self.steps}" if self.steps else str(step)

    def _print(self, text: str) -> None:
        self.last_line = time.monotonic()
        self.console.print(printable(text), highlight=False, soft_wrap=True, markup=False)
