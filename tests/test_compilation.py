"""Networks are compiled by blocks, and equal blocks share their code. A backend counts the graphs: no compiler runs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from conftest import AUGMENTATION, seeded, small_config, small_stream
from ffcil.methods import Learner, build_learner
from ffcil.models.pretrained import build_vit
from ffcil.models.resnet import build_backbone
from ffcil.models.tuners import Adapters
from ffcil.training.engine import Engine, evaluating

BLOCKS_OF_RESNET32 = 6
"""Different parts: the stem, and in each of three stages the blocks, where the first blocks of two stages differ."""


class Counter:
    """A backend of torch.compile that runs graphs as they are, and counts them."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        return graph.forward

    def compile(self, module: nn.Module) -> None:
        module.compile(dynamic=False, backend=self, fullgraph=True)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter]:
    torch.compiler.reset()
    counting = Counter()
    monkeypatch.setattr(Engine, "place", lambda self, module: counting.compile(module))
    yield counting
    torch.compiler.reset()


def learner_of(method: str, **fields: Any) -> Learner:
    config = small_config(method=method, train={"first": {"epochs": 1}, "later": {"epochs": 1}}, **fields)
    return build_learner(config, AUGMENTATION, Engine.create("cpu", config.train))


@pytest.mark.parametrize("method", ["icarl", "der"])
def test_a_resnet_is_compiled_once_trained_and_once_frozen(method: str, counter: Counter) -> None:
    """A teacher that is overwritten, and a further frozen extractor, cost no further compilation."""
    learner = learner_of(method, backbone="resnet32")
    graphs = []
    for increment in small_stream([2, 1, 1]):
        learner.learn(increment)
        graphs.append(counter.graphs)
    assert graphs == [BLOCKS_OF_RESNET32, 2 * BLOCKS_OF_RESNET32, 2 * BLOCKS_OF_RESNET32]


def test_channels_last_images_and_weights_need_no_further_graphs(counter: Counter) -> None:
    network = build_backbone("resnet32").to(memory_format=torch.channels_last)
    counter.compile(network)
    images = torch.rand(2, 3, 16, 16, generator=seeded())
    for layout in (torch.contiguous_format, torch.channels_last):
        network(images.to(memory_format=layout)).sum().backward()
    assert counter.graphs == BLOCKS_OF_RESNET32 + 1  # the stem once for each layout


@pytest.mark.parametrize(("method", "graphs"), [("tuna", [2, 2]), ("cllora", [3, 6])])
def test_a_vit_is_compiled_as_one_block(method: str, graphs: list[int], counter: Counter) -> None:
    """Two graphs: the tokens of the first block need no gradient. CL-LoRA tunes its upper blocks by LoRA with weights,
    and from the second step on it also distils its lower blocks, with and without gradients."""
    learner = learner_of(method)
    found = []
    for increment in small_stream([2, 2]):
        learner.learn(increment)
        found.append(counter.graphs)
    assert found == graphs


def test_sets_of_adapters_share_their_compiled_code(counter: Counter) -> None:
    """A further set of adapters, as in a further step, does not compile the network again."""
    vit = build_vit("test_vit", None)
    counter.compile(vit)
    graphs = []
    for _ in range(3):
        vit(torch.rand(2, 3, 32, 32, generator=seeded()), Adapters(vit.depth, vit.width, 4).tunings()).sum().backward()
        graphs.append(counter.graphs)
    assert graphs == [2, 2, 2]


def gradients(network: nn.Module, images: Tensor, *args: Any) -> list[Tensor]:
    network.zero_grad()
    features = network(images, *args)
    features.square().sum().backward()
    return [features, *(p.grad.clone() for p in network.parameters() if p.grad is not None), *network.buffers()]


@pytest.mark.parametrize("name", ["resnet32", "resnet18-imagenet-3x3"])
def test_a_compiled_resnet_computes_what_an_eager_one_does(name: str, counter: Counter) -> None:
    torch.manual_seed(0)
    eager = build_backbone(name)
    compiled = copy.deepcopy(eager)
    counter.compile(compiled)
    images = torch.rand(2, 3, 32, 32, generator=seeded())
    for of_eager, of_compiled in zip(gradients(eager, images), gradients(compiled, images), strict=True):
        assert torch.equal(of_eager, of_compiled)
    assert counter.graphs


def test_a_compiled_vit_computes_what_an_eager_one_does(counter: Counter) -> None:
    torch.manual_seed(0)
    eager = build_vit("test_vit", None)
    adapters = Adapters(eager.depth, eager.width, 4).eval()  # without dropout
    for parameter in adapters.parameters():
        nn.init.normal_(parameter)
    compiled = copy.deepcopy(eager)
    counter.compile(compiled)
    images = torch.rand(2, 3, 32, 32, generator=seeded())
    assert torch.equal(eager(images, adapters.tunings()), compiled(images, adapters.tunings()))
    assert torch.equal(eager(images), compiled(images))
    assert counter.graphs == 3  # with adapters, after them with gradients, and without both


@pytest.mark.parametrize("name", ["resnet8", "test_vit"])
def test_a_copy_of_a_compiled_network_has_its_own_weights(name: str, counter: Counter) -> None:
    network = build_vit(name, None) if "vit" in name else build_backbone(name)
    counter.compile(network)
    images = torch.rand(2, 3, 32, 32, generator=seeded())
    copied = copy.deepcopy(network)
    for parameter in copied.parameters():
        nn.init.zeros_(parameter)
    assert not copied(images).any()
    assert network(images).any()


def test_evaluation_compiles_nothing(counter: Counter) -> None:
    network = build_backbone("resnet8")
    counter.compile(network)
    with evaluating(network):
        network(torch.rand(2, 3, 16, 16))
    assert counter.graphs == 0
