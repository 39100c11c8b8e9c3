"""TensorBoard and Weights & Biases receive the values of the records."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from ffcil.errors import InputError
from ffcil.runs.loggers import check_logs
from ffcil.studies.executors.job import Ending, Job, attempt
from studies import small_jobs


def logged_job(tmp_path: Path, colours: Path, log: str) -> Job:
    groups = [{"recipes": ["glyphs"], "methods": ["icarl"], "settings": {"FF.ours": {"framework": "paper"}}}]
    (job,) = small_jobs(tmp_path, colours, groups=groups)
    return Job(job.label, job.config, job.folder, data=job.data, device="cpu", logs=(log,))


def records_of(job: Job) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (job.folder / "records.jsonl").read_text().splitlines()]


def test_tensorboard_receives_the_values_of_the_records(tmp_path: Path, colours: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    job = logged_job(tmp_path, colours, "tensorboard")
    assert attempt(job).ending is Ending.DONE
    events = event_accumulator.EventAccumulator(str(job.folder / "tensorboard"))
    events.Reload()
    records = records_of(job)
    for group, name in (("accuracy", "linear"), ("accuracy", "nearest-mean"), ("new_accuracy", "linear")):
        logged = [(event.step, event.value) for event in events.Scalars(f"{group}/{name}")]
        assert logged == [(1000 * r["step"], pytest.approx(r[group][name], rel=1e-6)) for r in records]
    assert len(events.Scalars("old_accuracy/linear")) == 2  # the first step has no old classes
    losses = events.Scalars("train/loss")
    assert [event.step for event in losses] == [500, 1000, 1500, 2000, 2500, 3000]  # two epochs per step
    assert losses[-1].value == pytest.approx(records[-1]["loss"], rel=1e-6)


def test_wandb_receives_the_values_of_the_records(
    tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a substitute for the package. A resumed run keeps its id."""

    class FakeRun:
        def __init__(self, **settings: Any) -> None:
            self.settings, self.logged, self.finished = settings, list[tuple[int, dict[str, float]]](), False
            self.name, self.id = settings["name"], settings["id"]

        def log(self, metrics: dict[str, float], step: int) -> None:
            self.logged.append((step, metrics))

        def finish(self) -> None:
            self.finished = True

    wandb = pytest.importorskip("wandb")
    started: list[FakeRun] = []
    monkeypatch.setattr(wandb, "init", lambda **settings: started.append(FakeRun(**settings)) or started[-1])
    job = logged_job(tmp_path, colours, "wandb")
    assert attempt(job).ending is Ending.DONE
    (first,) = started
    accuracies = [(step, metrics["accuracy/linear"]) for step, metrics in first.logged if "accuracy/linear" in metrics]
    assert accuracies == [(1000 * r["step"], r["accuracy"]["linear"]) for r in records_of(job)]
    assert first.finished
    assert first.settings["config"] == job.config.model_dump(mode="json")
    (job.folder / "done").unlink()  # as if it had been interrupted
    assert attempt(job).ending is Ending.DONE
    assert started[1].id == first.id
    assert started[1].settings["resume"] == "allow"


def test_wandb_offline(tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the package itself, without a network."""
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    job = logged_job(tmp_path, colours, "wandb")
    assert attempt(job).ending is Ending.DONE
    (file,) = (job.folder / "wandb").glob("offline-run-*/*.wandb")
    assert b"accuracy/nearest-mean" in file.read_bytes()


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--log wandb needs the package wandb: pip install 'ffcil\[wandb\]'"):
        check_logs(["wandb"])
    with pytest.raises(InputError, match="did you mean 'tensorboard'"):
        check_logs(["tensorbord"])
