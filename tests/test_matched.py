"""The matched difference: against plain loops, against closed forms, and in every output."""

from __future__ import annotations

import csv as csv_format
import io
import json
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from ffcil.errors import InputError
from ffcil.metrics import Confusion, CountTable, average_accuracy, curve, matched_difference
from ffcil.report import Contents, compare, load_runs, terminal_table, write_report
from ffcil.report.analyse.matched import matched_differences, partners
from ffcil.report.render.text import signed
from invented_runs import FREE_FLOW, IMAGES, random_hits, write_run, write_schedules

EQUAL = (2, 2, 2, 2)
ONE = ("linear",)


def table_of(seen: list[int], accuracies: list[float], images: int = 1000) -> CountTable:
    """Counts of a run with a given accuracy in percent after each step, in which every class has `images` images."""
    counts = []
    for n, accuracy in zip(seen, accuracies, strict=True):
        right = round(n * images * accuracy / 100)
        dense = np.zeros((n, n), dtype=np.int64)
        for c in range(n):
            hits = min(images, right)
            right -= hits
            dense[c, c] = hits
            dense[c, (c + 1) % n] += images - hits
        counts.append(Confusion.from_dense(dense))
    sizes = np.diff([0, *seen]).tolist()
    return CountTable(tuple(sizes), tuple(counts))


def naive_matched(seen: list[int], accuracies: list[float], boundaries: list[int], reference: list[float]) -> float:
    """The same by a loop over steps, with the line between two boundaries written out."""
    xs, ys = [1, *boundaries], [100.0, *reference]
    differences = []
    for n, accuracy in zip(seen, accuracies, strict=True):
        below = max(k for k, x in enumerate(xs) if x <= n)
        if xs[below] == n:
            height = ys[below]
        else:
            share = (n - xs[below]) / (xs[below + 1] - xs[below])
            height = (1 - share) * ys[below] + share * ys[below + 1]
        differences.append(accuracy - height)
    return statistics.mean(differences)


def test_matched_difference_agrees_with_a_plain_loop() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        seen = [*sorted(rng.choice(np.arange(1, 40), size=7, replace=False).tolist()), 40]
        accuracies = [100.0 if n == 1 else float(rng.integers(30, 95)) for n in seen]
        reference = [float(a) for a in rng.integers(30, 95, size=5)]
        own, equal = table_of(seen, accuracies), table_of([8, 16, 24, 32, 40], reference)
        expected = naive_matched(seen, curve(own), [8, 16, 24, 32, 40], curve(equal))
        assert matched_difference(own, equal) == pytest.approx(expected, abs=1e-9)


def test_one_curve_read_at_other_boundaries_differs_in_average_but_not_matched() -> None:
    """Accuracy falls along one line from 100 % at one class to 50 % at 101 classes, whatever the steps are."""

    def line(n: int) -> float:
        return 100 - (n - 1) / 2

    equal = [21, 41, 61, 81, 101]
    reference = table_of(equal, [line(n) for n in equal])
    for seen in ([1, 3, 7, 31, 101], [61, 81, 91, 97, 101], [10, 20, 25, 101]):
        own = table_of(seen, [line(n) for n in seen])
        assert matched_difference(own, reference) == pytest.approx(0, abs=0.02)  # whole numbers of images
        assert abs(average_accuracy(own) - average_accuracy(reference)) > 5
        lower = table_of(seen, [100.0 if n == 1 else line(n) - 4 for n in seen])
        share = sum(n > 1 for n in seen) / len(seen)
        assert matched_difference(lower, reference) == pytest.approx(-4 * share, abs=0.02)


def test_equal_boundaries_give_the_difference_of_the_averages() -> None:
    own, other = table_of([2, 4, 8], [90, 70, 60]), table_of([2, 4, 8], [80, 75, 50])
    assert matched_difference(own, other) == pytest.approx(average_accuracy(own) - average_accuracy(other))


