"""Code for GPUs compared with plain code. Run it on a machine with a GPU: `pytest -m gpu`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conftest import OnEpoch, captured, seeded
from ffcil.arrivals import given_arrivals
from ffcil.classifier.classifier import Classifier
from ffcil.config.resolve import resolve
from ffcil.config.settings import RunConfig
from ffcil.data.augment import Draws
from ffcil.data.autoaugment import PolicyName
from ffcil.data.image_set import ImageSet
from ffcil.data.placement import place
from ffcil.data.ragged import RaggedImages, image_sizes
from ffcil.data.resized_crop import ResizedCrop
from ffcil.data.sources import CIFAR100_AUGMENTATION
from ffcil.losses import class_wise_mean
from ffcil.methods import METHODS, Learner, build_learner
from ffcil.methods.pretrained import Pretrained
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.stream import Stream
from ffcil.training import compilation
from ffcil.training.engine import LANES, Engine
from ffcil.training.progress import FitProgress

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def make_stream(sizes: Sequence[int] = (4, 1, 3)) -> Stream:
    generator = seeded()
    images = torch.randint(0, 256, (320, 3, 32, 32), generator=generator, dtype=torch.uint8)
    labels = torch.arange(320) % 8
    split = ImageSet(images, labels, tuple("abcdefgh"))
    return Stream(split, split, given_arrivals(sizes), None)


def config(method: str = "icarl", framework: str = "none", **train: object) -> RunConfig:
    """Under `flow`, steps with 3 classes tune a pre-trained network."""
    pretrained = METHODS[method].pretrained
    phase = {"epochs": 3, "learning_rate": 0.01, "milestones": [2]}
    settings = {"batch": 32, "precision": "float32", "compile": False, "first": phase, "later": phase, **train}
    return resolve(
        "cifar100",
        {
            "method": method,
            "framework": framework,
            "flow": {"enough": 3, "min_steps": 40} if framework == "flow" and pretrained else {},
            "backbone": "test_vit" if pretrained else "resnet32",
            "train": settings,
            "arrivals": {"sizes": [4, 1, 3]},
            "memory": {"budget": 40},
        },
    )


def learn(settings: RunConfig, device: str = "cuda", sizes: Sequence[int] = (4, 1, 3)) -> tuple[Learner, list[float]]:
    engine = Engine.create(device, settings.train)
    torch.backends.cudnn.deterministic = True  # the same algorithm in all compared runs
    torch.backends.cudnn.allow_tf32 = False
    learner = build_learner(settings, CIFAR100_AUGMENTATION, engine)
    losses: list[float] = []
    for increment in make_stream(sizes).to(engine.device):
        learner.learn(increment, OnEpoch(lambda progress: losses.append(progress.loss)))
    return learner, losses


@pytest.mark.parametrize(("framework", "sizes"), [("none", (4, 1, 3)), ("flow", (1, 4, 3))])
@pytest.mark.parametrize("method", sorted(METHODS))
def test_captured_training_equals_eager_training(method: str, framework: str, sizes: Sequence[int]) -> None:
    """Under `flow`, the first class waits for the second step, and unequal counts change the loss."""
    captured, losses = learn(config(method, framework, graph=True), sizes=sizes)
    eager, expected = learn(config(method, framework, graph=False), sizes=sizes)
    assert losses == pytest.approx(expected, rel=1e-5)
    for name, tensor in eager.state_dict().items():
        torch.testing.assert_close(captured.state_dict()[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("method", ["der", "tagfex"])
def test_more_frozen_extractors_than_cuda_streams(method: str) -> None:
    sizes = [2, 1, 1, 1, 1, 1, 1]
    assert len(sizes) - 1 > LANES
    _, losses = learn(config(method, graph=True), sizes=sizes)
    _, expected = learn(config(method, graph=False), sizes=sizes)
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    ("method", "framework"),
    [*((name, "none") for name in ("icarl", "der", "memo", "tagfex")), *((name, "flow") for name in sorted(METHODS))],
)
def test_an_interrupted_step_is_resumed(tmp_path: Path, method: str, framework: str) -> None:
    """From a checkpoint on disk, with the fused optimiser and channels-last weights. Under `flow`, the class of the
    first step waits for the second one."""
    if not METHODS[method].trains:
        pytest.skip("trains nothing that could be interrupted")
    settings = config(method, framework, graph=True)
    engine, stream = Engine.create("cuda", settings.train), make_stream((1, 4, 3) if framework == "flow" else (4, 1, 3))
    learner = build_learner(settings, CIFAR100_AUGMENTATION, engine)
    first, second, _ = stream.to(engine.device)
    learner.learn(first)

    def save(progress: FitProgress) -> None:
        if progress.epoch == 1:
            save_state(tmp_path / "x", {"learner": learner.state(), "progress": vars(progress)})

    whole = learner.learn(second, OnEpoch(save))
    again = build_learner(settings, CIFAR100_AUGMENTATION, engine)
    again.begin(first)
    again.begin(second)
    state = load_state(tmp_path / "x")
    again.restore(state["learner"])
    part = again.learn(second, resume=FitProgress(**state["progress"]))
    assert part["loss"] == pytest.approx(whole["loss"], rel=0.05)
    if isinstance(again, Pretrained):
        torch.testing.assert_close(again.statistics.means, learner.statistics.means, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("framework", ["none", "flow"])
def test_training_on_the_gpu_equals_training_on_the_cpu(framework: str) -> None:
    _, losses = learn(config(framework=framework, graph=True))
    _, expected = learn(config(framework=framework), device="cpu")
    assert losses[0] == pytest.approx(expected[0], rel=1e-3)  # rounding errors grow with every step
    assert losses == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("framework", ["none", "flow"])
@pytest.mark.parametrize("method", ["icarl", "der", "memo", "tagfex"])
def test_compiled_bfloat16_reaches_a_similar_loss(method: str, framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation, "FEW_STEPS", 0)
    _, losses = learn(config(method, framework, graph=True, compile=True, precision="bfloat16"))
    _, expected = learn(config(method, framework, graph=False))
    assert losses == pytest.approx(expected, rel=0.05)


def test_augmentation_is_the_same_on_the_gpu() -> None:
    images = make_stream().train.images
    rows = torch.arange(64)
    draws = CIFAR100_AUGMENTATION.draw(64, seeded(1))
    expected = CIFAR100_AUGMENTATION.train(images, rows, draws)
    on_gpu = CIFAR100_AUGMENTATION.train(images.cuda(), rows.cuda(), type(draws)(*(d.cuda() for d in draws)))
    torch.testing.assert_close(on_gpu.cpu(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("policy", ["cifar10", "imagenet", "svhn"])
@pytest.mark.parametrize("size", [32, 27])  # the mean of 27 x 27 pixels is not a division by a power of two
def test_auto_augmentation_is_the_same_on_the_gpu_and_in_a_graph(policy: PolicyName, size: int) -> None:
    augmentation = replace(CIFAR100_AUGMENTATION, auto=True, policy=policy, cutout=size // 2)
    generator = seeded(1)
    images = torch.randint(0, 256, (320, 3, size, size), generator=generator, dtype=torch.uint8)
    images[::2] = (images[::2] // 4) + 90  # half of them with a narrow range of values
    images[:8] = 77  # some of a single colour
    store, rows = images.cuda(), torch.zeros(256, dtype=torch.int64, device="cuda")
    draws = type(augmentation.draw(1, generator))(*(part.cuda() for part in augmentation.draw(256, generator)))
    graph, in_graph = captured(lambda: augmentation.train(store, rows, draws))
    for _ in range(3):
        new_rows, new_draws = torch.randint(0, 320, (256,), generator=generator), augmentation.draw(256, generator)
        rows.copy_(new_rows)
        for static, part in zip(draws, new_draws, strict=True):
            static.copy_(part)
        graph.replay()
        eager = augmentation.train(store, rows, draws)
        expected = augmentation.train(images, new_rows, new_draws)
        assert torch.equal(in_graph, eager)
        torch.testing.assert_close(eager.cpu(), expected, rtol=0, atol=1e-5)


def test_captured_training_with_auto_augmentation_equals_eager_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "CIFAR100_AUGMENTATION", replace(CIFAR100_AUGMENTATION, auto=True))
    _, losses = learn(config(graph=True))
    _, expected = learn(config(graph=False))
    assert losses == pytest.approx(expected, rel=1e-5)


def make_photographs(n: int = 64) -> RaggedImages:
    """Images of noise of many sizes."""
    generator = seeded()
    sizes = torch.randint(40, 120, (n, 2), generator=generator)
    pixels = torch.randint(0, 256, (3 * int(sizes.prod(1).sum()),), generator=generator, dtype=torch.uint8)
    return RaggedImages.packed(pixels, sizes)


CROPPED = replace(CIFAR100_AUGMENTATION, padding=0, crop=ResizedCrop(32, 40))


@pytest.mark.parametrize("auto", [False, True])
def test_resized_crops_are_the_same_on_the_gpu_and_in_a_graph(auto: bool) -> None:
    augmentation = replace(CROPPED, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), auto=auto)
    generator, images = seeded(1), make_photographs()

    def draw() -> tuple[Tensor, Draws]:
        rows = torch.randint(0, len(images), (48,), generator=generator)
        return rows, augmentation.draw(48, generator, images.sizes[rows])

    store, (rows, draws) = images.to(torch.device("cuda")), draw()
    rows, draws = rows.cuda(), Draws(*(part.cuda() for part in draws))
    graph, (in_graph, plain_in_graph) = captured(
        lambda: (augmentation.train(store, rows, draws), augmentation.plain(store, rows))
    )
    for _ in range(3):
        new_rows, new_draws = draw()
        rows.copy_(new_rows)
        for static, part in zip(draws, new_draws, strict=True):
            static.copy_(part)
        graph.replay()
        assert torch.equal(in_graph, augmentation.train(store, rows, draws))
        assert torch.equal(plain_in_graph, augmentation.plain(store, rows))
        level = 1 / 255 + 1e-5
        torch.testing.assert_close(plain_in_graph.cpu(), augmentation.plain(images, new_rows), rtol=0, atol=level)
        if not auto:  # operations such as solarize turn a difference of one grey level into a large one
            assert (in_graph.cpu() - augmentation.train(images, new_rows, new_draws)).abs().max() < 2 * level


def test_square_images_are_the_same_from_both_kinds_of_store_on_the_gpu() -> None:
    square = make_stream().train.images
    assert isinstance(square, Tensor)
    ragged = RaggedImages.packed(square.permute(0, 2, 3, 1).reshape(-1), image_sizes(square))
    draws = CROPPED.draw(64, seeded(1), image_sizes(square)[:64])
    rows, draws = torch.arange(64).cuda(), Draws(*(part.cuda() for part in draws))
    stores = square.cuda(), ragged.to(torch.device("cuda"))
    first, second = (CROPPED.train(store, rows, draws) for store in stores)
    assert torch.equal(first, second)
    first, second = (CROPPED.plain(store, rows) for store in stores)
    assert torch.equal(first, second)


def test_positions_beyond_32_bits_on_the_gpu() -> None:
    image = make_photographs(1)
    pixels = torch.zeros(2**31 + 2**20, dtype=torch.uint8, device="cuda")
    pixels[-len(image.pixels) :] = image.pixels.cuda()
    offset = torch.tensor([len(pixels) - len(image.pixels)], device="cuda")
    far = RaggedImages(pixels, offset, image.sizes.cuda())
    assert torch.equal(CROPPED.plain(far), CROPPED.plain(image.to(torch.device("cuda"))))


def test_captured_training_on_photographs_equals_eager_training(monkeypatch: pytest.MonkeyPatch) -> None:
    split = ImageSet(make_photographs(320), torch.arange(320) % 8, tuple("abcdefgh"))
    monkeypatch.setitem(globals(), "make_stream", lambda sizes: Stream(split, split, given_arrivals(sizes), None))
    monkeypatch.setitem(globals(), "CIFAR100_AUGMENTATION", CROPPED)
    _, losses = learn(config(graph=True))
    _, expected = learn(config(graph=False))
    assert losses == pytest.approx(expected, rel=1e-5)


def test_class_wise_mean_can_be_captured() -> None:
    losses, targets = torch.rand(128, device="cuda"), torch.randint(0, 9, (128,), device="cuda")
    expected = class_wise_mean(losses, targets)
    graph, value = captured(lambda: class_wise_mean(losses, targets))
    value.zero_()
    graph.replay()
    torch.testing.assert_close(value, expected)


def test_a_store_larger_than_the_gpu_is_read_from_the_host() -> None:
    """Batches from pinned memory are the same, also in a captured graph, and take no memory of the GPU."""
    device = torch.device("cuda")
    sizes = torch.tensor([[40, 60], [70, 50], [64, 64]])
    pixels = torch.randint(0, 256, (int(3 * sizes.prod(1).sum()),), dtype=torch.uint8)
    there, here = place(pixels, device), place(pixels, device, room=0)
    before = torch.cuda.memory_allocated()
    assert here.device.type == "cuda"
    assert torch.equal(here, there)
    stores = [RaggedImages.packed(part, sizes.to(device)) for part in (there, here)]
    augmentation = replace(CIFAR100_AUGMENTATION, padding=0, brightness=0.0, crop=ResizedCrop(32, 36))
    rows = torch.tensor([0, 1, 2, 1], device=device)
    draws = augmentation.draw(4, torch.Generator(device).manual_seed(0), sizes.to(device)[rows])
    wanted, found = (augmentation.train(store, rows, draws) for store in stores)
    assert torch.equal(wanted, found)
    graph, in_graph = captured(lambda: augmentation.train(stores[1], rows, draws))
    graph.replay()
    assert torch.equal(in_graph, wanted)
    assert torch.cuda.memory_allocated() - before < 2**24
    large = torch.randint(0, 256, (100, 3, 32, 32), dtype=torch.uint8)
    assert torch.equal(place(large, device, room=1000).cpu(), large)


def test_a_classifier_trained_on_the_gpu_gives_the_same_scores_on_the_cpu(tmp_path: Path) -> None:
    """Exemplars are kept on the host, and training can continue on a CPU."""
    stream = make_stream((4, 4))
    classifier = Classifier(config().model_copy(update={"image_size": 32}), "cuda")
    for increment in stream:
        part = increment.train.subset(increment.rows)
        first = increment.seen_before
        classifier.learn(ImageSet(part.images, part.labels - first, stream.train.class_names[first:][:4]))
    assert classifier._kept.images.device.type == "cpu"
    assert len(classifier._kept) == 40
    classifier.save(tmp_path)
    on_cpu = Classifier.load(tmp_path, "cpu")
    images = stream.test.images
    assert isinstance(images, Tensor)
    torch.testing.assert_close(classifier._scores(images), on_cpu._scores(images), rtol=1e-2, atol=1e-2)
    on_cpu.learn(ImageSet(images[:8], torch.zeros(8, dtype=torch.int64), ("another",)))
    assert len(on_cpu.class_names) == 9
