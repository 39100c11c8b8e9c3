"""`fit()`: the one training loop, for images and for stored features. Inside an epoch nothing waits for the device."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, Self

import torch
from torch import Tensor, nn

from ffcil.config.settings import Phase
from ffcil.errors import InputError
from ffcil.training.batches import Source
from ffcil.training.compilation import compiled_once
from ffcil.training.engine import Engine
from ffcil.training.progress import FitProgress, Listener
from ffcil.training.seeds import derive_seed

Loss = Callable[[Tensor, Tensor], Tensor]
"""Function from the inputs of a batch and its targets [B] to a scalar."""


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that are trained with one learning rate."""

    parameters: Sequence[nn.Parameter]
    factor: float = 1.0
    """Factor on the learning rate."""


def cosine_rate(learning_rate: float, period: int, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0. It falls to zero in `period` epochs and rises again after them."""
    return learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / period))


def one_cycle_rate(learning_rate: float, epochs: int, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0. It rises for a quarter of the epochs and then falls, linearly."""
    rising = max(1, round(epochs / 4))
    if epoch < rising:
        return learning_rate * (epoch + 1) / rising
    return learning_rate * (epochs - epoch) / (epochs - rising + 1)


def phase_rate(phase: Phase, epoch: int) -> float:
    """Learning rate of an epoch, counted from 0, in closed form: resuming needs no scheduler state."""
    if phase.schedule == "cosine":
        return cosine_rate(phase.learning_rate, phase.epochs, epoch)
    if phase.schedule == "one-cycle":
        return one_cycle_rate(phase.learning_rate, phase.epochs, epoch)
    return phase.learning_rate * phase.decay ** sum(epoch >= milestone for milestone in phase.milestones)


@dataclass(frozen=True)
class Optimisation:
    """How parameters are optimised."""

    epochs: int
    rate: Callable[[int], float]
    """Function from an epoch, counted from 0, to its learning rate."""
    weight_decay: float = 0.0
    momentum: float = 0.9
    """Momentum of SGD."""
    optimiser: Literal["sgd", "adam"] = "sgd"

    @classmethod
    def of_phase(cls, phase: Phase, momentum: float) -> Self:
        return cls(phase.epochs, partial(phase_rate, phase), phase.weight_decay, momentum)

    def build(
        self, groups: Sequence[ParameterGroup], device: torch.device, rate_on_device: bool
    ) -> torch.optim.Optimizer:
        """Create the optimiser. A captured graph reads learning rates from tensors, so that they can change."""

        def rate(factor: float) -> float | Tensor:
            value = factor * self.rate(0)
            return torch.tensor(value, device=device) if rate_on_device else value

        by_group = [{"params": list(group.parameters), "lr": rate(group.factor)} for group in groups]
        if self.optimiser == "adam":
            return torch.optim.Adam(by_group, lr=rate(1.0), weight_decay=self.weight_decay)
        fused = device.type == "cuda"
        return torch.optim.SGD(by_group, rate(1.0), self.momentum, weight_decay=self.weight_decay, fused=fused)


@dataclass(frozen=True)
class Training:
    """What a fit minimises, over which parameters, on which data, and how."""

    loss: Loss
    groups: Sequence[ParameterGroup]
    source: Source
    optimisation: Optimisation
    seed: int
    """Seed of the batches and of the randomness inside the network."""
    after_epoch: Callable[[], None] | None = None
    """Called after every epoch, before the epoch is reported; never inside a captured graph."""
    remedy: str = "lower train.*.learning_rate"
    """Remedy in the error message if the loss is not finite."""
    preceding: Loss | None = None
    """A loss on which every batch takes an optimiser step of its own, before the step on `loss`."""
    may_diverge: bool = False
    """Whether the fit continues if the loss is not finite. Otherwise that is an error."""
    network: str = ""
    """Everything that the compiled code of the network in `loss` depends on; empty if there is no such network."""


def fit(
    training: Training, engine: Engine, progress: FitProgress | None = None, listener: Listener | None = None
) -> FitProgress:
    """Minimise a loss, starting from `progress`. `listener.epoch_done` may save the progress and the parameters."""
    progress, listener = progress or FitProgress(), listener or Listener()
    optimisation = training.optimisation
    if progress.epoch >= optimisation.epochs:
        return progress
    batches = training.source.batches(engine.device, engine.parallel)
    captured = engine.graph and batches.same_shape and optimisation.optimiser == "sgd"
    optimiser = optimisation.build(training.groups, engine.device, rate_on_device=captured)
    parameters = [parameter for group in training.groups for parameter in group.parameters]
    _restore_momentum(optimiser, parameters, progress.momentum)
    total = torch.zeros((), device=engine.device)

    def descend(loss: Loss, batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.enable_grad():
            value = loss(*batch)
            optimiser.zero_grad(set_to_none=True)
            value.backward()
        engine.parallel.average_gradients(parameters)
        optimiser.step()
        return value.detach()

    def report_wait(holder: str) -> None:
        listener.warned(f"Waiting for {holder}, which compiles the same network.")

    def train_step() -> None:
        batch = batches.next()
        if training.preceding is not None:
            descend(training.preceding, batch)
        total.add_(descend(training.loss, batch))

    step = engine.captured(train_step) if captured else train_step
    compilable = engine.compile and training.network != ""
    eager = compilable and engine.steps.are_few_with((optimisation.epochs - progress.epoch) * batches.count)
    network = f"{training.network} {engine.precision}" if compilable and not eager else ""
    begun, start_up, times = progress.epoch, progress.start_up, list[float]()
    for epoch in range(begun, optimisation.epochs):
        start = time.perf_counter()
        engine.seed(derive_seed(training.seed, epoch, "inside the network"))
        batches.start_epoch(derive_seed(training.seed, epoch, "batches"))
        set_rates(optimiser, (group.factor * optimisation.rate(epoch) for group in training.groups))
        total.zero_()
        # the first epoch compiles
        with _compiling(engine, eager), compiled_once(network if epoch == begun else "", report_wait):
            for number in range(1, batches.count + 1):
                step()
                listener.images_done(number * batches.samples // batches.count, batches.samples)
        progress.loss = total.item() / batches.count  # the only synchronisation of an epoch
        _check_loss(progress.loss, epoch, training, engine)
        times.append(time.perf_counter() - start)
        progress.add_epoch(batches.samples, times[-1], _momentum(optimiser, parameters))
        if (captured or compilable) and len(times) > 1:
            progress.start_up = start_up + max(0.0, times[0] - min(times[1:]))
        if training.after_epoch is not None:
            training.after_epoch()
        listener.epoch_done(progress)
    progress.momentum = ()
    optimiser.zero_grad(set_to_none=True)  # the gradients of a captured graph live in its memory
    return progress


def _check_loss(loss: float, epoch: int, training: Training, engine: Engine) -> None:
    """Raise an error if the mean loss of an epoch is not finite, or is not the same in all processes."""
    if not (math.isfinite(loss) or training.may_diverge):
        raise InputError(f"Training diverged in epoch {epoch + 1} (loss {loss}): {training.remedy}.")
    if not engine.parallel.agree(loss):
        raise InputError(
            "The processes of this training have different losses, because a part of the method's loss does not "
            "reach `self.reduce` or `self.engine.parallel.gather`: run it on one device."
        )


def _momentum(optimiser: torch.optim.Optimizer, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Momentum of every parameter; zeros for parameters that the loss does not reach."""
    if not optimiser.defaults.get("momentum"):
        return []
    buffers = [optimiser.state[parameter].get("momentum_buffer") for parameter in parameters]
    return [torch.zeros_like(p) if buffer is None else buffer for p, buffer in zip(parameters, buffers, strict=True)]


def _restore_momentum(
    optimiser: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], momentum: Sequence[Tensor]
) -> None:
    for parameter, buffer in zip(parameters, momentum, strict=bool(momentum)):
        # in the parameter's memory layout, which the fused optimiser requires and a file does not keep
        optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)


@contextmanager
def _compiling(engine: Engine, eager: bool) -> Iterator[None]:
    """Compile unless `eager`. A missing or failing compiler becomes an error with the remedy."""
    stance = torch.compiler.set_stance("force_eager") if eager else nullcontext()
    try:
        # blocks of all networks share one limit; beyond it, the networks of further methods would not be compiled
        with torch._dynamo.config.patch(recompile_limit=256), stance:
            yield
    except torch._dynamo.exc.TorchDynamoException as error:
        if not engine.compile:
            raise
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"torch.compile failed ({reason}): run with --set train.compile=false.") from error


def set_rates(optimiser: torch.optim.Optimizer, rates: Iterable[float]) -> None:
    """Set the learning rate of each group; in place where a captured graph reads it from a tensor."""
    for group, rate in zip(optimiser.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
