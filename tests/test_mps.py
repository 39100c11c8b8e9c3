"""MPS: who starts and stops the service, and what happens if it does not start."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from ffcil.errors import InputError
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.mps import in_use, mps, mps_available

FAKE = """#!/bin/sh
# A substitute for NVIDIA's program: -d starts the service; commands on standard input go to the running service.
place="${CUDA_MPS_PIPE_DIRECTORY:-$HOME/default}"
if [ "$1" = -d ] && [ -n "$BROKEN" ]; then echo "no device" >&2; exit 1; fi
if [ "$1" = -d ]; then touch "$place/control"; echo "start $place" >> "$HOME/calls"; exit 0; fi
read command
[ -e "$place/control" ] || exit 1
echo "$command $place" >> "$HOME/calls"
if [ "$command" = quit ]; then rm "$place/control"; fi
"""


@pytest.fixture
def fake_mps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Simulate a machine with two GPUs and MPS. Return the file that lists the calls."""
    (tmp_path / "bin").mkdir()
    control = tmp_path / "bin" / "nvidia-cuda-mps-control"
    control.write_text(FAKE)
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "calls"


def test_mps_is_started_and_stopped(fake_mps: Path) -> None:
    executor = LocalExecutor()
    assert executor.slots == 16
    with executor:
        place = executor.environment["CUDA_MPS_PIPE_DIRECTORY"]
        assert fake_mps.read_text() == f"start {place}\n"
    assert fake_mps.read_text().splitlines() == [f"start {place}", f"quit {place}"]
    assert not Path(place).exists()


@pytest.mark.parametrize(
    ("asked", "percent"),
    [({}, 25), ({"runs": 5}, 100), ({"device": "cuda:0", "jobs": 4}, 50), ({"jobs": 3}, 100), ({"per_gpu": 9}, 25)],
    ids=str,
)
def test_each_run_gets_a_portion_of_a_shared_gpu(
    fake_mps: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], percent: int
) -> None:
    """The portion is the smallest of those with right products that sum to twice the GPU, or 100 %. Of two GPUs, the
    one with more runs counts."""
    monkeypatch.delenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", raising=False)
    with LocalExecutor(**asked) as executor:
        assert executor.environment["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == str(percent)
    monkeypatch.setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "33")
    with LocalExecutor(**asked) as executor:
        assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in executor.environment  # The user's own value is inherited.


def test_mps_is_stopped_after_a_failure(fake_mps: Path) -> None:
    with pytest.raises(KeyboardInterrupt), mps():
        raise KeyboardInterrupt
    assert fake_mps.read_text().splitlines()[-1].startswith("quit ")


def test_the_last_study_of_a_user_stops_the_service(fake_mps: Path) -> None:
    """A service whose study was killed is found by its path, and is not started again."""
    with mps() as killed:
        left = Path(killed["CUDA_MPS_PIPE_DIRECTORY"])
        shutil.copytree(left, left.parent / "kept")
    shutil.move(left.parent / "kept", left)  # As if nobody had stopped it.
    fake_mps.unlink()
    with mps() as first:
        with mps() as second:
            assert first == second == killed
        assert left.exists()  # The other study still uses it.
    assert [line.split()[0] for line in fake_mps.read_text().splitlines()] == ["get_server_list"] * 2 + ["quit"]
    assert not left.exists()


def test_the_service_is_not_stopped_during_a_run_that_outlives_its_study(fake_mps: Path) -> None:
    with mps() as environment:
        run = in_use(environment)
        run.__enter__()
    assert "quit" not in fake_mps.read_text()
    run.__exit__(None, None, None)
    with mps():
        pass
    assert fake_mps.read_text().count("start") == fake_mps.read_text().count("quit") == 1


@pytest.mark.parametrize(("asked", "slots"), [({}, 2), ({"per_gpu": 3}, 6), ({"jobs": 5}, 5)], ids=str)
def test_without_mps_a_gpu_has_one_run_by_default(
    fake_mps: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    asked: dict[str, int],
    slots: int,
) -> None:
    monkeypatch.setenv("BROKEN", "yes")
    with LocalExecutor(**asked) as executor:
        assert executor.slots == slots
        assert executor.environment == {}
    said = f"ffcil: MPS does not start (no device): {slots} run(s) at a time.\n"
    assert capsys.readouterr().err == said


def test_a_service_that_is_already_running_is_not_stopped(fake_mps: Path) -> None:
    (fake_mps.parent / "default").mkdir()
    (fake_mps.parent / "default" / "control").touch()
    with mps() as environment:
        assert environment == {}
    assert [line.split()[0] for line in fake_mps.read_text().splitlines()] == ["get_server_list"]


def test_number_of_runs_at_a_time(fake_mps: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert LocalExecutor("cuda:1").slots == 8
    assert LocalExecutor(per_gpu=3).slots == 6
    assert not LocalExecutor(jobs=2).share  # one GPU each
    assert LocalExecutor(runs=5).slots == 5
    assert not LocalExecutor(runs=2).share
    assert LocalExecutor("cpu", 3, runs=0).slots == 1
    with pytest.raises(InputError, match="--per-gpu does not apply to a CPU: set"):
        LocalExecutor("cpu", per_gpu=4)
    assert LocalExecutor("cpu").slots == len(os.sched_getaffinity(0))
    with pytest.raises(InputError, match="Device 'cuda:2' does not exist here: choose one of cpu, cuda:0, cuda:1"):
        LocalExecutor("cuda:2")
    monkeypatch.setenv("PATH", "/nowhere")
    assert not mps_available()
    assert LocalExecutor().slots == 2


@pytest.mark.parametrize("made", ["link", "open", "file"])
def test_a_folder_that_is_not_private_is_refused(fake_mps: Path, capsys: pytest.CaptureFixture[str], made: str) -> None:
    """Another user could have prepared it in the folder of temporary files."""
    place, elsewhere = fake_mps.parent / f"ffcil-mps-{os.getuid()}", fake_mps.parent / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if made == "link":
        place.symlink_to(elsewhere)
    elif made == "open":
        place.mkdir()
        place.chmod(0o777)
    else:
        place.touch()
    with LocalExecutor() as executor:
        assert (executor.slots, executor.environment) == (2, {})
    assert f"MPS does not start ({place} is not a private folder of this user: remove it)" in capsys.readouterr().err
    assert not list(elsewhere.iterdir())
    assert not fake_mps.exists()


def test_the_folder_is_private(fake_mps: Path) -> None:
    before = os.umask(0)
    try:
        with LocalExecutor():
            assert (fake_mps.parent / f"ffcil-mps-{os.getuid()}").stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)
