"""`fit()`: the one training loop.

Data stay on the device as uint8; an epoch is an index tensor. Everything random in an epoch (which images, which crops)
is drawn before it from a generator whose seed is a function of the run's seed and the epoch, so a run can be taken up
at any epoch with no generator state to save, and the same draws are used with and without a captured graph, on a CPU
and on a GPU. Inside an epoch nothing waits for the device.
"""

from __future__ import annotations

import hashlib
import logging
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from torch import Tensor, nn

from ffcil.config.settings import Phase, TrainSettings
from ffcil.data.augment import Augmentation, Draws
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import image_sizes
from ffcil.errors import InputError

Value = TypeVar("Value")
Loss = Callable[[Tensor, Tensor], Tensor]
"""normalised images [B, 3, H, W] and targets [B] -> scalar"""

LANES = 4
logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # it tells of every precision that is asked for
WARM_UP_STEPS = 3  # steps before a capture: cuDNN and the allocator settle; they are real training steps


def derive_seed(*parts: int | str) -> int:
    """A seed for one use, independent of the seeds for every other use."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@dataclass(frozen=True)
class Engine:
    """Where and how training runs: device, precision, graphs, compilation."""

    fabric: Fabric
    precision: str
    graph: bool
    compile: bool

    @classmethod
    def create(cls, device: str, settings: TrainSettings) -> Engine:
        """For `device` cpu or cuda[:n]. A CPU run is deterministic to the bit for a number of threads."""
        if not (match := re.fullmatch(r"(cpu)|(cuda)(?::(\d+))?", device)):
            raise InputError(f"Unknown device {device!r}: choose cpu or cuda.")
        on_gpu, number = match[2] is not None, int(match[3] or 0)
        if on_gpu and not torch.cuda.is_available():
            raise InputError("Device 'cuda' is not there: run with --device cpu, or see `ffcil doctor`.")
        if on_gpu and number >= torch.cuda.device_count():
            raise InputError(f"Device {device!r} is not there: {torch.cuda.device_count()} CUDA device(s) were found.")
        precision = settings.precision
        if precision == "auto":
            precision = "bfloat16" if on_gpu else "float32"
        if precision == "bfloat16" and not on_gpu:
            raise InputError("train.precision=bfloat16 needs a GPU: set it to auto, or run with --device cuda.")
        fabric = Fabric(
            accelerator="cuda" if on_gpu else "cpu",
            devices=[number] if on_gpu else 1,
            precision="bf16-mixed" if precision == "bfloat16" else "32-true",
            plugins=LightningEnvironment(),  # one process: not to be taken for a task of a SLURM job that it runs in
        )
        if on_gpu:
            torch.cuda.set_device(fabric.device)  # streams and graphs are made on the current device
        return cls(fabric, precision, graph=on_gpu and settings.graph, compile=on_gpu and settings.compile)

    @property
    def device(self) -> torch.device:
        return self.fabric.device

    def place(self, module: nn.Module) -> None:
        """Move a module to the device in the layout that it is fast in, and compile it where asked."""
        channels_last = torch.channels_last if self.device.type == "cuda" else torch.preserve_format
        module.to(self.device, memory_format=channels_last)  # type: ignore[call-overload]
        if self.compile:
            module.compile(dynamic=False)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """torch's switches as training wants them: to the bit on a CPU, fast on a GPU; as they were afterwards."""
        guard, cudnn = torch.utils.deterministic, torch.backends.cudnn
        before = (torch.are_deterministic_algorithms_enabled(), guard.fill_uninitialized_memory, cudnn.benchmark)  # type: ignore[attr-defined]
        on_gpu = self.device.type == "cuda"
        try:
            torch.use_deterministic_algorithms(before[0] or not on_gpu)
            guard.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # it only costs time here
            cudnn.benchmark = on_gpu and not cudnn.deterministic
            yield
        finally:
            torch.use_deterministic_algorithms(before[0])
            guard.fill_uninitialized_memory = before[1]  # type: ignore[attr-defined]
            cudnn.benchmark = before[2]

    def autocast(self) -> AbstractContextManager[Any]:
        return self.fabric.autocast()

    def captured(self, step: Callable[[], None]) -> Callable[[], None]:
        """`step` as one CUDA graph, captured after a few calls and then replayed; where there are no graphs, as it is.
        It reads and writes tensors in place, and waits for none of them."""
        return _Captured(step, self.device) if self.graph else step

    def aside(self, compute: Callable[[], Value], lane: int = 0) -> Callable[[], Value]:
        """Start `compute`, which takes no gradients, beside what follows; the returned function waits for its result.

        On a GPU it runs on a stream of its own, also inside a captured graph; computations in different lanes (there
        are `LANES`, then they are shared) run beside each other. On a CPU it runs at once.
        """
        if self.device.type != "cuda":
            value = compute()
            return lambda: value
        main, side = torch.cuda.current_stream(), _side_stream(self.device, lane % LANES)
        side.wait_stream(main)
        with torch.cuda.stream(side):
            value = compute()

        def join() -> Value:
            torch.cuda.current_stream().wait_stream(side)
            return value

        return join


