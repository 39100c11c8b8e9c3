"""The examples run without changes."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from ffcil.studies.study import jobs_of, load_study, narrow

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_in_your_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "in_your_own_loop.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    accuracies = [float(match[1]) for line in lines if (match := re.search(r"accuracy ([\d.]+) %", line))]
    assert len(accuracies) == 3
    assert accuracies[-1] > 50  # Chance is 12.5.
    assert "nothing to align" in lines[0]


@pytest.mark.slow
def test_schedule_to_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "schedule_to_table.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "12 classes, 5 steps" in printed
    assert "FF.ours" in printed
    assert len(list((tmp_path / "runs").glob("*/done"))) == 2


def test_the_example_of_an_own_study() -> None:
    study = load_study(str(EXAMPLES / "alignment.yaml"))
    jobs = jobs_of(narrow(study, datasets=["glyphs"]), Path("out"))
    seen = {(job.config.arrivals.kind, job.config.reduction, job.config.alignment) for job in jobs}
    assert len(jobs) == 12
    assert len(seen) == 6
    assert ("free-flow", "class_wise_mean", "diwa") in seen
