"""`ffcil study`: many runs from one line."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ffcil.commands.options import Assignments, Device, Imports, Logs, listed, stoppable
from ffcil.errors import InputError, unknown

EXECUTORS = ("local", "ray", "slurm")


def study(
    recipe: Annotated[
        str,
        typer.Argument(
            help="table-main, table-ablation, figure-alpha, figure-order, figure-overhead, or a YAML file of your own."
        ),
    ],
    dataset: Annotated[
        list[str] | None,
        typer.Option(
            help="Recipe(s) of runs, such as cifar100 or glyphs: the part of the study that has it, "
            "or in place of the study's where none has."
        ),
    ] = None,
    methods: Annotated[list[str] | None, typer.Option(help="Only these, or others: icarl,der.")] = None,
    seeds: Annotated[str | None, typer.Option(help="5 (0 to 4), 2-4, or 0,3 (default: the study's).")] = None,
    assignments: Assignments = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the study (default: studies/NAME).")] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="[RECIPE=]PATH", help="Files of the data set, of one recipe or of all."),
    ] = None,
    device: Device = None,
    executor: Annotated[str, typer.Option(help="local (processes here), ray or slurm.")] = "local",
    jobs: Annotated[str, typer.Option(help="Runs at a time; auto: as the executor sees fit.")] = "auto",
    per_gpu: Annotated[
        int | None,
        typer.Option("--per-gpu", min=1, help="Runs that share a GPU (default: 8 here where MPS is, else 1)."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster, or auto to find it (default: one is started here).")
    ] = None,
    slurm: Annotated[
        list[str] | None,
        typer.Option("--slurm", metavar="KEY=VALUE", help="For submitit: slurm_partition=gpu, timeout_min=600."),
    ] = None,
    logs: Logs = None,
    imports: Imports = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs and the time they may take; stop.")] = False,
) -> None:
    """Run a grid of methods, settings and seeds; started again, it continues what is missing."""
    if executor not in EXECUTORS:
        raise unknown("executor", executor, EXECUTORS)
    at_a_time, chosen_seeds = _jobs(jobs), _seeds(seeds)
    from ffcil.methods import load_methods
    from ffcil.runs.loggers import check_logs
    from ffcil.studies.execution import default_out, list_runs, make_executor, run_study
    from ffcil.studies.study import jobs_of, load_study, narrow

    check_logs(listed(logs))
    found = load_study(recipe)
    # by whole paths, each once: a study that is continued may keep the file that is named again
    files = dict.fromkeys((*found.imports, *map(os.path.abspath, imports or [])))
    for file in files:
        load_methods(file)
    wanted = narrow(
        found,
        datasets=listed(dataset),
        methods=listed(methods),
        seeds=chosen_seeds,
        assignments=assignments or [],
        data=data or [],
        imports=list(files),
    )
    out = out or default_out(recipe, listed(dataset))
    runs = jobs_of(wanted, out, device=device, logs=listed(logs))
    if wanted.alone and at_a_time not in (None, 1):
        raise InputError("This study measures time, and its runs are made one after another: leave --jobs out.")
    made = make_executor(
        executor,
        device,
        1 if wanted.alone else at_a_time,
        per_gpu,
        address=address,
        slurm=_pairs(slurm),
        runs=sum(not run.done for run in runs),
    )
    if dry_run:
        list_runs(wanted, runs, out, made)
        return
    with stoppable():
        whole = run_study(wanted, runs, out, made)
    if not whole:
        raise typer.Exit(1)


def _jobs(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"Cannot read --jobs {text!r}: give a number of runs at a time, or auto.")
    return int(text)


def _seeds(text: str | None) -> list[int]:
    """`3` is 0, 1, 2, as for the demo; `2-4` and `0,3` are themselves."""
    if text is None:
        return []
    try:
        if text.isdecimal():
            seeds = list(range(int(text)))
        elif "-" in text:
            first, last = (int(part) for part in text.split("-"))
            seeds = list(range(first, last + 1))
        else:
            seeds = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        seeds = []
    if not seeds or min(seeds) < 0:
        raise InputError(f"Cannot read --seeds {text!r}: give how many (5), a range (2-4) or a list (0,3).")
    return seeds


def _pairs(texts: list[str] | None) -> dict[str, str | int]:
    pairs: dict[str, str | int] = {}
    for text in texts or []:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InputError(f"Cannot read --slurm {text!r}: write it as key=value, for example timeout_min=600.")
        pairs[key] = int(value) if value.isdecimal() else value
    return pairs
