"""The training loop: schedules, batches, determinism, resuming."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn

from conftest import AUGMENTATION, Make, OnEpoch, coloured_images, small_config, small_stream
from ffcil.config.settings import Phase
from ffcil.data.augment import Augmentation
from ffcil.errors import InputError
from ffcil.training.batches import ImageSource
from ffcil.training.engine import Engine, evaluating
from ffcil.training.fit import Optimisation, ParameterGroup, Training, fit, phase_rate
from ffcil.training.progress import FitProgress
from ffcil.training.seeds import derive_seed


@pytest.mark.parametrize(
    "phase",
    [
        Phase(epochs=20, learning_rate=0.1, milestones=(6, 12, 17)),
        Phase(epochs=20, learning_rate=0.05, milestones=(3,), decay=0.5),
        Phase(epochs=20, learning_rate=0.1, schedule="cosine"),
        Phase(epochs=20, learning_rate=0.2, schedule="one-cycle"),
    ],
)
def test_learning_rates_equal_those_of_torch(phase: Phase) -> None:
    optimiser = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=phase.learning_rate)
    scheduler: torch.optim.lr_scheduler.LRScheduler
    if phase.schedule == "cosine":
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, phase.epochs)
    elif phase.schedule == "one-cycle":  # 0 would be one epoch before the first and one after the last
        scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, 0.2, 20, pct_start=5 / 20, anneal_strategy="linear", div_factor=5, final_div_factor=16 / 5,
            cycle_momentum=False,
        )  # fmt: skip
    else:
        scheduler = torch.optim.lr_scheduler.MultiStepLR(optimiser, list(phase.milestones), phase.decay)
    for epoch in range(phase.epochs):
        assert phase_rate(phase, epoch) == pytest.approx(scheduler.get_last_lr()[0])
        optimiser.step()
        scheduler.step()


def test_one_cycle_of_few_epochs_starts_at_its_highest_rate() -> None:
    rates = [[phase_rate(Phase(epochs=n, schedule="one-cycle"), epoch) for epoch in range(n)] for n in (1, 2, 4)]
    assert rates == [[0.1], [0.1, 0.05], pytest.approx([0.1, 0.075, 0.05, 0.025])]


def test_scaled_phases() -> None:
    phase = Phase(epochs=170, milestones=(80, 120)).scaled(0.1)
    assert (phase.epochs, phase.milestones) == (17, (8, 12))
    assert Phase(epochs=5).scaled(0.01).epochs == 1


class World:
    """A linear model on a few images, trained by `fit`, with a record of its batches."""

    def __init__(self, images: int = 50, batch: int = 16, epochs: int = 4, momentum: float = 0.9) -> None:
        self.settings = small_config(train={"batch": batch, "momentum": momentum}).train
        self.phase = Phase(epochs=epochs, learning_rate=0.01, weight_decay=1e-3)
        self.engine = Engine.create("cpu", self.settings)
        self.data = ImageSource(coloured_images([images], 1), torch.arange(images), AUGMENTATION, batch)
        torch.manual_seed(0)
        self.model = nn.Linear(3 * 16 * 16, 2)
        self.batches: list[torch.Tensor] = []

    def loss(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        self.batches.append(images)
        return self.model(images.flatten(1)).square().mean()

    def training(self, *groups: ParameterGroup) -> Training:
        optimisation = Optimisation.of_phase(self.phase, self.settings.momentum)
        parameters = groups or (ParameterGroup(list(self.model.parameters())),)
        return Training(self.loss, parameters, self.data, optimisation, seed=5)

    def fit(
        self, progress: FitProgress | None = None, after: Callable[[FitProgress], None] | None = None
    ) -> FitProgress:
        return fit(self.training(), self.engine, progress, OnEpoch(after) if after else None)


@pytest.mark.parametrize(("images", "batch"), [(50, 16), (48, 16), (3, 16), (1, 4)])
def test_an_epoch_uses_every_image_in_full_batches(images: int, batch: int) -> None:
    world = World(images, batch, epochs=1)
    world.data = dataclasses.replace(world.data, augmentation=Augmentation((0, 0, 0), (1, 1, 1), 0, False, 0))
    progress = world.fit()
    steps = math.ceil(images / batch)
    assert [len(b) for b in world.batches] == [batch] * steps
    assert progress.images == steps * batch
    stores = {tuple(image.flatten().tolist()): k for k, image in enumerate(world.data.images.images)}
    shown = Counter(
        stores[tuple((image * 255).round().to(torch.uint8).flatten().tolist())] for b in world.batches for image in b
    )
    assert sorted(shown) == list(range(images))
    assert max(shown.values()) - min(shown.values()) <= 1  # no image is used twice before all were used once


def test_fit_equals_plain_sgd() -> None:
    """The same batches with the optimiser of torch in a plain loop."""
    world = World()
    world.fit()
    batches = world.batches
    world = World()
    optimiser = torch.optim.SGD(world.model.parameters(), 0.01, momentum=0.9, weight_decay=1e-3)
    for batch in batches:
        optimiser.zero_grad()
        world.loss(batch, torch.zeros(0)).backward()
        optimiser.step()
    expected = [p.detach().clone() for p in world.model.parameters()]
    again = World()
    again.fit()
    for ours, theirs in zip(again.model.parameters(), expected, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_resumed_training_is_bit_equal(momentum: float) -> None:
    whole = World(momentum=momentum)
    saved: list[tuple[FitProgress, dict[str, torch.Tensor]]] = []

    def save(progress: FitProgress) -> None:
        copy = FitProgress(**{**vars(progress), "momentum": [m.clone() for m in progress.momentum]})
        saved.append((copy, {k: v.clone() for k, v in whole.model.state_dict().items()}))

    final = whole.fit(after=save)
    for progress, weights in saved:
        part = World(momentum=momentum)
        part.model.load_state_dict(weights)
        end = part.fit(progress)
        assert end.loss == final.loss
        assert end.images == final.images
        for a, b in zip(part.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(a, b)


def test_divergence_is_an_error_with_a_remedy() -> None:
    world = World()
    world.loss = lambda images, targets: world.model(images.flatten(1)).sum() * math.inf  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"diverged in epoch 1 .*learning_rate"):
        world.fit()


def test_a_compiler_that_fails_has_a_remedy() -> None:
    world = World()
    world.engine = dataclasses.replace(world.engine, compile=True)

    def fails(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        raise torch._dynamo.exc.InternalTorchDynamoError("no C compiler\nlong story")

    world.loss = fails  # type: ignore[method-assign]
    with pytest.raises(InputError, match=r"torch.compile failed \(no C compiler\): run with --set train.compile=false"):
        world.fit()


def test_start_up_is_what_the_first_epoch_takes_more(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("ffcil.training.fit.time.perf_counter", lambda: clock[0])

    def fitted(took: list[float], progress: FitProgress | None = None, **engine: bool) -> FitProgress:
        """A fit on a GPU, as it were, whose epochs take the given seconds."""
        world = World(images=16, batch=16, epochs=(progress.epoch if progress else 0) + len(took))
        training, seconds = world.training(), iter(took)

        def timed(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            clock[0] += next(seconds)  # of an epoch, which is one batch
            return world.loss(images, targets)

        training = dataclasses.replace(training, loss=timed, network="a network")
        return fit(training, dataclasses.replace(world.engine, **engine), progress)

    assert fitted([10.0, 2.5, 2.0], compile=True).start_up == 8.0
    assert fitted([10.0, 2.5, 2.0]).start_up == 0.0  # a CPU has none
    assert fitted([10.0], compile=True).start_up == 0.0  # nothing to compare with
    assert fitted([1.0, 2.0], compile=True).start_up == 0.0
    resumed = fitted([5.0, 3.0], FitProgress(epoch=2, seconds=12.5, start_up=8.0), compile=True)
    assert (resumed.start_up, resumed.seconds) == (10.0, 20.5)


def test_seeds_are_independent_and_stable() -> None:
    assert derive_seed(0, 1, "batches") != derive_seed(0, 1, "initialisation") != derive_seed(1, 0, "batches")
    assert derive_seed(3, 4, "x") == derive_seed(3, 4, "x")
    assert 0 <= derive_seed(1) < 2**63


def test_evaluating_restores_the_mode() -> None:
    module = nn.Dropout()
    with evaluating(module):
        assert not module.training
        assert not torch.is_grad_enabled()
    assert module.training
    whole = nn.Sequential(nn.Dropout(), nn.Dropout()).eval()
    whole[1].train()  # a part that was added later
    with evaluating(whole):
        assert not any(part.training for part in whole.modules())


def test_settings_of_torch_are_restored() -> None:
    engine = Engine.create("cpu", small_config().train)
    assert not torch.are_deterministic_algorithms_enabled()
    with engine.settled():
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]


@pytest.mark.parametrize(("method", "backbone"), [("icarl", "resnet8"), ("aper", "glyph_vit")])
def test_training_in_bfloat16_on_a_cpu(method: str, backbone: str, make_learner: Make) -> None:
    """Without oneDNN: some virtual machines announce AMX, which it uses for bfloat16, and lack it."""
    losses, steps, phase = {}, small_stream([2, 3]), {"epochs": 2, "learning_rate": 0.01}
    for precision in ("float32", "bfloat16"):
        train = {"precision": precision, "first": phase, "later": phase}
        learner = make_learner(method=method, backbone=backbone, train=train)
        seen: list[float] = []
        with torch.backends.mkldnn.flags(enabled=False):
            for increment in steps:
                learner.learn(increment, OnEpoch(lambda progress, seen=seen: seen.append(progress.loss)))
        losses[precision] = seen
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.05)
    assert losses["bfloat16"] != losses["float32"]


@pytest.mark.parametrize(("device", "message"), [("tpu", "choose cpu or cuda"), ("cuda:7", "not available")])
def test_a_device_that_is_not_available(device: str, message: str) -> None:
    if device != "tpu" and torch.cuda.is_available():
        pytest.skip("this machine has GPUs")
    with pytest.raises(InputError, match=message):
        Engine.create(device, small_config().train)


def test_groups_of_parameters_have_their_own_learning_rates() -> None:
    """Compared with the formula of SGD for each group."""
    world = World()
    weight, bias = world.model.weight, world.model.bias
    before = [weight.detach().clone(), bias.detach().clone()]
    one_epoch = world.phase.model_copy(update={"epochs": 1, "milestones": ()})
    world.data = dataclasses.replace(world.data, batch=len(world.data))
    training = world.training(ParameterGroup([weight]), ParameterGroup([bias], 0.1))
    fit(dataclasses.replace(training, optimisation=Optimisation.of_phase(one_epoch, momentum=0.0)), world.engine)
    images = world.batches[0]
    model = nn.Linear(3 * 16 * 16, 2)
    model.load_state_dict({"weight": before[0], "bias": before[1]})
    model(images.flatten(1)).square().mean().backward()
    for parameter, old, factor in ((model.weight, before[0], 1.0), (model.bias, before[1], 0.1)):
        assert parameter.grad is not None
        step = factor * one_epoch.learning_rate * (parameter.grad + one_epoch.weight_decay * old)
        trained = weight if parameter is model.weight else bias
        torch.testing.assert_close(trained.detach(), old - step)


def test_views_follow_each_other_in_a_batch() -> None:
    world = World()
    shown: list[tuple[torch.Tensor, torch.Tensor]] = []

    def loss(images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        shown.append((images, targets))
        return world.loss(images, targets)

    still = dataclasses.replace(world.data.augmentation, padding=0, flip=False, brightness=0.0)
    data = dataclasses.replace(world.data, augmentation=still, views=2)
    fit(dataclasses.replace(world.training(), loss=loss, source=data), world.engine)
    for images, targets in shown:
        assert len(targets) == 2 * world.settings.batch
        assert torch.equal(*targets.chunk(2))
        assert torch.equal(*images.chunk(2))  # without augmentation, both views of an image are equal
        assert not torch.equal(images[0], images[1])


def test_a_parameter_without_a_gradient_does_not_change() -> None:
    world, idle = World(), nn.Parameter(torch.ones(3))
    kept: list[list[torch.Tensor]] = []
    training = world.training(ParameterGroup([*world.model.parameters(), idle]))
    fit(training, world.engine, listener=OnEpoch(lambda progress: kept.append(list(progress.momentum))))
    assert torch.equal(idle, torch.ones(3))
    assert all(torch.equal(momentum[-1], torch.zeros(3)) for momentum in kept)


def test_the_engine_seeds_like_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)

    def forbidden() -> None:
        raise AssertionError("a traceback was made, which takes longer than a short epoch")

    monkeypatch.setattr("traceback.format_stack", forbidden)
    Engine.create("cpu", small_config().train).seed(5)
    assert torch.equal(torch.rand(3), expected)
