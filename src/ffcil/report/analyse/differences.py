"""`ffcil compare`: two runs, or two studies pair by pair."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ffcil.errors import InputError
from ffcil.metrics import CountTable, curve
from ffcil.report.analyse.groups import condition_label, conditions, count, differing_fields, flatten, titles
from ffcil.report.analyse.image_sets import ImageSets, image_sets
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, LEVEL, TOO_FEW, Change, bounds_text, signed
from ffcil.report.analyse.tables import METRICS, NOTHING, SYMBOLS, Metric, verdict
from ffcil.report.read.records import CLASSIFIER_NAMES, PHASES, RunRecord

if TYPE_CHECKING:
    from rich.console import RenderableType

Pair = tuple[RunRecord, RunRecord]


@dataclass(frozen=True)
class Classifiers:
    """What is compared: A's classifier with that of B."""

    a: str
    b: str

    @property
    def name(self) -> str:
        """`linear`, or `linear → prototype`"""
        return self.a if self.a == self.b else f"{self.a} → {self.b}"

    def tables(self, pair: Pair) -> tuple[CountTable, CountTable] | None:
        """None where one of the runs has finished no step."""
        a, b = pair[0].tables.get(self.a), pair[1].tables.get(self.b)
        return (a, b) if a and b else None


@dataclass(frozen=True, eq=False)
class Differences:
    """Pairs of runs that differ in nothing but seeds on either side, and so can be averaged over them."""

    pairs: tuple[Pair, ...]
    name: str
    """of method, data set and setting, with the fields that tell it from other pairs of the same"""

    @property
    def config(self) -> dict[str, list[tuple[Any, Any]]]:
        """Fields in which A and B differ in any pair, with the values of every pair."""
        by_pair = [differing_fields(pair) for pair in self.pairs]
        names = dict.fromkeys(name for fields in by_pair for name in fields)
        return {name: [tuple(fields[name]) for fields in by_pair if name in fields] for name in names}

    @property
    def classifiers(self) -> list[Classifiers]:
        """A's scored one with B's, then every one that both have."""
        begun = [pair for pair in self.pairs if all(run.records for run in pair)]
        scored = [Classifiers(str(a.scored), str(b.scored)) for a, b in begun]
        both = [Classifiers(name, name) for a, b in begun for name in a.classifiers if name in b.tables]
        return list(dict.fromkeys([*scored, *both]))

    @property
    def finished(self) -> list[Pair]:
        return [(a, b) for a, b in self.pairs if a.finished and b.finished]

    def values(self, classifiers: Classifiers, metric: Metric) -> list[tuple[float, float]]:
        """A's and B's number, of every pair of finished runs that has both."""
        measure = METRICS[metric]
        both = [(measure(a), measure(b)) for a, b in filter(None, map(classifiers.tables, self.finished))]
        return [(a, b) for a, b in both if a is not None and b is not None and not np.isnan(a) and not np.isnan(b)]

    def steps(self, classifiers: Classifiers) -> list[list[tuple[float, float]]]:
        """For every step A's and B's accuracy, of every pair that has finished it and has test images."""
        tables = list(filter(None, map(classifiers.tables, self.pairs)))
        by_step: list[list[tuple[float, float]]] = []
        for a, b in tables:
            for step, values in enumerate(zip(curve(a), curve(b), strict=False)):
                by_step += [[]] if step == len(by_step) else []
                by_step[step] += [] if np.isnan(values).any() else [values]
        return by_step

    def seen(self, classifiers: Classifiers, step: int) -> str:
        """How many classes A and B had seen after a step (from 1): `5`, `2 to 9` over seeds, `5 / 2 to 9` for both."""
        tables = [t for t in map(classifiers.tables, self.pairs) if t and min(len(one.seen) for one in t) >= step]
        texts = []
        for side in (0, 1):
            counts = [pair[side].seen[step - 1] for pair in tables]
            texts.append(f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}")
        return texts[0] if texts[0] == texts[1] else " / ".join(texts)

    def seconds(self, phase: str) -> tuple[float, float] | None:
        """A's and B's seconds of a phase, the mean over finished pairs; None where there is none."""
        if not self.finished:
            return None
        a, b = (float(np.mean([pair[side].seconds(phase) for pair in self.finished])) for side in (0, 1))
        return a, b


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that two folders have in common, and what they have not."""

    parts: tuple[Differences, ...]
    only_a: tuple[RunRecord, ...]
    only_b: tuple[RunRecord, ...]


def differences(a: Sequence[RunRecord], b: Sequence[RunRecord]) -> Comparison:
    """Set B beside A. Single runs are paired whatever they are; studies by data set, method, setting and seeds.

    Where no method or no setting is on both sides, studies of different ones are paired, by seeds: the difference
    between two methods, or between a method with and without the framework.
    """
    images = image_sets([*a, *b])
    if len(a) == len(b) == 1:
        return Comparison(_named([((a[0], b[0]),)], images), (), ())
    for key in KEYS:
        pairs = _pair(a, b, key, images)
        if pairs:
            break
    else:
        raise InputError(
            f"No run of {_above(b)} has the data set and seeds of one of {_above(a)}: give two runs, or studies that "
            "share them."
        )
    parts: dict[tuple[Any, ...], list[Pair]] = {}
    for one, other in pairs:
        parts.setdefault(tuple((_kind(run), images[run]) for run in (one, other)), []).append((one, other))
    taken = {run for pair in pairs for run in pair}
    return Comparison(
        _named([tuple(sorted(part, key=lambda pair: pair[0].seeds)) for part in parts.values()], images),
        tuple(run for run in a if run not in taken),
        tuple(run for run in b if run not in taken),
    )


Key = Callable[[RunRecord], tuple[Any, ...]]
KEYS: tuple[Key, ...] = (
    lambda run: (run.dataset, run.method, run.setting, run.seeds),
    lambda run: (run.dataset, run.method, run.seeds),
    lambda run: (run.dataset, run.setting, run.seeds),
    lambda run: (run.dataset, run.seeds),
)
"""From the strictest on: the first that pairs anything is used."""


def _pair(a: Sequence[RunRecord], b: Sequence[RunRecord], key: Key, images: ImageSets) -> list[Pair]:
    """One to one; among runs of the same key those on the same images, that differ in the fewest fields."""
    likely = [
        (images[one] != images[other], len(differing_fields((one, other))), i, j)
        for i, one in enumerate(a)
        for j, other in enumerate(b)
        if key(one) == key(other)
    ]
    pairs: dict[int, int] = {}
    for *_, i, j in sorted(likely):
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    return [(a[i], b[j]) for i, j in sorted(pairs.items())]


def _kind(run: RunRecord) -> tuple[Any, ...]:
    told = json.dumps(conditions(run), sort_keys=True)
    return (run.dataset, run.method, run.setting, sum(run.sizes), len(run.sizes), told)


def _named(parts: Sequence[tuple[Pair, ...]], images: ImageSets) -> tuple[Differences, ...]:
    title = titles(run for part in parts for pair in part for run in pair)

    def data(run: RunRecord) -> str:
        return f"{run.data_name} (images {images[run]})" if images[run] else run.data_name

    def name(part: tuple[Pair, ...]) -> str:
        a, b = (f"{title[run.method]} on {data(run)}, {run.setting}" for run in part[0])
        return a if a == b else f"{a} → {b}"

    alike: dict[str, list[RunRecord]] = {}
    for part in parts:
        alike.setdefault(name(part), []).append(part[0][0])
    made = []
    for part in parts:
        run, others = part[0][0], alike[name(part)]
        telling = {field for other in others for field in conditions(other)} & differing_fields(others).keys()
        condition = {field: value for field, value in flatten(run.config).items() if field in telling}
        made.append(Differences(part, f"{name(part)} ({condition_label(condition)})" if condition else name(part)))
    return tuple(made)


def _above(runs: Sequence[RunRecord]) -> str:
    return str(runs[0].folder.parent)


def to_json(found: Comparison) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "pairs": [_part_json(part) for part in found.parts],
        "only_a": [str(run.folder) for run in found.only_a],
        "only_b": [str(run.folder) for run in found.only_b],
    }


def _part_json(part: Differences) -> dict[str, Any]:
    classifiers = {}
    for of in part.classifiers:
        steps = [{"step": step} | (_change_json(values) or {}) for step, values in enumerate(part.steps(of), start=1)]
        summary = {metric: _change_json(part.values(of, metric)) for metric in METRICS}
        classifiers[of.name] = {"a": of.a, "b": of.b, "summary": summary, "steps": steps}
    times = {phase: part.seconds(phase) for phase in PHASES}
    return {
        "name": part.name,
        "runs": [[str(a.folder), str(b.folder)] for a, b in part.pairs],
        "unfinished": [str(run.folder) for pair in part.pairs for run in pair if not run.finished],
        "config": {name: [list(pair) for pair in values] for name, values in part.config.items()},
        "classifiers": classifiers,
        "seconds": {phase: {"a": both[0], "b": both[1]} if both else None for phase, both in times.items()},
    }


def _change_json(values: list[tuple[float, float]]) -> dict[str, Any] | None:
    if not values:
        return None
    change = _change(values)
    numbers = {"a": _mean(values, 0), "b": _mean(values, 1), "difference": change.value, "pairs": change.pairs}
    intervals = {"interval": change.interval, "bootstrap_interval": change.bootstrap}
    return numbers | intervals | {"differences": change.differences}


def _change(values: list[tuple[float, float]]) -> Change:
    return Change(tuple(b - a for a, b in values), "A")


def _mean(values: list[tuple[float, float]], side: int) -> float:
    return float(np.mean([pair[side] for pair in values]))


def as_tables(found: Comparison) -> Iterator[RenderableType]:
    """For the terminal: for each kind of run its configuration, results, steps and time."""
    from rich.text import Text

    for part in found.parts:
        yield Text(f"{part.name}: {count(len(part.pairs), 'pair')} of runs", style="bold")
        for run in [run for pair in part.pairs for run in pair if not run.finished]:
            told = f"{run.folder} is unfinished ({len(run.records)} of {count(len(run.sizes), 'step')})"
            there = "its steps are below, its results and its time are not" if run.records else "nothing of it is below"
            yield Text(f"{told}: {there}.", style="red")
        yield _config_table(part)
        for classifiers in part.classifiers:
            yield _result_table(part, classifiers)
        if not part.classifiers:
            yield Text("No accuracy to compare: of no pair have both runs finished a step.", style="red")
        if 1 < len(part.pairs) < ENOUGH_PAIRS:
            yield Text(TOO_FEW, style="dim")
        yield _time_table(part)
    for name, runs in (("A", found.only_a), ("B", found.only_b)):
        if runs:
            yield Text(f"Only in {name}: {', '.join(run.folder.name for run in runs)}", style="dim")


def _config_table(part: Differences) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    fields = part.config
    if not fields:
        return Text("The configurations are the same.", style="dim")
    table = Table("field", "A", "B", title="Configuration", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name, values in fields.items():
        sides = [", ".join(dict.fromkeys(str(pair[side]) for pair in values)) for side in (0, 1)]
        table.add_row(name, *(Text(side) for side in sides))
    return table


def _result_table(part: Differences, classifiers: Classifiers) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    a, b = (CLASSIFIER_NAMES.get(name, name) for name in (classifiers.a, classifiers.b))
    name = a if a == b else f"{a} in A, {b} in B"
    scored = " (scored)" if classifiers == part.classifiers[0] else ""
    title = Text(f"Accuracy in percent, {name}{scored}")
    table = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("", "A", "B", "B - A", f"{LEVEL:.0%} t interval", "pairs"):
        table.add_column(column, justify="left" if column == "" else "right")
    colours = {"better": "green", "worse": "red", "same": "dim"}

    def add(label: str, metric: Metric, values: list[tuple[float, float]]) -> None:
        if not values:
            table.add_row(label, NOTHING, NOTHING, NOTHING, "", "0")
            return
        change = _change(values)
        bounds = bounds_text(change.interval) if change.interval else ""
        shown = Text(signed(change.value), style=colours[verdict(metric, change.value)])
        means = [f"{_mean(values, side):.2f}" for side in (0, 1)]
        table.add_row(label, *means, shown, bounds, str(change.pairs))

    for metric in METRICS:
        add(SYMBOLS[metric], metric, part.values(classifiers, metric))
    for step, values in enumerate(part.steps(classifiers), start=1):
        add(f"step {step}, {part.seen(classifiers, step)} classes", "last", values)
    return table


def _time_table(part: Differences) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    times = {phase: both for phase in PHASES if (both := part.seconds(phase))}
    if not times:
        return Text("No time to compare: of no pair are both runs finished.", style="dim")
    table = Table("", title="Seconds, mean of a run", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("A", "B", "B / A"):
        table.add_column(column, justify="right")
    times["in all"] = (sum(a for a, _ in times.values()), sum(b for _, b in times.values()))
    for phase, (a, b) in times.items():
        table.add_row(phase, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}" if a else NOTHING)
    devices = [", ".join(dict.fromkeys(run.device for run in side)) for side in zip(*part.finished, strict=True)]
    table.add_row("on", *devices, "")
    return table
