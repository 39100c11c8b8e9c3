"""`ffcil compare`: two runs, or two studies pair by pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ffcil.errors import InputError
from ffcil.metrics import curve
from ffcil.report.groups import count, differing_fields
from ffcil.report.records import CLASSIFIER_NAMES, RunRecord
from ffcil.report.statistics import ENOUGH_PAIRS, LEVEL, Change, bounds_text, signed
from ffcil.report.tables import METRICS, NOTHING, SYMBOLS, Metric, verdict

if TYPE_CHECKING:
    from rich.console import RenderableType

Pair = tuple[RunRecord, RunRecord]
PHASES = ("train", "memory", "evaluate")


@dataclass(frozen=True, eq=False)
class Differences:
    """Pairs of runs that say the same of themselves, and so can be averaged over seeds."""

    pairs: tuple[Pair, ...]

    @property
    def name(self) -> str:
        a, b = self.pairs[0]
        names = [f"{run.method_name} on {run.dataset}, {run.setting}" for run in (a, b)]
        return names[0] if names[0] == names[1] else f"{names[0]} → {names[1]}"

    @property
    def config(self) -> dict[str, list[tuple[Any, Any]]]:
        """Fields in which A and B differ in any pair, with the values of every pair."""
        by_pair = [differing_fields(pair) for pair in self.pairs]
        names = dict.fromkeys(name for fields in by_pair for name in fields)
        return {name: [tuple(fields[name]) for fields in by_pair if name in fields] for name in names}

    @property
    def classifiers(self) -> list[str]:
        """Those that both sides have, A's scored one first."""
        a = self.pairs[0][0]
        return [name for name in a.classifiers if all(name in run.tables for pair in self.pairs for run in pair)]

    def values(self, classifier: str, metric: Metric) -> list[tuple[float, float]]:
        """A's and B's number, of every pair of finished runs that has both."""
        measure = METRICS[metric]
        both = [tuple(measure(run.tables[classifier]) for run in pair) for pair in self.pairs if _finished(pair)]
        return [(a, b) for a, b in both if a is not None and b is not None and not np.isnan(a) and not np.isnan(b)]

    def steps(self, classifier: str) -> list[list[tuple[float, float]]]:
        """For every step that all runs have finished: A's and B's accuracy, of every pair with test images."""
        curves = [tuple(curve(run.tables[classifier]) for run in pair) for pair in self.pairs]
        last = min(len(line) for pair in curves for line in pair)
        by_step = [[(a[step], b[step]) for a, b in curves] for step in range(last)]
        return [[pair for pair in values if not np.isnan(pair).any()] for values in by_step]

    def seen(self, classifier: str, step: int) -> str:
        """How many classes A and B had seen after a step (from 1): `5`, `2 to 9` over seeds, `5 / 2 to 9` for both."""
        texts = []
        for side in (0, 1):
            counts = [pair[side].tables[classifier].seen[step - 1] for pair in self.pairs]
            texts.append(f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}")
        return texts[0] if texts[0] == texts[1] else " / ".join(texts)

    def seconds(self, phase: str) -> tuple[float, float]:
        """A's and B's seconds of a phase, the mean over runs."""
        a, b = (float(np.mean([pair[side].seconds(phase) for pair in self.pairs])) for side in (0, 1))
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
    if len(a) == len(b) == 1:
        return Comparison((Differences(((a[0], b[0]),)),), (), ())
    for key in KEYS:
        pairs = _pair(a, b, key)
        if pairs:
            break
    else:
        raise InputError(
            f"No run of {_above(b)} has the data set and seeds of one of {_above(a)}: give two runs, or studies that "
            "share them."
        )
    parts: dict[tuple[Any, ...], list[Pair]] = {}
    for one, other in pairs:
        parts.setdefault((_kind(one), _kind(other)), []).append((one, other))
    taken = {run for pair in pairs for run in pair}
    return Comparison(
        tuple(Differences(tuple(sorted(part, key=lambda pair: pair[0].seeds))) for part in parts.values()),
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


def _pair(a: Sequence[RunRecord], b: Sequence[RunRecord], key: Key) -> list[Pair]:
    """One to one; among runs of the same key those that differ in the fewest fields."""
    likely = [
        (len(differing_fields((one, other))), i, j)
        for i, one in enumerate(a)
        for j, other in enumerate(b)
        if key(one) == key(other)
    ]
    pairs: dict[int, int] = {}
    for _, i, j in sorted(likely):
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    return [(a[i], b[j]) for i, j in sorted(pairs.items())]


def _kind(run: RunRecord) -> tuple[Any, ...]:
    arrivals = run.config.get("arrivals", {})
    return (
        run.dataset,
        run.method,
        run.setting,
        sum(run.sizes),
        len(run.sizes),
        arrivals.get("alpha"),
        arrivals.get("order"),
    )


def _above(runs: Sequence[RunRecord]) -> str:
    return str(runs[0].folder.parent)


def _finished(pair: Pair) -> bool:
    return pair[0].finished and pair[1].finished


def to_json(found: Comparison) -> dict[str, Any]:
    """Everything, ready for JSON."""
    return {
        "pairs": [_part_json(part) for part in found.parts],
        "only_a": [str(run.folder) for run in found.only_a],
        "only_b": [str(run.folder) for run in found.only_b],
    }


def _part_json(part: Differences) -> dict[str, Any]:
    classifiers = {}
    for classifier in part.classifiers:
        steps = [
            {"step": step} | (_change_json(values) or {}) for step, values in enumerate(part.steps(classifier), start=1)
        ]
        summary = {metric: _change_json(part.values(classifier, metric)) for metric in METRICS}
        classifiers[classifier] = {"summary": summary, "steps": steps}
    times = {phase: part.seconds(phase) for phase in PHASES}
    return {
        "name": part.name,
        "runs": [[str(a.folder), str(b.folder)] for a, b in part.pairs],
        "unfinished": [str(run.folder) for pair in part.pairs for run in pair if not run.finished],
        "config": {name: [list(pair) for pair in values] for name, values in part.config.items()},
        "classifiers": classifiers,
        "seconds": {phase: {"a": a, "b": b} for phase, (a, b) in times.items()},
    }


def _change_json(values: list[tuple[float, float]]) -> dict[str, Any] | None:
    if not values:
        return None
    change = _change(values)
    numbers = {"a": _mean(values, 0), "b": _mean(values, 1), "difference": change.value, "pairs": change.pairs}
    return numbers | {"interval": change.interval, "differences": change.differences}


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
            yield Text(f"{told}: its steps are below, its results are not.", style="red")
        yield _config_table(part)
        for classifier in part.classifiers:
            yield _result_table(part, classifier)
        if 1 < len(part.pairs) < ENOUGH_PAIRS:
            yield Text(f"With fewer than {ENOUGH_PAIRS} pairs an interval is of little worth.", style="dim")
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


def _result_table(part: Differences, classifier: str) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    name = CLASSIFIER_NAMES.get(classifier, classifier)
    scored = " (scored)" if classifier == part.pairs[0][0].scored else ""
    table = Table(title=f"Accuracy in percent, {name}{scored}", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("", "A", "B", "B - A", f"{LEVEL:.0%} interval"):
        table.add_column(column, justify="left" if column == "" else "right")
    colours = {"better": "green", "worse": "red", "same": "dim"}

    def add(label: str, metric: Metric, values: list[tuple[float, float]]) -> None:
        if not values:
            table.add_row(label, NOTHING, NOTHING, NOTHING, "")
            return
        change = _change(values)
        bounds = bounds_text(change.interval) if change.interval else ""
        shown = Text(signed(change.value), style=colours[verdict(metric, change.value)])
        table.add_row(label, f"{_mean(values, 0):.2f}", f"{_mean(values, 1):.2f}", shown, bounds)

    for metric in METRICS:
        add(SYMBOLS[metric], metric, part.values(classifier, metric))
    for step, values in enumerate(part.steps(classifier), start=1):
        add(f"step {step}, {part.seen(classifier, step)} classes", "last", values)
    return table


def _time_table(part: Differences) -> RenderableType:
    from rich.table import Table

    table = Table("", title="Seconds, mean of a run", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("A", "B", "B / A"):
        table.add_column(column, justify="right")
    times = {phase: part.seconds(phase) for phase in PHASES}
    times["in all"] = (sum(a for a, _ in times.values()), sum(b for _, b in times.values()))
    for phase, (a, b) in times.items():
        table.add_row(phase, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}" if a else NOTHING)
    devices = [", ".join(dict.fromkeys(run.device for run in side)) for side in zip(*part.pairs, strict=True)]
    table.add_row("on", *devices, "")
    return table
