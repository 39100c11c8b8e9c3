"""The commands, thin. Nothing heavy is imported before a command needs it: `ffcil --help` answers at once."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from ffcil import __version__
from ffcil.commands import data as data_commands
from ffcil.commands.classifier import learn, measure, predict
from ffcil.commands.options import (
    AsJson,
    Data,
    Device,
    Imports,
    Logs,
    import_methods,
    listed,
    print_json,
    print_table,
    stoppable,
)
from ffcil.commands.report import compare, report
from ffcil.commands.study import study
from ffcil.errors import InputError, unknown

app = typer.Typer(
    name="ffcil",
    help="Free-flow class-incremental learning: schedules, methods, runs that resume, tables and pages.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_commands.app, name="data")


def _show_version(show: bool) -> None:
    if show:
        print(f"ffcil {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def arrivals(
    classes: Annotated[int | None, typer.Option(help="Classes in all (default: 100).")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps (default: 10).")] = None,
    kind: Annotated[
        str | None,
        typer.Option(help="free-flow, equal, half, given or trace (default: what the other options imply)."),
    ] = None,
    smallest: Annotated[int, typer.Option(help="Fewest classes at a step (free-flow).")] = 1,
    largest: Annotated[int, typer.Option(help="Most classes at a step (free-flow).")] = 15,
    alpha: Annotated[
        float, typer.Option(help="Intensity (free-flow): towards 0 equal steps, towards infinity only the two bounds.")
    ] = 1.0,
    order: Annotated[
        str | None, typer.Option(help="jumbled, ascending, descending or given (default: jumbled; given for --sizes).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the spectrum and its order.")] = 0,
    sizes: Annotated[str | None, typer.Option(help="Given sizes, for example 1,4,2.")] = None,
    trace: Annotated[
        Path | None, typer.Option(help="CSV of classes and the times at which they were first seen.")
    ] = None,
    window: Annotated[
        str, typer.Option(help="Width of a step of a trace: 12h, 7d, or a number in the trace's units.")
    ] = "1d",
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a figure (svg, png or pdf).")] = None,
) -> None:
    """Draw a class-arrival schedule: how many new classes each step brings."""
    from ffcil import arrivals as schedules

    kind = _kind(kind, sizes, trace, classes, steps)
    classes, steps = 100 if classes is None else classes, 10 if steps is None else steps
    if kind == "equal":
        made = schedules.equal(classes, steps)
    elif kind == "half":
        made = schedules.half(classes, steps)
    elif kind == "free-flow":
        made = schedules.free_flow(classes, steps, smallest, largest, alpha, order or "jumbled", seed)
    elif kind == "given":
        made = schedules.given(_sizes(sizes), order or "given", seed)
    else:
        if trace is None:
            raise InputError("Arrivals from a trace need its file: add --trace FILE.csv.")
        made = schedules.from_trace(trace, window)
    if plot is not None:
        from ffcil.report.render.figures import plot_arrivals

        plot_arrivals(made, plot)
        print(f"wrote {plot}", file=sys.stderr)
    if as_json:
        print_json(made.to_json())
    else:
        encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
        print(made.draw(ascii=not encoding.startswith("utf")))


def _kind(kind: str | None, sizes: str | None, trace: Path | None, classes: int | None, steps: int | None) -> str:
    """The kind that was named, or that the other options imply; options that contradict it are an error."""
    implied = "given" if sizes is not None else "trace" if trace is not None else None
    named = kind or implied or "free-flow"
    if named not in (kinds := ("free-flow", "equal", "half", "given", "trace")):
        raise unknown("kind of arrivals", named, kinds)
    clash = [
        option
        for option, there, fits in [
            ("--sizes", sizes is not None, named == "given"),
            ("--trace", trace is not None, named == "trace"),
            ("--classes", classes is not None, named not in ("given", "trace")),
            ("--steps", steps is not None, named not in ("given", "trace")),
        ]
        if there and not fits
    ]
    if clash:
        raise InputError(f"{clash[0]} has no meaning for arrivals of kind {named!r}: drop it, or change --kind.")
    return named


def _sizes(text: str | None) -> list[int]:
    if not text:
        raise InputError("Given arrivals need their sizes: add --sizes 1,4,2.")
    try:
        return [int(part) for part in text.strip("[] ").split(",")]
    except ValueError as error:
        raise InputError(
            f"Cannot read --sizes {text!r}: write whole numbers with commas, for example 1,4,2."
        ) from error


@app.command()
def run(
    recipe: Annotated[
        str, typer.Argument(help="A recipe's name (glyphs, cifar100), a YAML file, or one of PyCIL's or PILOT's.")
    ],
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a field, for example method=icarl or arrivals.sizes=[1,4,2]; `ffcil fields` lists them.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder of this run (default: runs/ and a name made from its configuration)."),
    ] = None,
    data: Data = None,
    device: Device = None,
    threads: Annotated[int | None, typer.Option(help="CPU threads (default: all cores).", min=1)] = None,
    imports: Imports = None,
    logs: Logs = None,
    as_json: AsJson = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Run one configuration; started again, it continues where it was, and a finished run does nothing."""
    from ffcil.config.resolve import not_carried_over, parse_assignments, resolve

    config = resolve(recipe, parse_assignments(assignments or []))
    if unused := not_carried_over(recipe):
        print(f"ffcil: of {recipe} not carried over: {', '.join(unused)}.", file=sys.stderr)
    from rich.console import Console

    from ffcil.runs.loggers import listeners
    from ffcil.runs.progress import CompositeListener, ConsoleProgress, ProgressFile, format_speed
    from ffcil.runs.run import Run

    import_methods(imports)
    listener = CompositeListener(
        ConsoleProgress(Console(stderr=True)), ProgressFile(), *listeners(listed(logs), config)
    )
    made = Run(config, out, data=data, device=device, threads=threads, listener=listener)
    if dry_run:
        print_json(made.config.model_dump(mode="json"))
        return
    with stoppable():
        summary = made.execute()
    if as_json:
        print_json(summary)
        return
    for name, numbers in summary["classifiers"].items():
        scored = " (scored)" if name == summary["scored"] else ""
        named = {"average": numbers["average"], "last": numbers["last"], "forgetting": numbers["forgetting"]}
        figures = ", ".join(f"{key} {value:.2f} %" for key, value in named.items() if value is not None)
        print(f"{name}{scored}: {figures or 'no test images'}")
    print(f"{summary['folder']}  {format_speed(summary['seconds'], summary['images_per_second'])}")


