"""Output of the commands as JSON or a table, and their reaction to Ctrl-C."""

import errno
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import typer

from ffcil.runs.stopping import hang_up, leave_terminal


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


@contextmanager
def stoppable(remedy: str = "; the same command resumes it") -> Iterator[None]:
    """End a command with a sentence and status 130 on Ctrl-C, SIGTERM or the loss of the terminal."""
    handlers = {signal.SIGTERM: signal.default_int_handler, signal.SIGHUP: hang_up}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so does the command then.
            signal.signal(number, handler)
    try:
        yield
    except KeyboardInterrupt:
        _end(remedy)
    except OSError as error:
        if error.errno != errno.EIO or error.filename is not None:
            raise
        leave_terminal()  # A write to a closed terminal may fail before the signal comes.
        _end(remedy)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _end(remedy: str) -> NoReturn:
    print(f"ffcil: interrupted{remedy}.", file=sys.stderr)
    raise typer.Exit(130) from None
