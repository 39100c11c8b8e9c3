"""Options that several commands share, output as JSON or a table, and the reaction to Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print only JSON on standard output.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="File or folder of the data set (default: $FFCIL_DATA or the cache)."),
]
Imports = Annotated[
    list[str] | None, typer.Option("--import", metavar="FILE", help="Python file that registers your own methods.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda (default: cuda if available).")]
Logs = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="Also log to tensorboard or wandb."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set a field, for example method=icarl; see `ffcil fields`."),
]


def listed(texts: list[str] | None) -> list[str]:
    """`["a,b", "c"]` as `["a", "b", "c"]`."""
    return [part.strip() for text in texts or [] for part in text.split(",") if part.strip()]


def import_methods(files: list[str] | None) -> None:
    """Run the Python files that register methods."""
    if files:
        from ffcil.methods import load_methods

        for file in files:
            load_methods(file)


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
