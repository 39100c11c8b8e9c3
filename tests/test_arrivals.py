from __future__ import annotations

import json
import math
import pickle
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as each
from hypothesis import settings
from hypothesis import strategies as st
from scipy import stats

from ffcil.arrivals import (
    Arrivals,
    equal_arrivals,
    free_flow,
    from_trace,
    given_arrivals,
    half_arrivals,
    trickle_arrivals,
)
from ffcil.errors import InputError

quick = settings(deadline=None, max_examples=80)
seeds = st.integers(0, 2**40)
alphas = st.floats(-4, 4).map(lambda exponent: 10.0**exponent)


@st.composite
def feasible(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """classes, steps, smallest, largest that fit together."""
    classes = draw(st.integers(1, 2000))
    steps = draw(st.integers(1, min(classes, 200)))
    smallest = draw(st.integers(1, classes // steps))
    largest = draw(st.integers(-(-classes // steps), classes))
    return classes, steps, smallest, largest


# Equal, half and given


@each(st.integers(1, 2000), st.data())
@quick
def test_equal_sizes_differ_by_at_most_one_with_the_larger_first(classes: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, classes))
    arrivals = equal_arrivals(classes, steps)
    assert (arrivals.classes, arrivals.steps, arrivals.kind) == (classes, steps, "equal")
    assert max(arrivals.sizes) - min(arrivals.sizes) <= 1
    assert list(arrivals.sizes) == sorted(arrivals.sizes, reverse=True)


def test_half_starts_with_half_of_the_classes() -> None:
    assert half_arrivals(100, 6).sizes == (50, 10, 10, 10, 10, 10)
    assert half_arrivals(196, 4).sizes == (98, 33, 33, 32)
    assert half_arrivals(7, 3).sizes == (4, 2, 1)
    assert half_arrivals(2, 2).sizes == (1, 1)


def test_trickle_ends_with_half_of_the_classes_one_at_a_time() -> None:
    assert trickle_arrivals(100, 10).sizes == (10,) * 5 + (1,) * 50
    assert trickle_arrivals(196, 10).sizes == (20, 20, 20, 19, 19) + (1,) * 98
    assert trickle_arrivals(7, 3).sizes == (2, 2, 1, 1, 1)
    assert trickle_arrivals(1, 1).sizes == (1,)


@each(st.integers(1, 500), st.data())
@quick
def test_trickle_is_possible_wherever_equal_steps_are(classes: int, data: st.DataObject) -> None:
    steps = data.draw(st.integers(1, classes))
    sizes = trickle_arrivals(classes, steps).sizes
    first, last = sizes[: len(sizes) - classes // 2], sizes[len(sizes) - classes // 2 :]
    assert sum(sizes) == classes
    assert set(last) <= {1}
    assert len(first) == (steps + 1) // 2
    assert max(first) - min(first) <= 1


@pytest.mark.parametrize(
    ("make", "classes", "steps"),
    [
        *((equal_arrivals, 5, 6), (equal_arrivals, 1, 2), (half_arrivals, 10, 7), (half_arrivals, 3, 9)),
        (trickle_arrivals, 5, 6),
    ],
)
def test_too_many_steps_are_an_error_with_the_possible_number(make: Any, classes: int, steps: int) -> None:
    with pytest.raises(InputError) as error:
        make(classes, steps)
    most = int(re.findall(r"at most (\d+)", str(error.value))[0])
    assert make(classes, most).classes == classes
    with pytest.raises(InputError):
        make(classes, most + 1)


def test_given_sizes_in_every_order() -> None:
    sizes = [3, 1, 7, 7, 2, 30]
    assert given_arrivals(sizes).sizes == tuple(sizes)
    assert given_arrivals(sizes, "ascending").sizes == (1, 2, 3, 7, 7, 30)
    assert given_arrivals(sizes, "descending").sizes == (30, 7, 7, 3, 2, 1)
    jumbled = [given_arrivals(sizes, "jumbled", seed) for seed in range(20)]
    assert all(Counter(each.sizes) == Counter(sizes) for each in jumbled)
    assert len({each.sizes for each in jumbled}) > 10
    assert given_arrivals(sizes, "jumbled", 3) == jumbled[3]
    assert (given_arrivals(sizes).seed, given_arrivals(sizes, "ascending", 5).seed, jumbled[3].seed) == (None, None, 3)
    assert given_arrivals(np.array(sizes)) == given_arrivals(size for size in sizes)


def test_boundaries_count_the_classes_seen() -> None:
    assert given_arrivals([3, 1, 7]).boundaries == (3, 4, 11)


# The free-flow spectrum


@each(feasible(), alphas, seeds)
@quick
def test_sum_bounds_and_orders(setting: tuple[int, int, int, int], alpha: float, seed: int) -> None:
    classes, steps, smallest, largest = setting
    jumbled, ascending, descending = (
        free_flow(*setting, alpha, order, seed) for order in ("jumbled", "ascending", "descending")
    )
    assert (jumbled.classes, jumbled.steps) == (classes, steps)
    assert smallest <= min(jumbled.sizes) <= max(jumbled.sizes) <= largest
    assert list(ascending.sizes) == sorted(jumbled.sizes)
    assert descending.sizes == ascending.sizes[::-1]
    assert free_flow(*setting, alpha, "jumbled", seed) == jumbled
    assert given_arrivals(ascending.sizes, "jumbled", seed).sizes == jumbled.sizes
    assert (jumbled.kind, jumbled.alpha, jumbled.smallest, jumbled.largest) == ("free-flow", alpha, smallest, largest)


@each(feasible(), seeds)
@quick
def test_alpha_zero_gives_the_equal_split(setting: tuple[int, int, int, int], seed: int) -> None:
    for alpha in (1e-13, 1e-300):
        assert free_flow(*setting, alpha, "descending", seed).sizes == equal_arrivals(*setting[:2]).sizes


@each(feasible(), seeds)
@quick
def test_infinite_alpha_puts_all_but_one_step_on_the_bounds(setting: tuple[int, int, int, int], seed: int) -> None:
    _, _, smallest, largest = setting
    for alpha in (1e12, 1e300):
        between = [size for size in free_flow(*setting, alpha, seed=seed).sizes if size not in (smallest, largest)]
        assert len(between) <= 1


@pytest.mark.parametrize("seed", range(20))
def test_the_limits_are_near_at_a_millionth_and_a_million(seed: int) -> None:
    assert set(free_flow(100, 10, 1, 15, 1e-6, seed=seed).sizes) == {10}
    assert free_flow(100, 10, 1, 15, 1e6, "ascending", seed).sizes == (1, 1, 1, 7, 15, 15, 15, 15, 15, 15)


def test_small_alphas_soon_give_the_equal_split() -> None:
    spectra = [free_flow(1000, 20, 1, 100, 1e-7, seed=seed).sizes for seed in range(200)]
    uneven = sum(max(sizes) - min(sizes) > 1 for sizes in spectra)
    assert uneven < 20  # about 7; were the steps to mend chosen evenly, about 40


@each(feasible(), seeds)
@quick
def test_only_one_schedule_is_possible_without_freedom(setting: tuple[int, int, int, int], seed: int) -> None:
    _, steps, smallest, largest = setting
    for size in (smallest, largest):
        assert set(free_flow(steps * size, steps, smallest, largest, 1.0, seed=seed).sizes) == {size}
    assert set(free_flow(steps * smallest, steps, smallest, smallest, 1.0, seed=seed).sizes) == {smallest}
    assert free_flow(smallest, 1, 1, largest + smallest, 1.0, seed=seed).sizes == (smallest,)


def strata(classes: int, steps: int, smallest: int, largest: int, alpha: float) -> list[tuple[float, float]]:
    """The sizes at the two edges of each stratum of the Beta distribution, by scipy.stats."""
    mean = (classes / steps - smallest) / (largest - smallest)
    beta = stats.beta(mean / alpha, (1 - mean) / alpha)
    edges = [smallest + (largest - smallest) * float(beta.ppf(k / steps)) for k in range(steps + 1)]
    return list(pairwise(edges))


@pytest.mark.parametrize("alpha", [0.01, 0.1, 0.5, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("setting", [(100, 10, 1, 15), (1000, 60, 1, 40), (196, 20, 2, 30), (500, 5, 10, 400)])
def test_each_step_stays_in_its_stratum(setting: tuple[int, int, int, int], alpha: float) -> None:
    edges = strata(*setting, alpha)
    for seed in range(20):
        sizes = free_flow(*setting, alpha, "ascending", seed).sizes
        for size, (low, high) in zip(sizes, edges, strict=True):
            assert math.floor(low + 1e-7) <= size <= math.ceil(high - 1e-7)


def test_the_example_of_cifar_100_belongs_to_the_spectrum() -> None:
    example = [1, 3, 7, 7, 11, 13, 14, 14, 15, 15]
    for size, (low, high) in zip(example, strata(100, 10, 1, 15, 1.0), strict=True):
        assert math.floor(low) <= size <= math.ceil(high)
    distance = [
        sum(abs(a - b) for a, b in zip(free_flow(100, 10, 1, 15, 1.0, "ascending", seed).sizes, example, strict=True))
        for seed in range(100)
    ]
    assert min(distance) <= 4
    assert max(distance) <= 16


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("alpha", [0.05, 0.7, 4.0])
def test_spectrum_is_rounded_quantiles_with_the_fewest_moves(alpha: float, seed: int) -> None:
    classes, steps, smallest, largest = 400, 25, 2, 60
    rng, order_rng = (np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(2))
    offsets, coins = rng.random(steps), rng.random(steps)
    mean = (classes / steps - smallest) / (largest - smallest)
    rounded = []
    for k in range(steps):
        quantile = stats.beta.ppf((k + offsets[k]) / steps, mean / alpha, (1 - mean) / alpha)
        size = smallest + (largest - smallest) * quantile
        rounded.append(int(size) + int(coins[k] < size - int(size)))
    sizes = free_flow(classes, steps, smallest, largest, alpha, "ascending", seed).sizes
    moves = sum(abs(size - other) for size, other in zip(sizes, sorted(rounded), strict=True))
    assert moves == abs(classes - sum(rounded))
    # the order has a stream of its own: it must not be read off the draws that made the sizes
    jumbled = free_flow(classes, steps, smallest, largest, alpha, "jumbled", seed).sizes
    assert jumbled == tuple(sizes[k] for k in np.argsort(order_rng.random(steps)))


@pytest.mark.parametrize("alpha", [0.1, 0.8, 2.0])
def test_sizes_follow_the_beta_distribution(alpha: float) -> None:
    """Within one class (rounding) and one step (a stratum each) of its cumulative distribution, everywhere.

    Independent draws would stray by several steps. A Kolmogorov distance would not do: whole sizes pile up at a bound.
    """
    steps, smallest, largest = 200, 1, 1200
    spread, mean = largest - smallest, (500 - smallest) / (largest - smallest)
    below = stats.beta(mean / alpha, (1 - mean) / alpha).cdf
    for seed in range(5):
        sizes = sorted(free_flow(500 * steps, steps, smallest, largest, alpha, seed=seed).sizes)
        size = np.arange(smallest, largest + 1)
        share = np.searchsorted(sizes, size, side="right") / steps
        assert (share <= below((size + 1 - smallest) / spread) + 1 / steps + 1e-9).all()
        assert (share >= below((size - 1 - smallest) / spread) - 1 / steps - 1e-9).all()


def test_mean_size_of_each_rank_is_the_mean_of_its_stratum() -> None:
    sizes = np.array([free_flow(1000, 10, 1, 300, 1.0, "ascending", seed).sizes for seed in range(400)])
    mean = (100 - 1) / 299
    fine = stats.beta.ppf((np.arange(10_000) + 0.5) / 10_000, mean, 1 - mean).reshape(10, 1000).mean(axis=1)
    assert np.abs(sizes.mean(axis=0) - (1 + 299 * fine)).max() < 3  # of a spread of 299


def test_no_position_in_time_is_favoured() -> None:
    sizes = np.array([free_flow(100, 10, 1, 15, 1.0, seed=seed).sizes for seed in range(600)])
    error = sizes.std() / math.sqrt(len(sizes))
    assert np.abs(sizes.mean(axis=0) - 10).max() < 4 * error
    assert len({tuple(row) for row in sizes}) > 590


@pytest.mark.parametrize("setting", [(100, 10, 1, 15), (100, 20, 1, 15), (1000, 20, 1, 100)])
def test_moderate_alpha_gives_the_most_varied_sizes(setting: tuple[int, int, int, int]) -> None:
    def variety(alpha: float) -> float:
        return float(np.mean([len(set(free_flow(*setting, alpha, seed=seed).sizes)) for seed in range(25)]))

    moderate = min(variety(0.5), variety(1.0))
    assert moderate > 1.3 * max(variety(0.01), variety(100.0))
    assert variety(0.01) > variety(1e-6)
    assert variety(4.0) > variety(100.0)


@each(st.integers(1, 300), st.integers(1, 40), st.integers(1, 20), st.integers(0, 20))
@quick
def test_infeasible_bounds_are_an_error_with_feasible_ones(classes: int, steps: int, smallest: int, extra: int) -> None:
    largest = smallest + extra
    if steps * smallest <= classes <= steps * largest:
        assert free_flow(classes, steps, smallest, largest, 1.0).classes == classes
        return
    with pytest.raises(InputError) as error:
        free_flow(classes, steps, smallest, largest, 1.0)
    offer = str(error.value).split(": ")[1]
    classes_offered = re.search(r"use (?:(\d+) to )?(\d+) class(?:es)?", offer)
    steps_offered = re.search(r"or (?:(\d+) to )?(\d+) steps?", offer)
    assert classes_offered
    for number in filter(None, classes_offered.groups()):
        assert free_flow(int(number), steps, smallest, largest, 1.0).classes == int(number)
    works = [n for n in range(1, classes + 1) if n * smallest <= classes <= n * largest]
    if works:
        assert steps_offered
        assert [int(n) for n in steps_offered.groups() if n] == sorted({works[0], works[-1]})
        for number in (works[0], works[-1]):
            assert free_flow(classes, number, smallest, largest, 1.0).steps == number
    else:
        assert steps_offered is None


def test_the_infeasible_sentence() -> None:
    with pytest.raises(InputError) as error:
        free_flow(100, 10, 1, 9, 1.0)
    assert str(error.value) == (
        "100 classes do not fit in 10 steps of 1 to 9: use 10 to 90 classes, or 12 to 100 steps."
    )


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        ({"alpha": 0}, "0"),
        ({"alpha": -1.0}, "-1.0"),
        ({"alpha": math.inf}, "inf"),
        ({"alpha": math.nan}, "nan"),
        ({"alpha": "1"}, "'1'"),
        ({"order": "ascendin"}, "did you mean 'ascending'"),
        ({"order": "given"}, "'given'"),
        ({"seed": -1}, "Seed -1"),
        ({"seed": None}, "Seed None"),
        ({"steps": 0}, "Steps 0"),
        ({"classes": 10.5}, "Classes 10.5"),
        ({"classes": True}, "Classes True"),
        ({"smallest": 0}, "Smallest 0"),
        ({"smallest": 16}, "swap"),
    ],
)
def test_invalid_settings_are_an_error(change: dict[str, Any], culprit: str) -> None:
    setting: dict[str, Any] = {"classes": 100, "steps": 10, "smallest": 1, "largest": 15, "alpha": 1.0} | change
    with pytest.raises(InputError) as error:
        free_flow(**setting)
    assert culprit in str(error.value)


# The value itself


@each(feasible(), alphas, st.sampled_from(["jumbled", "ascending", "descending"]), seeds)
@quick
def test_json_round_trip_is_exact(setting: tuple[int, int, int, int], alpha: float, order: str, seed: int) -> None:
    for arrivals in (
        free_flow(*setting, alpha, order, seed),
        equal_arrivals(*setting[:2]),
        given_arrivals([3, 1, 2], "jumbled", seed),
    ):
        data = json.loads(json.dumps(arrivals.to_json()))
        back = Arrivals(**data)
        assert back == arrivals
        assert hash(back) == hash(arrivals)
        assert next(iter(data)) == "sizes"
        assert pickle.loads(pickle.dumps(arrivals)) == arrivals


def test_numpy_numbers_and_lists_become_plain_values() -> None:
    arrivals = free_flow(*np.array([100, 10, 1, 15]), alpha=np.float32(0.5), seed=np.int64(3))
    assert arrivals == free_flow(100, 10, 1, 15, 0.5, seed=3)
    assert {type(value) for value in (*arrivals.sizes, arrivals.seed, arrivals.largest)} == {int}
    assert Arrivals([2, 1], kind="trace", labels=["a", "b", "c"]) in {  # type: ignore[arg-type]
        Arrivals((2, 1), kind="trace", labels=("a", "b", "c"))
    }


@pytest.mark.parametrize(
    ("data", "culprit"),
    [
        ({"sizes": []}, "at least one step"),
        ({"sizes": 3}, "3"),
        ({"sizes": "31"}, "'3'"),
        ({"sizes": [1, 0]}, "Step size 0"),
        ({"sizes": [1, 2.5]}, "Step size 2.5"),
        ({"sizes": [True]}, "Step size True"),
        ({"sizes": [1], "kind": "freeflow"}, "did you mean 'free-flow'"),
        ({"sizes": [1], "order": "jumble"}, "did you mean 'jumbled'"),
        ({"sizes": [1, 2], "order": "descending"}, "not descending"),
        ({"sizes": [1], "alpha": -2}, "-2"),
        ({"sizes": [1], "seed": -2}, "-2"),
        ({"sizes": [1, 9], "smallest": 1, "largest": 8}, "1 to 8"),
        ({"sizes": [1, 9], "smallest": 2}, "2 to 9"),
        ({"sizes": [1], "labels": ["a"]}, "'given'"),
        ({"sizes": [1], "kind": "trace"}, "'trace'"),
        ({"sizes": [1, 1], "kind": "trace", "labels": ["a"]}, "1 labels for 2 classes"),
        ({"sizes": [1, 1], "kind": "trace", "labels": ["a", "a"]}, "'a'"),
        ({"sizes": [2], "kind": "trace", "labels": "ab"}, "class names"),
        ({"sizes": [2], "kind": "trace", "labels": ["a", 3]}, "class names"),
    ],
)
def test_invalid_json_is_an_error(data: Any, culprit: str) -> None:
    with pytest.raises(InputError) as error:
        Arrivals(**data)
    assert culprit in str(error.value)


# The trace


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_trace_groups_timestamps_by_window(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.csv",
        "\ufeffid,Class,First_Seen",
        "1,owl,2024-05-03T23:59:59",
        '2,"fox, red",2024-05-01 12:00',
        "3,bee,2024-05-02T12:00:00",  # exactly one window after the first: opens the second
        "4,ant,2024-05-02T11:59:59.999999",
        "",
        "5,elk,2024-05-02T12:00:00",
        "6,cat,2024-05-20",
    )
    daily = from_trace(path, "1d")
    assert daily.labels == ("fox, red", "ant", "bee", "elk", "owl", "cat")
    assert daily.sizes == (2, 2, 1, 1)  # the windows open at noon, and most of May has no arrivals
    assert (daily.kind, daily.order, daily.seed) == ("trace", "given", None)
    assert from_trace(path, "24h") == from_trace(path, "1440 m") == from_trace(str(path), "86400s") == daily
    assert from_trace(path, "2w").sizes == (5, 1)
    assert from_trace(path, "0.5d").sizes == (1, 1, 2, 1, 1)
    assert Arrivals(**json.loads(json.dumps(daily.to_json()))) == daily


def test_trace_of_numbers_counts_windows_in_decimals(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.csv", "time,label", "0.1,a", "0.3,c", "0.2,b", "4e-1,d", "-0.1,z")
    assert from_trace(path, 0.1).labels == ("z", "a", "b", "c", "d")
    assert from_trace(path, 0.1).sizes == (1, 1, 1, 1, 1)  # in floating point 0.3 and 0.2 would share a window
    assert from_trace(path, "0.2").sizes == (1, 2, 2)
    assert from_trace(path, 1).sizes == (5,)
    nanoseconds = write(tmp_path / "ns.csv", "time,label", "1700000000000000001,b", "1700000000000000000,a")
    assert from_trace(nanoseconds, 1).labels == ("a", "b")
    assert from_trace(nanoseconds, 1).sizes == (1, 1)


@each(st.lists(st.integers(-1000, 1000), min_size=1, max_size=60), st.integers(1, 300))
@quick
def test_trace_agrees_with_a_naive_count(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], window: int
) -> None:
    rows = [f"c{k},{time}" for k, time in enumerate(times)]
    arrivals = from_trace(write(tmp_path_factory.getbasetemp() / "naive.csv", "class,time", *rows), window)
    sizes, labels, start = [], [], min(times)
    while len(labels) < len(times):
        inside = sorted((time, k) for k, time in enumerate(times) if start <= time < start + window)
        sizes += [len(inside)] if inside else []
        labels += [f"c{k}" for _, k in inside]
        start += window
    assert (arrivals.sizes, arrivals.labels) == (tuple(sizes), tuple(labels))


def test_trace_respects_time_zones(tmp_path: Path) -> None:
    path = write(
        tmp_path / "trace.csv",
        "class,timestamp",
        "late,2024-05-01T12:00:00Z",
        "early,2024-05-01T12:30:00+02:00",
    )
    assert from_trace(path, "30m").labels == ("early", "late")
    assert from_trace(path, "30m").sizes == (1, 1)
    assert from_trace(path, "91m").sizes == (2,)


@pytest.mark.parametrize(
    ("lines", "window", "culprits"),
    [
        ([], "1d", ["trace.csv", "no classes"]),
        (["class,time"], "1d", ["trace.csv", "no classes"]),
        (["name,when", "a,1"], "1", ["class or label", "name, when"]),
        (["class,when", "a,1"], "1", ["time or first_seen or timestamp", "class, when"]),
        (["class,label,time", "a,a,1"], "1", ["one column named class or label"]),
        (["class,time", "a,1", "b,2", "a,3"], "1", ["'a'", "lines 2 and 4"]),
        (["class,time", "a,1", ",2"], "1", ["Line 3"]),
        (["class,time", "a,1", "b"], "1", ["Line 3", "1 fields"]),
        (["class,time", "a,1", "b,soon"], "1", ["line 3", "'soon'"]),
        (["class,time", "a,1", "b,nan"], "1", ["line 3", "'nan'"]),
        (["class,time", "a,1", "b,"], "1", ["line 3", "''"]),
        (["class,time", "a,2024-13-01"], "1d", ["line 2", "'2024-13-01'"]),
        (["class,time", "a,1", "b,2024-05-01"], "1", ["(line 2)", "(line 3)", "plain numbers"]),
        (["class,time", "a,2024-05-01", "b,2024-05-01T00:00Z"], "1d", ["(line 2)", "(line 3)", "time zone"]),
        (["class,time", "a,1"], "1h", ["'1h'", "plain numbers"]),
        (["class,time", "a,2024-05-01"], "7", ["'7'", "timestamps", "12h"]),
        (["class,time", "a,2024-05-01"], 7, ["7", "timestamps"]),
        (["class,time", "a,2024-05-01"], "0h", ["'0h'"]),
        (["class,time", "a,1"], -1, ["-1"]),
        (["class,time", "a,1"], math.nan, ["nan"]),
        (["class,time", "a,2024-05-01"], "1 month", ["'1 month'"]),
        (["class,time", "a,2024-05-01"], "", ["''"]),
    ],
)
def test_invalid_traces_are_an_error(tmp_path: Path, lines: list[str], window: Any, culprits: list[str]) -> None:
    with pytest.raises(InputError) as error:
        from_trace(write(tmp_path / "trace.csv", *lines), window)
    assert all(culprit in str(error.value) for culprit in culprits), error.value


def test_unreadable_traces_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.csv"):
        from_trace(tmp_path / "absent.csv", "1d")
    with pytest.raises(InputError, match="is not a regular file"):
        from_trace(tmp_path, "1d")
    (tmp_path / "binary.csv").write_bytes(b"class,time\n\xff\xfe,1")
    with pytest.raises(InputError, match=r"binary\.csv.*UTF-8"):
        from_trace(tmp_path / "binary.csv", 1)


# The picture


@each(feasible(), st.integers(40, 200), st.booleans())
@quick
def test_picture_fits_and_shows_the_numbers(setting: tuple[int, int, int, int], width: int, ascii: bool) -> None:
    arrivals = free_flow(*setting, 1.0)
    lines = arrivals.draw(width, ascii).splitlines()
    assert max(len(line) for line in lines) <= width
    assert "".join(lines).isascii() or not ascii
    rows, names = lines[-arrivals.steps :], lines[-arrivals.steps - 1]
    columns = [names.index(name) + len(name) for name in ("step", "new", "seen")]
    numbers = [[int(re.findall(r"\d+$", row[:column])[0]) for column in columns] for row in rows]
    assert numbers == [
        [step, size, seen]
        for step, size, seen in zip(range(1, arrivals.steps + 1), arrivals.sizes, arrivals.boundaries, strict=True)
    ]


@pytest.mark.parametrize("ascii", [True, False])
def test_bars_are_to_scale(ascii: bool) -> None:
    rows = given_arrivals([20, 10, 5, 5]).draw(80, ascii).splitlines()[2:]
    bars, gauges = zip(*(re.findall(r"\d+ ([^\d\s]+)", row) for row in rows), strict=True)
    assert [round(len(bars[0]) / len(bar), 1) for bar in bars] == [1, 2, 4, 4]
    assert [round(4 * len(gauge) / len(gauges[-1]), 1) for gauge in gauges] == pytest.approx([2, 3, 3.5, 4], abs=0.15)
    old, new = ".#" if ascii else "░█"
    assert gauges[0] == new * len(gauges[0])
    assert gauges[1] == old * len(gauges[0]) + new * (len(gauges[1]) - len(gauges[0]))


def test_headline_names_the_kind_of_schedule() -> None:
    headline = free_flow(100, 10, 1, 15, 1.0, "descending", 5).draw().splitlines()[0]
    distinct = len(set(free_flow(100, 10, 1, 15, 1.0, seed=5).sizes))
    assert headline == f"100 classes, 10 steps: free-flow, alpha 1, descending, seed 5, {distinct} distinct sizes"
    assert equal_arrivals(1, 1).draw().splitlines()[0] == "1 class, 1 step: equal, 1 distinct size"
    assert (
        given_arrivals([1, 2], "ascending")
        .draw()
        .startswith("3 classes, 2 steps: given, ascending, 2 distinct sizes\n")
    )


def test_too_narrow_a_picture_is_an_error() -> None:
    with pytest.raises(InputError, match=r"39.*40"):
        equal_arrivals(10, 2).draw(39)


def test_schedules_do_not_import_heavy_packages() -> None:
    heavy = ("torch", "pydantic", "matplotlib", "pandas", "scipy")
    code = f"import sys, ffcil.arrivals; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
