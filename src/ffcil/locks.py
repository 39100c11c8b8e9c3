"""Locks on files. A lock ends with its process, and its file names the process."""

import errno
import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

_POLL = 0.02  # seconds between two attempts
_SILENT = 1.0  # seconds of waiting that are not reported
_LENGTH = 256  # bytes that the holder writes, padded with blanks, so that the file is never truncated
_MARK = b'{"pid": '


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock."""

    pid: int
    host: str
    since: float
    """Seconds since the epoch."""

    def __str__(self) -> str:
        """`process 123 on node-1, since 2026-05-17 14:02`"""
        return f"process {self.pid} on {self.host}, since {time.strftime('%Y-%m-%d %H:%M', time.localtime(self.since))}"


class Held(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: Holder | None) -> None:
        super().__init__(named(holder))
        self.holder = holder


def named(holder: Holder | None) -> str:
    """The holder in words. The holder of a lock that another program took is not known."""
    return "another process" if holder is None else str(holder)


@contextmanager
def lock(path: Path, seconds: float = float("inf"), report: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a lock. After `seconds` of waiting, raise `Held`. If the wait is long, `report` is called with the
    holder."""
    start, reported = time.monotonic(), report is None
    while (handle := _attempt(path)) is None:
        waited = time.monotonic() - start
        if waited >= seconds:
            raise Held(holder(path))
        if not reported and waited >= _SILENT and report is not None:
            report(named(holder(path)))
            reported = True
        time.sleep(_POLL if waited < _SILENT else 10 * _POLL)
    try:
        _sign(handle)
        yield
    finally:
        os.close(handle)


def holder(path: Path) -> Holder | None:
    """The process that took a lock last, which may have ended; None if the file does not name it."""
    try:
        handle = _open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        return Holder(**json.loads(os.pread(handle, _LENGTH, 0)))
    except (OSError, ValueError, TypeError):
        return None
    finally:
        os.close(handle)


def is_held(path: Path) -> bool:
    """Whether another process holds a lock now."""
    try:
        handle = _open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _flock(handle, fcntl.LOCK_SH)
    finally:
        os.close(handle)


def _open(path: Path, flags: int) -> int:
    """Open a lock file without truncating it and without following a link. It must be a regular file."""
    handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "Not a regular file", str(path))
    return handle


def _attempt(path: Path) -> int | None:
    """The handle of a lock, or None while another process holds it."""
    handle = _open(path, os.O_RDWR | os.O_CREAT)
    try:
        if _flock(handle, fcntl.LOCK_EX) and _is_file(handle, path):
            return handle
    except BaseException:
        os.close(handle)
        raise
    os.close(handle)
    return None


def _flock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file(handle: int, path: Path) -> bool:
    """Whether a handle is still the file at `path`, which its last holder may have removed."""
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(handle), there)


def _sign(handle: int) -> None:
    """Write the holder into the file of a lock, unless it has other content or a second name."""
    if os.fstat(handle).st_nlink == 1 and os.pread(handle, len(_MARK), 0) in (b"", _MARK):
        me = Holder(os.getpid(), socket.gethostname()[:64], round(time.time(), 3))
        os.pwrite(handle, json.dumps(asdict(me)).encode().ljust(_LENGTH), 0)
