"""The command line: the application and its commands.

Command modules import heavy packages only inside their functions, so that `ffcil --help` answers at once.
"""

import sys
from typing import Annotated

import typer

from ffcil import __version__
from ffcil.commands import data
from ffcil.commands.arrivals import arrivals
from ffcil.commands.classifier import learn, measure, predict
from ffcil.commands.doctor import doctor
from ffcil.commands.listing import fields, methods
from ffcil.commands.report import compare, publish, report
from ffcil.commands.run import run
from ffcil.commands.serving import export, serve
from ffcil.commands.study import demo, study
from ffcil.commands.suggest import suggest
from ffcil.commands.upkeep import correct, forget, history, rename, undo
from ffcil.errors import InputError, printable

app = typer.Typer(
    name="ffcil",
    help="Free-flow class-incremental learning: schedules, methods, resumable runs, tables and pages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
for command in (arrivals, run, demo, study, report, compare, publish, learn, predict):
    app.command()(command)
app.command("test")(measure)
for other in (suggest, forget, rename, correct, undo, history, export, serve):
    app.command()(other)
for listing in (methods, fields, doctor):
    app.command()(listing)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ffcil {__version__}")
        raise typer.Exit


Version = typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")


@app.callback()
def _options(version: Annotated[bool, Version] = False) -> None:
    pass


def main() -> None:
    """Run the application. Invalid input and file errors end in one sentence and exit status 2."""
    try:
        app()
        return
    except InputError as error:
        message = str(error)
    except OSError as error:
        message = f"{error.filename or 'A file'}: {error.strerror or error}."
    print(f"ffcil: {printable(message)}", file=sys.stderr)
    raise SystemExit(2)
