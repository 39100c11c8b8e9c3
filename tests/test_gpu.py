"""Run by hand on a machine with a GPU: `pytest -m gpu`. Every GPU-only path against its plain twin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ffcil.arrivals import given
from ffcil.checkpoint import load_state, save_state
from ffcil.config import RunConfig, resolve
from ffcil.data.image_set import ImageSet
from ffcil.data.sources import CIFAR100_AUGMENTATION
from ffcil.losses import class_wise_mean
from ffcil.methods.learner import METHODS, Learner, build_learner
from ffcil.stream import Stream
from ffcil.training import Engine, Progress

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make_stream() -> Stream:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (320, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(320) % 8
    split = ImageSet(images, labels, tuple("abcdefgh"))
    return Stream(split, split, given([5, 3]), None)


def config(**train: object) -> RunConfig:
    phase = {"epochs": 3, "learning_rate": 0.01, "milestones": [2]}
    settings = {"batch": 32, "precision": "float32", "compile": False, "first": phase, "later": phase, **train}
    return resolve("cifar100", {"train": settings, "arrivals": {"sizes": [5, 3]}, "memory": {"budget": 40}})


def learn(settings: RunConfig, device: str = "cuda", method: str = "icarl") -> tuple[Learner, list[float]]:
    engine = Engine.create(device, settings.train)
    torch.backends.cudnn.deterministic = True  # one algorithm for all twins
    torch.backends.cudnn.allow_tf32 = False
    learner = build_learner(settings.model_copy(update={"method": method}), CIFAR100_AUGMENTATION, engine)
    losses: list[float] = []
    for increment in make_stream().to(engine.device):
        learner.learn(increment, None, lambda progress: losses.append(progress.loss))
    return learner, losses


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_captured_step_trains_as_an_eager_one(method: str) -> None:
    captured, losses = learn(config(graph=True), method=method)
    eager, expected = learn(config(graph=False), method=method)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def test_a_step_is_taken_up_again_in_the_middle(tmp_path: Path) -> None:
    """Through a checkpoint on disk, with the fused optimiser and channels-last weights."""
    settings = config(graph=True)
    engine, stream = Engine.create("cuda", settings.train), make_stream()
    learner = build_learner(settings, CIFAR100_AUGMENTATION, engine)
    first, second = stream.to(engine.device)
    learner.learn(first)

    def save(progress: Progress) -> None:
        if progress.epoch == 1:
            save_state(tmp_path / "x", {"learner": learner.state(), "progress": vars(progress)})

    whole = learner.learn(second, None, save)
    again = build_learner(settings, CIFAR100_AUGMENTATION, engine)
    again.begin(first)
    again.begin(second)
    state = load_state(tmp_path / "x")
    again.restore(state["learner"])
    part = again.learn(second, Progress(**state["progress"]))
    assert part["loss"] == pytest.approx(whole["loss"], rel=0.05)


def test_the_gpu_trains_as_the_cpu() -> None:
    _, losses = learn(config(graph=True))
    _, expected = learn(config(), device="cpu")
    assert losses[0] == pytest.approx(expected[0], rel=1e-3)  # rounding grows with every step
    assert losses == pytest.approx(expected, rel=0.05)


def test_compiled_bfloat16_trains_to_about_the_same_loss() -> None:
    _, losses = learn(config(graph=True, compile=True, precision="bfloat16"))
    _, expected = learn(config(graph=False))
    assert losses == pytest.approx(expected, rel=0.05)


def test_augmentation_is_the_same_on_the_gpu() -> None:
    images = make_stream().train.images
    rows = torch.arange(64)
    draws = CIFAR100_AUGMENTATION.draw(64, torch.Generator().manual_seed(1))
    expected = CIFAR100_AUGMENTATION.train(images, rows, draws)
    on_gpu = CIFAR100_AUGMENTATION.train(images.cuda(), rows.cuda(), type(draws)(*(d.cuda() for d in draws)))
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=0, atol=1e-5)


def test_class_wise_mean_can_be_captured() -> None:
    losses, targets = torch.rand(128, device="cuda"), torch.randint(0, 9, (128,), device="cuda")
    expected = class_wise_mean(losses, targets)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        value = class_wise_mean(losses, targets)
    graph.replay()
    torch.testing.assert_close(value, expected)
