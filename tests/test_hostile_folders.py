"""Reports of folders that are damaged or made to harm: the page is safe, and one bad folder does not stop it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.errors import InputError
from ffcil.report import Contents, load_run, terminal_table, write_report
from ffcil.report.render.sensitivity import sensitivity_terminal
from ffcil.runs.published import publish
from invented_runs import random_hits, write_run

SCRIPT = "<img src=x onerror=alert(1)><script>alert(2)</script>"
VALUES: list[Any] = [
    *(SCRIPT, "", "x" * 300, "a\nb\x1b[31m", "\ud800", "[/b] $\\frac{ $ % & _ | ` {{ 1 }}", "null"),
    *(-5, 0, 10**30, 1e308, 2.5, float("nan"), float("inf"), True, False, None),
    *([], [[]], [SCRIPT], [-1, 0], [10**12], {}, {SCRIPT: SCRIPT}, {"a": {"b": []}}, [None, {}]),
]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all fields of a JSON value, at any depth."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def replaced(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    """A copy of a JSON value with another value in one place."""
    copy = json.loads(json.dumps(document))
    place = copy
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return copy


def full_run(folder: Path, seed: int = 0, setting: str = "FF.ours") -> Path:
    """A run with all fields that reports read."""
    arrivals = {"kind": "free-flow", "classes": None, "steps": 4, "alpha": 1.0, "order": "jumbled"}
    ha = {"use": None, "surrogates": 20, "identity": "sum"}
    drawn = {"order": "jumbled", "alpha": 1.0, "smallest": 1, "largest": 4}
    fields = {"arrivals": arrivals, "ha": ha, "centre_weight": 0.0, "options": {"temperature": 2.0}}
    write_run(folder, setting, seed, random_hits(setting, seed), drawn=drawn, **fields)
    facts = {
        "title": "iCaRL",
        "display_names": {"linear": "linear head", "nearest-mean": "nearest mean"},
        "bound": None,
        "own_alignment": "wa",
        "framework": {"reduction": "class_wise_mean", "alignment": "diwa", "ha": False, "flow": {}},
    }
    images = {"train_images": [3] * 8, "test_images": [20] * 8, "image_size": [32, 32], "sample": "00"}
    (folder / "method.json").write_text(json.dumps(facts))
    (folder / "data.json").write_text(json.dumps({"classes": [f"class {k}" for k in range(8)], **images}))
    record = {"images_per_second": 9.5, "parameters": 10, "trained_parameters": 5, "memory": 3, "loss": 0.1}
    record |= {"peak_memory_bytes": None, "alignment": {"eta": 0.5, "gamma": 1.0}, "new_labels": ["class 1"]}
    lines = [json.loads(line) | record for line in (folder / "records.jsonl").read_text().splitlines()]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def analysed(folder: Path) -> Contents:
    """Read all runs below a folder, compute everything, and make every text that needs no drawing."""
    contents = Contents.read(folder)
    console = Console(file=open(os.devnull, "w"))  # noqa: SIM115 (closed with the process)
    console.print(terminal_table(contents.rows))
    console.print(sensitivity_terminal(contents.sensitivities))
    return contents


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.faults), 31])
@pytest.mark.parametrize("name", ["config", "arrivals", "summary", "method", "environment", "data"])
def test_no_value_of_any_field_stops_a_report(tmp_path: Path, name: str, stride: int) -> None:
    """Every field at every depth gets every value, or every 31st pair. The run is reported, or named and left out."""
    full_run(tmp_path / "good", 1)
    path = full_run(tmp_path / "bad") / f"{name}.json"
    document = json.loads(path.read_text())
    left_out = 0
    for place, value in list(itertools.product(list(places(document)), VALUES))[::stride]:
        path.write_text(json.dumps(replaced(document, place, value)))
        try:
            contents = analysed(tmp_path)
        except Exception as error:
            raise AssertionError(f"{name}: {place} = {value!r}") from error
        assert [run.folder.name for run in contents.runs if run.folder.name == "good"] == ["good"]
        assert all("bad" in sentence for sentence in contents.damaged), (place, value)
        left_out += bool(contents.damaged)
    assert left_out


HOSTILE = {
    "summary": {"title": SCRIPT},
    "config": {"method": SCRIPT, "options": {SCRIPT: SCRIPT}},
    "arrivals": {"kind": f"{SCRIPT} [/b] $\\frac{{"},
    "environment": {"device": SCRIPT, "command": f"ffcil run {SCRIPT}", SCRIPT: SCRIPT, "data": SCRIPT},
    "method": {"display_names": {"linear": f"$x$ {SCRIPT}", "nearest-mean": SCRIPT}},
    "data": {"classes": [SCRIPT, *(f"class {k}" for k in range(7))]},
}
"""Fields with markup that are valid texts, so that the run is reported."""


def write_hostile(folder: Path, fields: dict[str, dict[str, Any]]) -> Path:
    """Change fields of a run's files."""
    for name, changes in fields.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def hostile_study(folder: Path) -> Path:
    """Good runs, a run whose texts are markup, and runs with markup in seeds, notes and names of folders."""
    for setting in ("Equ.T", "FF.org", "FF.ours"):
        full_run(folder / setting, 0, setting)
    write_hostile(full_run(folder / "texts", 0), HOSTILE)
    write_hostile(full_run(folder / "seed", 1), {"config": {"train_seed": SCRIPT}})
    write_hostile(full_run(folder / "<img src=x onerror=alert(3)>", 1), {"summary": {"scored": SCRIPT}})
    late = full_run(folder / "<b>late", 1)
    (late / "done").unlink()
    return folder


