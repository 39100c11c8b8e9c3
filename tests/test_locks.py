"""Locks on files: one holder, who is known, and no harm to other files."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ffcil.errors import BusyError
from ffcil.locks import Held, Holder, holder, is_held, lock
from ffcil.runs.folder import locked

_HOLD = """
import sys
from pathlib import Path
from ffcil.locks import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_the_holder_of_a_lock_is_known(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not is_held(path)
    before = time.time()
    with subprocess.Popen(
        [sys.executable, "-c", _HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout
        assert other.stdout.readline() == "held\n"
        assert is_held(path)
        found = holder(path)
        assert found is not None
        assert (found.pid, found.host) == (other.pid, socket.gethostname())
        assert before - 1 < found.since < time.time() + 1
        with pytest.raises(Held), lock(path, 0):
            pass
        told = rf"running in .* \(process {other.pid} on .*, since 20..-..-.. ..:..\)"
        with pytest.raises(BusyError, match=told), locked(tmp_path):
            pass
        other.kill()
    assert not is_held(path)
    with lock(path, 0):
        assert holder(path) != found
        assert is_held(path)


def test_a_holder_in_words() -> None:
    assert str(Holder(12, "node-1", time.mktime((2026, 5, 17, 14, 2, 0, 0, 0, -1)))) == (
        "process 12 on node-1, since 2026-05-17 14:02"
    )


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("content")
    (tmp_path / ".lock").symlink_to("precious")
    with pytest.raises(OSError, match=r"\.lock"), lock(tmp_path / ".lock"):
        pass
    assert (tmp_path / "precious").read_text() == "content"


@pytest.mark.parametrize("content", ["", "content"])
def test_another_file_is_not_changed(tmp_path: Path, content: str) -> None:
    (tmp_path / "precious").write_text(content)
    os.link(tmp_path / "precious", tmp_path / ".lock")
    with lock(tmp_path / ".lock"):
        assert holder(tmp_path / ".lock") is None
    (tmp_path / "other").write_text("content")
    with lock(tmp_path / "other"):
        assert holder(tmp_path / "other") is None
    assert (tmp_path / "precious").read_text() == content
    assert (tmp_path / "other").read_text() == "content"


def test_a_pipe_is_not_a_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".lock")
    with pytest.raises(OSError, match="Not a regular file"), lock(tmp_path / ".lock"):
        pass


def test_a_lock_file_that_its_holder_removes(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with lock(path):
        path.unlink()
        with lock(path, 0):  # a new file
            assert is_held(path)
