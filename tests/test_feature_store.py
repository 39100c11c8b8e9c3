"""The store of features: what it returns, what it computes, and runs that share it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Make, small_config, small_stream
from ffcil.data import feature_store
from ffcil.data.feature_store import FeatureStore
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.methods import complete
from ffcil.models.vit import ViT
from ffcil.runs.run import Run


class Asked:
    """Computes features and notes for which images."""

    def __init__(self, digests: Tensor) -> None:
        self.digests, self.images = digests, []  # type: ignore[var-annotated]

    def __call__(self, positions: Tensor) -> Tensor:
        self.images += self.digests[positions].tolist()
        return made(self.digests[positions])


def made(digests: Tensor) -> Tensor:
    """Features of made-up images."""
    return torch.stack([digests.float(), -digests.float() / 3], dim=1)


def test_features_are_computed_once_and_rounded(tmp_path: Path) -> None:
    for digests, new in (([5, 3, 9], [5, 3, 9]), ([9, 1, 5, 1], [1, 1]), ([1, 3, 5, 9], [])):
        wanted = torch.tensor(digests)
        asked = Asked(wanted)
        store = FeatureStore("key", 2, tmp_path)  # a new process
        torch.testing.assert_close(store.features(wanted, asked), made(wanted).half().float(), rtol=0, atol=0)
        assert asked.images == new
    assert len(store) == 4


def test_many_small_parts_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_store, "FEW", 3)
    store = FeatureStore("key", 2, tmp_path)
    other = FeatureStore("key", 2, tmp_path)
    everything = torch.arange(40)
    for digests in everything.split(2):
        store.features(digests, Asked(digests))
        other.features(digests[:1], Asked(digests[:1]))
    assert len(list(store.folder.glob("*.digests.npy"))) <= 4
    asked = Asked(everything)
    for reader in (store, other, FeatureStore("key", 2, tmp_path)):
        assert torch.equal(reader.features(everything, asked), made(everything).half().float())
    assert not asked.images


def test_parts_that_another_process_joins_meanwhile_are_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_store, "FEW", 1)
    reader, writer = FeatureStore("key", 2, tmp_path), FeatureStore("key", 2, tmp_path)
    writer.features(torch.tensor([1]), Asked(torch.tensor([1])))
    listed = FeatureStore._listed
    before = listed(reader)
    writer.features(torch.tensor([2]), Asked(torch.tensor([2])))  # joins both parts
    answers = iter([before])
    monkeypatch.setattr(FeatureStore, "_listed", lambda self: next(answers, None) or listed(self))
    asked = Asked(torch.tensor([1, 2]))
    assert torch.equal(reader.features(asked.digests, asked), made(asked.digests).half().float())
    assert not asked.images


def test_a_part_without_digests_is_not_there(tmp_path: Path) -> None:
    """That is what a process leaves that is killed between the two files."""
    store = FeatureStore("key", 2, tmp_path)
    store.features(torch.tensor([1]), Asked(torch.tensor([1])))
    np.save(store.folder / "killed.features.npy", np.zeros((1, 2), np.float16))
    assert len(FeatureStore("key", 2, tmp_path)) == 1


OPTIONS = [
    ("simplecil", {}),
    ("anyarrival", {}),
    ("anyarrival", {"width": 40}),
    ("ranpac", {"rank": 0, "hidden": 60}),
]


@pytest.mark.parametrize(("method", "options"), OPTIONS)
def test_a_second_run_computes_no_features(
    make_learner: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, method: str, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path))
    predicted = []
    for sizes in ([2, 1, 3], [1, 5], [2, 1, 3]):
        learner, stream = make_learner(method=method, options=options, features="stored"), small_stream(sizes)
        if predicted:
            monkeypatch.setattr(learner.network, "forward", None)
            monkeypatch.setattr(learner.network, "deep", None)
        for increment in stream:
            learner.learn(increment)
            found = learner.predictions(increment)[learner.scored]
        predicted.append(found)
    assert torch.equal(predicted[0], predicted[2])
    plain = make_learner(method=method, options=options)
    for increment in small_stream([2, 1, 3]):
        plain.learn(increment)
    agreeing = plain.predictions(increment)[plain.scored] == predicted[0]
    assert agreeing.float().mean() > 0.95


def test_a_second_run_reads_no_pixels(tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its images are found by digests that lie beside their store, although its classes come in another order."""
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path))
    fields = {"method": "simplecil", "features": "stored", "dataset": "folder", "arrivals": {"sizes": [2, 1, 3]}}
    for seed in (0, 1):
        Run(small_config(**fields, class_seed=seed), tmp_path / str(seed), data=colours, device="cpu").execute()
        monkeypatch.setattr(ImageSet, "_computed_digests", None)
        monkeypatch.setattr(ViT, "forward", None)


def test_stores_differ_where_features_do(make_learner: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path))
    for fields in (
        {"method": "simplecil"},
        {"method": "anyarrival"},
        {"method": "anyarrival", "options": {"blocks": 1}},
        {"method": "anyarrival", "options": {"width": 20}},
        {"method": "anyarrival", "options": {"width": 20}, "train_seed": 1},
    ):
        make_learner(features="stored", **fields).learn(small_stream([2])[0])
    assert len(list(tmp_path.glob("features-*"))) == 5


def test_methods_that_change_the_network_refuse_it(make_learner: Make) -> None:
    with pytest.raises(InputError, match="features=stored is not supported by RanPAC, which tunes the network"):
        make_learner(method="ranpac", features="stored").learn(small_stream([2])[0])
    with pytest.raises(InputError, match="features=stored is not supported by 'icarl'"):
        complete(small_config(features="stored"))


def test_the_name_of_a_run_that_computes_features_is_that_of_earlier_versions() -> None:
    config = small_config(method="simplecil")
    assert config.identity() != config.model_copy(update={"features": "stored"}).identity()
