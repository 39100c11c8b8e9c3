"""Execution of a study: prepare the data, run the jobs, print the table and write the report."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console

from ffcil.data.sources import load_dataset
from ffcil.errors import InputError
from ffcil.report import Contents, terminal_table, write_report
from ffcil.report.read.records import read_runs
from ffcil.studies.estimate import in_words
from ffcil.studies.executors.job import LOG, Job
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.loop import Executor, run_jobs
from ffcil.studies.plan import Plan
from ffcil.studies.study import write_study
from ffcil.studies.watch import StudyProgress


def run_study(plan: Plan, executor: Executor) -> bool:
    """Execute the queued jobs, print the table and write the report. Return whether every run is complete."""
    start, console = time.perf_counter(), Console()
    console.out(f"{plan.study.title}\n{plan.outline(executor)}", highlight=False)
    failed = execute_jobs(plan, executor, console)
    done = len(plan.jobs) - len(plan.queued)
    damaged = _write_report(plan.out, plan.study.title, console) if done else []
    lines = [f"{done} of {len(plan.jobs)} runs done in {plan.out}/runs  ({in_words(time.perf_counter() - start)})"]
    lines += [f"failed: {job.label}: {reason} ({job.folder / LOG})" for job, reason in failed.items()]
    lines += [f"left out of the table: {reason}" for reason in damaged]
    console.out("\n".join(lines), highlight=False)
    return not failed and not damaged


def execute_jobs(plan: Plan, executor: Executor, console: Console) -> dict[Job, str]:
    """Execute the queued jobs and show their progress. Return the reasons of those that failed."""
    if isinstance(executor, LocalExecutor):
        _prepare_data(plan.queued)
    write_study(plan.study, plan.out)
    with StudyProgress(console, plan.jobs) as progress:
        return run_jobs(plan.jobs, executor, progress)


def _prepare_data(jobs: Iterable[Job]) -> None:
    """Draw, download or decode every data set once, before the runs share it."""
    wanted = {(job.config.dataset, job.data, job.config.image_size): job.recipe for job in jobs}
    for (dataset, data, image_size), recipe in wanted.items():
        try:
            load_dataset(dataset, data, image_size)
        except InputError as error:
            raise InputError(f"{recipe}: {error}") from error


def _write_report(out: Path, title: str, console: Console) -> list[str]:
    """Write what `ffcil report` makes of the study's folder. Return a sentence for every run that cannot be read."""
    runs, damaged = read_runs(out / "runs")
    contents = Contents.from_runs(runs)
    if contents.rows:
        console.print(terminal_table(contents.rows))
    write_report(contents, out / "report", title, shlex.join(["ffcil", "report", str(out), "--title", title]))
    console.out(f"Open {(out / 'report' / 'report.html').resolve().as_uri()}", highlight=False)
    return damaged
