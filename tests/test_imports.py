"""Imports point downward, and nothing heavy is loaded before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ffcil

SOURCE = Path(ffcil.__file__).parent

# From the bottom up: a room or a top module may import what stands on its own or an earlier line, never a later one.
ROOMS = [
    ["errors"],
    ["arrivals", "losses", "alignment", "metrics"],
    ["config"],
    ["data"],
    ["stream", "models"],
    ["ha"],
    ["training"],
    ["methods"],
    ["runs"],
    ["classifier", "report"],
    ["studies"],
    ["commands"],
    ["cli"],
    ["__main__"],
]


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path) -> set[str]:
    """Modules of ffcil that a file imports, anywhere in it."""
    names = set()
    known = {module_name(p) for p in SOURCE.rglob("*.py")}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    ours = {name.removeprefix("ffcil").removeprefix(".") for name in names if name.split(".")[0] == "ffcil"}
    return (ours & known) - {""}


def layer(module: str) -> int:
    room = module.split(".")[0]
    for number, rooms in enumerate(ROOMS):
        if room in rooms:
            return number
    raise AssertionError(f"{room} has no place yet: give it one in ROOMS")


def test_imports_point_downward() -> None:
    for path in SOURCE.rglob("*.py"):
        module = module_name(path)
        for other in imported(path) - {module}:
            same_room = module.split(".")[0] == other.split(".")[0]
            assert not module or same_room or layer(other) < layer(module), f"{module} imports {other}"


def test_what_must_stay_light() -> None:
    modules = (
        "ffcil, ffcil.cli, ffcil.arrivals, ffcil.config.resolve, ffcil.metrics, ffcil.runs.folder, ffcil.runs.state"
    )
    program = f"import sys, {modules}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_the_parts_that_stand_alone() -> None:
    """CWM and DIWA come with torch and nothing else of ffcil."""
    program = (
        "import sys, ffcil.losses, ffcil.alignment; "
        "print(sorted(m for m in sys.modules if m.startswith('ffcil.')), 'lightning_fabric' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['ffcil.alignment', 'ffcil.losses'] False"


def test_every_public_name_is_there() -> None:
    for name in ffcil.__all__:
        assert getattr(ffcil, name) is not None


@pytest.mark.parametrize("name", ["equal", "given", "half"])
def test_old_names_still_work(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"ffcil.{name}_arrivals"):
        assert getattr(ffcil, name) is getattr(ffcil, f"{name}_arrivals")
