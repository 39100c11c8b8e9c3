"""Recipes, overrides, and the configuration that they resolve to."""

import importlib
import shlex
from collections.abc import Iterable, Mapping
from functools import cache, lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ffcil.config.arrivals import ARRIVALS
from ffcil.config.base import Settings, validate
from ffcil.config.earlier import renewed
from ffcil.config.pycil_pilot import is_foreign, left_out, translate
from ffcil.config.reading import read_value, read_yaml
from ffcil.config.settings import RunConfig
from ffcil.errors import InputError, unknown

RECIPE_FILES = (".yaml", ".yml", ".json")
"""Suffixes of recipe files. JSON is YAML, so the config.json of a run is a recipe too."""
KINDS = ("conventional", "pretrained")
"""Kinds of methods."""


@cache
def recipe_names() -> list[str]:
    return sorted(
        file.name.removesuffix(".yaml")
        for file in resources.files("ffcil.config.recipes").iterdir()
        if file.name.endswith(".yaml")
    )


def load_recipe(name: str) -> dict[str, Any]:
    """Read a recipe of the package by name, or a YAML or JSON file by path. A published run is a recipe, too."""
    path = Path(name)
    if path.suffix in RECIPE_FILES:
        if not path.is_file():
            raise InputError(f"There is no recipe file {name!r}: give a file or one of: {', '.join(recipe_names())}.")
        text = path.read_bytes().decode("utf-8", errors="replace")
    elif name in recipe_names():
        text = (resources.files("ffcil.config.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    elif path.exists():
        example = f"ffcil run own-images --data {shlex.quote(name)}"
        raise InputError(f"{name} is not a recipe: name one before it, for example `{example}`.")
    else:
        raise unknown("recipe", name, recipe_names())
    content = _copied(_parsed(f"Recipe {name!r}", text))
    published = content.get("config") if "records" in content else None
    return published if isinstance(published, dict) else content


def _copied(value: Any) -> Any:
    """A copy of a YAML value, made many times faster than by `deepcopy`."""
    if isinstance(value, dict):
        return {key: _copied(field) for key, field in value.items()}
    return [_copied(element) for element in value] if isinstance(value, list) else value


_parsed = lru_cache(maxsize=64)(read_yaml)  # a study reads a recipe for each of its runs


def not_carried_over(recipe: str, *overrides: Mapping[str, Any]) -> list[str]:
    """Settings of a PyCIL or PILOT file that its translation does not contain."""
    content = load_recipe(recipe)
    return left_out(content, f"The file {recipe}", overrides) if is_foreign(content) else []


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """Convert assignments such as `["train.batch=64", "arrivals.sizes=[1,2]"]` to a nested mapping; values are YAML."""
    nested: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"Cannot read --set {assignment!r}: write it as key=value, for example train_seed=1.")
        try:
            value = read_value(text)
        except (yaml.YAMLError, ValueError) as error:
            raise InputError(f"Cannot read the value of --set {assignment!r}: quote it as YAML.") from error
        *parents, leaf = key.strip().split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(f"--set {assignment!r} contradicts the --set that gives {parent!r} a value: drop one.")
        place[leaf] = value
    return nested


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into `base`; nested mappings are merged field by field."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _merge_arrivals(base: Any, over: Any) -> Any:
    """Merge settings of arrivals. If `over` changes the kind, fields of `base` that the new kind lacks are dropped."""
    if not isinstance(over, Mapping):
        return over
    base = base if isinstance(base, Mapping) else {}
    kind = over.get("kind")
    if kind is None:  # sizes or a trace imply the kind
        kind = "given" if "sizes" in over else "trace" if "trace" in over else base.get("kind")
    if kind != base.get("kind"):
        fields = _kind_of_arrivals(kind).model_fields
        # the order of a spectrum does not apply to given sizes
        base = {key: value for key, value in base.items() if key in fields and not (kind == "given" and key == "order")}
    return {**base, **over, "kind": kind}


def merge_overrides(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Merge `over` into the fields of a configuration. Either may have fields of earlier versions."""
    base, over = renewed(base), renewed(over)
    merged = merge(base, over)
    if "arrivals" in over:
        merged["arrivals"] = _merge_arrivals(base.get("arrivals"), over["arrivals"])
    if "memory" in over:  # naming one of budget and per_class unsets the other
        merged["memory"] = over["memory"]
    return merged


def _kind_of_arrivals(kind: Any) -> type[Settings]:
    if not isinstance(kind, str) or kind not in ARRIVALS:
        raise unknown("kind of arrivals", str(kind), ARRIVALS)
    return ARRIVALS[kind]


def check_names(settings: Mapping[str, Any], model: type[BaseModel], prefix: str = "") -> None:
    """Raise an error that suggests the nearest name if a key is not a field of `model`."""
    for key, value in settings.items():
        if key not in model.model_fields:
            raise unknown("field", f"{prefix}{key}", [f"{prefix}{name}" for name in model.model_fields])
        annotation = model.model_fields[key].annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel) and isinstance(value, Mapping):
            check_names(value, annotation, f"{prefix}{key}.")


def _check_arrivals(arrivals: Any) -> None:
    if not isinstance(arrivals, Mapping) or arrivals.get("kind") is None:
        raise InputError(f"arrivals needs a kind: one of {', '.join(ARRIVALS)}.")
    kind = arrivals["kind"]
    model = _kind_of_arrivals(kind)
    for key in arrivals:
        others = [name for name, other in ARRIVALS.items() if key in other.model_fields]
        if others and key not in model.model_fields:
            remedy = f"set arrivals.kind={others[0]}, or drop it"
            raise InputError(f"arrivals.{key} does not apply to kind {kind!r}: {remedy}.")
    check_names(arrivals, model, "arrivals.")


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """Build a complete configuration from a nested mapping."""
    settings = renewed(settings)
    check_names(settings, RunConfig)
    _check_arrivals(settings.get("arrivals"))
    return validate(RunConfig, settings)


def resolve(recipe: str, *overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration of a recipe with `overrides` (nested mappings), applied in their order.

    A recipe may have fields for a kind of methods only, in a mapping `kinds` (`conventional`, `pretrained`), and fields
    for one method only, in a mapping `methods`. A recipe may also be a configuration file of PyCIL or PILOT.
    """
    settings, overrides = load_recipe(recipe), tuple(map(renewed, overrides))
    if is_foreign(settings):
        base, translation = translate(settings, f"The file {recipe}", overrides)
        return resolve(base, translation, *overrides)
    for over in overrides:
        check_names(over, RunConfig)  # before `_kind_of_method`, which may import torch
    by_kind, by_method = _pop_mapping(settings, "kinds", recipe), _pop_mapping(settings, "methods", recipe)
    for kind in by_kind:
        if kind not in KINDS:
            raise unknown("kind of methods", kind, KINDS)
    method = next((over["method"] for over in reversed(overrides) if "method" in over), settings.get("method"))
    if isinstance(method, str):
        if by_kind:
            settings = merge_overrides(settings, by_kind.get(_kind_of_method(method), {}))
        settings = merge_overrides(settings, by_method.get(method, {}))
    for over in overrides:
        settings = merge_overrides(settings, over)
    return build_config(settings)


def _pop_mapping(settings: dict[str, Any], name: str, recipe: str) -> Mapping[Any, Mapping[str, Any]]:
    found = settings.pop(name, None) or {}
    if not isinstance(found, Mapping) or not all(isinstance(fields, Mapping) for fields in found.values()):
        raise InputError(f"`{name}` in recipe {recipe!r} must map {name} to the fields in which they differ.")
    return found


def _kind_of_method(name: str) -> str | None:
    """Kind of a registered method; None for an unknown name, which is reported when the method is built."""
    methods = importlib.import_module("ffcil.methods")  # imported only if needed, because it imports torch
    if name not in methods.METHODS:
        return None
    return "pretrained" if methods.METHODS[name].pretrained else "conventional"


def describe_fields(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[dict[str, Any]]:
    """All fields for `--set`: dotted name, default (None if the recipe must give it) and meaning."""
    rows: list[dict[str, Any]] = []
    for name, info in model.model_fields.items():
        annotation, about = info.annotation, " ".join((info.description or "").split())
        if name == "arrivals":
            for kind, settings in ARRIVALS.items():
                of_kind = describe_fields(settings, f"{prefix}arrivals.")
                rows += [{**row, "kind": kind} for row in of_kind if row["name"] != f"{prefix}arrivals.kind"]
        elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
            rows += describe_fields(annotation, f"{prefix}{name}.")
        else:
            default = None if info.is_required() else info.get_default(call_default_factory=True)
            rows.append({"name": f"{prefix}{name}", "default": default, "needed": info.is_required(), "about": about})
    return rows
