"""What a run records of its environment."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ffcil.runs.environment import Session, alone_on_the_gpu
from ffcil.runs.folder import RunFolder
from ffcil.runs.run import Run
from ffcil.training.arithmetic import PORTION
from test_run import Bomb, config


def test_a_run_records_its_environment(tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/somewhere/bin/ffcil", "run", "glyphs"])
    Run(config(arrivals={"sizes": [1, 1]}), tmp_path, data=colours, device="cpu", threads=1).execute()
    environment = json.loads((tmp_path / "environment.json").read_text())
    assert environment["command"] == "ffcil run glyphs"
    source = Path(__file__).parents[1]
    commit = subprocess.run(["git", "-C", source, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if commit.returncode == 0:
        assert commit.stdout.startswith(environment["commit"].removesuffix("-dirty"))
    assert environment["machine"]["cpu"]
    assert environment["machine"]["cores"] >= 1
    assert environment["machine"]["gpu"] is None
    assert environment["alone_on_the_gpu"] is None
    assert environment["wall_clock_seconds"] > 0


def test_the_framework_is_known_from_the_start(tmp_path: Path, colours: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Run(
            config(framework="paper"), tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(epochs=1)
        ).execute()
    method = json.loads((tmp_path / "method.json").read_text())
    assert method["framework"] == {"reduction": "class_wise_mean", "alignment": "diwa", "ha": False}
    assert method["own_alignment"] == "wa"
    Run(config(framework="paper"), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert json.loads((tmp_path / "summary.json").read_text())["framework"] == method["framework"]


def test_wall_clocks_of_resumed_runs_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("ffcil.runs.environment.time", SimpleNamespace(monotonic=lambda: now))
    files = RunFolder(tmp_path)
    files.write("environment.json", {"commit": "abc"})
    first = Session(files, torch.device("cpu"), started=90.0)
    now = 130.0
    first.save()
    now = 150.0  # The process was killed; the time after its last record is lost.
    second = Session(files, torch.device("cpu"), started=145.0)
    assert files.read("environment.json")["wall_clock_seconds"] == 45.0  # type: ignore[index]
    now = 165.0
    second.save()
    assert files.read("environment.json") == {"commit": "abc", "wall_clock_seconds": 60.0, "alone_on_the_gpu": None}


def put_nvidia_smi(folder: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid="1234"))


@pytest.mark.parametrize(
    ("answer", "portion", "alone"),
    [
        ("echo 17", None, True),
        ("echo 17; echo 18", None, False),
        ("echo 17", "25", False),
        ("echo 17", "100", True),
        ("exit 9", None, None),
    ],
)
def test_a_shared_gpu_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, portion: str | None, alone: bool | None
) -> None:
    put_nvidia_smi(tmp_path, monkeypatch, answer)
    monkeypatch.delenv(PORTION, raising=False)
    if portion:
        monkeypatch.setenv(PORTION, portion)
    assert alone_on_the_gpu(torch.device("cuda")) is alone
    assert alone_on_the_gpu(torch.device("cpu")) is None
