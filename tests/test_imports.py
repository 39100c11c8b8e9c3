"""Nothing heavy is imported before it is needed, and every public name exists."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def imported() -> list[list[str]]:
    """Modules of one process after groups of imports, one after another. Importing torch takes seconds."""
    groups = [
        "ffcil.losses, ffcil.alignment, ffcil.calibration, ffcil.comparable",
        "ffcil.ha",
        "ffcil.models.new_rows, ffcil.models.whitening",
        "ffcil.studies.execution, ffcil.studies.plan, ffcil.methods, ffcil.runs.run",
        "ffcil.classifier.classifier, ffcil.classifier.teaching",
    ]
    lines = ["import json, sys", *(f"import {group}; print(json.dumps(list(sys.modules)))" for group in groups)]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_parts_that_can_be_used_alone(imported: list[list[str]]) -> None:
    """They import torch and no other module of ffcil."""
    modules = ["ffcil.alignment", "ffcil.calibration", "ffcil.comparable", "ffcil.losses"]
    assert sorted(name for name in imported[0] if name.startswith("ffcil.")) == modules


def test_ha_can_be_imported_without_the_training_loop(imported: list[list[str]]) -> None:
    added = set(imported[1]) - set(imported[0])
    expected = ["ffcil.ha", "ffcil.models", "ffcil.models.class_statistics"]
    assert sorted(name for name in added if name.startswith("ffcil.")) == expected


def test_parts_of_flow_can_be_imported_without_the_training_loop(imported: list[list[str]]) -> None:
    added = set(imported[2]) - set(imported[1])
    expected = ["ffcil.models.discriminant", "ffcil.models.new_rows", "ffcil.models.whitening"]
    assert sorted(name for name in added if name.startswith("ffcil.")) == expected


def test_a_plan_of_runs_needs_no_network_library(imported: list[list[str]]) -> None:
    """They import torch's compiler, which takes longer than all else."""
    assert "ffcil.studies.plan" in imported[3]
    assert {"timm", "torchvision", "torch._dynamo"}.isdisjoint(imported[3])


def test_a_classifier_needs_no_matplotlib(imported: list[list[str]]) -> None:
    """It writes to stderr if it cannot write to the home folder, as in a container."""
    assert "ffcil.classifier.teaching" in imported[4]
    assert "matplotlib" not in imported[4]


def test_every_public_name_exists() -> None:
    for name in ffcil.__all__:
        assert getattr(ffcil, name) is not None


@pytest.mark.parametrize("name", ["equal", "given", "half"])
def test_former_names_still_work(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"ffcil.{name}_arrivals"):
        assert getattr(ffcil, name) is getattr(ffcil, f"{name}_arrivals")
