"""Nested states in safetensors files. A crash at any moment leaves a complete file.

Tensors are stored as tensors; everything else (numbers, strings, structure) as JSON in the metadata of the same file.
"""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ffcil.errors import InputError
from ffcil.runs.atomic import write_whole
from ffcil.runs.folder import checkpoint_name, checkpoints


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON skeleton of `value`; its tensors are collected by their paths."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu").contiguous().clone()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"mapping": {key: _flatten(item, f"{path}/{key}", tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_flatten(item, f"{path}/{k}", tensors) for k, item in enumerate(value)]}
    return {"value": value}


def _unflatten(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    (kind, content), *_ = skeleton.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "mapping":
        return {key: _unflatten(item, tensors) for key, item in content.items()}
    if kind == "list":
        return [_unflatten(item, tensors) for item in content]
    return content


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write nested mappings and lists of tensors and JSON values."""
    tensors: dict[str, Tensor] = {}
    skeleton = _flatten(state, "", tensors)
    write_whole(path, save(tensors, metadata={"skeleton": json.dumps(skeleton)}))


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Deep copy of a state, on the CPU; changes of the original do not affect it."""
    tensors: dict[str, Tensor] = {}
    copy: dict[str, Any] = _unflatten(_flatten(state, "", tensors), tensors)
    return copy


def load_state(path: Path, remedy: str = "remove the run's folder and start again") -> dict[str, Any]:
    """Read a state that `save_state` wrote, to the CPU; the error for a damaged file ends with `remedy`."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            state: dict[str, Any] = _unflatten(json.loads(file.metadata()["skeleton"]), tensors)
    except (SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"Checkpoint {path} is damaged ({error}): {remedy}.") from error
    return state


def save_checkpoint(folder: Path, step: int, epoch: int, state: dict[str, Any]) -> None:
    """Write a checkpoint; then remove the earlier ones."""
    before = checkpoints(folder)
    path = folder / checkpoint_name(step, epoch)
    save_state(path, state)
    for old in before:
        if old != path:
            old.unlink()
