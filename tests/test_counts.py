"""Confusion counts as bytes: exact round trips, also of the dense archives of earlier versions."""

from __future__ import annotations

import io

import numpy as np
import pytest

from ffcil.errors import InputError
from ffcil.metrics import Confusion
from ffcil.runs.counts import pack_counts, unpack_counts


def test_packed_counts_come_back() -> None:
    rng = np.random.default_rng(0)
    dense = {"linear": rng.integers(0, 3, (5, 5)), "nearest-mean": np.zeros((5, 5), dtype=np.int64)}
    back = unpack_counts(pack_counts({name: Confusion.from_dense(table) for name, table in dense.items()}))
    assert list(back) == ["linear", "nearest-mean"]
    assert all(np.array_equal(back[name].dense(), table) for name, table in dense.items())


def test_dense_archives_of_earlier_versions_are_read() -> None:
    table, content = np.arange(9).reshape(3, 3), io.BytesIO()
    np.savez_compressed(content, linear=table)
    assert np.array_equal(unpack_counts(content.getvalue())["linear"].dense(), table)


@pytest.mark.parametrize("damage", [slice(0, 40), slice(0, 0), slice(3, None)])
def test_damaged_archives_are_named(damage: slice) -> None:
    content = pack_counts({"linear": Confusion.count([0, 1], [1, 1], 2)})
    with pytest.raises(InputError, match="damaged"):
        unpack_counts(content[damage])
