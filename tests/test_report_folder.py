"""`ffcil report`: the files of a report and the output of the command."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.report import Contents, load_runs, write_report
from invented_runs import random_hits, write_run, write_sweep

ONE = ("linear",)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("sweep"))


def test_report_has_all_tables_and_figures_that_the_runs_allow(sweep: Path, tmp_path: Path) -> None:
    contents = Contents.from_runs(load_runs(sweep))
    assert set(contents.left_out) == {"ablation", "arrival sensitivity"}
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
    assert {"matched.md", "matched.tex", "matched.csv", "matched.json"} < names
    page = (tmp_path / "report.html").read_text()
    assert "ffcil report there" in page
    assert "ablation: no finished run has only some parts of a framework." in page


def test_command_names_what_it_left_out(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", "FF.org", 0, random_hits("FF.org", 0), classifiers=ONE)
    write_run(tmp_path / "runs" / "b", "FF.org", 1, random_hits("FF.org", 1), classifiers=ONE, done=False, steps=2)
    done = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])
    assert done.exit_code == 0
    output = done.output
    assert "b (icarl, FF.org, seed 1) is unfinished (2 of 4 steps) and is left out of every result." in output
    assert "Left out, alpha: it needs finished runs" in output
    assert "Left out, drop and recovery: it needs" in output
    assert (tmp_path / "runs" / "report" / "report.html").as_uri() in output
    again = CliRunner().invoke(app, ["report", str(tmp_path / "runs")])  # the files of the report are not read as runs
    assert again.output == output


def test_class_sizes_are_left_out_of_nearly_equal_steps_for_a_true_reason(tmp_path: Path) -> None:
    write_run(tmp_path / "a", "FF.org", 0, random_hits("FF.org", 0), classifiers=ONE, sizes=(2, 1))
    reason = Contents.read(tmp_path).left_out["class sizes"]
    assert reason == "no finished run has steps whose sizes differ by more than one"


def test_damaged_run_is_named_and_left_out(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path / f"{seed}", "FF.org", seed, random_hits("FF.org", seed), classifiers=ONE)
    (tmp_path / "1" / "counts" / "step-002.npz").write_bytes(b"PK no")
    done = CliRunner().invoke(app, ["report", str(tmp_path)])
    assert done.exit_code == 0
    note = f"Left out of every result: {tmp_path / '1' / 'counts' / 'step-002.npz'} is damaged"
    assert note in done.output
    page = (tmp_path / "report" / "report.html").read_text()
    assert note in page
    assert "1 finished run, 1 damaged: left out of every result." in page
    assert "| n | 1 |" in (tmp_path / "report" / "table.md").read_text()
