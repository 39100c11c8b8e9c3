"""Reports made from invented run folders, checked against sums done by hand from the same numbers."""

from __future__ import annotations

import csv as csv_format
import io
import json
import math
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from subprocess import run as start
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from ffcil.arrivals import Arrivals
from ffcil.errors import InputError
from ffcil.report import compare, load_run, load_runs, plot_arrivals, plot_curves, write_page
from ffcil.report.curves import mean_curve, seed_schedules
from ffcil.report.latex import latex
from ffcil.report.specs import class_size_spec, curves_spec, memory_spec, schedule_spec
from ffcil.report.tables import arrow, csv, markdown, terminal, verdict
from invented_runs import FREE_FLOW, IMAGES, naive, random_hits, write_run


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three settings, three seeds; FF.ours lacks seed 2, and one more run of it is unfinished."""
    folder = tmp_path_factory.mktemp("study")
    for setting in ("Equ.T", "FF.org", "FF.ours"):
        for seed in (0, 1, 2):
            unfinished = setting == "FF.ours" and seed == 2
            steps = 2 if unfinished else None
            hits = random_hits(setting, seed)
            write_run(folder / f"{setting}-{seed}", setting, seed, hits, done=not unfinished, steps=steps)
    return folder


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
    assert np.trace(run.tables["linear"].counts[-1]) == sum(random_hits("FF.org", 0)("linear", 4, k) for k in range(8))
    unfinished = runs[-1]
    assert not unfinished.finished
    assert unfinished.summary is None
    assert unfinished.tables["linear"].sizes == FREE_FLOW[2][:2]
    assert unfinished.scored == "linear"


@pytest.mark.parametrize(
    ("kind", "robust", "setting"),
    [
        ("equal", False, "Equ.T"),
        ("equal", True, "Equ.ours"),
        ("free-flow", False, "FF.org"),
        ("free-flow", True, "FF.ours"),
        ("given", False, "FF.org"),
        ("trace", True, "FF.ours"),
        ("half", False, "half"),
        ("half", True, "half, robust"),
    ],
)
def test_settings_have_the_papers_names(tmp_path: Path, kind: str, robust: bool, setting: str) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), robust=robust)
    (tmp_path / "run" / "arrivals.json").write_text(json.dumps({"sizes": (2, 2, 2, 2), "kind": kind}))
    assert load_run(tmp_path / "run").setting == setting


def test_table_against_sums_by_hand(study: Path) -> None:
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
            drop, recovery = row.drop(metric), row.recovery(metric)
            assert drop is not None
            assert recovery is not None
            pairs = [ff[i] - equal[i] for ff, equal in zip(truth["FF.org"], truth["Equ.T"], strict=True)]
            assert (drop.value, drop.pairs, drop.versus) == (pytest.approx(statistics.mean(pairs)), 3, "Equ.T")
            # Seed 2 has no finished FF.ours: the difference is that of the two seeds that both settings have.
            pairs = [ours[i] - org[i] for ours, org in zip(truth["FF.ours"], truth["FF.org"][:2], strict=True)]
            assert (recovery.value, recovery.pairs, recovery.versus) == (
                pytest.approx(statistics.mean(pairs)),
                2,
                "FF.org",
            )


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
    assert row.drop("last") is None
    assert row.recovery("last") is None
    assert "±" not in markdown([row]).split("\n\n")[0]
    assert "$\\pm" not in latex([row])
    write_page(load_runs(tmp_path), tmp_path / "page.html")


def test_seeds_that_do_not_pair_give_no_change(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "Equ.T", 0, random_hits("Equ.T", 0))
    write_run(tmp_path / "b", "FF.org", 1, random_hits("FF.org", 1))
    assert compare(load_runs(tmp_path))[0].drop("average") is None


@dataclass
class Levels:
    """Constant hits, so that the sign of every change is known."""

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
    console.print(terminal(rows))
    return console.file.getvalue()  # type: ignore[attr-defined]


RED, GREEN = "\x1b[31m", "\x1b[32m"


def test_drop_is_red_and_down_recovery_green_and_up(tmp_path: Path) -> None:
    rows = Levels(equal=15, org=9, ours=12).rows(tmp_path)
    text = coloured(rows)
    assert f"{RED} ↓30.00" in text
    assert f"{GREEN} ↑15.00" in text
    assert "iCaRL, linear head" in text
    assert "45.00 ± 0.00 ↓30.00" in markdown(rows)
    assert "60.00 ± 0.00 ↑15.00" in markdown(rows)
    assert "\\textcolor[RGB]{178,34,34}{$\\downarrow 30.00$}" in latex(rows)
    assert "\\textcolor[RGB]{34,139,34}{$\\uparrow 15.00$}" in latex(rows)


def test_worsening_is_never_green(tmp_path: Path) -> None:
    """Free flow helps here, and the components hurt: the colours follow the numbers, not the columns."""
    rows = Levels(equal=10, org=12, ours=9).rows(tmp_path)
    text = coloured(rows)
    assert f"{GREEN} ↑10.00" in text
    assert f"{RED} ↓15.00" in text
    page = write_page(load_runs(tmp_path), tmp_path / "page.html").read_text()
    assert '<span class="better" title="against Equ.T, 2 pairs">↑10.00</span>' in page
    assert '<span class="worse" title="against FF.org, 2 pairs">↓15.00</span>' in page
    assert "free flow in place of equal steps raises average accuracy Ā" in page
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
def test_colour_follows_what_is_better(metric: Any, value: float, expected: tuple[str, str]) -> None:
    assert (verdict(metric, value), arrow(value)) == expected


def test_csv_has_full_precision(study: Path) -> None:
    rows = compare(load_runs(study))
    lines = list(csv_format.DictReader(io.StringIO(csv(rows))))
    assert [(line["classifier"], line["setting"]) for line in lines] == [
        (classifier, setting) for classifier in ("linear", "nearest-mean") for setting in ("Equ.T", "FF.org", "FF.ours")
    ]
    mean = statistics.mean(naive("FF.org", seed, "nearest-mean")[1] for seed in (0, 1, 2))
    assert float(lines[4]["last"]) == pytest.approx(mean, abs=1e-12)
    assert (lines[0]["versus"], lines[2]["versus"], lines[2]["pairs"], lines[2]["runs"]) == ("", "FF.org", "2", "2")


def test_tables_say_how_many_runs_and_pairs(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"e{seed}", "Equ.T", seed, random_hits("Equ.T", seed), classifiers=("linear",))
    for seed in (1, 2):
        write_run(tmp_path / f"f{seed}", "FF.org", seed, random_hits("FF.org", seed), classifiers=("linear",))
    text = markdown(compare(load_runs(tmp_path)))
    assert "| glyphs, 8 classes in 4 steps | iCaRL, linear head | n | 2 | 2 (1 pair) |" in text


def test_latex_balances_and_escapes(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), dataset="my_set & 100%")
    text = latex(compare(load_runs(tmp_path)))
    assert "my\\_set \\& 100\\%, 8 classes in 4 steps" in text
    assert text.count("{") == text.count("}")
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 1
    body = text.split("\\midrule")[1]
    assert body.count(" & ") == 2 * 2  # two classifiers, two metrics of one setting


def test_other_conditions_get_rows_of_their_own_and_repeated_runs_are_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "Equ.T", 0, random_hits("Equ.T", 0), classifiers=("linear",))
    write_run(tmp_path / "b", "Equ.T", 1, random_hits("Equ.T", 1), classifiers=("linear",), train={"epochs": 9})
    labels = [row.label for row in compare(load_runs(tmp_path))]
    assert labels == ["iCaRL, linear head (train.epochs 3)", "iCaRL, linear head (train.epochs 9)"]
    write_run(tmp_path / "c", "Equ.T", 0, random_hits("FF.org", 0), classifiers=("linear",))
    rows = compare(load_runs(tmp_path))
    number = rows[0].number("Equ.T", "average")
    assert number is not None
    assert (number.n, number.mean) == (1, pytest.approx(naive("Equ.T", 0, "linear")[0]))
    assert "c repeats a (iCaRL, Equ.T, seed 0) and is left out of every result." in markdown(rows)


def test_methods_datasets_and_step_numbers_get_rows_of_their_own(tmp_path: Path) -> None:
    for i, method in enumerate(("joint", "zebra", "icarl", "finetune")):
        write_run(tmp_path / f"m{i}", "Equ.T", 0, random_hits("Equ.T", 0), method=method, classifiers=("linear",))
    write_run(tmp_path / "d", "Equ.T", 0, random_hits("Equ.T", 0), dataset="digits", classifiers=("linear",))
    write_run(tmp_path / "s", "Equ.T", 0, random_hits("Equ.T", 0), sizes=(4, 4), classifiers=("linear",))
    assert [(row.data_label, row.label) for row in compare(load_runs(tmp_path))] == [
        ("digits, 8 classes in 4 steps", "iCaRL, linear head"),
        ("glyphs, 8 classes in 2 steps", "iCaRL, linear head"),
        ("glyphs, 8 classes in 4 steps", "Finetune, linear head"),
        ("glyphs, 8 classes in 4 steps", "iCaRL, linear head"),
        ("glyphs, 8 classes in 4 steps", "Zebra, linear head"),
        ("glyphs, 8 classes in 4 steps", "Joint, linear head"),
    ]
    page = Page(write_page(load_runs(tmp_path), tmp_path / "page.html").read_text())
    assert page.loads == ["#comparison", "#methods", "#runs", "#about"]  # links within the page, and no others


def test_single_step_run_has_no_forgetting_in_any_format(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), sizes=(8,), method="joint")
    runs = load_runs(tmp_path)
    rows = compare(runs)
    assert rows[0].number("Equ.T", "forgetting") is None
    assert "| glyphs, 8 classes in 1 step | Joint, linear head | F | – |" in markdown(rows)
    assert "glyphs, 8 classes in 1 step" in coloured(rows)
    write_page(runs, tmp_path / "page.html")


def test_unfinished_runs_alone_give_an_empty_table_and_a_page_that_says_so(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), done=False, steps=1)
    runs = load_runs(tmp_path)
    assert compare(runs) == []
    assert "No run to compare is finished yet" in write_page(runs, tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="finished"):
        plot_curves(runs, tmp_path / "curves.svg")


def test_half_written_last_line_is_not_a_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), done=False, steps=2)
    with (folder / "records.jsonl").open("a") as file:
        file.write('{"step": 3, "acc')
    assert len(load_run(folder).records) == 2


def break_steps(folder: Path) -> None:
    lines = (folder / "records.jsonl").read_text().splitlines()
    (folder / "records.jsonl").write_text("\n".join(lines[:-1]) + "\n")


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda f: (f / "config.json").unlink(), "not a run's folder"),
        (lambda f: (f / "config.json").write_text("{"), "config.json is not JSON"),
        (lambda f: (f / "config.json").write_text("[]"), "JSON object"),
        (lambda f: (f / "config.json").write_text("{}"), "no field 'dataset'"),
        (lambda f: (f / "summary.json").unlink(), "summary.json is missing"),
        (lambda f: (f / "records.jsonl").write_text("x\n" * 4), "Line 1 of"),
        (lambda f: (f / "records.jsonl").write_text('{"step": 2, "accuracy": {"linear": 1}}\n' * 4), "step 1"),
        (break_steps, "marked done with 3 of 4 steps"),
        (lambda f: (f / "counts" / "step-002.npz").unlink(), r"step-002\.npz is missing"),
        (lambda f: (f / "counts" / "step-002.npz").write_bytes(b"PK\x03\x04 no"), r"step-002\.npz is damaged"),
        (lambda f: np.savez(f / "counts" / "step-002.npz", linear=np.eye(4, dtype=int)), "step 1 counted"),
        (lambda f: (f / "arrivals.json").write_text('{"sizes": [1, 3, 2, 2], "kind": "equal"}'), "counts of step 1"),
    ],
)
def test_damaged_folders_are_named(tmp_path: Path, damage: Callable[[Path], Any], says: str) -> None:
    folder = write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0))
    damage(folder)
    with pytest.raises(InputError, match=says):
        load_run(folder)


def test_folders_without_runs_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No runs in"):
        load_runs(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        load_runs(tmp_path / "nowhere")


def test_mean_curve_interpolates_between_steps(study: Path) -> None:
    runs = [run for run in load_runs(study) if run.setting == "FF.org"][:2]
    a, b = (run.tables["linear"] for run in runs)
    x, y = mean_curve([a, b])
    assert list(x) == [3, 4, 5, 6, 7, 8]  # seen: 1 5 6 8 and 3 4 7 8; from 3, where both have begun
    first = dict(zip(a.seen, (100 * np.trace(c) / c.sum() for c in a.counts), strict=True))
    second = dict(zip(b.seen, (100 * np.trace(c) / c.sum() for c in b.counts), strict=True))
    at_3 = first[1] + (first[5] - first[1]) * 2 / 4
    assert y[0] == pytest.approx((at_3 + second[3]) / 2)
    assert y[-1] == pytest.approx((first[8] + second[8]) / 2)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_still_figures_are_written_in_the_format_of_their_name(study: Path, tmp_path: Path, suffix: str) -> None:
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    schedule = Arrivals(sizes=(3, 1, 7), kind="free-flow", alpha=1.0, order="jumbled", seed=0)
    first = plot_arrivals(schedule, tmp_path / f"arrivals.{suffix}")
    second = plot_curves(load_runs(study), tmp_path / "new folder" / f"curves.{suffix}")
    assert first.read_bytes().startswith(begins)
    assert second.read_bytes().startswith(begins)


def test_unknown_figure_format_is_named(study: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"\.svg, \.png or \.pdf"):
        plot_arrivals(Arrivals(sizes=(1, 2)), tmp_path / "arrivals.gif")
    with pytest.raises(InputError, match=r"curves\.txt"):
        plot_curves(load_runs(study), tmp_path / "curves.txt")


def test_interactive_figures_are_valid_plotly(study: Path) -> None:
    import plotly.graph_objects as go

    runs = [run for run in load_runs(study) if run.finished]
    specs = [curves_spec(runs, "linear"), memory_spec(runs[3], "linear"), class_size_spec(runs, "linear")]
    specs += [schedule_spec(of_seed) for of_seed in seed_schedules(runs).values()]
    for spec in specs:
        go.Figure(json.loads(json.dumps(spec, allow_nan=False)))  # raises on a property that plotly does not know
    heat = specs[1]["data"][0]["z"]
    assert [sum(value is not None for value in row) for row in heat] == [1, 2, 3, 4]
    shown = [(trace["name"], tuple(trace["y"])) for trace in specs[3]["data"]]
    assert shown == [("equal", (2, 2, 2, 2)), ("free flow", FREE_FLOW[0])]
    # The two classifiers' curves stand side by side: one range for both.
    assert specs[0]["layout"]["yaxis"]["range"] == curves_spec(runs, "nearest-mean")["layout"]["yaxis"]["range"]
    dots = [trace for trace in specs[2]["data"] if trace["mode"] == "markers"]
    assert [len(trace["x"]) for trace in dots] == [3 * 8, 3 * 8, 2 * 8]  # every class of every run


class Page(HTMLParser):
    """What a browser would load, and the text that it would show."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.specs: list[Any] = []
        self.words: list[str] = []
        self.inside = ""
        self.kind: str | None = None
        self.tags: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.inside, self.kind = tag, dict(attributes).get("type")
        self.loads += [value or "" for name, value in attributes if name in ("src", "href", "data", "srcset", "action")]

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script" and self.kind == "application/json":
            self.specs.append(json.loads(data))
        elif self.inside not in ("script", "style"):
            self.words.append(data)


