"""Arrival sensitivity: the accuracy after the last step of one class permutation under several schedules."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffcil.metrics import last_accuracy
from ffcil.report.analyse.groups import condition_label, conditions, titles
from ffcil.report.analyse.image_sets import data_labels, image_sets
from ffcil.report.analyse.schedules import ScheduleNames, schedule_names
from ffcil.report.analyse.statistics import Change
from ffcil.report.read.records import RunRecord, classifiers_of

FEWEST = 3
"""Fewest schedules of one class permutation whose spread is reported."""
FRAMEWORKS = {"org": "none", "ours": "paper", "flow": "flow"}
"""Values of `framework`, by the name of the parts that they turn on."""


@dataclass(frozen=True)
class Permutation:
    """Accuracies after the last step for one class permutation and one training seed."""

    class_seed: int
    train_seed: int
    last: dict[str, float]
    """A_T by the name of the schedule."""

    @property
    def range(self) -> float:
        """Largest minus smallest A_T."""
        return max(self.last.values()) - min(self.last.values())

    @property
    def std(self) -> float:
        """Sample standard deviation of A_T over the schedules."""
        return float(np.std(list(self.last.values()), ddof=1))


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Sensitivity of one method with one classifier under one framework. All permutations have the same schedules."""

    method: str
    title: str
    """Name of the method with its classifier."""
    condition: str
    """Fields that distinguish these runs from others of the same method and framework, in words."""
    classifier: str
    scored: bool
    """Whether this classifier is the one that scores the method."""
    framework: str
    """`none`, `paper`, `flow`, or the names of the parts that were on."""
    permutations: tuple[Permutation, ...]
    baseline: tuple[Permutation, ...] = ()
    """Permutations of the same method without the framework; empty for that method itself."""

    @property
    def label(self) -> str:
        """Name of the method with its classifier and condition."""
        return f"{self.title} ({self.condition})" if self.condition else self.title

    @property
    def setting(self) -> str:
        """Setting of these runs under free flow, from which other figures take their colour."""
        settings = {"none": "FF.org", "paper": "FF.ours", "flow": "FF.flow"}
        return settings.get(self.framework, f"FF with {self.framework}")

    @property
    def schedules(self) -> list[str]:
        """Names of the schedules, in display order."""
        return list(self.permutations[0].last)

    def last(self, schedule: str) -> float | None:
        """A_T under a schedule, mean over permutations; None if there is no run."""
        if schedule not in self.permutations[0].last:
            return None
        return float(np.mean([one.last[schedule] for one in self.permutations]))

    @property
    def range(self) -> float:
        """Range of A_T over the schedules, mean over permutations."""
        return float(np.mean([one.range for one in self.permutations]))

    @property
    def std(self) -> float:
        """Standard deviation of A_T over the schedules, mean over permutations."""
        return float(np.mean([one.std for one in self.permutations]))

    @property
    def change(self) -> Change | None:
        """Difference of the range from that without the framework, for equal permutations and schedules."""
        without = {(one.class_seed, one.train_seed, *one.last): one.range for one in self.baseline}
        pairs = [(one.range, without.get((one.class_seed, one.train_seed, *one.last))) for one in self.permutations]
        differences = tuple(own - other for own, other in pairs if other is not None)
        return Change(differences, "none") if differences else None


@dataclass(frozen=True, eq=False)
class SensitivityTable:
    """Sensitivities of all methods on one data set, whose schedules share their names."""

    dataset: str
    classes: int
    rows: tuple[Sensitivity, ...]

    @property
    def data_label(self) -> str:
        """Data set and number of classes: `glyphs, 50 classes`."""
        return f"{self.dataset}, {self.classes} classes"

    @property
    def schedules(self) -> list[str]:
        """Schedules of all rows, in display order. Those of the row with the most schedules come first."""
        rows = sorted(self.rows, key=lambda row: -len(row.schedules))
        return list(dict.fromkeys(name for row in rows for name in row.schedules))

    @property
    def methods(self) -> dict[str, list[Sensitivity]]:
        """Rows of the scored classifier, by method and condition."""
        found: dict[str, list[Sensitivity]] = {}
        for row in self.rows:
            if row.scored:
                found.setdefault(row.label, []).append(row)
        return found


