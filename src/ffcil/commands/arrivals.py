"""`ffcil arrivals`: draw a class-arrival schedule."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ffcil.commands.options import AsJson
from ffcil.commands.output import print_json
from ffcil.errors import InputError, unknown

KINDS = ("free-flow", "equal", "half", "trickle", "given", "trace")


def arrivals(
    classes: Annotated[int | None, typer.Option(help="Number of classes (default: 100).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps (default: 10).")] = None,
    kind: Annotated[str | None, typer.Option(help=f"{', '.join(KINDS)} (default: from the other options).")] = None,
    smallest: Annotated[int, typer.Option(help="Fewest classes per step (free-flow).")] = 1,
    largest: Annotated[int, typer.Option(help="Most classes per step (free-flow).")] = 15,
    alpha: Annotated[float, typer.Option(help="Intensity of the spectrum (free-flow); near 0, equal steps.")] = 1.0,
    order: Annotated[
        str | None, typer.Option(help="jumbled, ascending, descending or given (default: jumbled; given with --sizes).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sizes and their order.")] = 0,
    sizes: Annotated[str | None, typer.Option(help="Classes of each step, for example 1,4,2.")] = None,
    trace: Annotated[Path | None, typer.Option(help="CSV file of classes and the time each was first seen.")] = None,
    window: Annotated[str, typer.Option(help="Length of a step of a trace: 12h, 7d, or a number in its units.")] = "1d",
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a figure to this file (svg, png or pdf).")] = None,
) -> None:
    """Draw a class-arrival schedule: the number of new classes at each step."""
    from ffcil import arrivals as schedules

    kind = _kind(kind, sizes, trace, classes, steps)
    classes, steps = 100 if classes is None else classes, 10 if steps is None else steps
    if kind == "equal":
        schedule = schedules.equal_arrivals(classes, steps)
    elif kind == "half":
        schedule = schedules.half_arrivals(classes, steps)
    elif kind == "trickle":
        schedule = schedules.trickle_arrivals(classes, steps)
    elif kind == "free-flow":
        schedule = schedules.free_flow(classes, steps, smallest, largest, alpha, order or "jumbled", seed)
    elif kind == "given":
        schedule = schedules.given_arrivals(_parse_sizes(sizes), order or "given", seed)
    elif trace is None:
        raise InputError("Arrivals of kind 'trace' need a file: add --trace FILE.csv.")
    else:
        schedule = schedules.from_trace(trace, window)
    if plot is not None:
        from ffcil.report.render.figures import plot_arrivals

        plot_arrivals(schedule, plot)
        print(f"wrote {plot}", file=sys.stderr)
    if as_json:
        print_json(schedule.to_json())
    else:
        encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
        print(schedule.draw(ascii=not encoding.startswith("utf")))


def _kind(kind: str | None, sizes: str | None, trace: Path | None, classes: int | None, steps: int | None) -> str:
    """The given kind, or the one that other options imply. Options that contradict it are an error."""
    implied = "given" if sizes is not None else "trace" if trace is not None else "free-flow"
    kind = kind or implied
    if kind not in KINDS:
        raise unknown("kind of arrivals", kind, KINDS)
    applies = {"given": ["--sizes"], "trace": ["--trace"]}.get(kind, ["--classes", "--steps"])
    for option, value in {"--sizes": sizes, "--trace": trace, "--classes": classes, "--steps": steps}.items():
        if value is not None and option not in applies:
            raise InputError(f"{option} does not apply to arrivals of kind {kind!r}: leave it out, or change --kind.")
    return kind


def _parse_sizes(text: str | None) -> list[int]:
    if not text:
        raise InputError("Arrivals of kind 'given' need sizes: add --sizes 1,4,2.")
    try:
        return [int(part) for part in text.strip("[] ").split(",")]
    except ValueError as error:
        raise InputError(f"Cannot read --sizes {text!r}: write whole numbers with commas, as in 1,4,2.") from error