@app.command()
def demo(
    method: Annotated[str, typer.Option(help="Any method: `ffcil methods` lists them.")] = "icarl",
    seeds: Annotated[int, typer.Option(help="Seeds of each setting.", min=1)] = 2,
    out: Annotated[Path, typer.Option("--out", help="Folder of the runs and of report.html.")] = Path("demo"),
    assignments: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe glyphs.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(help="Runs at a time (default: one a core, a thread each).", min=1)
    ] = None,
) -> None:
    """Equ.T, FF.org and FF.ours on the embedded data set: a table here, and a page to open."""
    from ffcil.commands.demo import run_demo

    with stoppable():
        run_demo(method, seeds, out, assignments or [], jobs)


app.command()(study)
app.command()(report)
app.command()(compare)
app.command()(learn)
app.command()(predict)
app.command("test")(measure)


@app.command()
def methods(as_json: AsJson = False, imports: Imports = None) -> None:
    """List the methods and their own fields."""
    from ffcil.commands.listing import method_table, methods_as_json

    import_methods(imports)
    if as_json:
        print_json(methods_as_json())
    else:
        print_table(method_table())


@app.command()
def fields(as_json: AsJson = False) -> None:
    """List every field that `ffcil run --set` takes."""
    from ffcil.config.resolve import describe_fields

    rows = describe_fields()
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("field", "default", "meaning", title="ffcil fields: ffcil run RECIPE --set FIELD=VALUE")
    for row in rows:
        name = f"{row['name']} ({row['kind']})" if "kind" in row else row["name"]
        table.add_row(name, "(recipe)" if row["needed"] else json.dumps(row["default"]), row["about"])
    print_table(table)


@app.command()
def doctor(as_json: AsJson = False, data: Data = None) -> None:
    """Versions, devices, data found, and what to do about what is missing."""
    from ffcil.commands.listing import diagnosis, diagnosis_table

    found = diagnosis(data)
    if as_json:
        print_json(found)
    else:
        print_table(diagnosis_table(found))


def main() -> None:
    """Entry point: bad input, and files that cannot be read or written, are one sentence and status 2, no traceback."""
    try:
        app()
    except InputError as error:
        print(f"ffcil: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(f"ffcil: {error.filename or 'A file'}: {error.strerror or error}.", file=sys.stderr)
        raise SystemExit(2) from None
