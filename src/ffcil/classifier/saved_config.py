"""The configuration of a saved classifier, and what may change in it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ffcil.config.earlier import renewed
from ffcil.config.resolve import build_config, merge_overrides
from ffcil.config.settings import RunConfig
from ffcil.errors import InputError
from ffcil.methods import METHODS, complete
from ffcil.models.resnet import BACKBONES

CHANGEABLE = ("weights", "memory", "train", "evaluate_batch", "checkpoint_seconds")
"""Fields of a configuration that may change between two steps, because nothing that was learned depends on them."""
UNUSED = ("dataset", "arrivals", "class_seed", "arrival_seed")
"""Fields of a configuration that a classifier does not use."""


def changed_config(folder: Path, config: Mapping[str, Any], changes: Mapping[str, Any]) -> tuple[RunConfig, bool]:
    """The configuration of the classifier in a folder with nested `changes` to fields in `CHANGEABLE`, and whether it
    differs from the saved one. A configuration of an earlier version is renewed."""
    config = renewed(config)
    if config["method"] not in METHODS:
        raise InputError(
            f"The classifier in {folder} uses method {config['method']!r}, which is not registered: add --import FILE."
        )
    if not METHODS[config["method"]].pretrained and config["backbone"] not in BACKBONES:
        raise InputError(
            f"The classifier in {folder} uses backbone {config['backbone']!r}, which is not registered: add --import "
            "FILE."
        )
    # completed, because a classifier of an earlier version lacks fields or has them in another form
    saved = complete(build_config(config))
    changed = with_absolute_weights(build_config(merge_overrides(saved.model_dump(mode="json"), changes)))
    before, after = (settings.model_dump(mode="json") for settings in (saved, changed))
    differing = [key for key, value in after.items() if value != before[key]]
    if fixed := sorted(set(differing) - {*CHANGEABLE, *UNUSED}):
        name, value = _first_difference(fixed[0], before[fixed[0]], after[fixed[0]])
        raise InputError(
            f"The {name} of the classifier in {folder} is {json.dumps(value)} and cannot change: leave it so, or "
            f"create a new one; {', '.join(CHANGEABLE)} can change."
        )
    return changed, bool(differing)


def with_absolute_weights(config: RunConfig) -> RunConfig:
    """Replace the path of a weights file by its absolute path, because the next call may come from another folder."""
    if not config.weights or not Path(config.weights).is_file():
        return config
    return config.model_copy(update={"weights": str(Path(config.weights).resolve())})


def _first_difference(name: str, before: Any, after: Any) -> tuple[str, Any]:
    """Dotted name and saved value of the first field of `before`, itself the field `name`, that `after` changes."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, value in before.items():
            if after.get(key) != value:
                return _first_difference(f"{name}.{key}", value, after.get(key))
    return name, before
