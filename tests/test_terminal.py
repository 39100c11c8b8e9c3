"""Commands whose terminal is closed end with status 130 and leave nothing behind."""

from __future__ import annotations

import errno
import os
import pty
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from ffcil.commands.output import stoppable
from ffcil.runs.progress import CompositeListener
from ffcil.training.progress import Listener
from studies import write_small_study


def closed_terminal(command: list[str], ready: Callable[[bytes], bool]) -> int:
    """Run a command in a terminal, close the terminal when `ready` says so, and return the exit status."""
    child, terminal = pty.fork()
    if child == 0:
        os.execv(command[0], command)
    printed = b""
    deadline = threading.Timer(120, os.kill, (child, signal.SIGKILL))
    deadline.start()
    while not ready(printed):
        printed += os.read(terminal, 4096)
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    deadline.cancel()
    return os.waitstatus_to_exitcode(status)


_BUSY = """
import sys, time
from ffcil.commands.output import stoppable
import typer

app = typer.Typer()

@app.command()
def command():
    with stoppable():
        while True:
            print("working", file=sys.stderr, flush=True)
            {work}

app()
"""


@pytest.mark.parametrize("work", ["time.sleep(0.01)", "pass"])
def test_a_closed_terminal_ends_a_command(work: str) -> None:
    command = [sys.executable, "-c", _BUSY.format(work=work)]
    assert closed_terminal(command, lambda printed: b"working" in printed) == 130


def test_a_signal_that_comes_after_a_failed_write_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.commands.output.leave_terminal", lambda: os.kill(os.getpid(), signal.SIGHUP))
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(typer.Exit) as ended, stoppable():
            raise OSError(errno.EIO, "Input/output error")
    finally:
        signal.signal(signal.SIGHUP, before)
    assert ended.value.exit_code == 130


def test_one_listener_cannot_keep_another_from_finishing() -> None:
    finished = []

    class Broken(Listener):
        def finished(self) -> None:
            raise OSError(5, "Input/output error")

    class Other(Listener):
        def finished(self) -> None:
            finished.append(self)

    with pytest.raises(OSError, match="Input/output error"):
        CompositeListener(Other(), Broken(), Other()).finished()
    assert len(finished) == 2


@pytest.mark.faults
@pytest.mark.parametrize("command", ["run", "study"])
def test_a_closed_terminal_ends_training(tmp_path: Path, colours: Path, command: str) -> None:
    out = tmp_path / "out"
    study = write_small_study(tmp_path / "small.yaml", colours, epochs=500)
    fields = ["dataset=folder", "image_size=16", "arrivals.sizes=[3,3]", "train.batch=16", "train.first.epochs=900"]
    arguments = {
        "run": ["glyphs", "--data", str(colours), *(part for field in fields for part in ("--set", field))],
        "study": [str(study)],
    }

    def training(printed: bytes) -> bool:
        time.sleep(0.05)
        return bool(list(out.rglob("progress.json")))

    ffcil = [sys.executable, "-m", "ffcil", command, *arguments[command], "--out", str(out), "--device", "cpu"]
    assert closed_terminal(ffcil, training) == 130
    assert not list(out.rglob("*progress.json*"))
    assert list(out.rglob("checkpoints/*.safetensors"))
