"""A nested state in one safetensors file, written so that a crash at any moment leaves a whole one.

Tensors go in as tensors; everything else (numbers, strings, structure) as JSON in the file's metadata, so that the two
can never disagree.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from ffcil.errors import InputError

_NAME = re.compile(r"step-(\d+)-epoch-(\d+)\.safetensors")


def write_whole(path: Path, content: bytes) -> None:
    """Write under a temporary name, bring it to the disk, then rename: `path` is whole or absent, never half."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """What processes that were killed while writing left behind."""
    for draft in folder.rglob(".*.draft"):
        draft.unlink()


def _flatten(value: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """The JSON skeleton of `value`; its tensors are collected under their paths."""
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
    """As if it had been written and read: nothing that is done to the original reaches it."""
    tensors: dict[str, Tensor] = {}
    copy: dict[str, Any] = _unflatten(_flatten(state, "", tensors), tensors)
    return copy


def load_state(path: Path, remedy: str = "remove the run's folder and start again") -> dict[str, Any]:
    """What `save_state` wrote, on the CPU; `remedy` for a file that is damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
            state: dict[str, Any] = _unflatten(json.loads(file.metadata()["skeleton"]), tensors)
    except (SafetensorError, TypeError, KeyError, json.JSONDecodeError) as error:
        raise InputError(f"Checkpoint {path} is damaged ({error}): {remedy}.") from error
    return state


def checkpoint_name(step: int, epoch: int) -> str:
    return f"step-{step:04d}-epoch-{epoch:05d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Of a folder, oldest first."""
    return sorted(path for path in folder.glob("step-*.safetensors") if _NAME.fullmatch(path.name))


def save_checkpoint(folder: Path, step: int, epoch: int, state: dict[str, Any]) -> None:
    """Write a checkpoint; the ones before it go only when it is whole."""
    before = checkpoints(folder)
    path = folder / checkpoint_name(step, epoch)
    save_state(path, state)
    for old in before:
        if old != path:
            old.unlink()
