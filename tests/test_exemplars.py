"""Herding compared with its definition; quotas of the memory compared with the published ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import seeded
from ffcil.config.settings import MemorySettings
from ffcil.methods.parts.exemplars import Exemplars, herd


def assert_greedy(features: torch.Tensor, chosen: list[int]) -> None:
    """Every chosen image is, of those not chosen yet, the one that brings the running mean nearest to the mean."""
    vectors = features.double() / (features.double().norm(dim=1, keepdim=True) + 1e-8)
    mean, total = vectors.mean(0), torch.zeros_like(vectors[0])
    assert len(set(chosen)) == len(chosen)
    for k, pick in enumerate(chosen, start=1):
        distances = {
            i: float((mean - (total + vectors[i]) / k).norm()) for i in set(range(len(vectors))) - set(chosen[: k - 1])
        }
        assert distances[pick] <= min(distances.values()) + 1e-6  # rounding decides between equal distances
        total = total + vectors[pick]


@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 10_000))
@settings(deadline=None, max_examples=60)
def test_herding_is_greedy(images: int, count: int, seed: int) -> None:
    features = torch.randn(images, 6, generator=seeded(seed)).abs()
    chosen = herd(features, count).tolist()
    assert len(chosen) == min(count, images)
    assert_greedy(features, chosen)


def test_herding_of_identical_images_chooses_each_once() -> None:
    assert sorted(herd(torch.ones(5, 3), 5).tolist()) == [0, 1, 2, 3, 4]


def test_herding_of_features_of_zero() -> None:
    assert sorted(herd(torch.zeros(3, 4), 9).tolist()) == [0, 1, 2]


def exemplars(budget: int | None = None, per_class: int | None = None) -> Exemplars:
    return Exemplars(MemorySettings(budget=budget, per_class=per_class), 4, torch.device("cpu"))


def step(memory: Exemplars, classes: int, per_class: int = 500) -> None:
    start = 1000 * len(memory.by_class)
    rows = [torch.arange(per_class) + start + 1000 * c for c in range(classes)]
    memory.choose(rows, [torch.randn(per_class, 4) for _ in rows])


def test_quotas_of_the_published_protocol() -> None:
    memory, sizes, quotas = exemplars(budget=2000), [], []
    for _ in range(10):
        step(memory, 10)
        sizes.append(len(memory))
        quotas.append(len(memory.by_class[0]))
    assert quotas == [200, 100, 66, 50, 40, 33, 28, 25, 22, 20]
    assert sizes == [2000, 2000, 1980, 2000, 2000, 1980, 1960, 2000, 1980, 2000]


def test_a_smaller_quota_keeps_the_first_exemplars() -> None:
    memory = exemplars(budget=100)
    step(memory, 2)
    before = [rows.tolist() for rows in memory.by_class]
    step(memory, 3)
    assert [rows.tolist() for rows in memory.by_class[:2]] == [rows[:20] for rows in before]


def test_a_constant_number_per_class() -> None:
    memory = exemplars(per_class=20)
    step(memory, 7)
    step(memory, 1)
    assert [len(rows) for rows in memory.by_class] == [20] * 8


@pytest.mark.parametrize("per_class", [1, 3])
def test_a_class_smaller_than_its_quota_is_kept_whole(per_class: int) -> None:
    memory = exemplars(budget=2000)
    step(memory, 2, per_class)
    assert [len(rows) for rows in memory.by_class] == [per_class] * 2


def test_rows_of_the_chosen_images() -> None:
    memory, features = exemplars(budget=4), torch.randn(9, 4)
    rows = torch.arange(9) * 10
    memory.choose([rows], [features])
    assert memory.rows().tolist() == [10 * k for k in herd(features, 4).tolist()]
