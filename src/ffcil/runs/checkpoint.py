"""Nested states in safetensors files. A crash at any moment leaves a complete file.

Tensors are stored as tensors; everything else (numbers, strings, structure) as JSON in the metadata of the same file,
with a digest of both, so that a file that was damaged later is noticed.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ffcil.atomic import write_whole
from ffcil.errors import InputError
from ffcil.runs.folder import checkpoint_name, checkpoints

KEPT = 2
"""Number of checkpoints of an unfinished run that are kept: the newest one, and the one before it in case the newest is
damaged."""


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The structure of a nested value as JSON. Its tensors are put into `tensors` by their paths."""
    if isinstance(value, Tensor):
        tensors[path] = value.detach().to("cpu").contiguous().clone()
        return {"tensor": path}
    if isinstance(value, dict):
        return {"mapping": {key: _flatten(item, f"{path}/{key}", tensors) for key, item in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_flatten(item, f"{path}/{k}", tensors) for k, item in enumerate(value)]}
    return {"value": value}


def _unflatten(skeleton: Any, tensors: dict[str, Tensor]) -> Any:
    """The nested value with this structure and these tensors."""
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
    text = json.dumps(skeleton)
    # One entry, because safetensors writes several entries in any order, and equal states should give equal files.
    write_whole(path, save(tensors, metadata={"state": f"{_digest(text, tensors)} {text}"}))


def _digest(skeleton: str, tensors: Mapping[str, Tensor]) -> str:
    """Hash of everything in a file: names, types, shapes and values of the tensors, and all other values as JSON."""
    content = hashlib.sha256(skeleton.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        content.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        content.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return content.hexdigest()


def copied(state: dict[str, Any]) -> dict[str, Any]:
    """Deep copy of a state, on the CPU; changes of the original do not affect it."""
    tensors: dict[str, Tensor] = {}
    copy: dict[str, Any] = _unflatten(_flatten(state, "", tensors), tensors)
    return copy


def load_state(path: Path, remedy: str = "remove the run's folder and start again") -> dict[str, Any]:
    """Read a state that `save_state` wrote; tensors are on the CPU. The error for a damaged file ends with `remedy`.

    A file of an earlier version has no digest, which is then not checked.
    """
    path.open("rb").close()  # safetensors calls a file missing that may not be read
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            metadata = file.metadata()
        if "state" in metadata:
            digest, _, skeleton = metadata["state"].partition(" ")
        else:
            digest, skeleton = "", metadata["skeleton"]
        if "state" in metadata and digest != _digest(skeleton, tensors):
            raise ValueError("its content does not have its digest")
        state: dict[str, Any] = _unflatten(json.loads(skeleton), tensors)
    except (SafetensorError, TypeError, KeyError, AttributeError, ValueError) as error:
        raise InputError(f"Checkpoint {path} is damaged ({error}): {remedy}.") from error
    return state


def save_checkpoint(folder: Path, step: int, epoch: int, state: dict[str, Any]) -> None:
    """Write a checkpoint, then remove old ones."""
    save_state(folder / checkpoint_name(step, epoch), state)
    remove_old_checkpoints(folder, KEPT)


def remove_old_checkpoints(folder: Path, kept: int) -> None:
    """Remove all checkpoints but the newest `kept`."""
    for old in checkpoints(folder)[:-kept]:
        old.unlink()


def set_aside(path: Path) -> Path:
    """Rename a checkpoint that cannot be used, so that it is no longer found. Returns the new path."""
    return path.rename(path.with_name(f"unusable-{path.name}"))
