"""Arrival sensitivity: its numbers, the schedules that are found in records, every output, and the study."""

from __future__ import annotations

import csv as csv_format
import io
import json
import statistics
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ffcil.errors import InputError
from ffcil.report import Contents, load_runs, write_report
from ffcil.report.analyse.sensitivity import Sensitivity, sensitivities
from ffcil.report.render.sensitivity import sensitivity_terminal
from ffcil.runs.run import build_arrivals
from ffcil.studies.estimate import RuntimeHistory
from ffcil.studies.study import jobs_of, load_study, narrow
from invented_runs import SCHEDULES, random_hits, write_run, write_schedules

LEVELS = {
    ("none", 0): (16, 10, 12, 11, 8, 13, 4),
    ("none", 1): (15, 12, 12, 9, 9, 14, 6),
    ("flow", 0): (15, 13, 14, 14, 12, 14, 11),
    ("flow", 1): (14, 14, 14, 13, 13, 14, 13),
}
"""Correct predictions of 20 for every schedule, by framework and seed."""


def level(schedule: str, framework: str, seed: int) -> int:
    return LEVELS[framework, seed][list(SCHEDULES).index(schedule)]


def rows_of(folder: Path) -> dict[tuple[str, str], Sensitivity]:
    return {(row.classifier, row.framework): row for table in sensitivities(load_runs(folder)) for row in table.rows}


@pytest.fixture(scope="module")
def seven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_schedules(tmp_path_factory.mktemp("seven"), level)


def test_schedules_of_earlier_versions_are_in_the_same_row(tmp_path: Path) -> None:
    """Runs of some schedules have fields that did not exist when the others were made."""
    write_schedules(tmp_path, level)
    for folder in tmp_path.glob("jumbled*"):
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"features": "computed"}))
    assert [row.schedules for row in rows_of(tmp_path).values()] == [list(SCHEDULES)] * 4


def test_range_and_deviation_agree_with_plain_sums(seven: Path) -> None:
    (table,) = sensitivities(load_runs(seven))
    assert (table.data_label, table.schedules) == ("glyphs, 8 classes", list(SCHEDULES))
    rows = rows_of(seven)
    assert list(rows) == [(c, f) for c in ("linear", "nearest-mean") for f in ("none", "flow")]
    for framework in ("none", "flow"):
        row = rows["linear", framework]
        last = [[5.0 * hits for hits in LEVELS[framework, seed]] for seed in (0, 1)]
        assert row.range == pytest.approx(statistics.mean(max(values) - min(values) for values in last))
        assert row.std == pytest.approx(statistics.mean(statistics.stdev(values) for values in last))
        for k, schedule in enumerate(SCHEDULES):
            assert row.last(schedule) == pytest.approx(statistics.mean(values[k] for values in last))
    change = rows["linear", "flow"].change
    assert change is not None
    assert change.differences == pytest.approx((20 - 60, 5 - 45))
    assert rows["linear", "none"].change is None


def test_a_method_that_does_not_care_has_sensitivity_0(tmp_path: Path) -> None:
    write_schedules(tmp_path, lambda schedule, framework, seed: 11 + seed)
    for row in rows_of(tmp_path).values():
        assert (row.range, row.std) == (0, 0)


