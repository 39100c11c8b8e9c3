"""Groups of comparable runs: runs that differ only in seeds, schedule and parts of the framework."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffcil.report.analyse.image_sets import data_labels, image_sets
from ffcil.report.read.records import RunRecord, Seeds

PARTS = {"framework", "reduction", "alignment", "ha.use", "ha.identity"}
"""Fields that determine `Parts`."""
AMOUNTS = {"ha.surrogates", "centre_weight"}
"""Fields of which `Parts` only has whether they are above 0."""
WITHOUT_EFFECT = {"checkpoint_seconds", "evaluate_batch"}
"""Fields that do not change results."""
ADDED = {"features": "computed", "train.batch_norm": "synchronised"}
"""Fields that runs of earlier versions lack, with the value that describes what these runs did."""
ADDED_OPTIONS: dict[str, dict[str, Any]] = {"anyarrival": {"options.hidden": 0}}
"""The same for the own fields of a method."""
ELSEWHERE = {"dataset", "method", "arrivals.classes", "arrivals.steps"}
"""Fields that identify a group by themselves."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one method on one data set with one number of steps that agree in all fields but seeds and parts.

    A run belongs to every group that it does not contradict. For example, equal steps have no alpha, so Equ.T belongs
    to the group of every alpha.
    """

    runs: tuple[RunRecord, ...]
    """Runs, at most one for each setting and seeds."""
    condition: dict[str, Any]
    """Fields that distinguish the group from other groups of the same method and data."""
    repeats: tuple[str, ...]
    """Sentences on runs that are excluded because they repeat others."""
    title: str
    """Title of the method, with its short name if another method has the same title."""
    dataset: str
    """Name of the data set, as in `data_labels`."""
    is_main: bool = True
    """Whether the group is the main point of its sweep. The main point is the one with the most runs."""

    @property
    def classes(self) -> int:
        """Number of classes."""
        return sum(self.runs[0].sizes)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.runs[0].sizes)

    @property
    def is_uneven(self) -> bool:
        """Whether step sizes differ by more than one. Those of equal steps do not."""
        sizes = {size for run in self.runs for size in run.sizes}
        return max(sizes) - min(sizes) > 1

    @property
    def label(self) -> str:
        """Condition in words: `alpha 0.1, order jumbled`; empty if the group is the only one."""
        return condition_label(self.condition)

    @property
    def data_label(self) -> str:
        """Data set and schedule: `glyphs, 50 classes in 10 steps`."""
        return f"{self.dataset}, {self.classes} classes in {count(self.steps, 'step')}"

    @property
    def name(self) -> str:
        """Full name: `iCaRL (alpha 0.1) on glyphs, 50 classes in 10 steps`."""
        return f"{self.title}{f' ({self.label})' if self.label else ''} on {self.data_label}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on runs that are excluded or have other images."""
        if self.dataset == self.runs[0].data_name:
            return self.repeats
        names = ", ".join(run.folder.name for run in self.runs)
        other = f"{self.dataset}: not the same images as in the other runs on data of that name; here {names}."
        return (*self.repeats, other)

    def classifier_name(self, classifier: str) -> str:
        """Name of a classifier: `linear head`."""
        return next(run for run in self.runs if classifier in run.tables).display_name(classifier)

    def method_title(self, classifier: str) -> str:
        """Method and classifier: `iCaRL, linear head`."""
        return f"{self.title}, {self.classifier_name(classifier)}"

    def method_label(self, classifier: str) -> str:
        """Method, classifier and condition: `iCaRL, linear head (alpha 0.1)`."""
        return f"{self.method_title(classifier)}{f' ({self.label})' if self.label else ''}"


@dataclass(frozen=True, eq=False)
class MethodResult:
    """What results of one method with one classifier have in common."""

    group: Group
    classifier: str
    scored: bool
    """Whether this classifier is the one that scores the method."""

    @property
    def label(self) -> str:
        """Name of the method with its classifier and condition."""
        return self.group.method_label(self.classifier)


def condition_label(condition: dict[str, Any]) -> str:
    """Fields and values in words: `alpha 0.1, order jumbled`."""
    return ", ".join(f"{name.removeprefix('arrivals.')} {_word(value)}" for name, value in condition.items())


Family = tuple[str, int, int, int, str]
"""Data set, number of the image set, number of classes, number of steps, and method."""


def group_runs(runs: Iterable[RunRecord]) -> list[Group]:
    """Groups of comparable finished runs, in display order."""
    runs = [run for run in runs if run.finished]
    images, names = image_sets(runs), titles(runs)
    labels = data_labels(images)
    families: dict[Family, list[RunRecord]] = {}
    for run in runs:
        families.setdefault((run.dataset, images[run], sum(run.sizes), len(run.sizes), run.method), []).append(run)

    def rank(key: Family) -> tuple[Any, ...]:
        *data, method = key
        bound = families[key][0].bound
        return (*data, bound != "lower", bound == "upper", method)

    groups = []
    for key in sorted(families, key=rank):
        family = families[key]
        groups += _split(family, names[family[0].method], labels[family[0]])
    return groups


