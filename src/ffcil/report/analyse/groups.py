"""Which runs may stand side by side: those alike in everything but seeds and the parts of the framework."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ffcil.report.analyse.image_sets import image_sets
from ffcil.report.read.records import CLASSIFIER_NAMES, RunRecord, Seeds

PARTS = {"robust", "reduction", "alignment", "ha.use", "ha.identity"}
"""Fields that `Parts` names."""
AMOUNTS = {"ha.surrogates", "centre_weight"}
"""Fields of which `Parts` says whether they are above 0, and not how much."""
WITHOUT_EFFECT = {"checkpoint_seconds", "evaluate_batch"}
ELSEWHERE = {"dataset", "method", "arrivals.classes", "arrivals.steps"}
"""Fields that a group's own key says."""


@dataclass(frozen=True, eq=False)
class Group:
    """Runs of one method on one data set in as many steps, alike in every field that is not a seed or a part.

    A run is in every group that it does not contradict: equal steps know no alpha, so Equ.T stands beside each alpha.
    """

    runs: tuple[RunRecord, ...]
    """With any setting and seeds once."""
    condition: dict[str, Any]
    """The fields that tell it from the other groups of the method on these data."""
    notes: tuple[str, ...]
    title: str
    """of the method, with its short name where another method has the same title"""
    images: int = 0
    """as in `image_sets`"""
    is_main: bool = True
    """False for the other spectra and orders of a sweep: of groups that differ in nothing else the largest is main."""

    @property
    def dataset(self) -> str:
        """`glyphs`; `my-birds (images 2)` where runs on data of that kind had different images"""
        name = self.runs[0].data_name
        return f"{name} (images {self.images})" if self.images else name

    @property
    def classes(self) -> int:
        return sum(self.runs[0].sizes)

    @property
    def steps(self) -> int:
        return len(self.runs[0].sizes)

    @property
    def is_uneven(self) -> bool:
        """Whether classes arrived in steps of clearly different sizes: an equal split differs by one at most."""
        sizes = {size for run in self.runs for size in run.sizes}
        return max(sizes) - min(sizes) > 1

    @property
    def label(self) -> str:
        """The condition in words: `alpha 0.1, order jumbled`; empty where nothing has to be told apart."""
        return condition_label(self.condition)

    @property
    def data_label(self) -> str:
        """`glyphs, 50 classes in 10 steps`"""
        return f"{self.dataset}, {self.classes} classes in {count(self.steps, 'step')}"

    @property
    def name(self) -> str:
        """`iCaRL (alpha 0.1) on glyphs, 50 classes in 10 steps`"""
        return f"{self.title}{f' ({self.label})' if self.label else ''} on {self.data_label}"

    def method_label(self, classifier: str) -> str:
        """Always with the classifier: a nearest-mean accuracy must not pass for that of the linear head."""
        name = f"{self.title}, {CLASSIFIER_NAMES.get(classifier, classifier)}"
        return f"{name} ({self.label})" if self.label else name


def condition_label(condition: dict[str, Any]) -> str:
    """`alpha 0.1, order jumbled`"""
    return ", ".join(f"{name.removeprefix('arrivals.')} {_word(value)}" for name, value in condition.items())


Family = tuple[str, int, int, int, str]
"""Data set, number of its images, classes, steps, method."""


def group_runs(runs: Iterable[RunRecord]) -> list[Group]:
    """Runs that may be compared, in the order in which to show them."""
    runs = list(runs)
    images, names = image_sets(runs), titles(runs)
    families: dict[Family, list[RunRecord]] = {}
    for run in runs:
        families.setdefault((run.dataset, images[run], sum(run.sizes), len(run.sizes), run.method), []).append(run)

    def rank(key: Family) -> tuple[Any, ...]:
        *data, method = key  # the lower bound goes first, the upper bound last
        return (*data, method != "finetune", method == "joint", method)

    groups = []
    for key in sorted(families, key=rank):
        _, number, _, _, method = key
        groups += [replace(group, title=names[method], images=number) for group in _split(families[key])]
    return [replace(group, notes=(*group.notes, *_images_note(group))) for group in groups]