def test_the_reference_must_have_seen_all_classes() -> None:
    with pytest.raises(InputError, match="The reference has 4 of 8 classes"):
        matched_difference(table_of([2, 8], [90, 50]), table_of([2, 4], [90, 70]))
    unfinished = table_of([3], [80])
    assert matched_difference(unfinished, table_of([2, 4], [90, 70])) == pytest.approx(0)


def test_steps_without_test_images_are_ignored() -> None:
    first, second = table_of([1], [100]).counts[0], table_of([1, 4], [100, 60]).counts[1]
    empty = Confusion(1, np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))
    own = CountTable((1, 3), (empty, second))
    assert matched_difference(own, table_of([2, 4], [90, 70])) == pytest.approx(-10)
    reference = CountTable((1, 3), (empty, second))  # nothing is known at one class, where any reference is 100 %
    assert matched_difference(CountTable((1, 3), (first, second)), reference) == pytest.approx(0)


def accuracies(setting: str, seed: int, sizes: tuple[int, ...]) -> list[float]:
    hits, found = random_hits(setting, seed), []
    for t in range(1, len(sizes) + 1):
        seen = sum(sizes[:t])
        right = [hits("linear", t, k) if seen > 1 else IMAGES for k in range(seen)]
        found.append(100 * sum(right) / (IMAGES * seen))
    return found


def expected(setting: str, seed: int) -> float:
    sizes = FREE_FLOW[seed]
    seen = [sum(sizes[: t + 1]) for t in range(4)]
    return naive_matched(seen, accuracies(setting, seed, sizes), [2, 4, 6, 8], accuracies("Equ.T", seed, EQUAL))


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("study")
    for seed in (0, 1, 2):
        for setting in ("Equ.T", "FF.org", "FF.ours", "FF.flow"):
            hits = random_hits(setting, seed)
            write_run(folder / f"{setting}-{seed}", setting, seed, hits, classifiers=ONE)
    return folder


def test_every_free_flow_setting_is_compared_with_equal_steps(study: Path) -> None:
    (row,) = compare(load_runs(study))
    assert list(row.matched) == ["FF.org", "FF.ours", "FF.flow"]
    found = {one.setting: one for one in matched_differences(load_runs(study))}
    for setting in ("FF.org", "FF.ours", "FF.flow"):
        values = [expected(setting, seed) for seed in (0, 1, 2)]
        change = row.matched[setting]
        assert change.differences == pytest.approx(values)
        half = stats.t.ppf(0.975, 2) * statistics.stdev(values) / 3**0.5
        assert change.interval == pytest.approx((statistics.mean(values) - half, statistics.mean(values) + half))
        assert (found[setting].difference, found[setting].difference.versus) == (change, "Equ.T")
        averages = [
            statistics.mean(accuracies(setting, seed, FREE_FLOW[seed]))
            - statistics.mean(accuracies("Equ.T", seed, EQUAL))
            for seed in (0, 1, 2)
        ]
        assert found[setting].average.differences == pytest.approx(averages)


