"""`ffcil compare`: two runs, or two studies in pairs, checked with naive differences."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from scipy import stats
from typer.testing import CliRunner

from conftest import small_config
from ffcil.cli import app
from ffcil.errors import InputError
from ffcil.report import load_runs
from ffcil.report.analyse.differences import differences
from ffcil.runs.run import Run
from invented_runs import naive, random_hits, write_run

ONE = ("linear",)


def as_json(a: Path, b: Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["compare", str(a), str(b), "--json"])
    assert done.exit_code == 0
    return json.loads(done.stdout)


def test_two_real_runs(tmp_path: Path, colours: Path) -> None:
    summaries = {}
    for name, rate in (("a", 0.05), ("b", 0.001)):
        phase = {"epochs": 1, "learning_rate": rate}
        config = small_config(
            dataset="folder",
            method="finetune",
            arrivals={"kind": "given", "sizes": [2, 1, 3]},
            train={"first": phase, "later": phase},
        )
        summaries[name] = Run(config, tmp_path / name, data=colours, device="cpu").execute()
    found = as_json(tmp_path / "a", tmp_path / "b")
    (pair,) = found["pairs"]
    assert pair["config"] == {
        "train.first.learning_rate": [[0.05, 0.001]],
        "train.later.learning_rate": [[0.05, 0.001]],
    }
    linear = pair["classifiers"]["linear"]
    for metric in ("average", "last", "forgetting"):
        truth = summaries["b"][metric] - summaries["a"][metric]
        assert linear["summary"][metric]["difference"] == pytest.approx(truth)
    curves = [summaries[name]["classifiers"]["linear"]["curve"] for name in ("a", "b")]
    assert [(step["a"], step["b"]) for step in linear["steps"]] == [pytest.approx(s) for s in zip(*curves, strict=True)]
    assert pair["seconds"]["train"]["a"] == pytest.approx(summaries["a"]["seconds_by_phase"]["train"])
    shown = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output
    for text in ("train.first.learning_rate", "step 3, 6 classes", "B - A", "evaluate"):
        assert text in shown


def study(folder: Path, settings: dict[str, str], seeds: tuple[int, ...], **config: Any) -> Path:
    """Write runs of several settings, each with the hits of the setting that `settings` names."""
    for setting, like in settings.items():
        for seed in seeds:
            write_run(folder / f"{setting}-{seed}", setting, seed, random_hits(like, seed), classifiers=ONE, **config)
    return folder


def test_studies_are_paired_by_seeds(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"Equ.T": "Equ.T", "FF.org": "FF.org"}, (0, 1, 2))
    b = study(tmp_path / "b", {"Equ.T": "Equ.T", "FF.org": "FF.ours"}, (1, 2), note="new")
    found = as_json(a, b)
    equal, free = found["pairs"]
    assert equal["classifiers"]["linear"]["summary"]["last"]["differences"] == [0, 0]
    last = free["classifiers"]["linear"]["summary"]["last"]
    truth = [naive("FF.ours", seed, "linear")[1] - naive("FF.org", seed, "linear")[1] for seed in (1, 2)]
    assert last["differences"] == pytest.approx(truth)
    assert last["difference"] == pytest.approx(statistics.mean(truth))
    assert last["interval"] == pytest.approx(list(stats.ttest_1samp(truth, 0).confidence_interval(0.95)))
    assert last["bootstrap_interval"] == pytest.approx([min(truth), max(truth)])
    assert free["config"] == {"note": [[None, "new"], [None, "new"]]}
    assert [Path(folder).name for folder in found["only_a"]] == ["Equ.T-0", "FF.org-0"]
    assert found["only_b"] == []


def test_runs_are_paired_with_those_of_the_same_alpha(tmp_path: Path) -> None:
    for side, epochs in (("a", 3), ("b", 5)):
        for alpha in (0.1, 1.0):
            for seed in (0, 1):
                arrivals = {"kind": "free-flow", "alpha": alpha, "order": "jumbled"}
                hits = random_hits("FF.org", seed)
                folder = tmp_path / side / f"{alpha}-{seed}"
                write_run(folder, "FF.org", seed, hits, classifiers=ONE, arrivals=arrivals, train={"epochs": epochs})
    found = differences(load_runs(tmp_path / "a"), load_runs(tmp_path / "b"))
    assert len(found.parts) == 2
    for part in found.parts:
        assert part.config == {"train.epochs": [(3, 5), (3, 5)]}


def test_studies_with_and_without_the_framework_are_paired(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"FF.org": "FF.org"}, (0, 1))
    b = study(tmp_path / "b", {"FF.ours": "FF.ours"}, (0, 1))
    (part,) = differences(load_runs(a), load_runs(b)).parts
    assert part.name == "iCaRL on glyphs, FF.org → iCaRL on glyphs, FF.ours"
    assert len(part.pairs) == 2


def test_unfinished_run_has_steps_but_no_result(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "FF.org", 0, random_hits("FF.org", 0), classifiers=ONE)
    write_run(tmp_path / "b", "FF.org", 0, random_hits("FF.org", 0), classifiers=ONE, done=False, steps=2)
    (pair,) = as_json(tmp_path / "a", tmp_path / "b")["pairs"]
    assert pair["classifiers"]["linear"]["summary"]["average"] is None
    assert len(pair["classifiers"]["linear"]["steps"]) == 2
    assert pair["seconds"] == {"train": None, "start_up": None, "memory": None, "evaluate": None}
    shown = " ".join(CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output.split())
    assert "is unfinished (2 of 4 steps)" in shown
    assert "There is no time to compare" in shown


def test_studies_without_a_pair_are_an_error(tmp_path: Path) -> None:
    a = study(tmp_path / "a", {"FF.org": "FF.org"}, (0, 1))
    b = study(tmp_path / "b", {"FF.org": "FF.org"}, (0, 1), dataset="digits")
    with pytest.raises(InputError, match="data set and seeds"):
        differences(load_runs(a), load_runs(b))


def test_other_conditions_are_not_averaged(tmp_path: Path) -> None:
    for side, more in (("a", 0), ("b", 2)):
        for budget, right in ((100, 5), (500, 12)):
            hits = right + more * (1 if budget == 100 else 3)
            for seed in (0, 1):
                folder, memory = tmp_path / side / f"{budget}-{seed}", {"budget": budget}
                write_run(folder, "FF.org", seed, lambda *_, n=hits: n, classifiers=ONE, memory=memory)
    found = as_json(tmp_path / "a", tmp_path / "b")
    last = {pair["name"]: pair["classifiers"]["linear"]["summary"]["last"] for pair in found["pairs"]}
    assert {name: (of["difference"], of["pairs"]) for name, of in last.items()} == {
        "iCaRL on glyphs, FF.org (memory.budget 100)": (pytest.approx(10), 2),
        "iCaRL on glyphs, FF.org (memory.budget 500)": (pytest.approx(30), 2),
    }


def test_run_without_steps_does_not_affect_the_others(tmp_path: Path) -> None:
    study(tmp_path / "a", {"FF.org": "FF.org"}, (0, 1, 2))
    study(tmp_path / "b", {"FF.org": "FF.ours"}, (0, 1))
    late = write_run(tmp_path / "b" / "late", "FF.org", 2, random_hits("FF.org", 2), classifiers=ONE, done=False)
    (late / "records.jsonl").write_text("")
    (pair,) = as_json(tmp_path / "a", tmp_path / "b")["pairs"]
    linear = pair["classifiers"]["linear"]
    truth = [naive("FF.ours", seed, "linear")[0] - naive("FF.org", seed, "linear")[0] for seed in (0, 1)]
    assert linear["summary"]["average"]["differences"] == pytest.approx(truth)
    assert [step["pairs"] for step in linear["steps"]] == [2, 2, 2, 2]
    assert pair["seconds"]["train"] == {"a": 6.0, "b": 6.0}
    shown = " ".join(CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output.split())
    assert "late is unfinished (0 of 4 steps). It is not compared." in shown


def test_steps_use_the_pairs_that_finished_them(tmp_path: Path) -> None:
    study(tmp_path / "a", {"FF.org": "FF.org"}, (0, 1))
    study(tmp_path / "b", {"FF.org": "FF.org"}, (0,))
    write_run(tmp_path / "b" / "late", "FF.org", 1, lambda *_: 20, classifiers=ONE, done=False, steps=2)
    (pair,) = as_json(tmp_path / "a", tmp_path / "b")["pairs"]
    assert [step["pairs"] for step in pair["classifiers"]["linear"]["steps"]] == [2, 2, 1, 1]


def test_scored_classifiers_are_compared(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "FF.org", 0, lambda *_: 8, classifiers=("linear", "nearest-mean"))
    scored = {"prototype": 12, "nearest-mean": 10}
    write_run(tmp_path / "b", "FF.org", 0, lambda c, *_: scored[c], classifiers=tuple(scored), method="ranpac")
    (pair,) = as_json(tmp_path / "a", tmp_path / "b")["pairs"]
    found = {name: of["summary"]["last"]["difference"] for name, of in pair["classifiers"].items()}
    assert found == {"linear → prototype": pytest.approx(20), "nearest-mean": pytest.approx(10)}
    shown = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b")]).output
    assert "Accuracy in percent, linear head in A, prototypes in B (scored)" in " ".join(shown.split())


def test_different_images_are_named(tmp_path: Path) -> None:
    for side in ("a", "b"):
        folder = write_run(tmp_path / side, "FF.org", 0, lambda *_: 8, classifiers=ONE, dataset="folder")
        (folder / "data.json").write_text(json.dumps({"classes": ["x", "y"], "sample": side}))
    (pair,) = as_json(tmp_path / "a", tmp_path / "b")["pairs"]
    assert pair["name"] == "iCaRL on folder (images 1), FF.org → iCaRL on folder (images 2), FF.org"


def test_damaged_run_is_named_and_left_out(tmp_path: Path) -> None:
    for side in ("a", "b"):
        study(tmp_path / side, {"FF.org": "FF.org"}, (0, 1))
    (tmp_path / "b" / "FF.org-1" / "counts" / "step-001.npz").write_bytes(b"no")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--json"])
    (pair,) = json.loads(done.stdout)["pairs"]
    assert len(pair["runs"]) == 1
    assert "step-001.npz is damaged" in done.stderr