def test_page_is_whole_and_needs_no_network(study: Path, tmp_path: Path) -> None:
    runs = load_runs(study)
    text = write_page(runs, tmp_path / "deep" / "report.html", title="A study").read_text()
    page = Page(text)
    assert all(load.startswith("#") for load in page.loads)
    assert "@import" not in text.split("<script>")[0]
    assert "url(" not in text.split("</style>")[0]
    assert text.count("plotly.js v") == 1
    words = " ".join(page.words)
    for run in runs:
        assert run.folder.name in words
        assert run.environment["command"] in words
    for meant in ("A study", "Equ.T", "FF.org", "FF.ours", "linear head", "nearest mean", "2 of 4 steps, unfinished"):
        assert meant in words
    assert "8 finished runs, 1 unfinished" in words
    assert "1\N{NO-BREAK SPACE}h\N{NO-BREAK SPACE}07\N{NO-BREAK SPACE}min" in words
    # Drop and recovery of two metrics; time of training (testing was not recorded); two classifiers' curves, a schedule
    # for each of 3 seeds, a map for each of 8 finished runs, and classes by size, alone and against equal steps.
    assert len(page.specs) == 2 + 1 + 2 + 3 + 8 + 2
    linear = compare(runs, "linear")[0]
    drop = linear.drop("average")
    assert drop is not None
    assert f">{arrow(drop.value)}</span>" in text


