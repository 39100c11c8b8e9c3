"""`Study`: a grid of runs in YAML (methods x settings x seeds x any fields), and the jobs that it resolves to."""

import itertools
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import Field, field_validator, model_validator

from ffcil.atomic import write_whole
from ffcil.config.base import Settings, validate
from ffcil.config.earlier import renewed
from ffcil.config.reading import read_yaml
from ffcil.config.resolve import (
    RECIPE_FILES,
    check_names,
    merge_overrides,
    parse_assignments,
    recipe_names,
    resolve,
)
from ffcil.config.settings import RunConfig, Seed
from ffcil.data.sources import SOURCES, check_drawn
from ffcil.errors import InputError, unknown
from ffcil.methods import complete, find_method
from ffcil.runs.identity import identity
from ffcil.studies.executors.job import Job

STUDIES = resources.files("ffcil.config.recipes") / "studies"
SEEDS = ("class_seed", "arrival_seed", "train_seed")
SAME_CHOICE = {
    "arrivals.sizes": "arrivals.kind",
    "arrivals.trace": "arrivals.kind",
    "memory.per_class": "memory.budget",
    "robust": "framework",
}
"""Fields that set the same thing as another field, whose name is on the right."""
Fields = dict[str, Any]


class Group(Settings):
    """Methods that share recipes, settings and varied fields: one grid."""

    recipes: tuple[str, ...] = Field(min_length=1)
    """Names or YAML files of recipes, usually one per data set."""
    methods: tuple[str, ...] = Field(min_length=1)
    settings: dict[str, Fields] = Field(min_length=1)
    """Settings by name, each with the fields that it sets on top of the recipe."""
    vary: dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]] = Field(default_factory=dict)
    """Values of varied fields, by dotted name."""

    @model_validator(mode="after")
    def _each_field_has_one_place(self) -> Self:
        """A varied value would replace that of a setting, whose name would then be wrong; `methods` replaces both."""
        for setting, fields in self.settings.items():
            for name in _dotted_names(fields):
                if varied := next((field for field in self.vary if f"{name}.".startswith(f"{field}.")), None):
                    raise ValueError(f"the setting {setting!r} sets {name}, and `vary` varies {varied}: drop one")
        if any("method" in fields for fields in (self.vary, *self.settings.values())):
            raise ValueError("a group names its methods in `methods`: drop the field `method`")
        return self


class Study(Settings):
    """A grid of runs.

    A seed s sets class_seed = arrival_seed = train_seed = s, so all settings of a seed share the class permutation, the
    spectrum and its order. A setting that sets one of these fields keeps its own value.
    """

    title: str
    about: str = ""
    seeds: tuple[Seed, ...] = Field(min_length=1)
    groups: tuple[Group, ...] = Field(min_length=1)
    set: Fields = Field(default_factory=dict)
    """Fields of every run, set on top of its recipe."""
    data: dict[str, str] = Field(default_factory=dict)
    """Files or folders of the data sets by recipe; `all` stands for every other recipe."""
    alone: bool = False
    """Whether runs are executed one after another, because they measure time."""
    imports: tuple[str, ...] = ()
    """Python files that register methods."""

    @field_validator("set")
    @classmethod
    def _methods_are_in_groups(cls, fields: Fields) -> Fields:
        if "method" in fields:
            raise ValueError("groups name their methods in `methods`: drop the field `method`")
        return fields


def study_names() -> list[str]:
    return sorted(file.name.removesuffix(".yaml") for file in STUDIES.iterdir() if file.name.endswith(".yaml"))


def load_study(name: str) -> Study:
    """Load a study of the package by name, or a YAML file by path."""
    if Path(name).suffix in (".yaml", ".yml"):
        if not Path(name).is_file():
            raise InputError(f"There is no study file {name!r}: give a file or one of: {', '.join(study_names())}.")
        text = Path(name).read_bytes().decode("utf-8", errors="replace")
    elif name in study_names():
        text = (STUDIES / f"{name}.yaml").read_text(encoding="utf-8")
    elif name in recipe_names():
        raise InputError(f"{name!r} is a recipe: use `ffcil run {name}`, or a study: {', '.join(study_names())}.")
    else:
        raise unknown("study", name, study_names())
    content = read_yaml(f"Study {name!r}", text)
    content.pop("shared", None)  # it only has YAML anchors
    check_names(content, Study)
    groups = content.get("groups")
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping):
            check_names(group, Group, "groups.")
    return _absolute(validate(Study, content))


def _absolute(study: Study) -> Study:
    """The study with absolute paths, so that it can be continued from any folder."""
    groups = (group.model_copy(update={"recipes": tuple(map(_recipe, group.recipes))}) for group in study.groups)
    data = {_recipe(recipe): os.path.abspath(place) for recipe, place in study.data.items()}
    imports = tuple(map(os.path.abspath, study.imports))
    return study.model_copy(update={"groups": tuple(groups), "data": data, "imports": imports})


