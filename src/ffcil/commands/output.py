"""Output of the commands as JSON or a table, and their reaction to Ctrl-C."""

import csv
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import typer

from ffcil.errors import InputError


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def check_place(path: Path | None) -> None:
    """Raise an error if the folder of a file to write does not exist. Called before the work, not after it."""
    if path and not path.absolute().parent.is_dir():
        raise InputError(f"There is no folder {path.absolute().parent} for {path.name}: create it, or choose another.")


def write_csv(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


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
