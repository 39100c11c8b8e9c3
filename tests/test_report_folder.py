"""`ffcil report`: which runs stand side by side, paired evidence, the paper's layout, and the files of a report."""

from __future__ import annotations

import csv as csv_format
import io
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.report import compare, load_run, load_runs, write_report
from ffcil.report.ablation import ablations
from ffcil.report.ablation import csv as ablation_csv
from ffcil.report.class_sizes import class_points, mean_by_size
from ffcil.report.contents import Contents
from ffcil.report.evidence import evidence_csv, evidence_markdown
from ffcil.report.latex import latex, latex_ablation
from ffcil.report.overhead import costs
from ffcil.report.statistics import Change, bootstrap_interval
from ffcil.report.sweeps import sweeps
from invented_runs import FREE_FLOW, IMAGES, naive, random_hits, write_run

ONE = ("linear",)
SETTINGS = ("Equ.T", "FF.org", "FF.ours")


@pytest.mark.parametrize(
    ("fields", "setting"),
    [
        ({"robust": False}, "FF.org"),
        ({"robust": True}, "FF.ours"),
        ({"robust": False, "reduction": "class_wise_mean"}, "FF with CWM"),
        ({"robust": False, "reduction": "class_wise_mean", "alignment": "diwa"}, "FF.ours"),
        ({"robust": True, "reduction": "mean"}, "FF with DIWA"),
        ({"robust": True, "alignment": "wa"}, "FF with CWM + WA"),
        ({"robust": False, "alignment": "none"}, "FF with no alignment"),
        ({"robust": True, "ha": {"use": True, "surrogates": 20}}, "FF.ours"),
        ({"robust": True, "ha": {"use": False}}, "FF with CWM"),
        ({"robust": True, "ha": {"use": True, "surrogates": 0}}, "FF with CWM + HA without surrogates"),
        ({"robust": True, "ha": {"use": True, "identity": False}}, "FF with CWM + HA without identity"),
        ({"robust": True, "centre_weight": 1.0}, "FF with CWM + DIWA + centre loss"),
    ],
)
def test_a_setting_is_called_by_the_parts_that_were_on(tmp_path: Path, fields: dict[str, Any], setting: str) -> None:
    write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), **fields)
    assert load_run(tmp_path / "run").setting == setting


