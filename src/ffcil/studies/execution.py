"""Carrying a study out: before it, the list of its runs; while it runs, the view; after it, the table and the page."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from ffcil.data.sources import load_dataset
from ffcil.errors import InputError
from ffcil.report import Contents, compare, load_run, terminal_table, write_page, write_report
from ffcil.report.read.records import read_runs
from ffcil.runs.state import read_state
from ffcil.studies.estimate import RuntimeHistory, in_words
from ffcil.studies.executors.job import LOG, Job
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.loop import Executor, run_jobs
from ffcil.studies.study import Study, missing_data, write_study
from ffcil.studies.watch import Watch

PLAIN: Mapping[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False}
"""how a console prints a sentence with paths in it"""


def default_out(recipe: str, datasets: Sequence[str]) -> Path:
    """`studies/` and the study's name; the folder itself for the study.yaml of one that has begun."""
    path = Path(recipe)
    if path.name == "study.yaml" and (path.parent / "runs").is_dir():
        return path.parent
    return Path("studies") / "-".join([path.stem if path.suffix else recipe, *(Path(name).stem for name in datasets)])


def make_executor(
    name: str,
    device: str | None,
    jobs: int | None,
    per_gpu: int | None = None,
    *,
    address: str | None = None,
    slurm: Mapping[str, Any] | None = None,
    runs: int | None = None,
) -> Executor:
    """By name: local, ray or slurm; for so many runs. An option that only another one has is an error."""
    if address and name != "ray":
        raise InputError("--address is a Ray cluster's: add --executor ray.")
    if slurm and name != "slurm":
        raise InputError("--slurm has no meaning here: add --executor slurm.")
    if name == "ray":
        from ffcil.studies.executors.ray import RayExecutor

        return RayExecutor(device, jobs, per_gpu, address)
    if name == "slurm":
        from ffcil.studies.executors.slurm import SlurmExecutor

        if per_gpu:
            raise InputError("--per-gpu has no meaning under SLURM, which gives a job its own: leave it out.")
        return SlurmExecutor(device, jobs, slurm or {})
    return LocalExecutor(device, jobs, per_gpu, runs)


def list_runs(study: Study, jobs: Sequence[Job], out: Path, executor: Executor) -> None:
    """What the study would do, and how long that may take by the records of earlier runs."""
    device = jobs[0].device or ("cuda" if torch.cuda.is_available() else "cpu")
    history = RuntimeHistory([out, Path("runs"), Path("studies")], on_gpu=device != "cpu")
    folder = Column("folder", overflow="fold")  # whole, whatever the room
    table = Table("run", folder, "state", "time", title=Text(study.title), caption=Text(study.about), box=None)
    left, unknown = 0.0, list[str]()
    for job in jobs:
        state = read_state(job.folder)
        seconds = history.estimate(job.config)
        begun = f"{len(state.records)} of {len(state.sizes)} steps" if state.sizes else "to run"
        table.add_row(
            Text(job.label),
            job.folder.name,
            "done" if state.done else begun,
            "" if state.done else in_words(seconds) if seconds else "?",
        )
        if not state.done and seconds is None:
            unknown.append(f"{job.config.method} on {job.recipe}")
        elif seconds is not None and not state.done:
            left += max(0.0, seconds - state.seconds)
    console = Console()
    if not console.is_terminal:
        console.width = 10_000  # the table takes what it needs, and a file has room
    console.print(table)
    console.print(_outline(jobs, out, executor), **PLAIN)
    if left:
        at_a_time = min(executor.slots or 1, sum(not job.done for job in jobs))
        console.print(f"about {in_words(left / at_a_time)} ({in_words(left)} one after another)", **PLAIN)
    if unknown:
        kinds = ", ".join(dict.fromkeys(unknown))
        console.print(f"no earlier records to tell the time of {len(unknown)} runs by: {kinds}", **PLAIN)
    for problem in missing_data(jobs):
        console.print(f"missing: {problem}", **PLAIN)


def _outline(jobs: Sequence[Job], out: Path, executor: Executor) -> str:
    to_run = sum(not job.done for job in jobs)
    how = f", {min(executor.slots, to_run)} at a time" if executor.slots and to_run else ""
    return f"{len(jobs)} runs in {out}/runs, {to_run} of them to run{how}"


def run_study(study: Study, jobs: Sequence[Job], out: Path, executor: Executor) -> bool:
    """Carry out what is missing, then show the table and write the page. Returns whether every run is there."""
    start, console = time.perf_counter(), Console()
    console.print(f"{study.title}\n{_outline(jobs, out, executor)}", **PLAIN)
    failed = carry_out(study, jobs, out, executor, console)
    done = sum(job.done for job in jobs)
    damaged = _write_report(out, study.title, console) if done else []
    console.print(f"{done} of {len(jobs)} runs done in {out}/runs  ({in_words(time.perf_counter() - start)})", **PLAIN)
    for job, why in failed.items():
        console.print(f"failed: {job.label}: {why} ({job.folder / LOG})", **PLAIN)
    for why in damaged:
        console.print(f"left out of the table: {why}", **PLAIN)
    return not failed and not damaged


def carry_out(study: Study, jobs: Sequence[Job], out: Path, executor: Executor, console: Console) -> dict[Job, str]:
    """Run the jobs that are not done, in view of the console."""
    if isinstance(executor, LocalExecutor):
        _prepare_data([job for job in jobs if not job.done])
    write_study(study, out)
    with Watch(console, jobs) as watch:
        return run_jobs(jobs, executor, watch)


def _prepare_data(jobs: Sequence[Job]) -> None:
    """Data sets are drawn, downloaded or decoded once, before the runs share them."""
    wanted = {(job.config.dataset, job.data, job.config.image_size): job.recipe for job in jobs}
    for (dataset, data, image_size), recipe in wanted.items():
        try:
            load_dataset(dataset, data, image_size)
        except InputError as error:
            raise InputError(f"{recipe}: {error}") from error


def _write_report(out: Path, title: str, console: Console) -> list[str]:
    """What `ffcil report` makes of the study's folder. Returns what is wrong with runs that cannot be read."""
    runs, damaged = read_runs(out / "runs")
    contents = Contents.from_runs(runs)
    if contents.rows:
        console.print(terminal_table(contents.rows))
    write_report(contents, out / "report", title, shlex.join(["ffcil", "report", str(out), "--title", title]))
    console.print(f"Open {(out / 'report' / 'report.html').resolve().as_uri()}", **PLAIN)
    return damaged


def show_results(jobs: Sequence[Job], out: Path, title: str, console: Console) -> str:
    """The table here, and `report.html` in the study's folder; gives the page's address."""
    runs = [load_run(job.folder) for job in jobs if job.done]
    console.print(terminal_table(compare(runs)))
    return write_page(runs, out / "report.html", title=title).resolve().as_uri()