_streams: dict[tuple[torch.device, int], torch.cuda.Stream] = {}


def _side_stream(device: torch.device, lane: int) -> torch.cuda.Stream:
    return _streams.setdefault((device, lane), torch.cuda.Stream(device))


@contextmanager
def evaluating(*modules: nn.Module) -> Iterator[None]:
    """Evaluation mode, no gradients, and no compilation for the batch sizes that only evaluation has."""
    before = [module.training for module in modules]
    for module in modules:
        module.eval()
    try:
        with torch.no_grad(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.train(training)


def learning_rate(phase: Phase, epoch: int) -> float:
    """Of an epoch counted from 0, in closed form, so that a run taken up again needs no scheduler state."""
    if phase.schedule == "cosine":
        return phase.learning_rate * 0.5 * (1 + math.cos(math.pi * epoch / phase.epochs))
    return phase.learning_rate * phase.decay ** sum(epoch >= milestone for milestone in phase.milestones)


@dataclass
class Progress:
    """How far a fit is; with the learner's parameters this is all that taking it up again needs."""

    epoch: int = 0
    """epochs done"""
    seconds: float = 0.0
    images: int = 0
    loss: float = math.nan
    """mean over the last epoch"""
    momentum: Sequence[Tensor] = ()
    """of the optimiser, in the order of the trainable parameters"""


@dataclass(frozen=True)
class Rate:
    """Parameters that are trained at one rate."""

    parameters: Sequence[nn.Parameter]
    factor: float = 1.0
    """on the learning rate"""


@dataclass(frozen=True)
class FitData:
    """What a fit trains on."""

    images: ImageSet
    rows: Tensor
    """int64: the images to train on"""
    augmentation: Augmentation
    views: int = 1
    """how often each image of a batch is augmented, independently: a batch is then [view 1; view 2; ...]"""


class _EpochPlan:
    """All that is random in an epoch, as tensors [steps, batch, ...] on the device, filled anew before each epoch."""

    def __init__(self, data: FitData, batch: int, device: torch.device) -> None:
        self.data, self.batch = data, batch
        self.rows, self.sizes = data.rows.cpu(), image_sizes(data.images.images).cpu()
        self.steps = math.ceil(len(data.rows) / batch)
        self.step = torch.zeros(1, dtype=torch.int64, device=device)
        order = self._order(torch.Generator())
        self.order = order.to(device)
        self.draws = Draws(*(values.to(device) for values in self._drawn(order, torch.Generator())))

    def _order(self, generator: torch.Generator) -> Tensor:
        """Shuffled rows; the last batch is filled up by drawing again, never left short."""
        need, have = self.steps * self.batch, len(self.rows)
        shuffles = [torch.randperm(have, generator=generator) for _ in range(math.ceil(need / have))]
        return self.rows[torch.cat(shuffles)[:need]].view(self.steps, self.batch)

    def _drawn(self, order: Tensor, generator: torch.Generator) -> Draws:
        """Augmentation of every view of every image of an epoch."""
        in_batch = self.data.views * self.batch
        sizes = self.sizes[order.repeat(1, self.data.views).view(-1)]
        drawn = self.data.augmentation.draw(self.steps * in_batch, generator, sizes)
        return Draws(*(values.view(self.steps, in_batch, *values.shape[1:]) for values in drawn))

    def fill(self, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        order = self._order(generator)
        self.order.copy_(order)
        for buffer, values in zip(self.draws, self._drawn(order, generator), strict=True):
            buffer.copy_(values)
        self.step.zero_()

    def next_batch(self) -> tuple[Tensor, Tensor]:
        """Augmented images and targets. The position is a tensor: a captured graph moves on by itself."""
        rows = self.order.index_select(0, self.step)[0].repeat(self.data.views)
        draws = Draws(*(d.index_select(0, self.step)[0] for d in self.draws))
        self.step += 1
        store = self.data.images
        return self.data.augmentation.train(store.images, rows, draws), store.labels[rows]


def fit(
    loss: Loss,
    rates: Sequence[Rate],
    data: FitData,
    phase: Phase,
    settings: TrainSettings,
    engine: Engine,
    seed: int,
    progress: Progress | None = None,
    after_epoch: Callable[[Progress], None] | None = None,
    looked_at: Callable[[int, int], None] | None = None,
) -> Progress:
    """Minimise `loss` over the parameters of `rates` for the epochs of `phase`, from `progress` on.

    Args:
        loss: of a batch; may hold buffers, frozen networks, anything
        after_epoch: called with the progress; it may save it together with the parameters
        looked_at: called after every batch with the images of the epoch so far and in all; a GPU may not be done yet
    """
    progress = progress or Progress()
    if progress.epoch >= phase.epochs:
        return progress
    plan = _EpochPlan(data, settings.batch, engine.device)
    parameters = [parameter for rate in rates for parameter in rate.parameters]
    optimiser = _optimiser(rates, phase, settings, engine, progress.momentum)
    total = torch.zeros((), device=engine.device)

    def train_step() -> None:
        images, targets = plan.next_batch()
        value = loss(images, targets)
        optimiser.zero_grad(set_to_none=True)
        engine.fabric.backward(value)
        optimiser.step()
        total.add_(value.detach())

    step = engine.captured(train_step)
    for epoch in range(progress.epoch, phase.epochs):
        start = time.perf_counter()
        torch.manual_seed(derive_seed(seed, epoch, "inside the network"))  # dropout and the like
        plan.fill(derive_seed(seed, epoch, "batches"))
        set_rates(optimiser, (rate.factor * learning_rate(phase, epoch) for rate in rates))
        total.zero_()
        with _compiling(engine):
            for done in range(1, plan.steps + 1):
                step()
                if looked_at is not None:
                    looked_at(done * plan.batch, plan.steps * plan.batch)
        progress.loss = total.item() / plan.steps  # the one wait of an epoch
        if not math.isfinite(progress.loss):
            raise InputError(
                f"Training diverged in epoch {epoch + 1} (loss {progress.loss}): lower train.*.learning_rate."
            )
        progress.epoch = epoch + 1
        progress.images += plan.steps * plan.batch
        progress.seconds += time.perf_counter() - start
        if after_epoch is not None:
            progress.momentum = _momentum(optimiser, parameters) if settings.momentum else ()
            after_epoch(progress)
    progress.momentum = ()
    optimiser.zero_grad(set_to_none=True)  # a captured graph's gradients live in its memory
    return progress


def _momentum(optimiser: torch.optim.SGD, parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    """Of every parameter; 0 for one that the loss does not reach."""
    found = (optimiser.state[parameter].get("momentum_buffer") for parameter in parameters)
    return [torch.zeros_like(p) if buffer is None else buffer for p, buffer in zip(parameters, found, strict=True)]


@contextmanager
def _compiling(engine: Engine) -> Iterator[None]:
    """A compiler that is missing or fails is not the end: say how to do without."""
    try:
        # all modules share torch's one limit, which several methods in a process would reach, to go on uncompiled
        with torch._dynamo.config.patch(recompile_limit=64):
            yield
    except torch._dynamo.exc.TorchDynamoException as error:
        if not engine.compile:
            raise
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"torch.compile failed ({reason}): run with --set train.compile=false.") from error


def _optimiser(
    rates: Sequence[Rate],
    phase: Phase,
    settings: TrainSettings,
    engine: Engine,
    momentum: Sequence[Tensor],
) -> torch.optim.SGD:
    def rate(factor: float) -> float | Tensor:
        value = factor * phase.learning_rate
        # a captured graph reads the rate from a tensor, so that a schedule needs no second capture
        return torch.tensor(value, device=engine.device) if engine.graph else value

    optimiser = torch.optim.SGD(
        [{"params": list(group.parameters), "lr": rate(group.factor)} for group in rates],
        lr=rate(1.0),
        momentum=settings.momentum,
        weight_decay=phase.weight_decay,
        fused=engine.device.type == "cuda",
    )
    parameters = (parameter for group in rates for parameter in group.parameters)
    for parameter, buffer in zip(parameters, momentum, strict=bool(momentum)):
        # in the parameter's memory layout, which the fused optimiser insists on and a file does not keep
        optimiser.state[parameter]["momentum_buffer"] = torch.empty_like(parameter).copy_(buffer)
    return optimiser


def set_rates(optimiser: torch.optim.Optimizer, values: Iterable[float]) -> None:
    """The learning rate of each group; a captured graph reads it from a tensor, which is written in place."""
    for group, value in zip(optimiser.param_groups, values, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


class _Captured:
    """A training step as one CUDA graph. Its first calls run as they are; the next is captured, then replayed."""

    def __init__(self, step: Callable[[], None], device: torch.device) -> None:
        self.step, self.calls = step, 0
        self.graph = torch.cuda.CUDAGraph()
        self.stream = torch.cuda.Stream(device)

    def __call__(self) -> None:
        if self.calls < WARM_UP_STEPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                self.step()
            torch.cuda.current_stream().wait_stream(self.stream)
        else:
            if self.calls == WARM_UP_STEPS:
                with torch.cuda.graph(self.graph):
                    self.step()
            self.graph.replay()
        self.calls += 1