def test_records_tell_that_robust_meant_ha(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "FF.ours", 0, random_hits("FF.ours", 0), ha={"use": None, "surrogates": 0})
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(json.loads(r) | {"ha_loss": 1.0}) + "\n" for r in path.read_text().splitlines()))
    assert load_run(folder).setting == "FF with CWM + HA without surrogates"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Equ.T on three seeds; FF.org and FF.ours at three alphas and two orders, the main point on three seeds."""
    folder = tmp_path_factory.mktemp("sweep")
    points = [(1.0, "jumbled", (0, 1, 2)), (0.1, "jumbled", (0, 1)), (4.0, "jumbled", (0, 1))]
    points.append((1.0, "ascending", (0, 1)))
    for seed in (0, 1, 2):
        write_run(
            folder / f"e{seed}", "Equ.T", seed, random_hits("Equ.T", seed), classifiers=ONE, arrivals={"steps": 4}
        )
    for alpha, order, seeds in points:
        for setting, seed in itertools.product(("FF.org", "FF.ours"), seeds):
            arrivals = {"kind": "free-flow", "alpha": alpha, "order": order, "steps": 4}
            name = f"{setting}-{alpha}-{order}-{seed}"
            write_run(folder / name, setting, seed, random_hits(setting, seed), classifiers=ONE, arrivals=arrivals)
    return folder


def test_equal_steps_stand_beside_every_alpha_and_order(sweep: Path) -> None:
    rows = compare(load_runs(sweep))
    assert [(row.group.label, row.group.is_main) for row in rows] == [
        ("alpha 1, order jumbled", True),
        ("alpha 0.1, order jumbled", False),
        ("alpha 1, order ascending", False),
        ("alpha 4, order jumbled", False),
    ]
    assert [{setting: cell.runs for setting, cell in row.cells.items()} for row in rows] == [
        {"Equ.T": 3, "FF.org": 3, "FF.ours": 3},
        *[{"Equ.T": 3, "FF.org": 2, "FF.ours": 2}] * 3,
    ]
    drop = rows[1].drop("last")
    assert drop is not None
    differences = [naive("FF.org", seed, "linear")[1] - naive("Equ.T", seed, "linear")[1] for seed in (0, 1)]
    assert drop.differences == pytest.approx(differences)


def test_sweeps_follow_one_field(sweep: Path) -> None:
    rows = compare(load_runs(sweep))
    (alpha,) = sweeps(rows, "alpha")
    (order,) = sweeps(rows, "order")
    assert (alpha.values, order.values) == ([0.1, 1.0, 4.0], ["ascending", "jumbled"])
    number = order.points[0][1].number("FF.ours", "average")
    assert number is not None
    assert number.mean == pytest.approx(statistics.mean(naive("FF.ours", seed, "linear")[0] for seed in (0, 1)))


def test_interval_against_every_resample_there_is() -> None:
    """Of three differences there are 27 resamples: their percentiles are the truth that the bootstrap draws from."""
    values = (1.0, 4.0, -2.5)
    means = sorted(statistics.mean(chosen) for chosen in itertools.product(values, repeat=3))
    assert bootstrap_interval(values) == pytest.approx((means[0], means[-1]))  # each has probability 1/27 > 2.5 %
    assert bootstrap_interval(values) == bootstrap_interval(values)


def test_interval_against_scipy() -> None:
    values = np.random.default_rng(5).normal(1.0, 2.0, 12)
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, random_state=1)
    assert bootstrap_interval(tuple(values)) == pytest.approx(tuple(theirs.confidence_interval), abs=0.05)


@pytest.mark.parametrize(
    ("differences", "told", "same_sign"),
    [
        ((3.0,), "one pair", 1),
        ((3.0, 2.0), "too few pairs", 2),
        ((3.0, -2.0), "may be 0", 1),
        ((1.0, 2.0, 3.0, 2.0, 1.5), "differs from 0", 5),
        ((-1.0, -2.0, -3.0, 4.0, -1.5), "may be 0", 4),
    ],
)
def test_what_may_be_said_of_differences(differences: tuple[float, ...], told: str, same_sign: int) -> None:
    change = Change(differences, "FF.org")
    assert (change.told, change.same_sign) == (told, same_sign)


def test_evidence_is_the_paired_differences(sweep: Path) -> None:
    rows = compare(load_runs(sweep))
    lines = list(csv_format.DictReader(io.StringIO(evidence_csv(rows))))
    first = next(line for line in lines if (line["setting"], line["metric"]) == ("FF.ours", "last"))
    truth = [naive("FF.ours", seed, "linear")[1] - naive("FF.org", seed, "linear")[1] for seed in (0, 1, 2)]
    assert [float(value) for value in first["differences"].split()] == pytest.approx(truth)
    assert float(first["difference"]) == pytest.approx(statistics.mean(truth))
    assert float(first["std"]) == pytest.approx(statistics.stdev(truth))
    assert "fewer than 5 pairs an interval is of little worth" in evidence_markdown(rows)


def ablated(folder: Path) -> list[Any]:
    for seed in (0, 1):
        for k, fields in enumerate(({"robust": False}, {"robust": False, "reduction": "class_wise_mean"}, {})):
            setting = ("FF.org", "Equ.ours", "FF.ours")[k]  # whose hits are drawn; each has a level of its own
            hits = random_hits(setting, seed)
            write_run(folder / f"{k}-{seed}", "FF.ours", seed, hits, classifiers=ONE, sizes=FREE_FLOW[seed], **fields)
    return ablations(load_runs(folder))


def test_ablation_against_sums_by_hand(tmp_path: Path) -> None:
    (made,) = ablated(tmp_path)
    assert [parts.name for parts, _ in made.lines] == ["org", "CWM", "ours"]
    lines = list(csv_format.DictReader(io.StringIO(ablation_csv([made]))))

    def average(setting: str, seed: int) -> float:
        hits, sizes = random_hits(setting, seed), FREE_FLOW[seed]
        seen = [sum(sizes[:t]) for t in range(1, 5)]
        right = [sum(hits("linear", t, k) for k in range(n)) if n > 1 else IMAGES for t, n in enumerate(seen, start=1)]
        return statistics.mean(100 * r / (IMAGES * n) for r, n in zip(right, seen, strict=True))

    for line, setting in zip(lines, ("FF.org", "Equ.ours", "FF.ours"), strict=True):
        values = [average(setting, seed) for seed in (0, 1)]
        assert float(line["average"]) == pytest.approx(statistics.mean(values))
        if setting != "FF.org":
            change = statistics.mean(value - average("FF.org", seed) for seed, value in enumerate(values))
            assert float(line["average_change"]) == pytest.approx(change)
    assert [line["parts"] for line in lines] == ["original", "CWM", "CWM + DIWA"]
    assert compare(load_runs(tmp_path))[0].cells.keys() == {"FF.org", "FF.ours"}  # CWM alone is no setting of Table 1


def table_rows(text: str) -> list[list[str]]:
    """The cells of every row of a tabular, split where LaTeX splits: `&` and `\\\\` outside braces."""
    body = text.split("@{}}\n", 1)[1].split("\\bottomrule")[0]
    for rule in ("\\toprule", "\\midrule"):
        body = body.replace(rule, "")
    rows, depth, k = [[""]], 0, 0
    while k < len(body):
        if body[k] == "\\" and depth == 0 and body[k + 1] == "\\":
            rows.append([""])
            k += 2
            continue
        if body[k] == "\\":
            rows[-1][-1] += body[k : k + 2]
            k += 2
            continue
        depth += {"{": 1, "}": -1}.get(body[k], 0)
        if body[k] == "&" and depth == 0:
            rows[-1].append("")
        else:
            rows[-1][-1] += body[k]
        k += 1
    assert depth == 0
    assert "".join(rows.pop()).strip() == ""
    return rows


def width(cells: list[str]) -> int:
    def span(cell: str) -> int:
        text = cell.strip()
        while text.startswith("\\cmidrule"):
            text = text.split("}", 1)[1].strip()
        return int(text.split("{")[1].split("}")[0]) if text.startswith("\\multicolumn") else 1

    return sum(span(cell) for cell in cells)


def test_latex_has_the_papers_layout(tmp_path: Path) -> None:
    for method, dataset, setting, seed in itertools.product(("icarl", "der"), ("a_1", "b"), SETTINGS, (0, 1)):
        name = f"{method}-{dataset}-{setting}-{seed}"
        hits = random_hits(setting, seed)
        write_run(tmp_path / name, setting, seed, hits, classifiers=ONE, method=method, dataset=dataset)
    text = latex(compare(load_runs(tmp_path)))
    rows = table_rows(text)
    assert [width(row) for row in rows] == [1 + 2 * 3 * 2] * 5  # data sets, settings, metrics, then two methods
    assert "{\\textbf{a\\_1, 8 classes in 4 steps}}" in rows[0][1]
    assert [cell.strip() for cell in rows[2][1:]] == ["$\\overline{A}$", "$A_T$"] * 6
    values = [naive("FF.org", seed, "linear")[0] for seed in (0, 1)]
    drop = statistics.mean(value - naive("Equ.T", seed, "linear")[0] for seed, value in enumerate(values))
    cell = rows[3][3]
    assert f"${statistics.mean(values):.2f}$" in cell
    assert f"$\\pm {statistics.stdev(values):.2f}$" in cell
    assert f"\\downarrow {-drop:.2f}$" in cell


def test_latex_of_an_ablation_ticks_its_parts(tmp_path: Path) -> None:
    rows = table_rows(latex_ablation(ablated(tmp_path)))
    assert {width(row) for row in rows} == {6}
    assert [[cell.strip() for cell in row[:3]] for row in rows[2:]] == [
        ["$\\times$", "own", "$\\times$"],
        ["\\checkmark", "own", "$\\times$"],
        ["\\checkmark", "$\\times$", "\\checkmark"],
    ]


def test_costs_are_ratios_over_the_same_seeds_on_the_same_device(tmp_path: Path) -> None:
    for setting, seed in itertools.product(("FF.org", "FF.ours"), (0, 1, 2)):
        folder = write_run(tmp_path / f"{setting}-{seed}", setting, seed, random_hits(setting, seed), classifiers=ONE)
        records = (folder / "records.jsonl").read_text().splitlines()
        seconds = {"train": 2.0 + seed, "memory": 1.0, "evaluate": 0.5 * (2 if setting == "FF.ours" else 1)}
        lines = [json.dumps(json.loads(record) | {"seconds": seconds}) for record in records]
        (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "FF.ours-2" / "environment.json").write_text(json.dumps({"device": "another"}))
    (cost,) = costs(load_runs(tmp_path))
    assert (cost.parts, cost.pairs) == ("CWM + DIWA", 2)
    assert cost.original["training"] == pytest.approx((4 * 3.0, 4 * 4.0))
    assert (cost.ratio("training"), cost.ratio("testing")) == (pytest.approx(1.0), pytest.approx(2.0))


def test_class_sizes_are_paired_with_the_same_class_under_equal_steps(tmp_path: Path) -> None:
    for setting in ("Equ.T", "FF.org"):
        write_run(tmp_path / setting, setting, 0, random_hits(setting, 0), classifiers=ONE)
    points = [p for p in class_points(load_runs(tmp_path), "linear") if p.run.setting == "FF.org"]
    truth: dict[int, list[float]] = {}
    for step, size in enumerate(FREE_FLOW[0]):
        for position in range(sum(FREE_FLOW[0][:step]), sum(FREE_FLOW[0][: step + 1])):
            right = [random_hits(setting, 0)("linear", 4, position) for setting in ("FF.org", "Equ.T")]
            truth.setdefault(size, []).append(100 * (right[0] - right[1]) / IMAGES)
    means = mean_by_size(points, paired=True)
    assert {size: n for size, (_, n) in means.items()} == {1: 2, 2: 2, 4: 4}
    assert {size: mean for size, (mean, _) in means.items()} == pytest.approx(
        {size: statistics.mean(values) for size, values in truth.items()}
    )


def test_a_report_has_every_table_and_figure_that_has_records(sweep: Path, tmp_path: Path) -> None:
    contents = Contents.of(load_runs(sweep))
    assert set(contents.left_out) == {"ablation"}
    written = write_report(contents, tmp_path, command="ffcil report there")
    names = {path.relative_to(tmp_path).as_posix() for path in written}
    assert names == {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    figures = {name.removeprefix("figures/").rsplit(".", 1)[0] for name in names if name.startswith("figures/")}
    data = "glyphs-8-classes-in-4-steps"
    assert figures == {
        *("alpha", "order", "drop-and-recovery", "overhead"),
        *(
            f"curves-{data}",
            f"class-sizes-{data}",
            f"forgetting-icarl-alpha-1.0-order-jumbled-on-{data}".replace("1.0", "1"),
        ),
    }
    assert {"table.md", "table.tex", "table.csv", "evidence.md", "evidence.csv", "report.html"} < names
    page = (tmp_path / "report.html").read_text()
    assert "ffcil report there" in page
    assert "ablation: no finished run has a part of the framework without the rest." in page


def test_the_command_says_what_it_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "FF.org", 0, random_hits("FF.org", 0), classifiers=ONE)
    write_run(tmp_path / "runs" / "b", "FF.org", 1, random_hits("FF.org", 1), classifiers=ONE, done=False, steps=2)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])
    assert done.exit_code == 0
    said = done.output
    assert "b (icarl, FF.org, seed 1) is unfinished, 2 of 4 steps, and is left out of every result." in said
    assert "Left out, alpha: it needs finished runs" in said
    assert "Left out, drop and recovery: it needs" in said
    assert (tmp_path / "runs" / "report" / "report.html").as_uri() in said
    again = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])  # its own files are no runs
    assert again.output == said


def test_runs_from_other_images_are_not_passed_off_as_one(tmp_path: Path) -> None:
    for setting, sample in (("Equ.T", "abc"), ("FF.org", "xyz")):
        folder = write_run(tmp_path / setting, setting, 0, random_hits(setting, 0), classifiers=ONE)
        (folder / "data.json").write_text(json.dumps({"sample": sample}))
    (note,) = Contents.of(load_runs(tmp_path)).notes
    assert note.startswith("Caution: FF.org and Equ.T have the same class order and other images")
