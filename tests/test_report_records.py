"""Runs as reports read them, and error messages for damaged ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run as start
from typing import Any

import numpy as np
import pytest

from conftest import small_config
from ffcil.errors import InputError
from ffcil.methods import find_method
from ffcil.methods.framework import Framework
from ffcil.report import load_run, load_runs
from ffcil.report.read.records import read_runs
from ffcil.runs.run import Run
from invented_runs import FREE_FLOW, random_hits, write_run, write_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


def test_runs_are_read_as_they_were_written(study: Path) -> None:
    runs = load_runs(study)
    assert [(run.setting, run.seeds[0]) for run in runs] == [
        (setting, seed) for setting in ("Equ.T", "FF.org", "FF.ours") for seed in (0, 1, 2)
    ]
    run = runs[3]
    assert (run.dataset, run.method, run.seeds) == ("glyphs", "icarl", (0, 0, 0))
    assert run.sizes == FREE_FLOW[0]
    assert run.scored == "linear"
    assert run.classifiers == ["linear", "nearest-mean"]
    assert run.finished
    assert np.trace(run.tables["linear"].counts[-1].dense()) == sum(
        random_hits("FF.org", 0)("linear", 4, k) for k in range(8)
    )
    unfinished = runs[-1]
    assert not unfinished.finished
    assert unfinished.summary is None
    assert unfinished.tables["linear"].sizes == FREE_FLOW[2][:2]
    assert unfinished.scored == "linear"


@pytest.mark.parametrize(
    ("kind", "framework", "setting"),
    [
        ("equal", "none", "Equ.T"),
        ("equal", "paper", "Equ.ours"),
        ("free-flow", "none", "FF.org"),
        ("free-flow", "paper", "FF.ours"),
        ("given", "none", "Equ.T"),  # the sizes are those of equal steps
        ("trace", "paper", "FF.ours"),
        ("half", "none", "half"),
        ("half", "paper", "half.ours"),
    ],
)
def test_settings_have_the_papers_names(tmp_path: Path, kind: str, framework: str, setting: str) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), framework=framework)
    (tmp_path / "run" / "arrivals.json").write_text(json.dumps({"sizes": (2, 2, 2, 2), "kind": kind}))
    assert load_run(tmp_path / "run").setting == setting


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"framework": "none"}, "FF.org"),
        ({"framework": "paper"}, "FF.ours"),
        ({"framework": "none", "reduction": "class_wise_mean"}, "FF with CWM"),
        ({"framework": "none", "reduction": "class_wise_mean", "alignment": "diwa"}, "FF.ours"),
        ({"framework": "paper", "reduction": "mean"}, "FF with DIWA"),
        ({"framework": "paper", "alignment": "wa"}, "FF with CWM + WA"),
        ({"framework": "none", "alignment": "none"}, "FF with no alignment"),
        ({"framework": "paper", "ha": {"use": True, "surrogates": 20}}, "FF.ours"),
        ({"framework": "paper", "ha": {"use": True, "surrogates": 0}}, "FF with CWM + HA without surrogates"),
        ({"framework": "paper", "ha": {"use": True, "identity": False}}, "FF with CWM + HA without identity"),
        ({"framework": "paper", "ha": {"use": True, "identity": True}}, "FF.ours"),  # of an earlier version
        ({"framework": "paper", "ha": {"use": True, "identity": "sum"}}, "FF.ours"),
        ({"framework": "paper", "ha": {"use": True, "identity": "none"}}, "FF with CWM + HA without identity"),
        ({"framework": "paper", "ha": {"use": True, "identity": "mean"}}, "FF with CWM + HA with mean identity"),
        (
            {"framework": "paper", "ha": {"use": True, "identity": "mean", "surrogates": 0}},
            "FF with CWM + HA with mean identity without surrogates",
        ),
        ({"framework": "paper", "centre_weight": 1.0}, "FF with CWM + DIWA + centre loss"),
    ],
)
def test_a_setting_is_named_after_its_parts(tmp_path: Path, fields: dict[str, Any], setting: str) -> None:
    write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), **fields)
    assert load_run(tmp_path / "run").setting == setting


FLOW = {"enough": 5, "min_steps": 100, "comparable": True, "shared_ridge": True}


def without(part: str) -> dict[str, Any]:
    return {name: value for name, value in FLOW.items() if name != part}


@pytest.mark.parametrize(
    ("own", "framework", "setting"),
    [
        ("wa", {"alignment": "none", "flow": {"adjust": 1.5, "growth": 0.1}}, "FF.flow"),
        ("none", {"alignment": "none", "flow": {"adjust": 1.0, "growth": 0.2}}, "FF.flow"),
        ("wa", {"alignment": "none", "flow": {"adjust": 1.5}}, "FF with flow without gathered training"),
        ("wa", {"alignment": "wa", "flow": {"adjust": 1.5}}, "FF with adjusted loss"),
        ("wa", {"alignment": "diwa", "flow": {"adjust": 1.5}}, "FF with adjusted loss + DIWA"),
        ("none", {"alignment": "wa", "flow": {"adjust": 1.5}}, "FF with adjusted loss + WA"),
        (
            "wa",
            {"reduction": "class_wise_mean", "alignment": "none", "flow": {"adjust": 1.5, "growth": 0.1}},
            "FF with flow + CWM",
        ),
        ("none", {"alignment": "none", "flow": FLOW}, "FF.flow"),
        ("none", {"alignment": "none", "ha": True, "flow": FLOW}, "FF with flow + HA"),
        ("none", {"alignment": "none", "flow": without("comparable")}, "FF with flow without comparable scores"),
        ("none", {"alignment": "none", "flow": without("enough")}, "FF with flow without minimum of classes"),
        (
            "none",
            {"alignment": "none", "flow": {"comparable": True, "shared_ridge": True}},
            "FF with comparable scores + shared ridge",
        ),
    ],
)
def test_settings_with_parts_of_flow(tmp_path: Path, own: str, framework: dict[str, Any], setting: str) -> None:
    folder = write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0))
    facts = {"own_alignment": own, "framework": {"reduction": "mean", "ha": False} | framework}
    (folder / "method.json").write_text(json.dumps(facts))
    assert load_run(folder).setting == setting


@pytest.mark.parametrize(
    ("method", "flow", "setting"),
    [
        ("ease", FLOW, "FF with flow without spaces of large steps and shared metric"),  # of a version without both
        ("ease", without("comparable") | {"whiten": True}, "FF with flow without spaces of large steps"),
        ("ease", without("comparable") | {"share": 0.2, "whiten": True}, "FF.flow"),
        ("ease", FLOW | {"share": 0.2, "whiten": True}, "FF with flow + comparable scores"),
        (
            "cllora",
            without("comparable") | {"whiten": True},
            "FF with flow without spaces of large steps and means that follow",
        ),
        ("cllora", without("comparable") | {"share": 0.2, "follow": True, "whiten": True}, "FF.flow"),
        ("der", {"adjust": 1.0}, "FF.flow"),
        ("moal", FLOW, "FF.flow"),
        ("mine", without("comparable") | {"whiten": True}, "FF.flow"),
        ("mine", FLOW, "FF.flow"),
    ],
)
def test_whether_flow_is_whole_depends_on_the_method(
    tmp_path: Path, method: str, flow: dict[str, Any], setting: str
) -> None:
    folder = write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), method=method)
    framework = {"reduction": "mean", "ha": False, "alignment": "none", "flow": flow}
    (folder / "method.json").write_text(json.dumps({"own_alignment": "none", "framework": framework}))
    assert load_run(folder).setting == setting


def test_a_setting_under_flow_is_that_of_the_run(tmp_path: Path, colours: Path) -> None:
    for name, fields, setting in (
        ("flow", {"framework": "flow"}, "FF.flow"),
        ("wa", {"framework": "flow", "alignment": "wa"}, "FF with adjusted loss + gathered training"),
        ("half", {"framework": "flow", "flow": {"adjust": 0.0}}, "FF with flow without adjusted loss"),
        ("off", {"framework": "flow", "flow": {"adjust": 0.0, "growth": 0.0}}, "FF with no alignment"),
    ):
        config = small_config(
            dataset="folder",
            method="icarl",
            reduction="auto",
            arrivals={"kind": "given", "sizes": [2, 1, 3]},
            train={"epochs_scale": 0.01},
            **fields,
        )
        Run(config, tmp_path / name, data=colours, device="cpu").execute()
        assert load_run(tmp_path / name).setting == setting


@pytest.mark.parametrize(("robust", "setting"), [(False, "FF.org"), (True, "FF.ours")])
def test_runs_of_the_version_with_robust_are_read(tmp_path: Path, robust: bool, setting: str) -> None:
    folder = write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), robust=robust)
    config = json.loads((folder / "config.json").read_text())
    del config["framework"]
    (folder / "config.json").write_text(json.dumps(config))
    run = load_run(folder)
    assert run.setting == setting
    assert "robust" not in run.config


def test_records_of_earlier_runs_show_that_the_framework_meant_ha(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "FF.ours", 0, random_hits("FF.ours", 0), ha={"use": None, "surrogates": 0})
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(json.loads(r) | {"ha_loss": 1.0}) + "\n" for r in path.read_text().splitlines()))
    assert load_run(folder).setting == "FF with CWM + HA without surrogates"


@pytest.mark.parametrize(
    ("method", "network", "setting"),
    [
        ("icarl", {}, "FF.ours"),  # The method has no HA.
        ("simplecil", {"backbone": "glyph_vit", "weights": "embedded", "image_size": 32}, "FF with CWM"),
    ],
)
def test_without_ha_the_setting_is_that_of_the_run(
    tmp_path: Path, colours: Path, method: str, network: dict[str, Any], setting: str
) -> None:
    config = small_config(
        dataset="folder",
        method=method,
        framework="paper",
        ha={"use": False},
        arrivals={"kind": "given", "sizes": [2, 1, 3]},
        train={"epochs_scale": 0.01},
        **network,
    )
    run = Run(config, tmp_path, data=colours, device="cpu")
    run.execute()
    learner = find_method(method)
    assert Framework.resolve(run.config, learner.own_alignment, learner.pretrained).alignment == (
        "diwa" if setting == "FF.ours" else "none"
    )
    assert load_run(tmp_path).setting == setting


@pytest.mark.parametrize(
    ("method", "alignment", "setting"),
    [
        ("icarl", "wa", "FF.org"),
        ("icarl", "none", "FF with no alignment"),
        ("replay", "wa", "FF with WA"),
        ("replay", "none", "FF.org"),
    ],
)
def test_the_alignment_of_the_original_method_is_no_part(
    tmp_path: Path, colours: Path, method: str, alignment: str, setting: str
) -> None:
    config = small_config(
        dataset="folder",
        method=method,
        alignment=alignment,
        reduction="mean",
        arrivals={"kind": "given", "sizes": [2, 1, 3]},
        train={"epochs_scale": 0.01},
    )
    Run(config, tmp_path, data=colours, device="cpu").execute()
    assert load_run(tmp_path).setting == setting


def test_half_written_last_line_is_not_a_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), done=False, steps=2)
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"step": 3, "acc')
    assert len(load_run(folder).records) == 2


def break_steps(folder: Path) -> None:
    lines = (folder / "records.jsonl").read_text().splitlines()
    (folder / "records.jsonl").write_text("\n".join(lines[:-1]) + "\n")


def scratch(folder: Path) -> None:
    """Change one byte of a compressed archive."""
    path = folder / "counts" / "step-002.npz"
    np.savez_compressed(path, linear=np.random.default_rng(0).integers(0, 20, (4, 4)))
    content = bytearray(path.read_bytes())
    content[len(content) // 4] ^= 255
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "not the folder of a run"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is damaged"),
        (lambda f: (f / "config.json").write_text("[]"), "JSON object"),
        (lambda f: (f / "config.json").write_text("{}"), "no field 'dataset'"),
        (lambda f: (f / "summary.json").unlink(), "summary.json is missing"),
        (lambda f: (f / "records.jsonl").write_text("x\n" * 4), "Line 1 of"),
        (lambda f: (f / "records.jsonl").write_text('{"step": 2, "accuracy": {"linear": 1}}\n' * 4), "step 1"),
        (lambda f: (f / "records.jsonl").write_bytes(b"\xff\n" * 4), "Line 1 of"),
        (lambda f: (f / "arrivals.json").write_text('{"sizes": 4, "kind": "equal"}'), "field 'sizes'"),
        (break_steps, r"done, but records.jsonl has 3 of 4 steps"),
        (lambda f: (f / "counts" / "step-002.npz").unlink(), r"step-002\.npz is missing"),
        (lambda f: (f / "counts" / "step-002.npz").write_bytes(b"PK\x03\x04 no"), r"step-002\.npz is damaged"),
        (scratch, r"step-002\.npz is damaged"),
        (lambda f: np.savez(f / "counts" / "step-002.npz", linear=np.eye(4, dtype=int)), "step 1 counts"),
        (
            lambda f: (f / "arrivals.json").write_text('{"sizes": [1, 3, 2, 2], "kind": "equal"}'),
            "step 1 counts 2 classes",
        ),
    ],
)
def test_damaged_folders_are_named(tmp_path: Path, damage: Callable[[Path], Any], says: str) -> None:
    folder = write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0))
    damage(folder)
    with pytest.raises(InputError, match=says):
        load_run(folder)


def test_damaged_runs_are_named_and_the_rest_is_read(tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        write_run(tmp_path / f"{seed}", "Equ.T", seed, random_hits("Equ.T", seed))
    (tmp_path / "0" / "counts" / "step-002.npz").write_bytes(b"no")
    (tmp_path / "2" / "config.json").write_text("{")
    runs, damaged = read_runs(tmp_path)
    assert [run.folder.name for run in runs] == ["1"]
    assert ["step-002.npz is damaged" in damaged[0], "config.json is damaged" in damaged[1]] == [True, True]
    with pytest.raises(InputError, match=r"step-002\.npz is damaged"):
        load_runs(tmp_path)
    (tmp_path / "1" / "summary.json").unlink()
    with pytest.raises(InputError, match=r"step-002\.npz is damaged"):
        read_runs(tmp_path)  # there is no other


def test_folders_without_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No runs in"):
        load_runs(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        load_runs(tmp_path / "nowhere")


def test_importing_reports_loads_no_heavy_library() -> None:
    code = "import sys, ffcil.report; print([m for m in ('torch', 'matplotlib', 'plotly', 'rich') if m in sys.modules])"
    done = start([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
