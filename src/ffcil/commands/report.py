"""`ffcil report`, `ffcil compare` and `ffcil publish`: what is made from the folders of runs."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from ffcil.commands.options import AsJson
from ffcil.commands.output import print_json
from ffcil.errors import InputError


def report(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of a run, or one that contains runs.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report (default: DIR/report).")] = None,
    title: Annotated[str | None, typer.Option(help="Title of the page.")] = None,
) -> None:
    """Write tables, figures and a page from the runs in a folder. Nothing is trained; unfinished runs are named."""
    from rich.console import Console

    from ffcil.report import Contents, terminal_table, write_report
    from ffcil.report.render.page import TITLE
    from ffcil.report.render.sensitivity import sensitivity_terminal
    from ffcil.report.render.text import legend

    contents = Contents.read(folder)
    out = out or folder / "report"
    if out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file: give a folder with --out.")
    command = ["ffcil", "report", str(folder), "--out", str(out), *(["--title", title] if title else [])]
    written = write_report(contents, out, title or TITLE, shlex.join(command))
    console = Console()
    if contents.rows:
        console.print(terminal_table(contents.rows))
    if contents.sensitivities:
        console.print(sensitivity_terminal(contents.sensitivities))
    explained = legend(contents.rows) if contents.rows else ""
    figures = sum(path.parent != out for path in written)
    lines = [note for note in contents.notes if note not in explained]
    lines += [f"Left out, {name}: {reason}." for name, reason in contents.left_out.items()]
    lines += [f"{len(written)} files in {out}/: the page, {len(written) - figures - 1} tables, {figures} figures"]
    lines += [f"Open {(out / 'report.html').resolve().as_uri()}"]
    console.out("\n".join(lines), highlight=False)


def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a run or of several runs.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder to compare with A.")],
    as_json: AsJson = False,
) -> None:
    """Compare two runs or two studies, B against A: configuration, accuracy (paired by seeds) and time."""
    from rich.console import Console

    from ffcil.report.analyse.differences import differences
    from ffcil.report.read.records import read_runs
    from ffcil.report.render.json import differences_json
    from ffcil.report.render.terminal import differences_tables

    (runs_a, damaged_a), (runs_b, damaged_b) = read_runs(a), read_runs(b)
    for sentence in (*damaged_a, *damaged_b):
        print(f"ffcil: left out: {sentence}", file=sys.stderr)
    found = differences(runs_a, runs_b)
    if as_json:
        print_json(differences_json(found))
        return
    console = Console()
    console.out(f"A: {a}\nB: {b}\n", highlight=False)
    for part in differences_tables(found):
        console.print(part)


def publish(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")],
    to: Annotated[Path, typer.Option(help="Folder of the published files, for example results/NAME.")],
) -> None:
    """Write one JSON file per finished run: configuration, environment, records and confusion counts.

    `ffcil report` and `ffcil compare` read these files like the folders of runs.
    """
    from ffcil.runs.published import publish as publish_run

    for run in runs:
        print(publish_run(run, to))
