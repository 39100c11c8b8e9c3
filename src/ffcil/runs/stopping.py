"""`Stop`: requests to stop take effect at the end of an epoch, so that no work is lost, unless the epoch takes too
long."""

import os
import signal
import stat
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

SECONDS = 5.0
"""Largest number of seconds between a request to stop and the end of the epoch."""
_MESSAGE = b"ffcil: stopping at the end of the epoch; a second signal stops immediately\n"


def hang_up(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGHUP: leave the terminal, and raise KeyboardInterrupt."""
    leave_terminal()
    raise KeyboardInterrupt


def leave_terminal() -> None:
    """Discard further output to the closed terminal, to which every write would be an error."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):  # the program may have closed it
            if stat.S_ISCHR(os.fstat(stream).st_mode):
                os.dup2(nowhere, stream)
    os.close(nowhere)


class Stop:
    """A context manager that holds back signals which would raise KeyboardInterrupt.

    The training checks `requested` after every epoch, saves, and calls `raise_if_requested`. A second signal, or an
    epoch that takes too long, raises immediately. In a thread, and for signals that have another handler, nothing
    changes.
    """

    def __init__(self, quiet: bool = False) -> None:
        """With `quiet`, a request is not announced on the terminal, because another process announces it."""
        self._quiet = quiet
        self._requested = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) in (signal.default_int_handler, hang_up):
                    self._before[number] = signal.signal(number, self._request)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.default_int_handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _request(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            leave_terminal()
        if self._requested:
            raise KeyboardInterrupt
        self._requested = True
        if not self._quiet:
            with suppress(OSError):  # the closed terminal may be the reason for the signal
                os.write(2, _MESSAGE)  # not print, which the handler may have interrupted
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def requested(self) -> bool:
        """Whether a stop was requested. If so, the time limit is removed, so that saving can take as long as needed."""
        if self._requested:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._requested

    def raise_if_requested(self) -> None:
        if self._requested:
            raise KeyboardInterrupt