def _recipe(name: str) -> str:
    """The absolute path of a recipe file, or the name of a recipe of the package."""
    return os.path.abspath(name) if Path(name).suffix in RECIPE_FILES else name


def narrow(
    study: Study,
    *,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    settings: Sequence[str] = (),
    seeds: Sequence[int] = (),
    assignments: Sequence[str] = (),
    data: Sequence[str] = (),
    imports: Sequence[str] = (),
    called: str = "study",
) -> Study:
    """Apply the options of the command line to a study.

    Args:
        datasets: Recipes that groups keep. A recipe that no group has replaces those of every group.
        methods: Methods that groups keep. A method that no group has joins the groups of its kind (with or without a
            pre-trained backbone), or every group if none is of its kind.
        settings: Names of the settings that groups keep.
        seeds: Seeds; empty for those of the study.
        assignments: Assignments of `--set`.
        data: Data sets as `RECIPE=PATH` or `PATH`.
        imports: Python files that register methods, in addition to those of the study.
        called: What error messages call the study.
    """
    groups = _keep(study, study.groups, "methods", methods, lambda method, group: _joins(study, method, group))
    groups = _keep(study, groups, "recipes", [_recipe(name) for name in datasets], lambda recipe, group: True)
    groups = _with_settings(study, groups, settings)
    over = parse_assignments(assignments)
    for field in _dotted_names(over):
        if owner := _field_of_study(study, field):
            raise InputError(f"The {called} sets {owner} itself: drop --set {field}=..., or write a study of your own.")
    recipes = {*recipe_names(), *(recipe for group in groups for recipe in group.recipes)}
    changed = {
        "groups": groups,
        "seeds": tuple(dict.fromkeys(seeds)) or study.seeds,
        "set": merge_overrides(study.set, over),
        "data": {**study.data, **dict(_recipe_and_path(entry, recipes) for entry in data)},
        "imports": tuple(dict.fromkeys((*study.imports, *imports))),
    }
    return _absolute(study.model_copy(update=changed))


def _recipe_and_path(entry: str, recipes: Collection[str]) -> tuple[str, str]:
    """Parse `RECIPE=PATH` or `PATH`, which is for all recipes."""
    recipe, equals, path = entry.partition("=")
    return (_recipe(recipe), path) if equals and _recipe(recipe) in recipes else ("all", entry)


def _keep(
    study: Study, groups: tuple[Group, ...], field: str, names: Sequence[str], joins: Callable[[str, Group], bool]
) -> tuple[Group, ...]:
    """Groups with only `names` in a field. A name that no group has is added to the groups for which `joins` is
    true."""
    if not names:
        return groups
    known = {name for group in study.groups for name in getattr(group, field)}
    kept = []
    for group in groups:
        own = [name for name in names if name in getattr(group, field) or (name not in known and joins(name, group))]
        if own:
            kept.append(group.model_copy(update={field: tuple(dict.fromkeys(own))}))
    return tuple(kept)


def _with_settings(study: Study, groups: tuple[Group, ...], names: Sequence[str]) -> tuple[Group, ...]:
    """Groups with only the settings `names`. A name that no group of the study has is an error."""
    known = {name for group in study.groups for name in group.settings}
    for name in names:
        if name not in known:
            raise unknown("setting", name, sorted(known))
    if not names:
        return groups
    kept = ((group, {name: own for name, own in group.settings.items() if name in names}) for group in groups)
    return tuple(group.model_copy(update={"settings": settings}) for group, settings in kept if settings)


def _joins(study: Study, method: str, group: Group) -> bool:
    """Whether a new method joins a group: the group is of the method's kind, or no group is."""
    kind = find_method(method).pretrained
    kinds = {find_method(name).pretrained for other in study.groups for name in other.methods}
    return kind == find_method(group.methods[0]).pretrained or kind not in kinds