def groups_by_schedule(runs: Iterable[RunRecord]) -> Iterator[tuple[Group, str, list[RunRecord]]]:
    """Every group with each kind of schedule that it has, and the runs of that kind."""
    for group in group_runs(runs):
        for schedule in dict.fromkeys(run.schedule for run in group.runs):
            yield group, schedule, [run for run in group.runs if run.schedule == schedule]


def titles(runs: Iterable[RunRecord]) -> dict[str, str]:
    """Title of every method, with its short name if two methods share a title: `iCaRL [mine]`."""
    by_method = {run.method: run.method_name for run in sorted(runs, key=lambda run: run.finished)}
    shown = list(by_method.values())
    return {method: title if shown.count(title) == 1 else f"{title} [{method}]" for method, title in by_method.items()}


def count(number: int, noun: str) -> str:
    """Number with its noun: `1 step`, `2 steps`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields by dotted names, as in `--set`."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def conditions(run: RunRecord) -> dict[str, Any]:
    """Fields of the configuration that have an effect in this run, without seeds and parts of a framework."""
    parts = run.parts

    def applies(name: str, value: Any) -> bool:
        if name in PARTS | WITHOUT_EFFECT | ELSEWHERE or name.endswith("seed"):
            return False
        if name in AMOUNTS and not value > 0:
            return False
        if name.startswith("arrivals."):
            return run.schedule == "FF"
        if name.startswith("diwa."):
            return parts.alignment == "diwa"
        return parts.ha if name.startswith("ha.") else not name.startswith("flow.")

    own = flatten(run.config)
    added = ADDED | ADDED_OPTIONS.get(run.method, {})
    earlier = {name: value for name, value in added.items() if name not in own}
    fields = {name: value for name, value in (own | earlier).items() if applies(name, value)}
    # null in the configuration stands for a constant of the version, so the value that the run stored counts
    flow = run.method_facts["framework"].get("flow", {})
    return fields | {f"flow.{name}": value for name, value in flow.items() if not isinstance(value, bool)}


def _split(family: list[RunRecord], title: str, dataset: str) -> list[Group]:
    """Groups of a family: one for each combination of values of the fields in which its runs differ."""
    with_fields = [(run, conditions(run)) for run in family]
    names = dict.fromkeys(name for _, fields in with_fields for name in fields)
    values = {name: {json.dumps(fields[name]) for _, fields in with_fields if name in fields} for name in names}
    differing = [name for name in names if len(values[name]) > 1]
    keyed = [(run, {name: fields[name] for name in differing if name in fields}) for run, fields in with_fields]
    keys: list[dict[str, Any]] = []
    for _, key in keyed:
        if key not in keys and not any(_within(key, other) and key != other for _, other in keyed):
            keys.append(key)
    keys.sort(key=lambda key: [_rank(key.get(name)) for name in differing])
    groups = []
    for key in keys:
        selected, repeats = _without_repeats([(run, fields) for run, fields in keyed if _within(fields, key)])
        groups.append(Group(selected, key, repeats, title, dataset))
    return [replace(group, is_main=group is _main(group, groups)) for group in groups]


def _main(group: Group, groups: list[Group]) -> Group:
    """The group with the most runs among those that differ from `group` only in the schedule; in a tie, the one with
    the order of the paper."""

    def rest(one: Group) -> dict[str, Any]:
        return {name: value for name, value in one.condition.items() if not name.startswith("arrivals.")}

    same_sweep = [other for other in groups if rest(other) == rest(group)]
    return max(same_sweep, key=lambda one: (len(one.runs), one.condition.get("arrivals.order") == "jumbled"))


def _without_repeats(runs: list[tuple[RunRecord, dict[str, Any]]]) -> tuple[tuple[RunRecord, ...], tuple[str, ...]]:
    """Runs without repetitions, and notes on those left out. Of runs with equal setting and seeds, the one with the
    most fields is kept."""
    kept: dict[tuple[str, Seeds], RunRecord] = {}
    notes = []
    for run, _ in sorted(runs, key=lambda pair: (-len(pair[1]), str(pair[0].folder))):
        first = kept.setdefault((run.setting, run.seeds), run)
        if first is not run:
            notes.append(
                f"{run.folder.name} repeats {first.folder.name} ({run.method_name}, {run.setting}, {run.seed_label}) "
                "and is left out of every result."
            )
    return tuple(run for run, _ in runs if run in kept.values()), tuple(notes)


def _within(fields: dict[str, Any], others: dict[str, Any]) -> bool:
    """Whether `others` has all of these fields, with the same values."""
    return all(name in others and others[name] == value for name, value in fields.items())


def _rank(value: Any) -> tuple[Any, ...]:
    """Sort key: numbers by size, then texts."""
    if isinstance(value, int | float):
        return (0, value, "")
    return (1, 0, str(value))


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def differing_fields(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """Fields, including seeds, in which runs differ, with the value of each run (None if it lacks the field)."""
    flat = [flatten(run.config) for run in runs]
    names = dict.fromkeys(name for config in flat for name in config)
    values = {name: [config.get(name) for config in flat] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}