def sensitivities(runs: Iterable[RunRecord]) -> list[SensitivityTable]:
    """One table for each data set that has a method with at least `FEWEST` schedules of one class permutation."""
    runs = [run for run in runs if run.finished]
    images, names = image_sets(runs), titles(runs)
    labels = data_labels(images)
    families: dict[tuple[str, int, int], list[RunRecord]] = {}
    for run in sorted(runs, key=lambda run: str(run.folder)):
        families.setdefault((run.dataset, images[run], sum(run.sizes)), []).append(run)
    tables = []
    for (_, _, classes), family in sorted(families.items()):
        if rows := _rows(family, names):
            tables.append(SensitivityTable(labels[family[0]], classes, rows))
    return tables


@dataclass(frozen=True, eq=False)
class _Kind:
    """Runs that differ only in their schedules and seeds."""

    method: str
    parts: str
    """Name of the parts of the framework that are on."""
    fields: dict[str, Any]
    """Other fields that apply to these runs."""
    by_seeds: dict[tuple[int, int], list[RunRecord]]
    """Runs by class seed and training seed, at most one for each schedule."""

    @property
    def runs(self) -> list[RunRecord]:
        return [run for runs in self.by_seeds.values() for run in runs]

    def permutations(self, classifier: str, names: ScheduleNames) -> tuple[Permutation, ...]:
        """Permutations with the most schedules. A permutation that lacks a schedule would have a smaller range."""
        found = []
        for (class_seed, train_seed), runs in sorted(self.by_seeds.items()):
            ordered = sorted((run for run in runs if classifier in run.tables), key=lambda run: names[run].rank)
            last = {names[run].text: last_accuracy(run.tables[classifier]) for run in ordered}
            found.append(Permutation(class_seed, train_seed, {n: a for n, a in last.items() if not np.isnan(a)}))
        most = max(found, key=lambda one: len(one.last)).last
        return tuple(one for one in found if list(one.last) == list(most)) if len(most) >= FEWEST else ()


def _kinds(family: Sequence[RunRecord]) -> list[_Kind]:
    kinds: dict[str, _Kind] = {}
    for run in family:
        fields = {name: value for name, value in conditions(run).items() if not name.startswith("arrivals.")}
        if labels := run.arrivals.get("labels"):
            fields["labels"] = labels  # a trace has its own class order
        key = json.dumps([run.method, run.parts.name, fields], sort_keys=True)
        kind = kinds.setdefault(key, _Kind(run.method, run.parts.name, fields, {}))
        same = kind.by_seeds.setdefault((run.seeds[0], run.seeds[2]), [])
        if all(other.sizes != run.sizes for other in same):
            same.append(run)
    ranks = {name: k for k, name in enumerate(FRAMEWORKS)}
    return sorted(kinds.values(), key=lambda kind: (kind.method, ranks.get(kind.parts, len(ranks)), kind.parts))


def _rows(family: Sequence[RunRecord], titles: dict[str, str]) -> tuple[Sensitivity, ...]:
    kinds = _kinds(family)
    names = schedule_names([runs for kind in kinds for runs in kind.by_seeds.values()])
    rows = []
    for kind in kinds:
        original = next((one for one in kinds if _is_original(one, kind)), None)
        for classifier in classifiers_of(kind.runs):
            if permutations := kind.permutations(classifier, names):
                run = next(run for run in kind.runs if classifier in run.tables)
                row = Sensitivity(
                    method=kind.method,
                    title=f"{titles[kind.method]}, {run.display_name(classifier)}",
                    condition=_condition(kind, kinds),
                    classifier=classifier,
                    scored=classifier == run.scored,
                    framework=FRAMEWORKS.get(kind.parts, kind.parts),
                    permutations=permutations,
                    baseline=original.permutations(classifier, names) if original else (),
                )
                rows.append(row)
    return tuple(sorted(rows, key=lambda row: (row.method, row.condition, not row.scored, row.classifier)))


def _is_original(one: _Kind, kind: _Kind) -> bool:
    """Whether `one` is the original method for the runs of `kind`, which have parts of the framework."""
    same = one.method == kind.method and one.fields.items() <= kind.fields.items()
    return same and one.parts == "org" != kind.parts


def _condition(kind: _Kind, kinds: Sequence[_Kind]) -> str:
    """Fields, in words, in which a kind differs from others of the same method and parts."""
    others = [one.fields for one in kinds if (one.method, one.parts) == (kind.method, kind.parts)]
    differing = {k: v for k, v in kind.fields.items() if any(other.get(k) != v for other in others) and k != "labels"}
    return condition_label(differing)
