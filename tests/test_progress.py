"""What a person reads while a run goes on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ffcil.runs.progress import Shown

RECORD: dict[str, Any] = {
    "step": 1,
    "new_classes": 2,
    "seen_classes": 2,
    "accuracy": {"linear": 51.25},
    "seconds": {"train": 3.0, "evaluate": 0.5},
    "images_per_second": 1234.5,
}


@pytest.mark.parametrize(("speed", "told"), [(1234.5, "(3.5 s, 1,234 images/s)"), (0.0, "(3.5 s)")])
def test_a_line_for_every_step_with_its_speed_where_anything_was_trained(speed: float, told: str) -> None:
    text = io.StringIO()
    shown = Shown(Console(file=text, width=80))
    shown.started("here", steps=3, finished=0, epoch=0)
    shown.step_started(1, 2, 2, epochs=4)
    shown.step_done({**RECORD, "images_per_second": speed})
    shown.finished()
    assert text.getvalue() == f"here: 3 steps\nstep 1/3: +2 = 2 classes, linear 51.2 % {told}\n"


def test_a_slow_epoch_is_told_of_before_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a look at many images without any training; quick ones are not."""
    now = 100.0
    monkeypatch.setattr("ffcil.runs.progress.time.monotonic", lambda: now)
    text = io.StringIO()
    shown = Shown(Console(file=text, width=80))
    shown.step_started(1, 2, 2, epochs=4)
    for done in range(10, 151, 10):  # a batch a second
        now += 1
        shown.looked_at(done, 1500)
    now += 1
    shown.epoch_done(1, 0.5, 10.0)
    now += 11
    shown.looked_at(10, 1500)
    assert text.getvalue() == (
        "step 1, 120 of 1,500 images\n"  # every third batch is told to a bar, and a line comes after ten seconds
        "step 1, epoch 1/4, loss 0.500, 10 images/s, then 10 of 1,500 images\n"
    )


def test_where_a_run_was_taken_up() -> None:
    text = io.StringIO()
    shown = Shown(Console(file=text, width=80))
    shown.started("here", steps=3, finished=1, epoch=7)
    shown.finished()
    assert text.getvalue() == "here: 3 steps, taken up after step 1 and 7 epoch(s)\n"
