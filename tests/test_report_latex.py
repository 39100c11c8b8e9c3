"""The two tables of the paper in LaTeX, split into cells as LaTeX does, and the ablation behind the second."""

from __future__ import annotations

import csv as csv_format
import io
import itertools
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from ffcil.report import compare, load_runs
from ffcil.report.analyse.ablation import ablations
from ffcil.report.render.latex import ablation_latex, comparison_latex
from ffcil.report.render.tables import ablation_csv, ablation_markdown
from invented_runs import FREE_FLOW, IMAGES, naive, random_hits, write_run

ONE = ("linear",)


SETTINGS = ("Equ.T", "FF.org", "FF.ours")


def test_latex_balances_and_escapes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), dataset="my_set & 100% <a|b>")
    text = comparison_latex(compare(load_runs(tmp_path)))
    assert r"my\_set \& 100\% \textless{}a\textbar{}b\textgreater{}, 8 classes in 4 steps" in text
    assert text.count("{") == text.count("}")
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 1
    body = text.split("\\midrule")[1]
    assert body.count(" & ") == 2 * 2  # two classifiers, two metrics of one setting


def ablated(folder: Path) -> list[Any]:
    for seed in (0, 1):
        for k, fields in enumerate(({"framework": "none"}, {"framework": "none", "reduction": "class_wise_mean"}, {})):
            setting = ("FF.org", "Equ.ours", "FF.ours")[k]  # setting that provides the hits
            hits = random_hits(setting, seed)
            write_run(folder / f"{k}-{seed}", "FF.ours", seed, hits, classifiers=ONE, sizes=FREE_FLOW[seed], **fields)
    return ablations(load_runs(folder))


def test_ablation_agrees_with_plain_sums(tmp_path: Path) -> None:
    (made,) = ablated(tmp_path)
    assert [parts.name for parts in made.cells] == ["org", "CWM", "ours"]
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
    assert compare(load_runs(tmp_path))[0].cells.keys() == {
        "FF.org",
        "FF.ours",
    }  # CWM alone is not a setting of Table 1


def table_rows(text: str) -> list[list[str]]:
    """Cells of every row of a tabular, split at `&` and `\\\\` outside braces."""
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


def test_latex_has_the_layout_of_the_paper(tmp_path: Path) -> None:
    for method, dataset, setting, seed in itertools.product(("icarl", "der"), ("a_1", "b"), SETTINGS, (0, 1)):
        name = f"{method}-{dataset}-{setting}-{seed}"
        hits = random_hits(setting, seed)
        write_run(tmp_path / name, setting, seed, hits, classifiers=ONE, method=method, dataset=dataset)
    text = comparison_latex(compare(load_runs(tmp_path)))
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


def test_latex_of_an_ablation_marks_its_parts(tmp_path: Path) -> None:
    rows = table_rows(ablation_latex(ablated(tmp_path)))
    assert {width(row) for row in rows} == {7}  # four parts, two accuracies, n
    assert [[cell.strip() for cell in row[:3]] for row in rows[2:]] == [
        ["$\\times$", "own", "$\\times$"],
        ["\\checkmark", "own", "$\\times$"],
        ["\\checkmark", "$\\times$", "\\checkmark"],
    ]


def test_an_ablation_names_the_parts_of_flow(tmp_path: Path) -> None:
    ablated(tmp_path)
    for name in ("flow", "wa"):
        write_run(tmp_path / name, "FF.flow", 0, random_hits("FF.flow", 0), classifiers=ONE)
    facts = json.loads((tmp_path / "wa" / "method.json").read_text())
    facts["framework"]["alignment"] = facts["own_alignment"]
    (tmp_path / "wa" / "method.json").write_text(json.dumps(facts))
    made = ablations(load_runs(tmp_path))
    of_flow = "adjusted loss + gathered training"
    assert [parts.label for parts in made[0].cells] == ["original", "CWM", "CWM + DIWA", of_flow, "flow"]
    rows = table_rows(ablation_latex(made))
    assert {width(row) for row in rows} == {8}  # four parts and those of flow, two accuracies, n
    assert [row[4].strip() for row in rows[2:]] == ["", "", "", of_flow, "flow"]


def test_an_ablation_over_other_seeds_shows_its_pairs(tmp_path: Path) -> None:
    """The original method has seeds 0 and 1, CWM has seeds 1 and 2: every format shows one pair."""
    for seed, fields in (
        (0, {}),
        (1, {}),
        (1, {"reduction": "class_wise_mean"}),
        (2, {"reduction": "class_wise_mean"}),
    ):
        hits = 5 + 3 * seed + 2 * len(fields)
        write_run(tmp_path / f"{len(fields)}-{seed}", "FF.org", seed, lambda *_, n=hits: n, classifiers=ONE, **fields)
    made = ablations(load_runs(tmp_path))
    _, cwm = csv_format.DictReader(io.StringIO(ablation_csv(made)))
    assert (cwm["runs"], cwm["pairs"], float(cwm["last_change"])) == ("2", "1", pytest.approx(100 * 2 / IMAGES))
    assert ablation_markdown(made).splitlines()[3].endswith("| 2 (1 pair) |")
    *_, last, n = table_rows(ablation_latex(made))[-1]
    assert n.strip() == "2 (1 pair)"
    assert "$57.50$" in last  # (10 + 13) / 2 of 20
    assert f"$\\pm {statistics.stdev((50.0, 65.0)):.2f}$" in last
    assert "$\\uparrow 10.00$" in last
    assert "% Mean and sample standard deviation over $n$ runs. Arrows: against the original" in ablation_latex(made)


def test_conditions_with_equal_labels_keep_separate_lines(tmp_path: Path) -> None:
    for k, rate in enumerate((0.12345678, 0.12345679)):
        write_run(tmp_path / f"{k}", "FF.org", 0, lambda *_, n=5 + k: n, classifiers=ONE, train={"rate": rate})
    table = comparison_latex(compare(load_runs(tmp_path)))
    assert ("$25.00$" in table, "$30.00$" in table) == (True, True)
