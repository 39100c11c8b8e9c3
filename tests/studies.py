"""A study for tests that takes seconds: six classes of colours in three steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from ffcil.studies.executors.job import Job
from ffcil.studies.study import jobs_of, load_study

SETTINGS = {
    "Equ.T": {"arrivals": {"kind": "equal"}, "framework": "none"},
    "FF.org": {"arrivals": {"kind": "free-flow"}, "framework": "none"},
    "FF.ours": {"arrivals": {"kind": "free-flow"}, "framework": "paper"},
}


def write_small_study(path: Path, colours: Path, epochs: int = 2, **changes: Any) -> Path:
    """Write a study of iCaRL under FF.org and FF.ours with one seed; `changes` replaces fields of the file."""
    phase = {"epochs": epochs, "learning_rate": 0.05}
    content = {
        "title": "small",
        "seeds": [0],
        "set": {
            "dataset": "folder",
            "image_size": 16,
            "arrivals": {"classes": 6, "steps": 3, "largest": 4},
            "memory": {"budget": 30},
            "train": {"batch": 16, "first": phase, "later": phase},
            "checkpoint_seconds": 0,
        },
        "data": {"all": str(colours)},
        "groups": [
            {"recipes": ["glyphs"], "methods": ["icarl"], "settings": {k: SETTINGS[k] for k in ("FF.org", "FF.ours")}}
        ],
        **changes,
    }
    path.write_text(yaml.safe_dump(content))
    return path


def small_jobs(tmp_path: Path, colours: Path, **changes: Any) -> list[Job]:
    tmp_path.mkdir(exist_ok=True)
    study = load_study(str(write_small_study(tmp_path / "small.yaml", colours, **changes)))
    return jobs_of(study, tmp_path / "out", device="cpu")


def timeless_records(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Records by run, without measured times."""
    found = {}
    for path in sorted((out / "runs").glob("*/records.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            del record["seconds"], record["images_per_second"]
        found[path.parent.name] = records
    return found


def launch(study: Path, out: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start `ffcil study` in a process of its own."""
    command = [sys.executable, "-m", "ffcil", "study", str(study), "--out", str(out), "--device", "cpu", *arguments]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )
