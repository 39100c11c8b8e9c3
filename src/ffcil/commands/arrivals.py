"""`ffcil arrivals`: draw a class-arrival schedule."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ffcil.commands.options import AsJson
from ffcil.commands.output import print_json
from ffcil.errors import InputError, unknown

DRAWN = ("classes", "steps")
OPTIONS = {
    "free-flow": (*DRAWN, "smallest", "largest", "alpha", "order", "seed"),
    "equal": DRAWN,
    "half": DRAWN,
    "trickle": DRAWN,
    "given": ("sizes", "order", "seed"),
    "trace": ("trace", "window"),
}
"""Kinds of schedules, with the options that each has."""
SPECTRUM: dict[str, Any] = {"smallest": 1, "largest": 15, "alpha": 1.0}
"""Defaults of the options that only free flow has."""


def arrivals(
    classes: Annotated[int | None, typer.Option(help="Number of classes (default: 100).")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps (default: 10).")] = None,
    kind: Annotated[str | None, typer.Option(help=f"{', '.join(OPTIONS)} (default: from the other options).")] = None,
    smallest: Annotated[int | None, typer.Option(help="Fewest classes per step (free-flow; default: 1).")] = None,
    largest: Annotated[int | None, typer.Option(help="Most classes per step (free-flow; default: 15).")] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Intensity of the spectrum (free-flow); near 0, equal steps (default: 1.0).")
    ] = None,
    order: Annotated[
        str | None, typer.Option(help="jumbled, ascending, descending or given (default: jumbled; given with --sizes).")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sizes and their order (default: 0).")] = None,
    sizes: Annotated[str | None, typer.Option(help="Classes of each step, for example 1,4,2.")] = None,
    trace: Annotated[Path | None, typer.Option(help="CSV file of classes and the time each was first seen.")] = None,
    window: Annotated[
        str | None, typer.Option(help="Length of a step of a trace: 12h, 7d, or a number in its units (default: 1d).")
    ] = None,
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Write a figure to this file (svg, png or pdf).")] = None,
) -> None:
    """Draw a class-arrival schedule: the number of new classes at each step."""
    from ffcil import arrivals as schedules

    options: dict[str, Any] = {"classes": classes, "steps": steps, "smallest": smallest, "largest": largest}
    options |= {"alpha": alpha, "order": order, "seed": seed, "sizes": sizes, "trace": trace, "window": window}
    given = {name: value for name, value in options.items() if value is not None}
    kind = _kind(kind, given)
    drawn = {"classes": 100, "steps": 10} | given
    if kind == "equal":
        schedule = schedules.equal_arrivals(**drawn)
    elif kind == "half":
        schedule = schedules.half_arrivals(**drawn)
    elif kind == "trickle":
        schedule = schedules.trickle_arrivals(**drawn)
    elif kind == "free-flow":
        schedule = schedules.free_flow(**SPECTRUM | drawn)
    elif kind == "given":
        schedule = schedules.given_arrivals(**given | {"sizes": _parse_sizes(sizes)})
    elif trace is None:
        raise InputError("Arrivals of kind 'trace' need a file: add --trace FILE.csv.")
    else:
        schedule = schedules.from_trace(trace, window or "1d")
    if plot is not None:
        from ffcil.report.render.figures import plot_arrivals

        plot_arrivals(schedule, plot)
        print(f"wrote {plot}", file=sys.stderr)
    if as_json:
        print_json(schedule.to_json())
    else:
        encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
        print(schedule.draw(ascii=not encoding.startswith("utf")))


def _kind(kind: str | None, given: Mapping[str, Any]) -> str:
    """The given kind, or the one that other options imply. Options that it does not have are an error."""
    implied = "given" if "sizes" in given else "trace" if "trace" in given else "free-flow"
    kind = kind or implied
    if kind not in OPTIONS:
        raise unknown("kind of arrivals", kind, OPTIONS)
    for name in given:
        if name not in OPTIONS[kind]:
            raise InputError(f"--{name} does not apply to arrivals of kind {kind!r}: leave it out, or change --kind.")
    return kind


def _parse_sizes(text: str | None) -> list[int]:
    if not text:
        raise InputError("Arrivals of kind 'given' need sizes: add --sizes 1,4,2.")
    try:
        return [int(part) for part in text.strip("[] ").split(",")]
    except ValueError as error:
        raise InputError(f"Cannot read --sizes {text!r}: write whole numbers with commas, as in 1,4,2.") from error
