"""The comparison in every format, checked with plain sums over the same numbers."""

from __future__ import annotations

import csv as csv_format
import io
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from ffcil.errors import InputError
from ffcil.report import compare, load_runs, terminal_table, write_page
from ffcil.report.analyse.tables import direction
from ffcil.report.render.latex import comparison_latex
from ffcil.report.render.tables import comparison_csv, comparison_markdown
from ffcil.report.render.text import arrow
from invented_runs import naive, random_hits, write_run, write_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


def test_comparison_agrees_with_plain_sums(study: Path) -> None:
    rows = compare(load_runs(study))
    assert [(row.label, row.scored) for row in rows] == [("iCaRL, linear head", True), ("iCaRL, nearest mean", False)]
    for row in rows:
        truth = {
            setting: [naive(setting, seed, row.classifier) for seed in seeds]
            for setting, seeds in {"Equ.T": (0, 1, 2), "FF.org": (0, 1, 2), "FF.ours": (0, 1)}.items()
        }
        assert list(row.cells) == list(truth)
        for i, metric in enumerate(("average", "last", "forgetting")):
            for setting, of_seed in truth.items():
                number = row.number(setting, metric)
                values = [numbers[i] for numbers in of_seed]
                assert number is not None
                assert number.n == row.cells[setting].runs == len(values)
                assert number.mean == pytest.approx(statistics.mean(values))
                assert number.std == pytest.approx(statistics.stdev(values))
            drop, recovery = row.change("FF.org", metric), row.change("FF.ours", metric)
            assert drop is not None
            assert recovery is not None
            pairs = [ff[i] - equal[i] for ff, equal in zip(truth["FF.org"], truth["Equ.T"], strict=True)]
            assert (drop.value, drop.pairs, drop.versus) == (pytest.approx(statistics.mean(pairs)), 3, "Equ.T")
            # Seed 2 has no finished FF.ours run, so only two seeds are paired.
            pairs = [ours[i] - org[i] for ours, org in zip(truth["FF.ours"], truth["FF.org"][:2], strict=True)]
            assert (recovery.value, recovery.pairs, recovery.versus) == (
                pytest.approx(statistics.mean(pairs)),
                2,
                "FF.org",
            )


def test_both_frameworks_are_compared_with_the_original_method(tmp_path: Path) -> None:
    settings = ("Equ.flow", "FF.flow", "Equ.T", "FF.ours", "FF.org")
    for setting in settings:
        for seed in (0, 1):
            folder = tmp_path / f"{setting}-{seed}"
            write_run(folder, setting, seed, random_hits(setting, seed), classifiers=("linear",))
    rows = compare(load_runs(tmp_path))
    assert [list(row.cells) for row in rows] == [["Equ.T", "FF.org", "FF.ours", "FF.flow", "Equ.flow"]]
    for setting, versus in (("FF.ours", "FF.org"), ("FF.flow", "FF.org"), ("Equ.flow", "Equ.T")):
        for i, metric in enumerate(("average", "last")):
            change = rows[0].change(setting, metric)  # type: ignore[arg-type]
            truth = [naive(setting, seed, "linear")[i] - naive(versus, seed, "linear")[i] for seed in (0, 1)]
            assert change is not None
            assert (change.value, change.versus) == (pytest.approx(statistics.mean(truth)), versus)
    page = write_page(load_runs(tmp_path), tmp_path / "report.html").read_text()
    assert "under free flow, using the framework flow" in page
    for setting in settings:
        assert f"<dt>{setting}</dt>" in page


def test_classifier_can_be_chosen(study: Path) -> None:
    runs = load_runs(study)
    assert [row.classifier for row in compare(runs, "nearest-mean")] == ["nearest-mean"]
    with pytest.raises(InputError, match="did you mean 'linear'"):
        compare(runs, "liner")


def test_single_seed_has_no_deviation_and_missing_settings_no_change(tmp_path: Path) -> None:
    for setting in ("Equ.T", "FF.ours"):
        write_run(tmp_path / setting, setting, 0, random_hits(setting, 0))
    row = compare(load_runs(tmp_path), "linear")[0]
    for setting in ("Equ.T", "FF.ours"):
        number = row.number(setting, "average")
        assert number is not None
        assert (number.std, number.n, number.change) == (None, 1, None)
    assert row.number("FF.org", "average") is None
    assert row.change("FF.org", "last") is None
    assert row.change("FF.ours", "last") is None
    assert "±" not in comparison_markdown([row]).split("\n\n")[0]
    assert "$\\pm" not in comparison_latex([row])
    write_page(load_runs(tmp_path), tmp_path / "page.html")


def test_seeds_that_do_not_pair_give_no_change(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "Equ.T", 0, random_hits("Equ.T", 0))
    write_run(tmp_path / "b", "FF.org", 1, random_hits("FF.org", 1))
    assert compare(load_runs(tmp_path))[0].change("FF.org", "average") is None


