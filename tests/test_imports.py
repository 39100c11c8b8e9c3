"""Imports point downward, and nothing heavy is loaded before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import ffcil

SOURCE = Path(ffcil.__file__).parent

# From the bottom up: a module may import what stands on an earlier line, never a later one.
LAYERS = [
    ["errors", "stopping"],
    ["config", "foreign"],
    ["arrivals", "recipe", "checkpoint", "losses", "alignment", "metrics", "memory"],
    ["data.cache", "data.placement", "data.autoaugment"],
    ["data.ragged"],
    ["data.image_set", "data.resized_crop"],
    ["data.store"],
    ["data.augment", "data.decoding"],
    ["data.glyphs", "data.own_images"],
    ["data.tables", "data.torch_datasets"],
    ["data.layouts", "data.pictures"],
    ["data.published"],
    ["data.sources"],
    ["data.overview"],
    ["stream", "models.analytic", "models.glyph_vit", "models.heads", "models.resnet", "models.tuners"],
    ["models.vit"],
    ["training", "robustness", "feature_cache", "ha"],
    ["environment", "methods.learner"],
    ["methods.*"],  # a method may build on another
    ["methods"],
    ["progress"],
    ["run_folder", "loggers"],
    ["run"],
    ["classifier"],
    ["teaching"],
    ["report.parts", "report.statistics"],
    ["report.records"],
    ["report.image_sets", "report.curves", "report.class_sizes"],
    ["report.groups"],
    ["report.tables"],
    ["report.ablation", "report.evidence", "report.sweeps", "report.differences"],
    ["report.overhead", "report.latex"],
    ["report.contents", "report.figures", "report.specs"],
    ["report.html"],
    ["report.page_tables", "report.page_figures", "report.page_runs"],
    ["report.page"],
    ["report.folder"],
    ["report"],
    ["run_state", "estimate", "executors.mps", "executors.job"],
    ["executors.loop", "study", "watch"],
    ["executors.local", "executors.ray", "executors.slurm"],
    ["study_run"],
    ["demo", "listing"],
    ["commands.options"],
    ["commands.classifier", "commands.data", "commands.report", "commands.study"],
    ["cli"],
    ["__main__"],
]
FREE = {"", "models", "data", "recipes", "executors", "commands"}  # packages that hold nothing but their parts


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
    return (ours & known) - FREE


def layer(module: str) -> int:
    for number, modules in enumerate(LAYERS):
        if module in modules or (module.startswith("methods.") and modules == ["methods.*"]):
            return number
    raise AssertionError(f"{module} has no layer yet: give it one in LAYERS")


def test_imports_point_downward() -> None:
    for path in SOURCE.rglob("*.py"):
        module = module_name(path)
        if module in FREE:
            continue
        for other in imported(path) - {module}:
            below = layer(other) < layer(module)
            among_methods = module.startswith("methods.") and layer(other) == layer(module)
            assert below or among_methods, f"{module} imports {other}"


def test_what_must_stay_light() -> None:
    program = "import sys, ffcil, ffcil.cli, ffcil.arrivals, ffcil.recipe, ffcil.metrics; print('torch' in sys.modules)"
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
