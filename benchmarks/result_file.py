"""Result files of the benchmarks: the measured numbers beside the environment that gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ffcil.atomic import write_whole
from ffcil.config.resolve import resolve
from ffcil.runs.environment import describe_environment
from ffcil.runs.published import without_machine_paths
from ffcil.training.engine import Engine


def write_result(
    path: Path, device: str, measured: dict[str, Any], recipe: str = "cifar100", fields: dict[str, Any] | None = None
) -> None:
    """Write `measured` and the environment, with the precision of a recipe and `fields` that differ from it. Call it
    last: it uses the GPU."""
    environment = without_machine_paths(describe_environment(Engine.create(device, resolve(recipe, fields).train)))
    write_whole(path, (json.dumps({"environment": environment, **measured}, indent=2) + "\n").encode())
