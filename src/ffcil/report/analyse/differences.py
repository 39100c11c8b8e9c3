"""Differences between two runs, or between two studies whose runs are compared in pairs."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, NamedTuple

import numpy as np

from ffcil.errors import InputError
from ffcil.metrics import CountTable, curve
from ffcil.report.analyse.groups import condition_label, conditions, differing_fields, flatten, titles
from ffcil.report.analyse.image_sets import ImageSets, data_labels, image_sets
from ffcil.report.analyse.statistics import Change
from ffcil.report.analyse.tables import METRICS, Metric
from ffcil.report.read.records import RunRecord

Pair = tuple[RunRecord, RunRecord]


class PairedMeans(NamedTuple):
    """Means of A and of B over the pairs of runs that have both values."""

    a: float
    b: float
    change: Change
    """B minus A."""


@dataclass(frozen=True)
class Classifiers:
    """Names of the two classifiers that are compared: one of A and one of B."""

    a: str
    b: str

    @property
    def name(self) -> str:
        """Name of the comparison: `linear`, or `linear → prototype`."""
        return self.a if self.a == self.b else f"{self.a} → {self.b}"

    def tables(self, pair: Pair) -> tuple[CountTable, CountTable] | None:
        """Count tables of A and B; None if one of the runs has not finished any step."""
        a, b = pair[0].tables.get(self.a), pair[1].tables.get(self.b)
        return (a, b) if a and b else None


@dataclass(frozen=True, eq=False)
class Differences:
    """Pairs of runs that differ only in their seeds within A and within B, and can therefore be averaged."""

    pairs: tuple[Pair, ...]
    name: str
    """Method, data set and setting, with the fields that distinguish these pairs from others of the same."""

    @property
    def config(self) -> dict[str, list[tuple[Any, Any]]]:
        """Fields in which A and B differ in any pair, with the values in every such pair."""
        by_pair = [differing_fields(pair) for pair in self.pairs]
        names = dict.fromkeys(name for fields in by_pair for name in fields)
        return {name: [tuple(fields[name]) for fields in by_pair if name in fields] for name in names}

    @property
    def classifiers(self) -> list[Classifiers]:
        """The scored classifier of A with that of B, then every classifier that both have."""
        started = [pair for pair in self.pairs if all(run.records for run in pair)]
        scored = [Classifiers(str(a.scored), str(b.scored)) for a, b in started]
        both = [Classifiers(name, name) for a, b in started for name in a.classifiers if name in b.tables]
        return list(dict.fromkeys([*scored, *both]))

    @property
    def finished(self) -> list[Pair]:
        """Pairs of which both runs are finished."""
        return [(a, b) for a, b in self.pairs if a.finished and b.finished]

    def means(self, classifiers: Classifiers, metric: Metric) -> PairedMeans | None:
        """Means of a metric over the pairs of finished runs; None without a value."""
        measure = METRICS[metric]
        return _means((measure(a), measure(b)) for a, b in filter(None, map(classifiers.tables, self.finished)))

    def steps(self, classifiers: Classifiers) -> list[PairedMeans | None]:
        """Mean accuracies after each step, over the pairs that have finished the step and have test images."""
        tables = filter(None, map(classifiers.tables, self.pairs))
        curves = [zip(curve(a), curve(b), strict=False) for a, b in tables]
        return [_means(values) for values in zip_longest(*curves, fillvalue=(None, None))]

    def seen(self, classifiers: Classifiers, step: int) -> str:
        """Number of classes seen after a step (from 1): `5`, `2 to 9` over seeds, `5 / 2 to 9` if A and B differ."""
        tables = [t for t in map(classifiers.tables, self.pairs) if t and min(len(one.seen) for one in t) >= step]
        texts = []
        for side in (0, 1):
            counts = [pair[side].seen[step - 1] for pair in tables]
            texts.append(f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}")
        return texts[0] if texts[0] == texts[1] else " / ".join(texts)

    def seconds(self, phase: str) -> tuple[float, float] | None:
        """Mean seconds of a phase in A and in B over finished pairs; None without such a pair."""
        if not self.finished:
            return None
        a, b = (float(np.mean([run.seconds(phase) for run in side])) for side in zip(*self.finished, strict=True))
        return a, b


def _means(pairs: Iterable[tuple[float | None, float | None]]) -> PairedMeans | None:
    known = [(a, b) for a, b in pairs if a is not None and b is not None and not np.isnan(a) and not np.isnan(b)]
    if not known:
        return None
    a, b = (float(np.mean(side)) for side in zip(*known, strict=True))
    return PairedMeans(a, b, Change(tuple(b - a for a, b in known), "A"))


@dataclass(frozen=True, eq=False)
class Comparison:
    """Differences between two sets of runs, and the runs of either set that have no partner."""

    parts: tuple[Differences, ...]
    only_a: tuple[RunRecord, ...]
    only_b: tuple[RunRecord, ...]


def differences(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Comparison:
    """Compare B with A. Two single runs are always paired; studies are paired by data set, method, setting and seeds.

    If the studies share no setting or no method, their runs are paired by the remaining properties. This compares two
    methods, or a method with and without the framework.
    """
    images = image_sets([*a, *b])
    if len(a) == len(b) == 1:
        return Comparison(_named([((a[0], b[0]),)], images), (), ())
    pairs = next(filter(None, (_pair(a, b, key, images) for key in KEYS)), None)
    if pairs is None:
        raise InputError(
            f"No run in {b[0].folder.parent} has the data set and seeds of a run in {a[0].folder.parent}; "
            "give two runs, or studies that share data set and seeds."
        )
    parts: dict[tuple[Any, ...], list[Pair]] = {}
    for pair in pairs:
        parts.setdefault(tuple((_kind(run), images[run]) for run in pair), []).append(pair)
    paired = {run for pair in pairs for run in pair}
    return Comparison(
        _named([tuple(sorted(part, key=lambda pair: pair[0].seeds)) for part in parts.values()], images),
        tuple(run for run in a if run not in paired),
        tuple(run for run in b if run not in paired),
    )


Key = Callable[[RunRecord], tuple[Any, ...]]
KEYS: tuple[Key, ...] = (
    lambda run: (run.dataset, run.method, run.setting, run.seeds),
    lambda run: (run.dataset, run.method, run.seeds),
    lambda run: (run.dataset, run.setting, run.seeds),
    lambda run: (run.dataset, run.seeds),
)
"""Properties that two runs of a pair share, strictest first. The first key that gives any pair is used."""


def _pair(a: Sequence[RunRecord], b: Sequence[RunRecord], key: Key, images: ImageSets) -> list[Pair]:
    """Pair runs with equal keys one to one, preferring the same images and the fewest differing fields."""
    candidates = [
        (images[one] != images[other], len(differing_fields((one, other))), i, j)
        for i, one in enumerate(a)
        for j, other in enumerate(b)
        if key(one) == key(other)
    ]
    pairs: dict[int, int] = {}
    for *_, i, j in sorted(candidates):
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    return [(a[i], b[j]) for i, j in sorted(pairs.items())]


def _kind(run: RunRecord) -> tuple[Any, ...]:
    condition = json.dumps(conditions(run), sort_keys=True)
    return (run.dataset, run.method, run.setting, sum(run.sizes), len(run.sizes), condition)


def _named(parts: Sequence[tuple[Pair, ...]], images: ImageSets) -> tuple[Differences, ...]:
    title, data = titles(run for part in parts for pair in part for run in pair), data_labels(images)

    def name(part: tuple[Pair, ...]) -> str:
        a, b = (f"{title[run.method]} on {data[run]}, {run.setting}" for run in part[0])
        return a if a == b else f"{a} → {b}"

    same_name: dict[str, list[RunRecord]] = {}
    for part in parts:
        same_name.setdefault(name(part), []).append(part[0][0])
    named = []
    for part in parts:
        run, others = part[0][0], same_name[name(part)]
        distinguishing = {field for other in others for field in conditions(other)} & differing_fields(others).keys()
        condition = {field: value for field, value in flatten(run.config).items() if field in distinguishing}
        named.append(Differences(part, f"{name(part)} ({condition_label(condition)})" if condition else name(part)))
    return tuple(named)
