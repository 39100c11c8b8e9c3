"""The progress output of a run."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ffcil.runs.progress import ConsoleProgress
from ffcil.training.progress import FitProgress

RECORD: dict[str, Any] = {
    "step": 1,
    "new_classes": 2,
    "seen_classes": 2,
    "accuracy": {"linear": 51.25},
    "seconds": {"train": 3.0, "evaluate": 0.5},
    "images_per_second": 1234.5,
}


@pytest.mark.parametrize(("speed", "shown_speed"), [(1234.5, "(3.5 s, 1,234 images/s)"), (0.0, "(3.5 s)")])
def test_a_line_for_every_step_with_its_speed_where_anything_was_trained(speed: float, shown_speed: str) -> None:
    text = io.StringIO()
    shown = ConsoleProgress(Console(file=text, width=80))
    shown.started("here", steps=3, finished=0, epoch=0)
    shown.step_started(1, 2, 2, epochs=4)
    shown.step_done({**RECORD, "images_per_second": speed})
    shown.finished()
    assert text.getvalue() == f"here: 3 steps\nstep 1/3: +2 = 2 classes, linear 51.2 % {shown_speed}\n"


def test_one_class_is_a_class() -> None:
    text = io.StringIO()
    shown = ConsoleProgress(Console(file=text, width=80))
    shown.started("here", steps=3, finished=0, epoch=0)
    shown.step_done({**RECORD, "new_classes": 1, "seen_classes": 1})
    shown.finished()
    assert "step 1/3: +1 = 1 class, linear" in text.getvalue()


def test_a_slow_epoch_is_reported_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long pass over images without training is reported, too; quick ones are not."""
    now = 100.0
    monkeypatch.setattr("ffcil.runs.progress.time.monotonic", lambda: now)
    text = io.StringIO()
    shown = ConsoleProgress(Console(file=text, width=80))
    shown.step_started(1, 2, 2, epochs=4)
    for done in range(10, 151, 10):  # a batch a second
        now += 1
        shown.images_done(done, 1500)
    now += 1
    shown.epoch_done(FitProgress(epoch=1, loss=0.5, images=150, seconds=15.0))
    now += 11
    shown.images_done(10, 1500)
    assert text.getvalue() == (
        "step 1, 120 of 1,500 images\n"  # every third batch updates the bar, and a line follows after ten seconds
        "step 1, epoch 1/4, loss 0.500, 10 images/s, then 10 of 1,500 images\n"
    )


def test_where_a_run_was_resumed() -> None:
    text = io.StringIO()
    shown = ConsoleProgress(Console(file=text, width=80))
    shown.started("here", steps=3, finished=1, epoch=7)
    shown.finished()
    assert text.getvalue() == "here: 3 steps, resumed after step 1 and 7 epoch(s)\n"