def _dotted_names(fields: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Names of nested fields, as in `--set`."""
    for key, value in fields.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted_names(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def _field_of_study(study: Study, field: str) -> str | None:
    """The field that the study itself sets and that `field` would change; None if there is none."""
    own = {"method", *SEEDS}
    for group in study.groups:
        own |= {*group.vary, *(name for fields in group.settings.values() for name in _dotted_names(fields))}
    return next((name for name in sorted(own) if SAME_CHOICE.get(name, name) == SAME_CHOICE.get(field, field)), None)


@dataclass(frozen=True)
class Cell:
    """Position of a run in the grid."""

    recipe: str
    method: str
    setting: str
    fields: tuple[Fields, ...]
    """Fields that the study and the setting set on top of the recipe."""
    varied: tuple[tuple[str, Any], ...]
    seed: int
    data: Path | None

    @property
    def words(self) -> tuple[str, ...]:
        """Words that describe the run."""
        varied = tuple(f"{field.rpartition('.')[2]}={value}" for field, value in self.varied)
        return (Path(self.recipe).stem, self.method, self.setting, *varied, f"seed {self.seed}")

    @property
    def name(self) -> str:
        """Name of the run's folder. It has all words, whether they vary or not, so that a study that is extended finds
        its earlier runs."""
        return re.sub(r"[^A-Za-z0-9.+-]+", "_", "-".join(self.words))

    def config(self, known: dict[str, RunConfig]) -> RunConfig:
        """The configuration of the run. Runs that differ only in the seed are resolved once: `known` keeps the
        results."""
        overrides = (*self.fields, *(_nested(field, value) for field, value in self.varied), {"method": self.method})
        key = json.dumps([self.recipe, *overrides], sort_keys=True, default=str)
        if key not in known:
            try:
                known[key] = complete(resolve(self.recipe, dict.fromkeys(SEEDS, self.seed), *overrides))
            except InputError as error:
                raise InputError(f"{' '.join(self.words)}: {error}") from error
        seeds = {name: self.seed for name in SEEDS if not any(name in fields for fields in overrides)}
        return known[key].model_copy(update=seeds)


def _nested(field: str, value: Any) -> Any:
    """A nested mapping that sets the field with this dotted name."""
    for name in reversed(field.split(".")):
        value = {name: value}
    return value


def cells(study: Study) -> Iterator[Cell]:
    """Runs of the grid, seed by seed, so that an interrupted study has complete rows."""
    for seed, group in itertools.product(study.seeds, study.groups):
        varied = [[(field, value) for value in values] for field, values in group.vary.items()]
        grid = itertools.product(group.recipes, group.methods, itertools.product(*varied), group.settings.items())
        for recipe, method, values, (setting, fields) in grid:
            path = study.data.get(recipe, study.data.get("all"))
            data = None if path is None else Path(path).absolute()
            yield Cell(recipe, method, setting, (renewed(study.set), renewed(fields)), values, seed, data)


def jobs_of(study: Study, out: Path, *, device: str | None = None, logs: Sequence[str] = ()) -> list[Job]:
    """Resolve a study to jobs in `out/runs`. Every name is checked, and equal runs become one job."""
    by_folder: dict[str, tuple[Cell, Job]] = {}
    known: dict[str, RunConfig] = {}
    for cell in cells(study):
        config = cell.config(known)
        check_drawn(config.dataset, cell.data)  # now, and not after other runs have trained for hours
        run_id = identity(config, cell.data)
        folder = out / "runs" / f"{cell.name}-{run_id}"
        job = Job(run_id, config, folder, cell.recipe, cell.data, device, study.imports, tuple(logs))
        by_folder.setdefault(folder.name, (cell, job))
    if not by_folder:
        raise InputError("No runs are left: no group has a named data set, method and setting together; change one.")
    return _labelled(by_folder.values())


def _labelled(made: Collection[tuple[Cell, Job]]) -> list[Job]:
    """Label jobs by the words in which they differ; equal labels get the hash of the folder's name in addition."""
    common = set.intersection(*(set(cell.words) for cell, _ in made)) if len(made) > 1 else set()
    labels = [" ".join(word for word in cell.words if word not in common) for cell, _ in made]
    times = Counter(labels)
    return [
        replace(job, label=label if times[label] == 1 else f"{label or cell.setting} {job.label}")
        for label, (cell, job) in zip(labels, made, strict=True)
    ]


def missing_data(jobs: Iterable[Job]) -> list[str]:
    """A sentence for every recipe whose data set is missing, with the way to get it."""
    wanted = {job.recipe: SOURCES[job.config.dataset].find(job.data) for job in jobs if job.config.dataset in SOURCES}
    return [f"{recipe}: {problem}" for recipe, problem in wanted.items() if problem]


def write_study(study: Study, out: Path) -> None:
    """Write the resolved study to `out/study.yaml`, with which `ffcil study out/study.yaml` continues it.

    An existing file with all of this study's runs is kept.
    """
    out.mkdir(parents=True, exist_ok=True)
    path = out / "study.yaml"
    if path.exists() and _includes(path, study):
        return
    text = yaml.safe_dump(study.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120)
    write_whole(path, text.encode())


def _includes(path: Path, study: Study) -> bool:
    """Whether the study in a file has every run of `study`."""
    try:
        existing = load_study(str(path))
    except InputError:  # the file is damaged or of another version, and will be overwritten
        return False
    known = list(cells(existing))
    return {*study.imports} <= {*existing.imports} and all(cell in known for cell in cells(study))
