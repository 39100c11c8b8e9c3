"""Figures and the page, made from synthetic runs."""

from __future__ import annotations

import json
import math
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ffcil.arrivals import Arrivals
from ffcil.errors import InputError
from ffcil.report import Contents, compare, load_run, load_runs, plot_arrivals, plot_curves, write_page
from ffcil.report.analyse.curves import mean_curve, seed_schedules
from ffcil.report.render.page import what_was_run
from ffcil.report.render.specs import class_size_spec, curves_spec, memory_spec, schedule_spec
from ffcil.report.render.text import arrow
from invented_runs import FREE_FLOW, IMAGES, random_hits, write_run, write_study


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("study"))


def test_methods_with_equal_settings_and_seeds_share_a_sentence(tmp_path: Path) -> None:
    for method, seeds in (("icarl", (0, 1)), ("der", (0, 1)), ("memo", (0,))):
        for seed in seeds:
            write_run(tmp_path / f"{method}-{seed}", "FF.org", seed, random_hits("FF.org", seed), method=method)
    assert what_was_run(Contents.from_runs(load_runs(tmp_path))) == [
        "Der, iCaRL on glyphs, 8 classes in 4 steps: FF.org; 2 seeds.",
        "Memo on glyphs, 8 classes in 4 steps: FF.org; 1 seed.",
        "5 finished runs.",
    ]


def test_a_setting_without_runs_has_no_count(tmp_path: Path) -> None:
    for method, setting in (("icarl", "Equ.T"), ("der", "Equ.T"), ("der", "FF.org")):
        write_run(tmp_path / f"{method}-{setting}", setting, 0, random_hits(setting, 0), method=method)
    page = write_page(load_runs(tmp_path), tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.count('<td class="number">1</td>') == 4  # two classifiers each
    assert "–<br>" not in page


def test_mean_curve_interpolates_between_steps(study: Path) -> None:
    runs = [run for run in load_runs(study) if run.setting == "FF.org"][:2]
    a, b = (run.tables["linear"] for run in runs)
    x, y = mean_curve([a, b])
    assert list(x) == [3, 4, 5, 6, 7, 8]  # seen: 1 5 6 8 and 3 4 7 8; from 3, where both have begun
    first = dict(zip(a.seen, (100 * np.trace(c.dense()) / c.dense().sum() for c in a.counts), strict=True))
    second = dict(zip(b.seen, (100 * np.trace(c.dense()) / c.dense().sum() for c in b.counts), strict=True))
    at_3 = first[1] + (first[5] - first[1]) * 2 / 4
    assert y[0] == pytest.approx((at_3 + second[3]) / 2)
    assert y[-1] == pytest.approx((first[8] + second[8]) / 2)


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf"])
def test_static_figures_are_written_in_the_format_of_the_suffix(study: Path, tmp_path: Path, suffix: str) -> None:
    begins = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}[suffix]
    schedule = Arrivals(sizes=(3, 1, 7), kind="free-flow", alpha=1.0, order="jumbled", seed=0)
    first = plot_arrivals(schedule, tmp_path / f"arrivals.{suffix}")
    second = plot_curves(load_runs(study), tmp_path / "new folder" / f"curves.{suffix}")
    assert first.read_bytes().startswith(begins)
    assert second.read_bytes().startswith(begins)


def test_unknown_figure_format_is_an_error(study: Path, tmp_path: Path) -> None:
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
        go.Figure(json.loads(json.dumps(spec, allow_nan=False)))  # raises on an unknown property
    heat = specs[1]["data"][0]["z"]
    assert [sum(value is not None for value in row) for row in heat] == [1, 2, 3, 4]
    shown = [(trace["name"], tuple(trace["y"])) for trace in specs[3]["data"]]
    assert shown == [("equal", (2, 2, 2, 2)), ("free flow", FREE_FLOW[0])]
    assert specs[3]["layout"]["yaxis"]["dtick"] == 1  # a tick at every number of classes, not at halves
    # Curves of different classifiers share one range.
    assert specs[0]["layout"]["yaxis"]["range"] == curves_spec(runs, "nearest-mean")["layout"]["yaxis"]["range"]
    dots = [trace for trace in specs[2]["data"] if trace["mode"] == "markers"]
    assert [len(trace["x"]) for trace in dots] == [3 * 8, 3 * 8, 2 * 8]  # every class of every run


def test_a_run_without_test_images_has_no_results_on_the_page(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "FF.org", 0, lambda *_: 0)
    for path in (tmp_path / "run" / "counts").glob("*.npz"):
        np.savez(path, **{name: np.zeros_like(table) for name, table in np.load(path).items()})
    text = write_page(load_runs(tmp_path), tmp_path / "report.html").read_text()
    assert "nan" not in Page(text).words
    assert 'data-value="nan"' not in text


class Page(HTMLParser):
    """Links, figure specifications and visible text of a page."""

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


