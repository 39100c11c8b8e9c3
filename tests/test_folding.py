"""Frozen networks with batch norms that are folded into convolutions, compared with the same networks as they were."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from conftest import AUGMENTATION, SHORT, seeded, small_config, small_stream
from ffcil.methods import Learner, build_learner
from ffcil.models.folding import Folded, compute_folded
from ffcil.models.resnet import BACKBONES, Backbone, build_backbone
from ffcil.training.engine import Engine, evaluating


def trained(name: str, seed: int = 0) -> Backbone:
    """A backbone with batch norms that are far from the identity."""
    torch.manual_seed(seed)
    network = build_backbone(name)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            for values in (module.weight, module.running_var):
                nn.init.uniform_(values, 0.5, 1.5)
            for values in (module.bias, module.running_mean):
                nn.init.normal_(values, std=0.2)
    return network.eval().requires_grad_(False)


def images() -> torch.Tensor:
    return torch.rand(4, 3, 32, 32, generator=seeded(1))


@pytest.mark.parametrize("name", BACKBONES)
def test_a_folded_network_computes_the_same(name: str) -> None:
    network = trained(name)
    folded = Folded(network)
    assert not [module for module in folded.network.modules() if isinstance(module, nn.BatchNorm2d)]
    torch.testing.assert_close(folded(images()), network(images()), rtol=1e-5, atol=1e-5)


def test_folded_weights_have_the_precision_of_training() -> None:
    network = trained("resnet8")
    folded = Folded(network, torch.bfloat16)
    assert {parameter.dtype for parameter in folded.network.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(folded(images()), network(images()), rtol=0.05, atol=0.05)


def test_parts_without_batch_norm_are_renewed_too() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).eval()
    folded = Folded(network)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    assert not torch.allclose(folded(images()), network(images()), atol=1e-2)
    folded.renew(network)
    torch.testing.assert_close(folded(images()), network(images()), rtol=1e-5, atol=1e-5)


def test_a_loaded_state_reaches_the_folded_form_and_its_code_stays() -> None:
    network, other = trained("resnet8"), trained("resnet8", seed=1)
    plain, names = copy.deepcopy(network), list(network.state_dict())
    graphs = []

    def counting(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compute_folded(network, torch.float32, lambda module: module.compile(dynamic=False, backend=counting))
    torch.testing.assert_close(network(images()), plain(images()), rtol=1e-5, atol=1e-5)
    compiled = len(graphs)
    for loaded in (network, nn.ModuleDict({"part": network})):  # directly, or as a part of what is loaded
        state = other.state_dict()
        loaded.load_state_dict(state if loaded is network else {f"part.{k}": v for k, v in plain.state_dict().items()})
        expected = other if loaded is network else plain
        torch.testing.assert_close(network(images()), expected(images()), rtol=1e-5, atol=1e-5)
    torch.compiler.reset()
    assert len(graphs) == compiled > 0
    assert list(network.state_dict()) == names
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in plain.parameters())


@pytest.mark.parametrize("method", ["icarl", "der", "memo", "tagfex"])
def test_a_method_trains_the_same_with_folded_networks(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and scores after three steps, and after the state is restored. Rounding differs, so not bit-equal."""

    def learned(folds: bool) -> tuple[list[float], torch.Tensor, torch.Tensor]:
        monkeypatch.setattr(Engine, "folds", folds)
        stream = small_stream([2, 1, 1])
        learner, again = make(method), make(method)
        losses = [learner.learn(increment)["loss"] for increment in stream]
        for increment in stream:
            again.begin(increment)
        again.restore(learner.state())
        return losses, scores(learner), scores(again)

    losses, found, restored = learned(folds=True)
    expected_losses, expected, _ = learned(folds=False)
    assert losses == pytest.approx(expected_losses, rel=1e-3)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    assert torch.equal(restored, found)


def make(method: str) -> Learner:
    config = small_config(method=method, train=SHORT)
    return build_learner(config, AUGMENTATION, Engine.create("cpu", config.train))


def scores(learner: Learner) -> torch.Tensor:
    with evaluating(learner):
        return learner.logits(torch.rand(8, 3, 16, 16, generator=seeded(2)))["linear"]
