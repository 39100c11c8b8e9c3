"""Matched differences: free flow against equal steps at the same numbers of classes seen."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ffcil.metrics import average_accuracy, matched_difference
from ffcil.report.analyse.groups import Group, MethodResult, conditions, group_runs
from ffcil.report.analyse.image_sets import image_sets
from ffcil.report.analyse.statistics import Change
from ffcil.report.read.records import RunRecord, classifiers_of, settings_of

EQUAL = "Equ.T"
"""Setting whose curve is the reference."""
Partners = dict[RunRecord, RunRecord]


@dataclass(frozen=True, eq=False)
class Matched(MethodResult):
    """Differences between one setting and equal steps, for one method with one classifier."""

    setting: str
    difference: Change
    """Matched differences, one for each run of Equ.T."""
    average: Change
    """Differences of the average accuracy between the same runs. The boundaries of the steps distort them."""


def partners(runs: Sequence[RunRecord]) -> Partners:
    """The run of Equ.T for each finished run with unequal steps, if there is one.

    Both have the same images, number of classes, method, class order, training seed and conditions. The arrival seed
    may differ, because equal steps are not drawn. So may the number of steps, because the differences are matched.
    """
    runs = [run for run in runs if run.finished]
    images = image_sets(runs)

    def key(run: RunRecord) -> tuple[Any, ...]:
        class_order, _, train_seed = run.pairing
        return (run.dataset, images[run], sum(run.sizes), run.method, class_order, train_seed)

    equal: dict[tuple[Any, ...], list[RunRecord]] = {}
    for run in runs:
        if run.setting == EQUAL:
            equal.setdefault(key(run), []).append(run)
    found = {}
    for run in runs:
        if run.schedule == "Equ":
            continue
        fields = conditions(run).items()
        fitting = [other for other in equal.get(key(run), []) if conditions(other).items() <= fields]
        if fitting:
            found[run] = min(fitting, key=lambda other: _distance(run, other))
    return found


def _distance(run: RunRecord, other: RunRecord) -> tuple[Any, ...]:
    """Sort key of several partners: first those with the same number of steps, then those with the same seeds, then by
    name."""
    return (len(run.sizes) != len(other.sizes), run.seeds != other.seeds, str(other.folder))


def matched_of(group: Group, runs: Sequence[RunRecord], classifier: str, equal: Partners) -> dict[str, Matched]:
    """Matched differences of a group's runs by setting.

    Several schedules of one class permutation share a run of Equ.T. Their mean counts as one difference, so that the
    interval is over permutations.
    """
    found = {}
    for setting in settings_of(runs):
        by_partner: dict[RunRecord, list[tuple[float, float]]] = {}
        for run in runs:
            other = equal.get(run)
            if run.setting != setting or other is None or classifier not in other.tables:
                continue
            own, reference = run.tables[classifier], other.tables[classifier]
            both = (matched_difference(own, reference), average_accuracy(own) - average_accuracy(reference))
            if not np.isnan(both).any():
                by_partner.setdefault(other, []).append(both)
        if by_partner:
            means = [np.mean(of_partner, axis=0) for of_partner in by_partner.values()]
            changes = (Change(tuple(map(float, column)), EQUAL) for column in zip(*means, strict=True))
            found[setting] = Matched(group, classifier, classifier == runs[0].scored, setting, *changes)
    return found


def matched_differences(runs: Sequence[RunRecord]) -> list[Matched]:
    """Matched differences of every group, classifier and setting; secondary points of sweeps come last."""
    equal = partners(runs)
    found: list[Matched] = []
    for group in group_runs(runs):
        for classifier in classifiers_of(group.runs):
            measured = [run for run in group.runs if classifier in run.tables]
            found += matched_of(group, measured, classifier, equal).values()
    return sorted(found, key=lambda one: not one.group.is_main)