def test_page_is_complete_and_needs_no_network(study: Path, tmp_path: Path) -> None:
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
    drop = linear.change("FF.org", "average")
    assert drop is not None
    assert f">{arrow(drop.value)}</span>" in text


def test_page_links_to_its_sections(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "Equ.T", 0, random_hits("Equ.T", 0), classifiers=("linear",))
    page = Page(write_page(load_runs(tmp_path), tmp_path / "page.html").read_text())
    assert page.loads == ["#comparison", "#methods", "#runs", "#about"]  # only links within the page


MARKUP = "</script><script>alert(1)</script><img src=x onerror=alert(1)>"


def test_page_escapes_all_texts_of_runs(tmp_path: Path) -> None:
    for name, setting, classifier in (("a", "Equ.T", "linear"), ("b", "FF.org", "<b>"), ("<i>c", "FF.org", MARKUP)):
        seeds = {"train_seed": 7} if name == "<i>c" else {}
        fields = {"dataset": MARKUP, "method": MARKUP, "note": MARKUP, "classifiers": (classifier,)}
        folder = write_run(tmp_path / name, setting, 0, random_hits(setting, 0), **fields, **seeds)
        environment = {"command": ["ffcil", MARKUP], "device": MARKUP, "data": MARKUP}
        (folder / "environment.json").write_text(json.dumps(environment))
        (folder / "data.json").write_text(json.dumps({"classes": [MARKUP, name], "sample": MARKUP}))
        summary = json.loads((folder / "summary.json").read_text())
        (folder / "summary.json").write_text(json.dumps(summary | {"title": MARKUP}))
    arrivals = json.loads((tmp_path / "b" / "arrivals.json").read_text())
    (tmp_path / "b" / "arrivals.json").write_text(json.dumps(arrivals | {"kind": MARKUP}))
    contents = Contents.from_runs(load_runs(tmp_path), damaged=[f"{MARKUP} is damaged."])
    text = write_page(contents, tmp_path / "page.html", title=MARKUP, command=MARKUP).read_text()
    page = Page(text)
    assert set(page.tags).isdisjoint({"img", "i"})
    assert page.tags.count("script") == len(page.specs) + 2  # plotly and the script of the page
    assert all(load.startswith("#") for load in page.loads)
    words = " ".join(page.words)
    for expected in (
        f"{MARKUP}, {MARKUP}",  # method and classifier
        f"<i>c, on {MARKUP}",  # folder and device
        f"Left out of every result: {MARKUP} is damaged.",
        f"ffcil '{MARKUP}'",
    ):
        assert expected in words
    assert "<script>alert" not in text


def test_unfinished_runs_give_an_empty_table_and_a_page_without_results(tmp_path: Path) -> None:
    write_run(tmp_path / "run", "Equ.T", 0, random_hits("Equ.T", 0), done=False, steps=1)
    runs = load_runs(tmp_path)
    assert compare(runs) == []
    assert "No run that can be compared is finished" in write_page(runs, tmp_path / "page.html").read_text()
    with pytest.raises(InputError, match="finished"):
        plot_curves(runs, tmp_path / "curves.svg")


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


def test_page_shows_the_costs_of_every_step(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", "FF.org", 0, lambda c, t, k: 10)
    path = folder / "records.jsonl"
    told = {"parameters": 75_290, "trained_parameters": 1_234, "images_per_second": 812.6, "peak_memory_bytes": None}
    lines = [json.dumps(json.loads(line) | told) for line in path.read_text().splitlines()]
    path.write_text("\n".join(lines) + "\n")
    text = write_page([load_run(folder)], tmp_path / "page.html").read_text()
    cost = text.split('Costs per step</h4><pre class="columns">')[1].split("</pre>")[0].splitlines()
    assert cost[0].split() == ["step", "parameters", "trained", "images/s"]  # nothing is known of memory
    assert cost[1].split() == ["1", "75,290", "1,234", "813"]
    assert len(cost) == 5


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (
            "ffcil run my.yaml --data 'my images' --out there --threads 2 --import mine.py",
            "ffcil run my.yaml --data 'my images' --threads 2 --import mine.py --out again/a",
        ),
        ("ffcil run my.yaml --out=there --set a=--out", "ffcil run my.yaml --set a=--out --out again/a"),
        ("ffcil train.py --data here", "ffcil run FOLDER/config.json --out again/a"),  # from Python
        ("ffcil run 'half", "ffcil run FOLDER/config.json --out again/a"),
        (None, "ffcil run FOLDER/config.json --out again/a"),
    ],
)
def test_command_that_repeats_a_run_keeps_its_options(tmp_path: Path, command: str | None, again: str) -> None:
    folder = write_run(tmp_path / "a", "FF.org", 0, lambda *_: 10)
    (folder / "environment.json").write_text(json.dumps({"command": command} if command else {}))
    text = write_page([load_run(folder)], tmp_path / "page.html").read_text()
    said = unescape(text.split("Command that repeats this run</h4><pre>")[1].split("</pre>")[0])
    assert said == again.replace("FOLDER", str(folder))
