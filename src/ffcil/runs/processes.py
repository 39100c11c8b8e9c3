"""Several processes for one run on this machine. If one of them dies, the others end, too."""

import math
import multiprocessing
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ffcil.errors import BusyError, InputError
from ffcil.runs.stopping import Stop
from ffcil.training.parallel import Parallel, connected
from ffcil.training.progress import FitProgress, Listener

Work = Callable[[Parallel, Listener], None]
"""The work of a process. It must be possible to pickle it."""
POLL_SECONDS = 0.2
"""Seconds between two checks for a request to stop."""
BLAME_SECONDS = 2.0
"""Seconds to find the process that died first. The others fail as soon as they wait for it."""


def in_processes(count: int, work: Work, listener: Listener) -> None:
    """Call `work` in `count` processes, and return when process 0 has ended. Its progress is reported to `listener` in
    this process.

    A request to stop is forwarded to process 0. An error of any process is raised here.
    """
    # Children are forked from a process that has imported torch and started no thread, so they start fast.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ffcil.runs.run", "torch._dynamo"])
    with ExitStack() as stack:
        meeting = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ffcil-"))) / "meeting"
        stop = stack.enter_context(Stop())
        children: list[_Child] = []
        for rank in range(count):
            children.append(_Child(context, Parallel(rank, count), meeting, work))
            stack.callback(children[-1].end)
        hear = _Hearing(listener)
        stack.callback(hear.finish)
        _supervise(children, hear, stop)
        stop.raise_if_requested()


class _Child:
    """A process of a run, seen from the one that started it."""

    def __init__(self, context: Any, parallel: Parallel, meeting: Path, work: Work) -> None:
        self.parallel = parallel
        self.messages, sender = context.Pipe(duplex=False)
        # the present environment, because children are forked from a process with an earlier one
        arguments = (parallel, meeting, dict(os.environ), work, sender)
        self.process = context.Process(target=_take_part, args=arguments, daemon=True)
        self.process.start()
        sender.close()

    @property
    def name(self) -> str:
        return f"Process {self.parallel.rank + 1} of {self.parallel.size}"

    def status(self) -> int:
        """Exit status of a process that is ending."""
        self.process.join(BLAME_SECONDS)
        return self.process.exitcode or 0

    def death(self) -> InputError:
        status = self.status()
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        return InputError(f"{self.name} {how}: the same command resumes the run.")

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.messages.close()


def _supervise(children: list[_Child], hear: Callable[..., None], stop: Stop) -> None:
    """Pass on messages until process 0 has ended; raise an error if a process failed or died."""
    running = {child.messages: child for child in children}
    failure, deadline, asked = "", math.inf, False
    while running and time.monotonic() < deadline:
        if stop.requested() and not asked:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(children[0].process.pid, signal.SIGINT)
            asked = True
        for child in [running[messages] for messages in wait(list(running), POLL_SECONDS)]:
            try:
                kind, *content = child.messages.recv()
            except (EOFError, OSError):  # the process has ended, perhaps within a message
                del running[child.messages]
                if child.status() or (child is children[0] and not failure):
                    raise child.death() from None
                continue
            if kind == "raised":
                raise content[0]
            if kind == "failed":
                failure = failure or f"{child.name} failed:\n{content[0]}"
                deadline = min(deadline, time.monotonic() + BLAME_SECONDS)
            elif kind != "ended":
                hear(kind, *content)
            elif child is children[0]:
                return
    raise RuntimeError(failure)


class _Hearing:
    """Passes the messages of process 0 on to a listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener, self.started = listener, False

    def __call__(self, event: str, *arguments: Any) -> None:
        self.started |= event == "started"
        getattr(self.listener, event)(*arguments)

    def finish(self) -> None:
        """Report the end of process 0, however it ended."""
        if self.started:
            self.listener.finished()


class _Messages(Listener):
    """Sends what process 0 reports to the process that started it."""

    def __init__(self, messages: Connection) -> None:
        self.messages = messages

    def warned(self, sentence: str) -> None:
        self.messages.send(("warned", sentence))

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        self.messages.send(("started", folder, steps, finished, epoch))

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.messages.send(("step_started", step, new, seen, epochs))

    def images_done(self, done: int, total: int) -> None:
        self.messages.send(("images_done", done, total))

    def epoch_done(self, progress: FitProgress) -> None:
        self.messages.send(("epoch_done", replace(progress, momentum=())))

    def step_done(self, record: Mapping[str, Any]) -> None:
        self.messages.send(("step_done", record))


def _take_part(
    parallel: Parallel, meeting: Path, environment: Mapping[str, str], work: Work, messages: Connection
) -> None:
    """Do the work of one process. Signals reach only the process that started it, which asks process 0 to stop."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if parallel.rank == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.environ.update(environment)
    with connected(parallel, meeting):
        try:
            work(parallel, _Messages(messages) if parallel.rank == 0 else Listener())
            messages.send(("ended",))
        except InputError as error:
            messages.send(("raised", (BusyError if isinstance(error, BusyError) else InputError)(str(error))))
        except (OSError, KeyboardInterrupt) as error:
            messages.send(("raised", error))
        except Exception:  # sent before the connection ends, because the other processes fail then
            messages.send(("failed", traceback.format_exc()))


def _end_with_parent() -> None:
    """End this process when the one that started it has ended."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
