"""What a person reads while a run goes on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ffcil.progress import Shown

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


def test_where_a_run_was_taken_up() -> None:
    text = io.StringIO()
    shown = Shown(Console(file=text, width=80))
    shown.started("here", steps=3, finished=1, epoch=7)
    shown.finished()
    assert text.getvalue() == "here: 3 steps, taken up after step 1 and 7 epoch(s)\n"
