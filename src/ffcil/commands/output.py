"""Output of the commands as JSON or a table, and their reaction to Ctrl-C."""

import csv
import errno
import json
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import typer

from ffcil.errors import InputError
from ffcil.runs.stopping import hang_up, leave_terminal


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def check_place(path: Path | None) -> None:
    """Raise an error if a file cannot be written to this path. Call it before the work, not after it."""
    if path and path.is_dir():
        raise InputError(f"{path} is a folder: add the name of a file.")
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
    handlers = {signal.SIGTERM: signal.default_int_handler, signal.SIGHUP: hang_up}
    before = {number: signal.getsignal(number) for number in handlers}
    for number, handler in handlers.items():
        if before[number] is not signal.SIG_IGN:  # nohup ignores SIGHUP, and the command must do so, too
            signal.signal(number, handler)
    try:
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO or error.filename is not None:
                raise
            # a write to a closed terminal may fail before the signal arrives, which is then ignored
            with suppress(KeyboardInterrupt):
                signal.signal(signal.SIGHUP, signal.SIG_IGN)
                del before[signal.SIGHUP]
            leave_terminal()
            raise KeyboardInterrupt from None
    except KeyboardInterrupt:
        _end(remedy)
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _end(remedy: str) -> NoReturn:
    print(f"ffcil: interrupted{remedy}.", file=sys.stderr)
    raise typer.Exit(130) from None
