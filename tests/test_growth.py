"""Long and wide runs: counts are read step by step, files are closed, and reports draw a bounded number of marks."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from ffcil.metrics import Confusion, CountTable, curve, step_accuracy
from ffcil.report import load_run, write_page
from ffcil.report.analyse.curves import MOST_CELLS, MOST_POINTS, bins, thinned
from ffcil.report.read.records import RunRecord
from ffcil.report.render.page_runs import cost_columns
from ffcil.report.render.specs import class_size_spec, curves_spec, memory_spec, schedule_spec
from ffcil.runs.folder import RunFolder
from oracles import accuracy

IMAGES = 2
"""Test images of each class."""


def write_long_run(folder: Path, sizes: list[int]) -> list[list[tuple[int, int]]]:
    """Write a finished run with random predictions; returns the (true, predicted) classes after each step."""
    files, generator, seen, samples = RunFolder(folder), np.random.default_rng(0), 0, []
    (folder / "counts").mkdir(parents=True)
    seeds = {"class_seed": 0, "arrival_seed": 0, "train_seed": 0}
    files.write("config.json", {"dataset": "glyphs", "method": "icarl", "framework": "none", **seeds})
    files.write("arrivals.json", {"sizes": sizes, "kind": "given"})
    lines = []
    for step, size in enumerate(sizes, start=1):
        seen += size
        true = np.repeat(np.arange(seen), IMAGES)
        predicted = np.where(generator.random(len(true)) < 0.6, true, generator.integers(0, seen, len(true)))
        counts = Confusion.count(true, predicted, seen)
        files.write_counts(step, {"linear": counts})
        lines.append(json.dumps({"step": step, "accuracy": {"linear": counts.accuracy()}, "parameters": step}))
        samples.append(list(zip(true.tolist(), predicted.tolist(), strict=True)))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    files.finish({"scored": "linear", "title": "iCaRL"})
    return samples


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunRecord, list[list[tuple[int, int]]]]:
    folder = tmp_path_factory.mktemp("long") / "run"
    samples = write_long_run(folder, [1, 2, 1] * 200)
    return load_run(folder), samples


def test_the_heat_map_of_a_long_run_merges_steps(long_run: tuple[RunRecord, list[list[tuple[int, int]]]]) -> None:
    run, samples = long_run
    seen = np.cumsum(run.sizes)
    (heat,) = memory_spec(run, "linear")["data"]
    assert len(heat["z"]) == len(heat["z"][0]) == MOST_CELLS
    assert heat["x"] == heat["y"] == list(range(6, 601, 6))
    for row, column in ((0, 0), (99, 0), (57, 31), (99, 99), (40, 41)):
        first, last = 6 * column, 6 * column + 5
        classes = range(int(seen[first]) - run.sizes[first], int(seen[last]))
        truth = accuracy(samples[6 * row + 5], classes) if column <= row else None
        assert heat["z"][row][column] == (truth if truth is None else pytest.approx(truth, abs=1e-4))


def test_figures_of_a_long_run_have_a_bounded_number_of_marks(
    long_run: tuple[RunRecord, list[list[tuple[int, int]]]], tmp_path: Path
) -> None:
    run, samples = long_run
    (line,) = curves_spec([run], "linear")["data"]
    assert len(line["x"]) == MOST_POINTS
    assert (line["x"][0], line["x"][-1]) == (1, 800)
    assert line["y"][-1] == pytest.approx(accuracy(samples[-1], range(800)), abs=1e-4)
    (bar,) = schedule_spec({"given": run})["data"]
    assert len(bar["x"]) == MOST_CELLS
    assert sum(mean * 6 for mean in bar["y"]) == pytest.approx(800)
    dots, _ = class_size_spec([run], "linear")["data"]
    assert len(dots["x"]) == MOST_POINTS
    lines = cost_columns(run).splitlines()
    assert len(lines) == 1 + MOST_CELLS
    assert lines[-1].split() == ["600", "600"]
    page = write_page([run], tmp_path / "report.html").read_text()
    from plotly.offline import get_plotlyjs

    assert len(page) - len(get_plotlyjs()) < 400_000


def test_few_steps_are_drawn_one_by_one() -> None:
    assert bins(4) == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert bins(5, most=2) == [(1, 3), (4, 5)]
    assert thinned(4) == [0, 1, 2, 3]
    assert thinned(10, most=4) == [0, 3, 6, 9]


def test_merged_steps_have_the_counts_after_their_last_step() -> None:
    generator, sizes = np.random.default_rng(1), (1, 3, 2, 1, 4)
    counts = [Confusion.from_dense(generator.integers(0, 4, (n, n))) for n in np.cumsum(sizes)]
    table = CountTable(sizes, counts)
    merged = table.merged(2)
    assert merged.sizes == (6, 5)
    assert curve(merged) == [curve(table)[2], curve(table)[4]]
    dense = counts[4].dense()
    assert step_accuracy(merged)[1, 0] == pytest.approx(100 * np.trace(dense[:6, :6]) / dense[:6].sum())
    assert table.merged(5) is table


def test_counts_of_a_run_are_not_kept_in_memory(tmp_path: Path) -> None:
    """All cells together take ten times as much as the limit."""
    write_long_run(tmp_path, [10] * 60)
    tracemalloc.start()
    run = load_run(tmp_path)
    kept = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    cells = sum(len(counts.rows) for counts in run.tables["linear"].counts)
    assert kept < 24 * cells / 3


RUN = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from growth import case_run
case_run(Path(sys.argv[1]), "simplecil", 300, 300)
"""


@pytest.mark.faults
def test_a_run_of_more_steps_than_files_may_be_open_finishes(tmp_path: Path) -> None:
    benchmarks = Path(__file__).resolve().parents[1] / "benchmarks"
    subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path / "run"), str(benchmarks)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)),
        check=True,
    )
    assert len(load_run(tmp_path / "run").tables["prototype"].sizes) == 300
