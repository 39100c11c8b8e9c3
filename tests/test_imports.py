"""Nothing heavy is imported before it is needed, and every public name exists."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ffcil


def test_torch_is_not_imported_without_need() -> None:
    modules = "cli arrivals config.resolve config.pycil_pilot metrics report runs.folder runs.published runs.state"
    imported = ", ".join(["ffcil", *(f"ffcil.{name}" for name in modules.split())])
    program = f"import sys, {imported}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_plan_of_runs_needs_no_network_library() -> None:
    """They import torch's compiler, which takes longer than all else."""
    slow = ["timm", "torchvision", "torch._dynamo"]
    program = (
        "import sys, ffcil.studies.execution, ffcil.studies.plan, ffcil.methods, ffcil.runs.run;"
        f"print([name for name in {slow} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_parts_that_can_be_used_alone() -> None:
    """They import torch and no other module of ffcil."""
    program = (
        "import sys, ffcil.losses, ffcil.alignment, ffcil.calibration, ffcil.comparable; "
        "print(sorted(m for m in sys.modules if m.startswith('ffcil.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    modules = ["ffcil.alignment", "ffcil.calibration", "ffcil.comparable", "ffcil.losses"]
    assert done.stdout.strip() == f"{modules}"


def test_every_public_name_exists() -> None:
    for name in ffcil.__all__:
        assert getattr(ffcil, name) is not None


@pytest.mark.parametrize("name", ["equal", "given", "half"])
def test_former_names_still_work(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"ffcil.{name}_arrivals"):
        assert getattr(ffcil, name) is getattr(ffcil, f"{name}_arrivals")