def test_all_outputs_show_it(study: Path, tmp_path: Path) -> None:
    contents = Contents.from_runs(load_runs(study))
    write_report(contents, tmp_path)
    value = statistics.mean(expected("FF.flow", seed) for seed in (0, 1, 2))
    shown = f"{round(value, 2):+.2f}"
    for name in ("matched.md", "matched.tex", "table.md", "report.html"):
        text = (tmp_path / name).read_text()
        assert shown in text, name
        assert "whatever the learner does" in text, name
    latex = (tmp_path / "matched.tex").read_text().split(r"\midrule")[1]
    assert "-" not in re.sub(r"\$[^$]*\$", "", latex)  # a hyphen is no minus sign
    (line,) = [
        line for line in csv_format.DictReader((tmp_path / "matched.csv").open()) if line["setting"] == "FF.flow"
    ]
    assert float(line["matched_value"]) == pytest.approx(value)
    assert (line["matched_pairs"], line["matched_conclusion"]) == ("3", "too few pairs")
    (flow,) = [one for one in json.loads((tmp_path / "matched.json").read_text()) if one["setting"] == "FF.flow"]
    assert flow["matched"]["differences"] == pytest.approx([expected("FF.flow", seed) for seed in (0, 1, 2)])
    table = {line["setting"]: line for line in csv_format.DictReader((tmp_path / "table.csv").open())}
    assert float(table["FF.flow"]["matched"]) == pytest.approx(value)
    assert table["Equ.T"]["matched"] == ""
    console = Console(file=io.StringIO(), width=150)
    console.print(terminal_table(contents.rows))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert "interval" not in " ".join(lines)  # which the terminal has no room for
    header = next(line for line in lines if line.split()[-2:] == ["M", "n"])
    (line,) = [line for line in lines if line.split()[:1] == ["FF.flow"]]
    assert line[header.index("M") :].split()[0] == signed(value)


def test_partners_need_the_same_seeds_method_classes_and_conditions(tmp_path: Path) -> None:
    def write(name: str, setting: str, **fields: object) -> None:
        write_run(tmp_path / name, setting, 0, random_hits(setting, 0), classifiers=ONE, **fields)  # type: ignore[arg-type]

    write("free", "FF.org", class_seed=5, train_seed=6, arrival_seed=7, memory={"budget": 10})
    same = {"class_seed": 5, "train_seed": 6, "arrival_seed": 1}
    write("other-class-seed", "Equ.T", **same | {"class_seed": 4}, memory={"budget": 10})
    write("other-train-seed", "Equ.T", **same | {"train_seed": 5}, memory={"budget": 10})
    write("other-budget", "Equ.T", **same, memory={"budget": 20})
    write("other-method", "Equ.T", **same, method="der", memory={"budget": 10})
    write("fewer-classes", "Equ.T", **same, sizes=(2, 2), memory={"budget": 10})
    write("unfinished", "Equ.T", **same, done=False, steps=2, memory={"budget": 10})
    write("framework", "Equ.flow", **same, memory={"budget": 10})
    assert partners(load_runs(tmp_path)) == {}
    assert "matched difference" in Contents.from_runs(load_runs(tmp_path)).left_out
    write("two-steps", "Equ.T", **same, sizes=(4, 4), memory={"budget": 10})
    (pair,) = partners(load_runs(tmp_path)).items()
    assert [run.folder.name for run in pair] == ["free", "two-steps"]
    write("zz-four-steps", "Equ.T", **same | {"arrival_seed": 2}, memory={"budget": 10})
    (pair,) = partners(load_runs(tmp_path)).items()
    assert [run.folder.name for run in pair] == ["free", "zz-four-steps"]


def test_schedules_of_one_permutation_count_as_one_difference(tmp_path: Path) -> None:
    """Three jumbled schedules of two permutations give two differences, each the mean of three."""
    write_schedules(tmp_path, lambda schedule, framework, seed: 16 if schedule == "equal" else 12 - seed)
    found = {(one.setting, one.group.label, one.group.steps): one for one in matched_differences(load_runs(tmp_path))}
    change = found["FF.org", "order jumbled", 4].difference
    assert change.pairs == 2
    for seed, difference in enumerate(change.differences):
        values = []
        for sizes in ((1, 4, 1, 2), (3, 1, 3, 1), (2, 1, 1, 4)):
            seen = [sum(sizes[: t + 1]) for t in range(4)]
            own = [100.0 if n == 1 else 5.0 * (12 - seed) for n in seen]
            values.append(naive_matched(seen, own, [2, 4, 6, 8], [80.0] * 4))
        assert difference == pytest.approx(statistics.mean(values))
    # Steps that are one class at a time have another number of steps than Equ.T.
    assert found["FF.org", "", 6].difference.differences == pytest.approx([-20, -25])
