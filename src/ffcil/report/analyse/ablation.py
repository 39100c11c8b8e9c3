"""The ablation: the original method, the whole framework, and what lies between them, part by part."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Sequence
from dataclasses import dataclass

from ffcil.report.analyse.groups import Group, group_runs
from ffcil.report.analyse.tables import METRICS, SYMBOLS, Cell, cells_of, pipes, plain, runs_text
from ffcil.report.read.parts import Parts
from ffcil.report.read.records import RunRecord, classifiers_of

ARROWS = "Arrows: against the original method, the mean difference of runs with the same seeds."


@dataclass(frozen=True)
class Ablation:
    """One method with its scored classifier under one schedule: a line for each choice of parts."""

    group: Group
    classifier: str
    schedule: str
    lines: tuple[tuple[Parts, Cell], ...]
    """In the order of `Parts.rank`; every cell's change is against the original method, over the same seeds."""

    @property
    def label(self) -> str:
        return self.group.method_label(self.classifier)

    @property
    def schedule_label(self) -> str:
        return {"Equ": "equal steps", "FF": "free flow"}.get(self.schedule, self.schedule)

    @property
    def data_label(self) -> str:
        return f"{self.group.data_label}, {self.schedule_label}"


def ablations(runs: Sequence[RunRecord]) -> list[Ablation]:
    """Every group and schedule that has a run with some parts of the framework but not the whole."""
    made = []
    for group in group_runs(run for run in runs if run.finished):
        for schedule in dict.fromkeys(run.schedule for run in group.runs):
            mine = [run for run in group.runs if run.schedule == schedule]
            if any(run.parts.name not in ("org", "ours") for run in mine):
                made.append(_ablation(group, schedule, mine))
    return made


def _ablation(group: Group, schedule: str, runs: list[RunRecord]) -> Ablation:
    classifier = classifiers_of(runs)[0]
    runs = [run for run in runs if classifier in run.tables]
    parts = {run.parts.name: run.parts for run in runs}
    cells = cells_of(runs, classifier, lambda run: run.parts.name, lambda name: "" if name == "org" else "org")
    lines = sorted(((parts[name], cell) for name, cell in cells.items()), key=lambda line: line[0].rank)
    return Ablation(group, classifier, schedule, tuple(lines))


def shown_name(parts: Parts) -> str:
    """`original`, `CWM`, `CWM + DIWA`: the whole, too, by its parts."""
    if parts.name == "ours":
        return "CWM + HA" if parts.ha else "CWM + DIWA"
    return "original" if parts.name == "org" else parts.name


def markdown(made: Sequence[Ablation]) -> str:
    """A line for each method and choice of parts; arrows are against the original method, over the same seeds."""
    lines = [pipes(["Data", "Method", "Parts", *SYMBOLS.values(), "n"]), pipes(["---"] * 3 + ["---:"] * 4)]
    for one in made:
        for parts, cell in one.lines:
            numbers = [plain(cell.numbers[metric]) for metric in METRICS]
            lines.append(pipes([one.data_label, one.label, shown_name(parts), *numbers, runs_text(cell)]))
    return "\n".join([*lines, "", ARROWS]) + "\n"


def csv(made: Sequence[Ablation]) -> str:
    """Full precision, a line for each method and choice of parts."""
    out = io.StringIO()
    writer = csv_format.writer(out, lineterminator="\n")
    head = ["dataset", "classes", "steps", "schedule", "method", "condition", "classifier", "parts", "runs", "pairs"]
    writer.writerow([*head, *(f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_change"))])
    for one in made:
        group = one.group
        about = [group.dataset, group.classes, group.steps, one.schedule, group.runs[0].method, group.label]
        for parts, cell in one.lines:
            average = cell.numbers["average"]
            pairs = average.change.pairs if average and average.change else None
            values: list[object] = [*about, one.classifier, shown_name(parts), cell.runs, pairs]
            for number in cell.numbers.values():
                values += [number.mean, number.std] if number else [None, None]
                values.append(number.change.value if number and number.change else None)
            writer.writerow(values)
    return out.getvalue()
