"""`Stop`: being told to stop takes effect at the end of an epoch, where nothing is lost, if that end is near."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

SECONDS = 5.0
"""for an epoch to end"""
_SAID = b"ffcil: stopping at the end of the epoch; once more stops at once\n"


class Stop:
    """While it is entered, a signal that would raise KeyboardInterrupt is kept; whoever trains asks for it with `told`
    after an epoch, saves, and calls `raise_if_told`. A second signal, or an epoch that takes too long, raises at once.

    In a thread, and for signals that something else handles, all stays as it is.
    """

    def __init__(self) -> None:
        self._told = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is signal.default_int_handler:
                    self._before[number] = signal.signal(number, self._ask)
            self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, signal.default_int_handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if self._told:
            raise KeyboardInterrupt
        self._told = True
        with suppress(OSError):  # a terminal that is gone is why it is told
            os.write(2, _SAID)  # a handler may interrupt a print, which then cannot be called
        signal.setitimer(signal.ITIMER_REAL, SECONDS)

    def told(self) -> bool:
        """Whether it is time to stop; if so, there is as much of it as saving takes."""
        if self._told:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return self._told

    def raise_if_told(self) -> None:
        if self._told:
            raise KeyboardInterrupt
