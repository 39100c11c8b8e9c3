"""Options that several commands take, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else there.")]
Data = Annotated[
    Path | None,
    typer.Option("--data", help="File or folder of the data set (default: $FFCIL_DATA or the cache)."),
]


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_table(table: Any) -> None:
    from rich.console import Console

    Console().print(table)


@contextmanager
def stoppable() -> Iterator[None]:
    """Ctrl-C ends a command with a sentence and status 130."""
    try:
        yield
    except KeyboardInterrupt:
        print("ffcil: stopped; the same command continues from here.", file=sys.stderr)
        raise typer.Exit(130) from None
