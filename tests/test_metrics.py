"""Metrics compared with plain loops over the true and predicted classes of single images, and with closed forms."""

from __future__ import annotations

import json
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ffcil.errors import InputError
from ffcil.metrics import (
    Confusion,
    CountTable,
    average_accuracy,
    class_accuracy,
    curve,
    forgetting,
    last_accuracy,
    per_step_forgetting,
    step_accuracy,
    summarise,
)
from oracles import Samples, accuracy, stream_metrics


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[int], list[Samples]]:
    """Sizes, and the (true, predicted) pairs of all test images after each step; some classes have no image."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=6))
    images = draw(st.lists(st.integers(0, 3), min_size=sum(sizes), max_size=sum(sizes)))
    random = draw(st.randoms(use_true_random=False))
    steps: list[Samples] = []
    seen = 0
    for size in sizes:
        seen += size
        steps.append([(c, random.randrange(seen)) for c in range(seen) for _ in range(images[c])])
    return sizes, steps


def dense_table(sizes: tuple[int, ...], counts: tuple[np.ndarray, ...]) -> CountTable:
    return CountTable(sizes, tuple(map(Confusion.from_dense, counts)))


def table_of(sizes: list[int], steps: list[Samples]) -> CountTable:
    counts = []
    seen = 0
    for size, samples in zip(sizes, steps, strict=True):
        seen += size
        square = np.zeros((seen, seen), dtype=np.int64)
        for true, predicted in samples:
            square[true, predicted] += 1
        counts.append(square)
    return dense_table(tuple(sizes), tuple(counts))


@given(streams())
@settings(max_examples=50, deadline=None)
def test_counting_labels_gives_the_counts_of_single_samples(stream: tuple[list[int], list[Samples]]) -> None:
    table = table_of(*stream)
    for confusion, samples in zip(table.counts, stream[1], strict=True):
        counted = Confusion.count([t for t, _ in samples], [p for _, p in samples], confusion.classes)
        assert np.array_equal(counted.dense(), confusion.dense())
        assert counted.rows.tolist() == confusion.rows.tolist()


def test_ten_thousand_classes_take_megabytes() -> None:
    """A dense table of one step would take 800 MB."""
    steps, size, images = 4, 2500, 5
    rng = np.random.default_rng(0)
    tracemalloc.start()
    counts = []
    for seen in range(size, steps * size + 1, size):
        true = np.repeat(np.arange(seen), images)
        counts.append(Confusion.count(true, rng.integers(0, seen, len(true)), seen))
    table = CountTable((size,) * steps, tuple(counts))
    summary = summarise(table)
    assert class_accuracy(table).shape == (steps, steps * size)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert summary["last"] == 100 * (counts[-1].rows == counts[-1].columns).dot(counts[-1].values) / (10_000 * images)


def same(value: float | None, truth: float | None) -> bool:
    if truth is None:
        return value is None or math.isnan(value)
    return value is not None and math.isclose(value, truth, abs_tol=1e-9)


@given(streams())
@settings(max_examples=150, deadline=None)
def test_metrics_equal_loops_over_images(stream: tuple[list[int], list[Samples]]) -> None:
    sizes, steps = stream
    table = table_of(sizes, steps)
    expected = stream_metrics(sizes, steps)
    assert all(same(a, b) for a, b in zip(curve(table), expected.curve, strict=True))
    assert same(average_accuracy(table), expected.average)
    assert same(last_accuracy(table), expected.last)
    assert all(same(a, b) for a, b in zip(per_step_forgetting(table), expected.forgetting_by_step, strict=True))
    assert same(forgetting(table), expected.forgetting)

    by_step, by_class = step_accuracy(table), class_accuracy(table)
    assert by_step.shape == (len(sizes), len(sizes))
    assert by_class.shape == (len(sizes), sum(sizes))
    groups = [range(sum(sizes[:j]), sum(sizes[: j + 1])) for j in range(len(sizes))]
    for t, samples in enumerate(steps):
        for j, group in enumerate(groups):
            assert same(by_step[t, j], accuracy(samples, group) if j <= t else None)
        for c in range(sum(sizes)):
            assert same(by_class[t, c], accuracy(samples, [c]))
        for classes in (table.groups[t], slice(0, table.groups[t].start)):
            assert same(table.counts[t].accuracy(classes), accuracy(samples, range(classes.start, classes.stop)))


@given(streams())
@settings(max_examples=50, deadline=None)
def test_summary_is_strict_json_and_holds_the_same_numbers(stream: tuple[list[int], list[Samples]]) -> None:
    table = table_of(*stream)
    summary = summarise(table)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    assert same(summary["average"], None if math.isnan(average_accuracy(table)) else average_accuracy(table))
    assert summary["forgetting"] == forgetting(table)
    assert len(summary["curve"]) == len(table.sizes)


def test_steps_of_one_and_three_classes() -> None:
    """All images of a step have the same weight in its accuracy; all steps have the same weight in the average."""
    first = np.array([[8]])
    second = np.array([[4, 4, 0, 0], [0, 2, 0, 0], [0, 0, 1, 1], [0, 0, 0, 0]])
    table = dense_table((1, 3), (first, second))
    assert curve(table) == [100.0, 100 * 7 / 12]
    assert average_accuracy(table) == pytest.approx((100 + 100 * 7 / 12) / 2)
    assert last_accuracy(table) == pytest.approx(100 * 7 / 12)
    np.testing.assert_allclose(step_accuracy(table), [[100, np.nan], [50, 75]])
    np.testing.assert_allclose(class_accuracy(table), [[100, np.nan, np.nan, np.nan], [50, 100, 50, np.nan]])
    assert forgetting(table) == 50.0


def test_forgetting_of_a_perfect_and_of_a_forgetful_learner() -> None:
    sizes = (2, 1, 4)
    seen = np.cumsum(sizes)
    perfect = dense_table(sizes, tuple(np.eye(n, dtype=np.int64) * 5 for n in seen))
    assert curve(perfect) == [100.0] * 3
    assert forgetting(perfect) == 0.0

    def only_newest(n: int, size: int) -> np.ndarray:
        square = np.zeros((n, n), dtype=np.int64)
        square[: n - size, n - 1] = 5
        square[range(n - size, n), range(n - size, n)] = 5
        return square

    amnesic = dense_table(sizes, tuple(only_newest(int(n), s) for n, s in zip(seen, sizes, strict=True)))
    assert curve(amnesic) == pytest.approx([100, 100 / 3, 100 * 4 / 7])
    assert forgetting(amnesic) == 100.0


def test_forgetting_is_not_negative_for_classes_that_improve() -> None:
    table = dense_table((1, 1), (np.array([[3]]), np.array([[3, 0], [0, 3]])))
    assert forgetting(table) == 0.0
    worse_then_better = dense_table(
        (2, 1, 1),
        (
            np.array([[1, 1], [0, 2]]),
            np.array([[2, 0, 0], [0, 2, 0], [0, 0, 2]]),
            np.array([[2, 0, 0, 0], [0, 1, 0, 1], [0, 0, 2, 0], [0, 0, 0, 2]]),
        ),
    )
    np.testing.assert_allclose(per_step_forgetting(worse_then_better), [25.0, 0.0])
    assert forgetting(worse_then_better) == 12.5


def test_a_single_step_has_no_forgetting() -> None:
    table = dense_table((1,), (np.array([[7]]),))
    assert forgetting(table) is None
    assert per_step_forgetting(table).shape == (0,)
    assert summarise(table) == {"average": 100.0, "last": 100.0, "forgetting": None, "curve": [100.0]}


def test_a_first_class_without_test_images_does_not_affect_later_steps() -> None:
    table = dense_table((1, 1), (np.array([[0]]), np.array([[0, 0], [1, 3]])))
    assert summarise(table) == {"average": 75.0, "last": 75.0, "forgetting": None, "curve": [None, 75.0]}


@pytest.mark.parametrize(
    ("sizes", "counts", "says"),
    [
        ((), (), "at least one step"),
        ((2, 0), (np.eye(2, dtype=int), np.eye(2, dtype=int)), "at least 1"),
        ((2,), (), "give one per step"),
        ((2, 1), (np.eye(2, dtype=int), np.eye(2, dtype=int)), "step 2"),
        ((2,), (np.ones((2, 3), dtype=int),), "shape"),
        ((2,), (np.ones((2, 2)),), "whole numbers"),
        ((1,), (np.array([[-1]]),), "negative"),
    ],
)
def test_invalid_counts_are_an_error(sizes: tuple[int, ...], counts: tuple[np.ndarray, ...], says: str) -> None:
    with pytest.raises(InputError, match=says):
        dense_table(sizes, counts)


def test_invalid_sparse_counts_are_an_error() -> None:
    for rows, columns, values, says in [
        ([0], [2], [1], "outside"),
        ([0, 1], [0], [1], "as many rows"),
        ([0], [0], [0.5], "whole numbers"),
        ([0], [0], [-1], "negative"),
    ]:
        with pytest.raises(InputError, match=says):
            Confusion(2, *(np.array(array) for array in (rows, columns, values)))
