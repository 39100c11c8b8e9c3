"""Options that several commands share, how they print, and what Ctrl-C does to a command."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="File or folder of the data set (default: $FFCIL_DATA or the cache)."),
]
Imports = Annotated[
    list[str] | None, typer.Option("--import", metavar="FILE", help="Python file that registers methods of your own.")
]
Device = Annotated[str | None, typer.Option("--device", help="cpu or cuda (default: cuda where there is one).")]
Logs = Annotated[
    list[str] | None,
    typer.Option("--log", metavar="NAME", help="Log to tensorboard (in the run's folder) or wandb too."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a field of every run; `ffcil fields` lists them."),
]


def listed(texts: list[str] | None) -> list[str]:
    """`["a,b", "c"]` as a, b, c."""
    return [part.strip() for text in texts or [] for part in text.split(",") if part.strip()]


def import_methods(files: list[str] | None) -> None:
    """Run the files that register methods."""
    from ffcil.methods import load_methods

    for file in files or []:
        load_methods(file)


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


@contextmanager
def stoppable(then: str = "; the same command continues from here") -> Iterator[None]:
    """Ctrl-C, being told to end, or losing the terminal ends a command with a sentence and status 130."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:  # nohup wants it to go on
            signal.signal(number, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        with suppress(OSError):  # the terminal may be what was lost
            print(f"ffcil: stopped{then}.", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
