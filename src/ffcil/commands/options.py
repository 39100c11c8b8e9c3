"""Options that several commands take, and how they print."""

from __future__ import annotations

import json
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
