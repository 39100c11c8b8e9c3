"""`Plan`: a study with its jobs and its folder, and the listing of a dry run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import torch

from ffcil.errors import printable
from ffcil.runs.state import read_state
from ffcil.studies.estimate import RuntimeHistory, in_words
from ffcil.studies.executors.job import Job
from ffcil.studies.executors.loop import Executor
from ffcil.studies.study import Study, jobs_of, missing_data


@dataclass(frozen=True)
class Plan:
    """A study, its jobs, and its folder."""

    study: Study
    jobs: Sequence[Job]
    out: Path

    @classmethod
    def make(cls, study: Study, out: Path, device: str | None = None, logs: Sequence[str] = ()) -> Self:
        """Resolve the jobs of a study. Nothing is written."""
        return cls(study, jobs_of(study, out, device=device, logs=logs), out)

    @property
    def queued(self) -> list[Job]:
        """Jobs that are not done."""
        return [job for job in self.jobs if not job.done]

    def outline(self, executor: Executor) -> str:
        """`12 runs in out/runs, 9 queued, 2 at a time`"""
        queued = len(self.queued)
        parallel = f", {min(executor.slots, queued)} at a time" if executor.slots and queued else ""
        return f"{len(self.jobs)} runs in {self.out}/runs, {queued} queued{parallel}"


def default_out(recipe: str, datasets: Sequence[str]) -> Path:
    """`studies/NAME`, or the folder of `study.yaml` if that file belongs to a study that was started before."""
    path = Path(recipe)
    if path.name == "study.yaml" and (path.parent / "runs").is_dir():
        return path.parent
    return Path("studies") / "-".join([path.stem if path.suffix else recipe, *(Path(name).stem for name in datasets)])


def print_plan(plan: Plan, executor: Executor) -> None:
    """Print the runs, their state, and the time that they may take according to earlier runs."""
    device = plan.jobs[0].device or ("cuda" if torch.cuda.is_available() else "cpu")
    history = RuntimeHistory([plan.out, Path("runs"), Path("studies")], on_gpu=device != "cpu")
    estimates = {job: history.estimate(job.config) for job in plan.jobs}
    lines = [*_table(plan, estimates), plan.outline(executor), *_time_needed(plan, estimates, executor)]
    lines += [f"imports the Python code of {file}" for file in plan.study.imports]
    lines += [f"missing: {problem}" for problem in missing_data(plan.jobs)]
    print(printable("\n".join(lines)))


def _table(plan: Plan, estimates: Mapping[Job, float | None]) -> list[str]:
    """Lines of a table with the state and the estimated time of each run. It is not made by rich, which takes seconds
    for thousands of runs."""
    rows = [("run", "folder", "state", "time")]
    for job in plan.jobs:
        state, seconds = read_state(job.folder), estimates[job]
        progress = f"{len(state.records)} of {len(state.sizes)} steps" if state.sizes else "queued"
        time = in_words(seconds) if seconds else "?"
        rows.append((job.label, job.folder.name, *(("done", "") if state.done else (progress, time))))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return [plan.study.title, *lines, *filter(None, [plan.study.about])]


def _time_needed(plan: Plan, estimates: Mapping[Job, float | None], executor: Executor) -> list[str]:
    """Sentences on the time that the queued runs need, and on runs whose time cannot be estimated."""
    queued = {job: estimates[job] for job in plan.queued}
    unknown = [f"{job.config.method} on {job.recipe}" for job, seconds in queued.items() if seconds is None]
    left = sum(max(0.0, seconds - read_state(job.folder).seconds) for job, seconds in queued.items() if seconds)
    lines = []
    if left:
        parallel = min(executor.slots or 1, len(queued) - len(unknown))
        known = f" for {len(queued) - len(unknown)} of the {len(queued)} queued runs" if unknown else ""
        lines.append(f"about {in_words(left / parallel)}{known} ({in_words(left)} one after another)")
    if unknown:
        kinds = ", ".join(dict.fromkeys(unknown))
        lines.append(f"no earlier runs to estimate the time of {len(unknown)} runs: {kinds}")
    return lines
