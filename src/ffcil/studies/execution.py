"""Execution of a study or of the demo: prepare the data, run the jobs, print the table and write the report."""

import shlex
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console

from ffcil.data.sources import load_dataset
from ffcil.errors import InputError, printable, unknown
from ffcil.methods import find_method
from ffcil.studies.estimate import in_words
from ffcil.studies.executors.job import LOG, Job
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.loop import Executor, run_jobs
from ffcil.studies.executors.ray import RayExecutor
from ffcil.studies.executors.slurm import SlurmExecutor
from ffcil.studies.plan import Plan
from ffcil.studies.study import Fields, load_study, narrow, write_study
from ffcil.studies.watch import StudyProgress

EXECUTORS = ("local", "ray", "slurm")


def make_executor(
    name: str, device: str | None, jobs: int | None, per_gpu: int | None, address: str | None, slurm: Fields, runs: int
) -> Executor:
    """Make an executor for `runs` runs, `jobs` at a time. An option of another executor is an error."""
    if name not in EXECUTORS:
        raise unknown("executor", name, EXECUTORS)
    if address and name != "ray":
        raise InputError("--address is an option of Ray: add --executor ray.")
    if slurm and name != "slurm":
        raise InputError("--slurm is an option of SLURM: add --executor slurm.")
    if name == "ray":
        return RayExecutor(device, jobs, per_gpu, address)
    if name == "slurm":
        if per_gpu:
            raise InputError("--per-gpu is not supported by SLURM, which gives every job its own GPU: leave it out.")
        return SlurmExecutor(device, jobs, slurm)
    return LocalExecutor(device, jobs, per_gpu, runs)


def run_study(plan: Plan, executor: Executor, patience: float | None = None) -> bool:
    """Execute the queued jobs, print the table and write the report. Returns whether every run is finished.

    A run without progress for `patience` seconds is ended and resumed."""
    start, console = time.perf_counter(), Console()
    console.out(f"{plan.study.title}\n{plan.outline(executor)}", highlight=False)
    failed = execute_jobs(plan, executor, console, patience)
    done = len(plan.jobs) - len(plan.queued)
    damaged = _write_report(plan.out, plan.study.title, console) if done else []
    lines = [f"{done} of {len(plan.jobs)} runs done in {plan.out}/runs  ({in_words(time.perf_counter() - start)})"]
    lines += [f"failed: {job.label}: {reason} ({job.folder / LOG})" for job, reason in failed.items()]
    lines += [f"left out of the table: {reason}" for reason in damaged]
    console.out(printable("\n".join(lines)), highlight=False)
    return not failed and not damaged


def run_demo(method: str, seeds: int, out: Path, assignments: Sequence[str], jobs: int | None) -> None:
    """Run the four settings of the demo on the embedded data set, `jobs` runs at a time; write a table and a page."""
    from ffcil.report import compare, load_run, terminal_table, write_page

    start, console = time.perf_counter(), Console()
    study = narrow(load_study("demo"), methods=[method], seeds=range(seeds), assignments=assignments, called="demo")
    if "dataset" in study.set:
        raise InputError("The demo sets dataset itself: use `ffcil run` or `ffcil study`.")
    plan = Plan.make(study, out, "cpu")
    console.out(
        f"{method} on glyphs: {' and '.join(study.groups[0].settings)}, {seeds} seed(s) each, in {out}/\n"
        "Equ.T: equal steps; FF.org: free-flow steps, the original method; FF.ours: with the paper's framework; "
        "FF.flow: with the framework flow.",
        highlight=False,
    )
    if failed := execute_jobs(plan, LocalExecutor("cpu", jobs), console):
        job, reason = next(iter(failed.items()))
        raise InputError(f"{job.label}: {reason}")
    runs = [load_run(job.folder) for job in plan.jobs]
    console.print(terminal_table(compare(runs)))
    page = write_page(runs, out / "report.html", title=f"ffcil demo: {find_method(method).title} under free flow")
    console.out(f"Open {page.resolve().as_uri()}  ({time.perf_counter() - start:.0f} s)", highlight=False)


def execute_jobs(plan: Plan, executor: Executor, console: Console, patience: float | None = None) -> dict[Job, str]:
    """Execute the queued jobs and show their progress. Returns the reasons of those that failed."""
    if isinstance(executor, LocalExecutor):
        _prepare_data(plan.queued)
    write_study(plan.study, plan.out)
    with StudyProgress(console, plan.jobs) as progress:
        return run_jobs(plan.jobs, executor, progress, patience=patience)


def _prepare_data(jobs: Iterable[Job]) -> None:
    """Draw, download or decode every data set once, before the runs share it."""
    wanted = {(job.config.dataset, job.data, job.config.image_size): job.recipe for job in jobs}
    for place, recipe in wanted.items():
        try:
            load_dataset(*place)
        except InputError as error:
            raise InputError(f"{recipe}: {error}") from error


def _write_report(out: Path, title: str, console: Console) -> list[str]:
    """Write the report of the study's folder, as `ffcil report` does. Returns a sentence for every run that cannot be
    read."""
    from ffcil.report import Contents, terminal_table, write_report  # here, so that a dry run does not import them
    from ffcil.report.read.records import read_runs
    from ffcil.report.render.sensitivity import sensitivity_terminal

    runs, damaged = read_runs(out / "runs")
    contents = Contents.from_runs(runs)
    if contents.rows:
        console.print(terminal_table(contents.rows))
    if contents.sensitivities:
        console.print(sensitivity_terminal(contents.sensitivities))
    write_report(contents, out / "report", title, shlex.join(["ffcil", "report", str(out), "--title", title]))
    console.out(f"Open {(out / 'report' / 'report.html').resolve().as_uri()}", highlight=False)
    return damaged
