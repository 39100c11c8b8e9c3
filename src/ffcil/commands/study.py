"""`ffcil study` and `ffcil demo`: many runs from one command."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ffcil.commands.options import Assignments, Device, Imports, Logs, Texts, import_methods, listed
from ffcil.commands.output import stoppable
from ffcil.errors import InputError, printable


def study(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML file, or one of table-main, table-flow, table-ablation, figure-alpha, figure-order, "
            "figure-overhead and sensitivity."
        ),
    ],
    dataset: Annotated[Texts, typer.Option(help="Run only these recipes; they need not be in the study.")] = None,
    methods: Annotated[Texts, typer.Option(help="Run only these methods; they need not be in the study.")] = None,
    settings: Annotated[Texts, typer.Option(help="Run only these settings, for example FF.org,FF.flow.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds: 5 (0 to 4), 2-4 or 0,3,7-9 (default: the study's).")] = None,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the study (default: studies/NAME).")] = None,
    data: Annotated[Texts, typer.Option(metavar="[RECIPE=]PATH", help="Data set of one recipe, or of all.")] = None,
    device: Device = None,
    executor: Annotated[str, typer.Option(help="local (processes on this machine), ray or slurm.")] = "local",
    jobs: Annotated[str, typer.Option(help="Number of runs at a time, or auto.")] = "auto",
    per_gpu: Annotated[int | None, typer.Option(min=1, help="Runs per GPU (default: 8 with MPS, else 1).")] = None,
    address: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or auto (default: start one).")] = None,
    slurm: Annotated[Texts, typer.Option(metavar="KEY=VALUE", help="Parameter of submitit: timeout_min=600.")] = None,
    patience: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="MINUTES", help="End and resume a run without progress for this time."),
    ] = None,
    logs: Logs = None,
    imports: Imports = None,
    trust: Annotated[bool, typer.Option("--trust", help="Run the Python files that the study file imports.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs, estimate their time, and stop.")] = False,
) -> None:
    """Run a grid of methods, settings and seeds. The same command resumes an interrupted study."""
    at_a_time, numbers, slurm_parameters = _parse_jobs(jobs), _parse_seeds(seeds), _parse_pairs(slurm)
    recipes, names, columns = listed(dataset), listed(methods), listed(settings)
    changes, paths = assignments or [], data or []
    from ffcil.runs.loggers import check_logs
    from ffcil.studies.execution import make_executor, run_study
    from ffcil.studies.plan import Plan, default_out, print_plan
    from ffcil.studies.study import load_study, narrow

    check_logs(listed(logs))
    grid = load_study(recipe)
    # absolute paths without duplicates, because a continued study may already list a file that is given again
    asked = list(map(os.path.abspath, imports or []))
    if not _may_run(recipe, [] if trust else [file for file in grid.imports if file not in asked], dry_run):
        return
    files = list(dict.fromkeys((*grid.imports, *asked)))
    import_methods(files)
    grid = narrow(
        grid,
        datasets=recipes,
        methods=names,
        settings=columns,
        seeds=numbers,
        assignments=changes,
        data=paths,
        imports=files,
    )
    if grid.alone and at_a_time not in (None, 1):
        raise InputError("This study measures time, so its runs are executed one after another: leave --jobs out.")
    plan = Plan.make(grid, out or default_out(recipe, recipes), device, listed(logs))
    slots, queued = 1 if grid.alone else at_a_time, len(plan.queued)
    chosen = make_executor(executor, device, slots, per_gpu, address, slurm_parameters, queued)
    if dry_run:
        print_plan(plan, chosen)
        return
    with stoppable():
        if not run_study(plan, chosen, patience and 60 * patience):
            raise typer.Exit(1)


def _may_run(recipe: str, foreign: list[str], dry_run: bool) -> bool:
    """Whether the study can be run or listed without code that the user has not confirmed.

    `foreign` are Python files that only the study file names. If there are any, that is an error; a dry run prints
    them."""
    if not foreign:
        return True
    code, remedy = f"{recipe} imports Python code: {', '.join(foreign)}", "--trust, or --import FILE for each file"
    if not dry_run:
        raise InputError(f"{code}: read it, then add {remedy}.")
    print(printable(f"{code}\nThe code was not run, and the runs are not listed: read it, then add {remedy}."))
    return False


def demo(
    method: Annotated[str, typer.Option(help="Name of a method; `ffcil methods` lists them.")] = "icarl",
    seeds: Annotated[int, typer.Option(help="Number of seeds per setting.", min=1)] = 2,
    out: Annotated[Path, typer.Option(help="Folder of the runs and of report.html.")] = Path("demo"),
    assignments: Assignments = None,
    jobs: Annotated[int | None, typer.Option(help="Number of runs at a time (default: one per core).", min=1)] = None,
) -> None:
    """Run the settings Equ.T, FF.org, FF.ours and FF.flow on the embedded data set; print a table and write a page."""
    from ffcil.studies.execution import run_demo

    with stoppable():
        run_demo(method, seeds, out, assignments or [], jobs)


def _parse_jobs(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"Cannot read --jobs {text!r}: give a number of runs at a time, or auto.")
    return int(text)


def _parse_seeds(text: str | None) -> list[int]:
    """`3` means 0, 1, 2; `2-4` is a range; `0,3,7-9` is a list."""
    if text is None:
        return []
    seeds: list[int] = []
    try:
        for part in filter(None, map(str.strip, text.split(","))):
            first, dash, last = part.partition("-")
            seeds += range(int(first), int(last) + 1) if dash else [int(part)]
    except ValueError:
        seeds = []
    if text.isdecimal():
        seeds = list(range(int(text)))
    if not seeds or min(seeds) < 0:
        raise InputError(
            f"Cannot read --seeds {text!r}: give a number of seeds (5), a range (2-4) or a list (0,3,7-9)."
        )
    return seeds


def _parse_pairs(texts: Texts) -> dict[str, str | int]:
    pairs: dict[str, str | int] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"Cannot read --slurm {text!r}: write it as key=value, for example timeout_min=600.")
        pairs[key] = int(value) if value.isdecimal() else value
    return pairs
