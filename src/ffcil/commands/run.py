"""`ffcil run`: one configuration."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ffcil.commands.options import AsJson, Assignments, Data, Device, Imports, Logs, import_methods, listed
from ffcil.commands.output import print_json, stoppable


def run(
    recipe: Annotated[str, typer.Argument(help="Name of a recipe, or a file: YAML, or one of PyCIL or PILOT.")],
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run (default: runs/NAME-HASH).")] = None,
    data: Data = None,
    device: Device = None,
    devices: Annotated[
        int,
        typer.Option(
            help="Number of GPUs, or of processes on a CPU, that share every batch; not for pre-trained methods.", min=1
        ),
    ] = 1,
    threads: Annotated[
        int | None, typer.Option(help="Number of CPU threads of each process (default: they share all cores).", min=1)
    ] = None,
    imports: Imports = None,
    logs: Logs = None,
    as_json: AsJson = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved configuration and stop.")] = False,
) -> None:
    """Run one configuration. The same command resumes an interrupted run; a finished run is not repeated."""
    from ffcil.config.resolve import not_carried_over, parse_assignments, resolve
    from ffcil.data.sources import find_source

    import_methods(imports)
    overrides = parse_assignments(assignments or [])
    config = resolve(recipe, overrides)
    find_source(config.dataset)  # an unknown name is also an error of a dry run
    if unused := not_carried_over(recipe, overrides):
        print(f"ffcil: these fields of {recipe} are not used: {', '.join(unused)}.", file=sys.stderr)
    from rich.console import Console

    from ffcil.runs.loggers import listeners
    from ffcil.runs.progress import CompositeListener, ConsoleProgress, ProgressFile
    from ffcil.runs.run import Run

    console = ConsoleProgress(Console(stderr=True))
    listener = CompositeListener(console, ProgressFile(), *listeners(listed(logs), config))
    made = Run(config, out, data=data, device=device, devices=devices, threads=threads, listener=listener)
    if dry_run:
        print_json(made.config.model_dump(mode="json"))
        return
    with stoppable():
        summary = made.execute()
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)


def _print_summary(summary: Mapping[str, Any]) -> None:
    from ffcil.runs.progress import format_speed

    for name, metrics in summary["classifiers"].items():
        scored = " (scored)" if name == summary["scored"] else ""
        values = {key: metrics[key] for key in ("average", "last", "forgetting") if metrics[key] is not None}
        figures = ", ".join(f"{key} {value:.2f} %" for key, value in values.items())
        print(f"{name}{scored}: {figures or 'no test images'}")
    print(f"{summary['folder']}  {format_speed(summary['seconds'], summary['images_per_second'])}")