def test_fewer_than_three_schedules_or_other_permutations_are_no_sensitivity(tmp_path: Path) -> None:
    for k, (name, (sizes, drawn)) in enumerate(list(SCHEDULES.items())[:4]):
        fields: dict[str, Any] = {"sizes": sizes, "drawn": drawn, "class_seed": k // 2, "train_seed": 0}
        setting = "Equ.T" if name == "equal" else "FF.org"
        write_run(tmp_path / name, setting, 0, random_hits(setting, 0), **fields, arrival_seed=k)
    # A repeated schedule is no further schedule, and neither is an unfinished one.
    sizes, drawn = SCHEDULES["jumbled, seed 0"]
    fields = {"sizes": sizes, "drawn": drawn, "class_seed": 0, "train_seed": 0}
    write_run(tmp_path / "again", "FF.org", 0, random_hits("FF.org", 0), **fields, arrival_seed=9)
    sizes, drawn = SCHEDULES["trickle"]
    fields |= {"sizes": sizes, "drawn": drawn, "done": False, "steps": 2}
    write_run(tmp_path / "late", "FF.org", 0, random_hits("FF.org", 0), **fields)
    contents = Contents.from_runs(load_runs(tmp_path))
    assert contents.sensitivities == ()
    assert "3 schedules or more" in contents.left_out["arrival sensitivity"]


def test_permutations_with_fewer_schedules_do_not_lower_the_range(tmp_path: Path) -> None:
    write_schedules(tmp_path, level)
    for path in (tmp_path / "trickle-none-1").rglob("*"):
        if path.name == "done":
            path.unlink()
    none, flow = rows_of(tmp_path)["linear", "none"], rows_of(tmp_path)["linear", "flow"]
    assert [one.class_seed for one in none.permutations] == [0]
    assert none.range == 60
    assert [one.class_seed for one in flow.permutations] == [0, 1]
    assert flow.change is not None
    assert flow.change.differences == (20 - 60,)  # only seed 0 has all schedules on both sides


def test_schedules_drawn_for_every_seed_share_their_names(tmp_path: Path) -> None:
    """The arrival seed follows the class seed, so it does not tell the schedules of a permutation apart."""
    for seed in (0, 1):
        drawn: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
            "equal": ((2, 2, 2, 2), {"kind": "equal", "seed": None}),
            "jumbled": (((1, 5, 1, 1), (1, 3, 2, 2))[seed], {"order": "jumbled"}),
            "ascending": (((1, 1, 1, 5), (1, 2, 2, 3))[seed], {"order": "ascending"}),
        }
        for name, (sizes, fields) in drawn.items():
            setting = "Equ.T" if name == "equal" else "FF.org"
            hits = random_hits(setting, seed)
            write_run(tmp_path / f"{name}{seed}", setting, seed, hits, sizes=sizes, drawn={"alpha": 1.0} | fields)
    (table,) = sensitivities(load_runs(tmp_path))
    assert table.schedules == ["equal", "jumbled", "ascending"]
    assert [len(row.permutations) for row in table.rows] == [2, 2]
    # Another alpha of one seed does tell them apart.
    more = {"sizes": (2, 1, 3, 2), "drawn": {"alpha": 0.5, "order": "jumbled"}}
    write_run(tmp_path / "alpha", "FF.org", 0, random_hits("FF.org", 0), **more)
    (table,) = sensitivities(load_runs(tmp_path))
    assert table.schedules == ["equal", "jumbled, alpha 0.5", "jumbled, alpha 1", "ascending"]
    assert [len(row.permutations) for row in table.rows] == [1, 1]


def test_given_sizes_and_several_conditions(tmp_path: Path) -> None:
    for sizes in ((8,), (4, 4), (1, 1, 1, 1, 4), (1, 1, 1, 1, 2, 2)):
        for budget in (10, 20):
            name, drawn = f"{len(sizes)}-{budget}", {"kind": "given"}
            fields: dict[str, Any] = {"sizes": sizes, "drawn": drawn, "memory": {"budget": budget}}
            write_run(tmp_path / name, "FF.org", 0, random_hits("FF.org", 0), classifiers=("linear",), **fields)
    (table,) = sensitivities(load_runs(tmp_path))
    assert table.schedules == ["given 1+1+1+1+…, 5 steps", "given 1+1+1+1+…, 6 steps", "given 4+4", "given 8"]
    assert [row.condition for row in table.rows] == ["memory.budget 10", "memory.budget 20"]


