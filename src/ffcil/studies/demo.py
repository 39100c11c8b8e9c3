"""The demo: the paper's three settings on the embedded data set, as a small study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ffcil.errors import InputError
from ffcil.methods import find_method
from ffcil.report import compare, load_run, terminal_table, write_page
from ffcil.studies.execution import execute_jobs
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.plan import Plan
from ffcil.studies.study import load_study, narrow


def run_demo(method: str, seeds: int, out: Path, assignments: Sequence[str], jobs: int | None = None) -> None:
    """Run every setting with every seed, `jobs` runs at a time; print a table and write `report.html`."""
    start, console = time.perf_counter(), Console()
    study = narrow(load_study("demo"), methods=[method], seeds=range(seeds), assignments=assignments, called="demo")
    if "dataset" in study.set:
        raise InputError("The demo sets dataset itself: use `ffcil run` or `ffcil study`.")
    plan = Plan.make(study, out, "cpu")
    console.out(
        f"{method} on glyphs: {' and '.join(study.groups[0].settings)}, {seeds} seed(s) each, in {out}/\n"
        "Equ.T: equal steps; FF.org: free-flow steps, the original method; FF.ours: the same with the framework.",
        highlight=False,
    )
    if failed := execute_jobs(plan, LocalExecutor("cpu", jobs), console):
        job, reason = next(iter(failed.items()))
        raise InputError(f"{job.label}: {reason}")
    runs = [load_run(job.folder) for job in plan.jobs]
    console.print(terminal_table(compare(runs)))
    page = write_page(runs, out / "report.html", title=f"ffcil demo: {find_method(method).title} under free flow")
    console.out(f"Open {page.resolve().as_uri()}  ({time.perf_counter() - start:.0f} s)", highlight=False)