@dataclass
class Levels:
    """Constant numbers of hits, so that the sign of every change is known."""

    equal: int
    org: int
    ours: int

    def rows(self, folder: Path) -> list[Any]:
        for setting, level in (("Equ.T", self.equal), ("FF.org", self.org), ("FF.ours", self.ours)):
            for seed in (0, 1):
                write_run(folder / f"{setting}{seed}", setting, seed, lambda *_, n=level: n, classifiers=("linear",))
        return compare(load_runs(folder))


def coloured(rows: list[Any]) -> str:
    console = Console(file=io.StringIO(), force_terminal=True, width=150, color_system="standard")
    console.print(terminal_table(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


RED, GREEN = "\x1b[31m", "\x1b[32m"


def test_drop_is_red_and_down_recovery_green_and_up(tmp_path: Path) -> None:
    rows = Levels(equal=15, org=9, ours=12).rows(tmp_path)
    text = coloured(rows)
    assert f"{RED} ↓30.00" in text
    assert f"{GREEN} ↑15.00" in text
    assert "iCaRL, linear head" in text
    assert "45.00 ± 0.00 ↓30.00" in comparison_markdown(rows)
    assert "60.00 ± 0.00 ↑15.00" in comparison_markdown(rows)
    assert "\\textcolor[RGB]{178,34,34}{$\\downarrow 30.00$}" in comparison_latex(rows)
    assert "\\textcolor[RGB]{34,139,34}{$\\uparrow 15.00$}" in comparison_latex(rows)


def test_worsening_is_never_green(tmp_path: Path) -> None:
    """Here free flow helps and the components hurt: colours follow the numbers, not the columns."""
    rows = Levels(equal=10, org=12, ours=9).rows(tmp_path)
    text = coloured(rows)
    assert f"{GREEN} ↑10.00" in text
    assert f"{RED} ↓15.00" in text
    page = write_page(load_runs(tmp_path), tmp_path / "page.html").read_text()
    assert '<span class="better" title="against Equ.T, 2 pairs">↑10.00</span>' in page
    assert '<span class="worse" title="against FF.org, 2 pairs">↓15.00</span>' in page
    assert "free flow instead of equal steps raises average accuracy Ā" in page
    sentence = page[page.index("adding the paper’s components lowers average accuracy Ā") :].split("</li>")[0]
    assert "final accuracy A<sub>T</sub> by <b>15.00</b> (too few pairs; 2 pairs of runs)" in sentence


@pytest.mark.parametrize(
    ("metric", "value", "expected"),
    [
        ("average", 3.0, ("better", "↑3.00")),
        ("last", -3.0, ("worse", "↓3.00")),
        ("forgetting", 3.0, ("worse", "↑3.00")),
        ("forgetting", -3.0, ("better", "↓3.00")),
        ("average", -0.004, ("same", "=0.00")),
    ],
)
def test_direction_and_arrow_of_a_change(metric: Any, value: float, expected: tuple[str, str]) -> None:
    assert (direction(metric, value), arrow(value)) == expected


def test_csv_has_full_precision(study: Path) -> None:
    rows = compare(load_runs(study))
    lines = list(csv_format.DictReader(io.StringIO(comparison_csv(rows))))
    assert [(line["classifier"], line["setting"]) for line in lines] == [
        (classifier, setting) for classifier in ("linear", "nearest-mean") for setting in ("Equ.T", "FF.org", "FF.ours")
    ]
    mean = statistics.mean(naive("FF.org", seed, "nearest-mean")[1] for seed in (0, 1, 2))
    assert float(lines[4]["last"]) == pytest.approx(mean, abs=1e-12)
    assert (lines[0]["versus"], lines[2]["versus"], lines[2]["pairs"], lines[2]["runs"]) == ("", "FF.org", "2", "2")


def test_tables_show_the_numbers_of_runs_and_pairs(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"e{seed}", "Equ.T", seed, random_hits("Equ.T", seed), classifiers=("linear",))
    for seed in (1, 2):
        write_run(tmp_path / f"f{seed}", "FF.org", seed, random_hits("FF.org", seed), classifiers=("linear",))
    text = comparison_markdown(compare(load_runs(tmp_path)))
    assert "| glyphs, 8 classes in 4 steps | iCaRL, linear head | n | 2 | 2 (1 pair) |" in text


def test_single_step_run_has_no_forgetting_in_any_format(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), sizes=(8,), method="joint")
    runs = load_runs(tmp_path)
    rows = compare(runs)
    assert rows[0].number("Equ.T", "forgetting") is None
    assert "| glyphs, 8 classes in 1 step | Joint, linear head | F | – |" in comparison_markdown(rows)
    assert "glyphs, 8 classes in 1 step" in coloured(rows)
    write_page(runs, tmp_path / "page.html")
