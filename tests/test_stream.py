"""Streams: remapped labels, increments of any size, published class orders."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from conftest import seeded
from ffcil.arrivals import from_trace, given_arrivals
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.stream import Stream, class_order


def labelled(counts: list[int]) -> ImageSet:
    """Shuffled images whose pixels are their class."""
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=seeded())]
    images = labels.to(torch.uint8)[:, None, None, None].expand(-1, 3, 2, 2).contiguous()
    return ImageSet(images, labels, tuple(f"class {k}" for k in range(len(counts))))


@drawn(st.lists(st.integers(1, 6), min_size=1, max_size=6), st.integers(0, 3), st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_increments_partition_the_classes(sizes: list[int], unused: int, seed: int) -> None:
    classes = sum(sizes) + unused
    train, test = labelled([k % 4 + 1 for k in range(classes)]), labelled([2] * classes)
    stream = Stream(train, test, given_arrivals(sizes), seed)
    order, seen, rows = class_order(classes, seed), 0, []
    for step, (size, increment) in enumerate(zip(sizes, stream, strict=True), start=1):
        assert (increment.step, increment.seen_before, increment.seen_now) == (step, seen, seen + size)
        originals = {int(train.labels[r]) for r in increment.rows}
        assert originals == set(order[seen : seen + size])
        assert increment.new_labels == tuple(train.class_names[c] for c in order[seen : seen + size])
        for position, by_class in zip(increment.classes, increment.rows_by_class(), strict=True):
            assert {int(train.labels[r]) for r in by_class} == {order[position]}
            assert set(stream.train.labels[by_class].tolist()) == {position}
        seen += size
        rows += increment.rows.tolist()
        assert {int(test.labels[r]) for r in increment.test_rows} == set(order[:seen])
        assert len(increment.test_rows) == 2 * seen
    assert len(rows) == len(set(rows))


def test_the_order_of_seed_1993_is_the_published_one() -> None:
    order = class_order(100, 1993)
    assert order[:12] == (68, 56, 78, 8, 23, 84, 90, 65, 74, 76, 40, 89)
    assert order[-6:] == (39, 67, 29, 49, 57, 33)
    assert class_order(196, 1993)[:5] == (59, 134, 162, 9, 42)
    assert class_order(200, 1993)[:5] == (168, 136, 51, 9, 183)
    assert class_order(5, None) == (0, 1, 2, 3, 4)


def test_arrivals_with_more_classes_than_the_data_set_are_an_error() -> None:
    with pytest.raises(InputError, match="7 classes arrive, but the data set has 5"):
        Stream(labelled([1] * 5), labelled([1] * 5), given_arrivals([3, 4]), 0)


def test_a_class_without_training_images_is_named() -> None:
    with pytest.raises(InputError, match="'class 1' has no training images"):
        Stream(labelled([2, 0, 2]), labelled([1, 1, 1]), given_arrivals([3]), None)


def test_a_trace_gives_the_class_order(tmp_path: object) -> None:
    path = tmp_path / "trace.csv"  # type: ignore[operator]
    path.write_text("class,first_seen\nclass 2,2026-01-01\nclass 0,2026-01-01\nclass 1,2026-01-09\n")
    stream = Stream(labelled([1, 2, 3]), labelled([1, 1, 1]), from_trace(path, "7d"), class_seed=4)
    assert [increment.new_labels for increment in stream] == [("class 2", "class 0"), ("class 1",)]
    path.write_text("class,first_seen\nclass 9,2026-01-01\n")
    with pytest.raises(InputError, match="'class 9'"):
        Stream(labelled([1, 2, 3]), labelled([1, 1, 1]), from_trace(path, "7d"))


def test_images_without_a_class_are_left_out() -> None:
    """A stream over part of another stream's classes, whose other images are labelled -1."""
    images = labelled([2, 2, 2])
    first = Stream(images, images, given_arrivals([2]), None)
    again = Stream(first.train, first.test, given_arrivals([1, 1]), None)
    assert sorted(again.train.labels.tolist()) == [-1, -1, 0, 0, 1, 1]
    assert again.train.counts().tolist() == [2, 2]


def test_training_and_test_classes_must_agree() -> None:
    one, other = labelled([1, 1]), labelled([1, 1])
    with pytest.raises(InputError, match="different class names"):
        Stream(one, ImageSet(other.images, other.labels, ("b", "a")), given_arrivals([2]), None)
