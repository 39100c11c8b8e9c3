"""Recipes, overrides, and the configuration that they resolve to, every name checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from ffcil.config.pycil_pilot import is_foreign, left_out, translated
from ffcil.config.settings import ARRIVALS, RunConfig, Settings, validate
from ffcil.errors import InputError, unknown

RECIPE_FILES = (".yaml", ".yml", ".json")
"""JSON is YAML: a run's config.json is a recipe"""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # a study reads a recipe for each of its runs


def recipe_names() -> list[str]:
    return sorted(
        p.name.removesuffix(".yaml")
        for p in resources.files("ffcil.config.recipes").iterdir()
        if p.name.endswith(".yaml")
    )


def load_recipe(name: str) -> dict[str, Any]:
    """A recipe of the package by name, or any YAML file by path."""
    path = Path(name)
    if path.suffix in RECIPE_FILES:
        if not path.is_file():
            raise InputError(
                f"There is no recipe file {name!r}: name an existing file or one of: {', '.join(recipe_names())}."
            )
        text = path.read_bytes().decode("utf-8", errors="replace")
    elif name in recipe_names():
        text = (resources.files("ffcil.config.recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    else:
        raise unknown("recipe", name, recipe_names())
    return read_yaml(f"Recipe {name!r}", text)


def not_carried_over(recipe: str) -> list[str]:
    """What a file of PyCIL's or PILOT's says that its translation does not."""
    content = load_recipe(recipe)
    return left_out(content, f"The file {recipe}") if is_foreign(content) else []


def read_yaml(what: str, text: str) -> dict[str, Any]:
    """The mapping of fields in a YAML text; `what` names it in errors."""
    try:
        content = yaml.load(text, _LOADER)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"{what} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict):
        raise InputError(f"{what} must be a YAML mapping of fields, not {type(content).__name__}.")
    return content


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["train.batch=64", "arrivals.sizes=[1,2]"]` as a nested mapping; values are YAML."""
    nested: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise InputError(f"Cannot read --set {assignment!r}: write it as key=value, for example train_seed=1.")
        try:
            value = yaml.safe_load(text)
        except (yaml.YAMLError, ValueError) as error:
            raise InputError(f"Cannot read the value of --set {assignment!r}: quote it as YAML.") from error
        *parents, leaf = key.strip().split(".")
        place = nested
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise InputError(
                    f"--set {assignment!r} goes into {parent!r}, which another --set made a plain value: drop one."
                )
        place[leaf] = value
    return nested


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, mappings merged field by field."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def _merge_arrivals(base: Any, over: Any) -> Any:
    """Fields of another kind than the one asked for are dropped from `base`, not from `over`."""
    if not isinstance(over, Mapping):
        return over
    base = base if isinstance(base, Mapping) else {}
    kind = over.get("kind")
    if kind is None:  # sizes or a trace say by themselves what they are
        kind = "given" if "sizes" in over else "trace" if "trace" in over else base.get("kind")
    if kind != base.get("kind"):
        fields = _kind_of_arrivals(kind).model_fields
        # given sizes come as given, whatever the order of a spectrum was
        base = {key: value for key, value in base.items() if key in fields and not (kind == "given" and key == "order")}
    return {**base, **over, "kind": kind}


def lay(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's fields with those of `over` laid on top."""
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
    """Every key is a field of `model`; a wrong one is answered with the nearest right one."""
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
    fields = _kind_of_arrivals(kind).model_fields
    for key in arrivals:
        if key not in fields:
            others = [name for name, model in ARRIVALS.items() if key in model.model_fields]
            if others:
                raise InputError(
                    f"arrivals.{key} has no meaning for kind {kind!r}: set arrivals.kind={others[0]}, or drop it."
                )
            raise unknown("field", f"arrivals.{key}", [f"arrivals.{name}" for name in fields])


def build_config(settings: Mapping[str, Any]) -> RunConfig:
    """A complete configuration from a nested mapping, every name checked."""
    check_names(settings, RunConfig)
    _check_arrivals(settings.get("arrivals"))
    return validate(RunConfig, settings)


def resolve(recipe: str, *overrides: Mapping[str, Any]) -> RunConfig:
    """The configuration that a recipe gives under `overrides` (nested), laid on it one after another.

    A recipe may hold a mapping `methods` from a method's name to the fields in which it differs. It may be a
    configuration file of PyCIL's or PILOT's.
    """
    settings = load_recipe(recipe)
    if is_foreign(settings):
        base, theirs = translated(settings, f"The file {recipe}", overrides)
        return resolve(base, theirs, *overrides)
    by_method = settings.pop("methods", None) or {}
    method = next((over["method"] for over in reversed(overrides) if "method" in over), settings.get("method"))
    if not isinstance(by_method, Mapping) or not all(isinstance(fields, Mapping) for fields in by_method.values()):
        raise InputError(f"`methods` in recipe {recipe!r} must map methods to the fields in which they differ.")
    if isinstance(method, str):
        settings = lay(settings, by_method.get(method, {}))
    for over in overrides:
        settings = lay(settings, over)
    return build_config(settings)


def describe_fields(model: type[BaseModel] = RunConfig, prefix: str = "") -> list[dict[str, Any]]:
    """Every field that `--set` takes: its dotted name, default (None where a recipe must give it) and meaning."""
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
