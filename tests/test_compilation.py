"""Networks are compiled by blocks, which share their code; where it is kept, who makes it, and when it is not made.

A backend of torch.compile counts the graphs, so that no compiler runs."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from conftest import AUGMENTATION, seeded, small_config, small_stream
from ffcil.locks import lock
from ffcil.methods import Learner, build_learner
from ffcil.models.pretrained import build_vit
from ffcil.models.resnet import BACKBONES, CifarResNet, build_backbone
from ffcil.models.tuners import Adapters
from ffcil.training import compilation
from ffcil.training.compilation import CODE_FOLDER, compiled_once, keep_code
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


def learner_of(method: str, compiles: bool = False, **fields: Any) -> Learner:
    """A learner whose networks are compiled. If its engine knows that it `compiles`, short trainings do not."""
    config = small_config(method=method, train={"first": {"epochs": 1}, "later": {"epochs": 1}}, **fields)
    return build_learner(config, AUGMENTATION, replace(Engine.create("cpu", config.train), compile=compiles))


@pytest.mark.parametrize("folds", [False, True])
@pytest.mark.parametrize("method", ["icarl", "der"])
def test_a_resnet_is_compiled_once_trained_and_once_frozen(
    method: str, folds: bool, counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher that is overwritten, and a further frozen extractor, cost no further compilation."""
    monkeypatch.setattr(Engine, "folds", folds)
    monkeypatch.setitem(BACKBONES, "resnet14", lambda: CifarResNet(2))  # has the same different blocks as ResNet-32
    learner = learner_of(method, backbone="resnet14")
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


# --- when nothing is compiled ---------------------------------------------------------------------------------------


def test_few_optimiser_steps_compile_nothing(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step has one epoch of two batches: the third of them reaches six optimiser steps."""
    monkeypatch.setattr(compilation, "FEW_STEPS", 6)
    learner = learner_of("finetune", compiles=True)
    graphs = []
    for increment in small_stream([1, 1, 1, 1], per_class=[32] * 4):
        learner.learn(increment)
        graphs.append(counter.graphs)
    assert graphs[:2] == [0, 0]
    assert graphs[2] == graphs[3] > 0


# --- the cache of compiled code -------------------------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of compiled code, which is set."""
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path))
    monkeypatch.setenv(CODE_FOLDER, "")  # so that its value before the test returns after it
    monkeypatch.delenv(CODE_FOLDER)
    keep_code()
    return tmp_path / "compiled"


def no_wait(holder: str) -> None:
    raise AssertionError(f"waited for {holder}")


def test_compiled_code_is_kept_in_the_cache_folder(cache: Path) -> None:
    from torch._functorch import config as autograd
    from torch._inductor import config as inductor
    from torch._inductor.runtime import cache_dir_utils

    assert Path(cache_dir_utils.cache_dir()) == cache
    assert Path(cache_dir_utils.triton_cache_dir(0)).is_relative_to(cache)
    assert inductor.fx_graph_cache
    assert autograd.enable_autograd_cache


def test_a_folder_that_the_user_names_is_kept(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CODE_FOLDER, "elsewhere")
    keep_code()
    assert os.environ[CODE_FOLDER] == "elsewhere"


def test_without_a_cache_folder_torch_uses_its_own(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CODE_FOLDER)
    (cache.parent / "file").touch()
    monkeypatch.setenv("FFCIL_CACHE", str(cache.parent / "file"))
    keep_code()
    assert CODE_FOLDER not in os.environ


def test_one_process_compiles_while_others_wait(cache: Path) -> None:
    order, waiting = [], threading.Event()

    def other() -> None:
        with compiled_once("network", lambda holder: waiting.set()):
            order.append("other")

    thread = threading.Thread(target=other)
    with compiled_once("network", no_wait):
        thread.start()
        waiting.wait(timeout=60)
        order.append("first")
    thread.join()
    assert order == ["first", "other"]


def test_nobody_waits_for_code_that_is_in_the_cache(cache: Path) -> None:
    with compiled_once("network", no_wait):
        pass
    (lock_file,) = cache.glob("*.lock")
    with lock(lock_file), compiled_once("network", no_wait):
        pass


def test_code_that_failed_to_compile_is_not_in_the_cache(cache: Path) -> None:
    with pytest.raises(ValueError, match="no compiler"), compiled_once("network", no_wait):
        raise ValueError("no compiler")
    assert not list(cache.glob("*.done"))
    with compiled_once("network", no_wait):  # the lock has ended
        pass
    assert list(cache.glob("*.done"))


def test_a_wait_has_an_end(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "LONGEST_WAIT", 0.0)
    with compiled_once("network", no_wait), compiled_once("network", no_wait):
        pass


@pytest.mark.parametrize("folder", ["missing", "file"])
def test_code_is_compiled_without_a_folder(folder: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (cache / "file").touch()
    monkeypatch.setenv(CODE_FOLDER, str(cache / folder))
    with compiled_once("network", no_wait):
        pass
    assert list(cache.iterdir()) == [cache / "file"]


def test_a_fit_that_compiles_is_done_once(cache: Path, counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "FEW_STEPS", 0)
    for _ in range(2):
        learner_of("finetune", compiles=True).learn(small_stream([2])[0])
    assert len(list(cache.glob("*.done"))) == 1
    learner_of("finetune", compiles=True, backbone="resnet32").learn(small_stream([2])[0])
    assert len(list(cache.glob("*.done"))) == 2
