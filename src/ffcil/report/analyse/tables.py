"""The comparison: results in named settings such as Equ.T and FF.org, and differences between runs with equal seeds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ffcil.errors import unknown
from ffcil.metrics import CountTable, average_accuracy, forgetting, last_accuracy
from ffcil.report.analyse.groups import Group, MethodResult, group_runs
from ffcil.report.analyse.matched import Partners, matched_of, partners
from ffcil.report.analyse.statistics import Change
from ffcil.report.read.records import WHOLE, Pairing, RunRecord, classifiers_of, setting_rank, settings_of

Metric = Literal["average", "last", "forgetting"]
METRICS: dict[Metric, Callable[[CountTable], float | None]] = {
    "average": average_accuracy,
    "last": last_accuracy,
    "forgetting": forgetting,
}
ACCURACIES: tuple[Metric, ...] = ("average", "last")
"""The two accuracies that the paper reports."""
BASELINES = {
    "FF.org": "Equ.T",
    "FF.ours": "FF.org",
    "FF.flow": "FF.org",
    "Equ.flow": "Equ.T",
    "Equ.ours": "Equ.T",
}
"""Setting with which each setting is compared."""
CAUSES = {
    "FF.org": "free flow instead of equal steps",
    "FF.ours": "the paper's framework under free flow",
    "FF.flow": "the framework flow under free flow",
    "Equ.flow": "the framework flow under equal steps",
    "Equ.ours": "the paper's framework under equal steps",
}
"""Cause of the difference between a setting and its baseline."""
HEADLINES = {"FF.org": "free flow", "FF.ours": "the paper's framework", "FF.flow": "flow"}
"""Settings whose differences from their baselines are drawn and put into words, with short names of the causes."""


@dataclass(frozen=True)
class Number:
    """One metric in one setting."""

    mean: float
    std: float | None
    """Sample standard deviation; None with a single run."""
    n: int
    """Number of runs."""
    change: Change | None


@dataclass(frozen=True)
class Cell:
    """Results of one setting in a row."""

    runs: int
    numbers: dict[Metric, Number | None]
    """None for a metric that cannot be measured, such as the forgetting of a single step."""

    @property
    def change(self) -> Change | None:
        """Change of the average accuracy: it gives the baseline and the number of pairs."""
        average = self.numbers["average"]
        return average.change if average else None


Cells = dict[str, Cell]


@dataclass(frozen=True, eq=False)
class Row(MethodResult):
    """Results of one method with one classifier on one data set and number of steps."""

    cells: Cells
    """Results by setting."""
    matched: dict[str, Change] = field(default_factory=dict)
    """Matched differences from Equ.T, by setting."""

    @property
    def data_label(self) -> str:
        """Name of the data set with its numbers of classes and steps."""
        return self.group.data_label

    def number(self, setting: str, metric: Metric) -> Number | None:
        """Result of a metric in a setting."""
        cell = self.cells.get(setting)
        return cell.numbers[metric] if cell else None

    def change(self, setting: str, metric: Metric) -> Change | None:
        """Difference of a metric between a setting and its baseline."""
        number = self.number(setting, metric)
        return number.change if number else None


@dataclass(frozen=True, eq=False)
class Effect:
    """Differences between a setting and its baseline in one row."""

    row: Row
    setting: str
    cause: str
    """What differs between the setting and its baseline."""
    changes: dict[Metric, Change]
    """Change of each of the two accuracies."""


def compare(runs: Sequence[RunRecord], classifier: str | None = None) -> list[Row]:
    """One row per data set, number of steps, method, condition and classifier; secondary points of sweeps come last.

    Only finished runs of the original method or of a whole framework count. `ablations` covers the other runs.
    """
    finished = [run for run in runs if run.finished]
    known = {name for run in finished for name in run.tables}
    if classifier is not None and finished and classifier not in known:
        raise unknown("classifier", classifier, known)
    rows, equal = [], partners(finished)
    for group in group_runs(finished):
        whole = [run for run in group.runs if run.parts.name in WHOLE]
        for name in classifiers_of(whole):
            if classifier in (None, name):
                rows.append(_row(group, [run for run in whole if name in run.tables], name, equal))
    return sorted(rows, key=lambda row: not row.group.is_main)


def effects(rows: Sequence[Row]) -> list[Effect]:
    """All effects on the two accuracies, wherever a setting and its baseline share seeds."""
    found = []
    for row in rows:
        for setting, cause in CAUSES.items():
            both = {metric: row.change(setting, metric) for metric in ACCURACIES}
            changes = {metric: change for metric, change in both.items() if change}
            if changes:
                found.append(Effect(row, setting, cause, changes))
    return found


def direction(metric: Metric, value: float) -> Literal["better", "worse", "same"]:
    """Whether a change, rounded to two decimals, is an improvement. Lower forgetting is better."""
    rounded = round(value, 2) * (-1 if metric == "forgetting" else 1)
    return "better" if rounded > 0 else "worse" if rounded < 0 else "same"


def settings_in(rows: Sequence[Row]) -> list[str]:
    """Settings that any of the rows has, in display order."""
    return sorted({setting for row in rows for setting in row.cells}, key=setting_rank)


Values = dict[str, dict[Pairing, dict[Metric, float | None]]]
"""Metrics by setting and by `RunRecord.pairing`."""


def cells_of(
    runs: Sequence[RunRecord], classifier: str, name: Callable[[RunRecord], str], baseline: Callable[[str], str]
) -> Cells:
    """Results of runs by their names, each compared with the results of a baseline.

    Args:
        name: Function from a run to its name, such as its setting.
        baseline: Function from a name to that of its baseline; empty for none.
    """
    values: Values = {}
    for run in runs:
        table = run.tables[classifier]
        values.setdefault(name(run), {})[run.pairing] = {metric: measure(table) for metric, measure in METRICS.items()}
    return {
        key: Cell(len(by_pairing), {metric: _number(values, key, metric, baseline(key)) for metric in METRICS})
        for key, by_pairing in values.items()
    }


def _row(group: Group, runs: list[RunRecord], classifier: str, equal: Partners) -> Row:
    cells = cells_of(runs, classifier, lambda run: run.setting, lambda setting: BASELINES.get(setting, ""))
    ordered = {setting: cells[setting] for setting in settings_of(runs)}
    matched = matched_of(group, runs, classifier, equal)
    changes = {setting: one.difference for setting, one in matched.items()}
    return Row(group, classifier, classifier == runs[0].scored, ordered, changes)


def _number(values: Values, setting: str, metric: Metric, versus: str) -> Number | None:
    """Mean and deviation over seeds, and the differences from the setting `versus` with the same seeds."""

    def measured(name: str) -> dict[Pairing, float]:
        by_pairing = {pairing: numbers[metric] for pairing, numbers in values.get(name, {}).items()}
        return {pairing: value for pairing, value in by_pairing.items() if value is not None and not np.isnan(value)}

    own, others = measured(setting), measured(versus)
    if not own:
        return None
    differences = tuple(value - others[pairing] for pairing, value in sorted(own.items()) if pairing in others)
    return Number(
        mean=float(np.mean(list(own.values()))),
        std=float(np.std(list(own.values()), ddof=1)) if len(own) > 1 else None,
        n=len(own),
        change=Change(differences, versus) if differences else None,
    )