def titles(runs: Iterable[RunRecord]) -> dict[str, str]:
    """Every method's title, with its short name where two of them share one: `iCaRL [mine]`."""
    of_method = {run.method: run.method_name for run in sorted(runs, key=lambda run: run.finished)}
    shown = list(of_method.values())
    return {method: title if shown.count(title) == 1 else f"{title} [{method}]" for method, title in of_method.items()}


def _images_note(group: Group) -> list[str]:
    if not group.images:
        return []
    names = ", ".join(run.folder.name for run in group.runs)
    return [f"{group.dataset}: not the same images as in the other runs on data of that name; here {names}."]


def count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested fields under dotted names, as `--set` takes them."""
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def conditions(run: RunRecord) -> dict[str, Any]:
    """The fields that have a meaning for this run, without seeds and parts."""
    parts = run.parts

    def meant(name: str, value: Any) -> bool:
        if name in PARTS | WITHOUT_EFFECT | ELSEWHERE or name.endswith("seed"):
            return False
        if name in AMOUNTS and not value > 0:
            return False
        if name.startswith("arrivals."):
            return run.schedule == "FF"
        if name.startswith("diwa."):
            return parts.alignment == "diwa"
        return parts.ha if name.startswith("ha.") else True

    return {name: value for name, value in flatten(run.config).items() if meant(name, value)}


def _split(family: list[RunRecord]) -> list[Group]:
    of_run = [(run, conditions(run)) for run in family]
    values: dict[str, set[str]] = {}
    for _, fields in of_run:
        for name, value in fields.items():
            values.setdefault(name, set()).add(json.dumps(value))
    differing = [name for name, distinct in values.items() if len(distinct) > 1]
    keyed = [(run, {name: fields[name] for name in differing if name in fields}) for run, fields in of_run]
    keys: list[dict[str, Any]] = []
    for _, key in keyed:
        if key not in keys and not any(_within(key, other) and key != other for _, other in keyed):
            keys.append(key)
    keys.sort(key=lambda key: [_rank(key.get(name)) for name in differing])
    groups = [_group([(run, fields) for run, fields in keyed if _within(fields, key)], key) for key in keys]
    return [
        replace(group, is_main=group is _main([other for other in groups if _alike(group, other)])) for group in groups
    ]


def _alike(group: Group, other: Group) -> bool:
    """But for the schedule."""

    def rest(one: Group) -> dict[str, Any]:
        return {name: value for name, value in one.condition.items() if not name.startswith("arrivals.")}

    return rest(group) == rest(other)


def _main(groups: list[Group]) -> Group:
    """The largest; of several the one with the paper's order."""
    return max(groups, key=lambda group: (len(group.runs), group.condition.get("arrivals.order") == "jumbled"))


def _group(runs: list[tuple[RunRecord, dict[str, Any]]], key: dict[str, Any]) -> Group:
    """A mean would count a seed twice that is there twice: the run that says most of itself is kept."""
    kept: dict[tuple[str, Seeds], RunRecord] = {}
    notes = []
    for run, _ in sorted(runs, key=lambda pair: (-len(pair[1]), str(pair[0].folder))):
        first = kept.setdefault((run.setting, run.seeds), run)
        if first is not run:
            notes.append(
                f"{run.folder.name} repeats {first.folder.name} ({run.method_name}, {run.setting}, {run.seed_label}) "
                "and is left out of every result."
            )
    mine = tuple(run for run, _ in runs if run in kept.values())
    return Group(mine, key, tuple(notes), mine[0].method_name)


def _within(fields: dict[str, Any], others: dict[str, Any]) -> bool:
    return all(name in others and others[name] == value for name, value in fields.items())


def _rank(value: Any) -> tuple[Any, ...]:
    if isinstance(value, int | float):
        return (0, value, "")
    return (1, 0, str(value))


def _word(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)


def differing_fields(runs: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The fields, seeds among them, in which runs are not alike, with each run's value (None where it has none)."""
    flat = [flatten(run.config) for run in runs]
    names = dict.fromkeys(name for config in flat for name in config)
    values = {name: [config.get(name) for config in flat] for name in names}
    return {name: row for name, row in values.items() if any(value != row[0] for value in row)}
