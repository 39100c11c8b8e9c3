"""`ffcil demo`: the paper's three settings on the embedded data set, then a table and a page. It is a small study."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from ffcil.errors import InputError
from ffcil.methods import find_method
from ffcil.studies.execution import PLAIN, carry_out, show_results
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.study import jobs_of, load_study, narrow


def run_demo(method: str, seeds: int, out: Path, assignments: Sequence[str], jobs: int | None = None) -> None:
    """Run the settings on every seed, `jobs` at a time; write the table and the page. Started again, it continues."""
    start, console = time.perf_counter(), Console()
    study = narrow(load_study("demo"), methods=[method], seeds=range(seeds), assignments=assignments, called="demo")
    if "dataset" in study.set:
        raise InputError("The demo sets dataset itself: use `ffcil run` or `ffcil study`.")
    runs = jobs_of(study, out, device="cpu")
    console.print(
        f"{method} on glyphs: {' and '.join(study.groups[0].settings)}, {seeds} seed(s) each, in {out}/\n"
        "Equ.T: equal steps; FF.org: free-flow steps, the original method; FF.ours: the same with the framework.",
        highlight=False,
        markup=False,
    )
    if failed := carry_out(study, runs, out, LocalExecutor("cpu", jobs), console):
        job, why = next(iter(failed.items()))
        raise InputError(f"{job.label}: {why}")
    page = show_results(runs, out, f"ffcil demo: {find_method(method).title} under free flow", console)
    console.print(f"Open {page}  ({time.perf_counter() - start:.0f} s)", **PLAIN)