def test_all_outputs_show_it(seven: Path, tmp_path: Path) -> None:
    contents = Contents.from_runs(load_runs(seven))
    write_report(contents, tmp_path)
    assert (tmp_path / "figures" / "sensitivity.svg").exists()
    row = rows_of(seven)["linear", "none"]
    for name in ("sensitivity.md", "sensitivity.tex", "report.html"):
        text = (tmp_path / name).read_text()
        for shown in (f"{row.range:.2f}", f"{row.std:.2f}", "jumbled, seed 2", "trickle", "how classes arrive"):
            assert shown in text, (name, shown)
    tex = (tmp_path / "sensitivity.tex").read_text()
    body = [line for line in tex.splitlines() if line.startswith("iCaRL")]
    assert {line.count(" & ") for line in body} == {len(SCHEDULES) + 4}
    lines = list(csv_format.DictReader((tmp_path / "sensitivity.csv").open()))
    scored = [line for line in lines if line["scored"] == "True"]
    assert [float(line["last"]) / 5 for line in scored] == [
        hits for framework in ("none", "flow") for seed in (0, 1) for hits in LEVELS[framework, seed]
    ]
    values = json.loads((tmp_path / "sensitivity.json").read_text())
    assert [(one["framework"], one["range"]) for one in values if one["scored"]] == [("none", 52.5), ("flow", 12.5)]
    console = Console(file=io.StringIO(), width=80)
    console.print(sensitivity_terminal(contents.sensitivities))
    shown = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["range", "52.50", "12.50", "↓40.00"] in shown
    assert ["trickle", "25.00", "60.00"] in shown


def test_study_has_seven_schedules_of_one_permutation() -> None:
    study = load_study("sensitivity")
    jobs = jobs_of(narrow(study, seeds=[0, 3]), Path("out"))
    assert len(jobs) == (1 + 2) * 7 * 2 * 2  # methods, schedules, frameworks, seeds
    assert {(job.recipe, job.config.method) for job in jobs} == {
        ("cifar100", "icarl"),
        ("cars", "cllora"),
        ("cars", "moal"),
    }
    for recipe, classes in (("cifar100", 100), ("cars", 196)):
        of_recipe = [job for job in jobs if job.recipe == recipe]
        assert all(job.config.class_seed == job.config.train_seed for job in of_recipe)
        schedules = [
            {build_arrivals(job.config, classes).sizes for job in of_recipe if job.config.class_seed == seed}
            for seed in (0, 3)
        ]
        assert schedules[0] == schedules[1]
        assert len(schedules[0]) == 7
        assert sum((1,) * (classes // 2) == sizes[-(classes // 2) :] for sizes in schedules[0]) == 1
        counts = [len(sizes) for sizes in schedules[0]]
        assert sorted(counts)[:6] == [10] * 6


def test_estimates_do_not_mix_trickle_with_schedules_of_fewer_steps(tmp_path: Path) -> None:
    by_kind = {job.config.arrivals.kind: job.config for job in jobs_of(load_study("sensitivity"), Path("out"))[:7]}
    for name, content in (
        ("config.json", by_kind["equal"].model_dump(mode="json")),
        ("summary.json", {"seconds": 60.0}),
        ("environment.json", {"device": "CPU"}),
        ("arrivals.json", {"sizes": [10] * 10}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    (tmp_path / "done").touch()
    history = RuntimeHistory([tmp_path], on_gpu=False)
    assert {kind: history.estimate(config) for kind, config in by_kind.items()} == {
        "equal": 60.0,
        "free-flow": 60.0,
        "trickle": None,
    }


def test_study_can_be_narrowed_but_keeps_its_schedules() -> None:
    study = load_study("sensitivity")
    options = {"datasets": ["glyphs"], "methods": ["der"], "seeds": [5], "assignments": ["arrivals.alpha=0.5"]}
    jobs = jobs_of(narrow(study, **options), Path("out"))  # type: ignore[arg-type]
    assert len(jobs) == 7 * 2
    assert {job.config.method for job in jobs} == {"der"}
    assert {job.config.arrivals.alpha for job in jobs if job.config.arrivals.kind == "free-flow"} == {0.5}
    for assignment in ("arrival_seed=1", "arrivals.order=jumbled", "framework=paper", "class_seed=2"):
        with pytest.raises(InputError, match="itself"):
            narrow(study, assignments=[assignment])