def test_page_escapes_what_comes_from_files(tmp_path: Path) -> None:
    nasty = "</script><script>alert(1)</script><img src=x>"
    write_run(tmp_path / "a", "Equ.T", 0, random_hits("Equ.T", 0), dataset=nasty, method=nasty, note=nasty)
    write_run(tmp_path / "b", "FF.org", 0, random_hits("FF.org", 0), dataset=nasty, method=nasty, classifiers=("<b>",))
    for folder in ("a", "b"):
        (tmp_path / folder / "environment.json").write_text(json.dumps({"command": ["ffcil", nasty], "device": nasty}))
    arrivals = json.loads((tmp_path / "b" / "arrivals.json").read_text())
    (tmp_path / "b" / "arrivals.json").write_text(json.dumps(arrivals | {"kind": nasty}))
    text = write_page(load_runs(tmp_path), tmp_path / "page.html", title=nasty).read_text()
    page = Page(text)
    assert "img" not in page.tags
    assert all(load.startswith("#") for load in page.loads)
    assert text.count("alert(1)") > 5
    assert "<script>alert" not in text


def test_importing_reports_loads_no_heavy_library() -> None:
    code = "import sys, ffcil.report; print([m for m in ('torch', 'matplotlib', 'plotly', 'rich') if m in sys.modules])"
    done = start([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_classes_without_test_images_do_not_break_a_report(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", "FF.org", 0, random_hits("FF.org", 0), classifiers=("linear",))
    for t, seen in enumerate((1, 5, 6, 8), start=1):
        table = np.eye(seen, dtype=np.int64) * IMAGES
        table[0] = 0
        np.savez(folder / "counts" / f"step-{t:03d}.npz", linear=table)
    runs = load_runs(tmp_path)
    number = compare(runs)[0].number("FF.org", "average")
    assert number is not None
    assert math.isclose(number.mean, 100.0)
    write_page(runs, tmp_path / "page.html")
    plot_curves(runs, tmp_path / "curves.png")


def test_the_data_sets_own_order_is_a_seed_of_its_own(tmp_path: Path) -> None:
    for k, seed in enumerate((None, 3)):
        write_run(tmp_path / f"r{k}", "Equ.T", 0, random_hits("Equ.T", 0), classifiers=("linear",))
        path = tmp_path / f"r{k}" / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"class_seed": seed}))
    runs = load_runs(tmp_path)
    assert [run.seed_label for run in runs] == ["seeds none/0/0", "seeds 3/0/0"]
    (row,) = compare(runs)
    assert row.cells["Equ.T"].runs == 2


def test_the_page_tells_what_every_step_cost(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "FF.org", 0, lambda c, t, k: 10)
    path = folder / "records.jsonl"
    told = {"parameters": 75_290, "trained_parameters": 1_234, "images_per_second": 812.6, "peak_memory_bytes": None}
    lines = [json.dumps(json.loads(line) | told) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    text = write_page([load_run(folder)], tmp_path / "page.html").read_text()
    cost = text.split('Cost, step by step</h4><pre class="columns">')[1].split("</pre>")[0].splitlines()
    assert cost[0].split() == ["step", "parameters", "trained", "images/s"]  # nothing is known of memory
    assert cost[1].split() == ["1", "75,290", "1,234", "813"]
    assert len(cost) == 5