class Elements(HTMLParser):
    """Types of a page's scripts, and elements that load files or run code."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts: list[str | None] = []
        self.suspicious: list[tuple[str, Any]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = dict(attributes)
        if tag == "script":
            self.scripts.append(values.get("type"))
        loads = tag in {"img", "iframe", "object", "embed", "link", "base", "form", "svg", "video", "audio"}
        runs = any(name.startswith("on") or name in ("src", "srcdoc") for name in values)
        if loads or runs or not (values.get("href") or "#").startswith("#"):
            self.suspicious.append((tag, attributes))


def test_markup_in_runs_reaches_no_file_of_a_report_raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.report.render.folder.FIGURE_FORMATS", ("svg",))
    contents = analysed(hostile_study(tmp_path / "runs"))
    assert len(contents.damaged) == 2
    assert "field 'train_seed'" in "".join(contents.damaged)
    written = write_report(contents, tmp_path / "report", title=SCRIPT)
    for path in written:
        if path.suffix in (".html", ".md"):
            assert "<script>alert" not in path.read_text(encoding="utf-8"), path
            assert "<img src=x" not in path.read_text(encoding="utf-8"), path
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    found = Elements()
    found.feed(page)
    assert [kind for kind in found.scripts if kind != "application/json"] == [None, None]  # plotly and page.js
    assert found.suspicious == []
    assert "&lt;script&gt;alert(2)&lt;/script&gt;" in page  # it is shown, as text


def test_one_bad_folder_among_sixty_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.report.render.folder._write_figures", lambda contents, folder: [])
    first = write_run(tmp_path / "000", "FF.org", 0, random_hits("FF.org", 0))
    for seed in range(1, 60):
        folder = shutil.copytree(first, tmp_path / f"{seed:03d}")
        write_hostile(folder, {"config": {"class_seed": seed, "arrival_seed": seed, "train_seed": seed}})
    write_hostile(tmp_path / "031", {"summary": {"title": ["not", "a", "text"]}})
    done = CliRunner().invoke(app, ["report", str(tmp_path)], env={"COLUMNS": "300"})
    assert done.exit_code == 0, done.output
    assert f"Left out of every result: {tmp_path / '031' / 'summary.json'} is damaged (field 'title'" in done.output
    assert "59" in done.output


@pytest.mark.parametrize("name", ["records.jsonl", "summary.json", "counts/step-002.npz", "done"])
def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path, name: str) -> None:
    folder = full_run(tmp_path / "run")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    if name == "done":  # only its existence counts
        assert load_run(folder).finished
        return
    with pytest.raises(InputError, match="is not a regular file"):
        load_run(folder)


def test_deeply_nested_files_are_damaged(tmp_path: Path) -> None:
    folder = full_run(tmp_path / "run")
    (folder / "environment.json").write_text("[" * 100_000)
    with pytest.raises(InputError, match=r"environment\.json is damaged"):
        load_run(folder)


@pytest.mark.parametrize("value", ["../data-00.json", "/etc/passwd", 5, ["x"], {"a": 1}])
def test_a_published_run_reads_no_files_elsewhere(tmp_path: Path, value: Any) -> None:
    published = publish(full_run(tmp_path / "run"), tmp_path / "published")
    document = json.loads(published.read_text())
    published.write_text(json.dumps(document | {"data": value}))
    with pytest.raises(InputError, match="no name of a file of images"):
        load_run(published)
