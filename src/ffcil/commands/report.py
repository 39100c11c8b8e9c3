"""`ffcil report` and `ffcil compare`: everything they print comes from the folders of runs."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ffcil.errors import InputError


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A folder at or above those of runs.")],
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the report (default: DIR/report).")] = None,
    title: Annotated[str | None, typer.Option(help="Of the page.")] = None,
) -> None:
    """Tables, figures and a page from the runs in a folder: nothing is trained, unfinished runs are named."""
    from rich.console import Console

    from ffcil.report import Contents, terminal_table, write_report
    from ffcil.report.render.page import TITLE
    from ffcil.report.render.text import legend

    contents = Contents.read(folder)
    out = out or folder / "report"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give --out a folder.")
    command = ["ffcil", "report", str(folder), "--out", str(out), *(["--title", title] if title else [])]
    written = write_report(contents, out, title or TITLE, shlex.join(command))
    console = Console()
    if contents.rows:
        console.print(terminal_table(contents.rows))

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    said = legend(contents.rows) if contents.rows else ""
    for note in contents.notes:
        if note not in said:
            say(note)
    for name, reason in contents.left_out.items():
        say(f"Left out, {name}: {reason}.")
    figures = sum(path.parent != out for path in written)
    say(f"{len(written)} files in {out}/: the page, {len(written) - figures - 1} tables, {figures} figures")
    say(f"Open {(out / 'report.html').resolve().as_uri()}")


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A run's folder, or one above several.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The folder to set beside it.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON on standard output, and nothing else.")] = False,
) -> None:
    """Two runs or two studies side by side: configuration, accuracy (paired by seeds) and time, B against A."""
    from ffcil.report.analyse.differences import differences
    from ffcil.report.read.records import read_runs
    from ffcil.report.render.json import differences_json
    from ffcil.report.render.terminal import differences_tables

    (runs_a, damaged_a), (runs_b, damaged_b) = read_runs(a), read_runs(b)
    for sentence in (*damaged_a, *damaged_b):
        print(f"ffcil: left out: {sentence}", file=sys.stderr)
    found = differences(runs_a, runs_b)
    if as_json:
        print(json.dumps(differences_json(found), indent=2, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console()
    console.print(f"A: {a}\nB: {b}\n", soft_wrap=True, highlight=False, markup=False)
    for part in differences_tables(found):
        console.print(part)
