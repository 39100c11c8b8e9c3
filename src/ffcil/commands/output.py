"""Output of the commands as JSON or a table, and their reaction to Ctrl-C."""

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import typer


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


@contextmanager
def stoppable(remedy: str = "; the same command resumes it") -> Iterator[None]:
    """End a command with a sentence and status 130 on Ctrl-C, SIGTERM or the loss of the terminal."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup ignores SIGHUP, and so does the command then.
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OSError):  # The terminal may be gone.
            print(f"ffcil: interrupted{remedy}.", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
