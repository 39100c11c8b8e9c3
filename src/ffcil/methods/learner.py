"""`Learner`: what every method is. A method says what is different about it; the loop, the optimiser, precision,
memory of progress and robustness are given.
"""

from __future__ import annotations

import runpy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from ffcil.config import MemorySettings, Phase, RunConfig, Settings, TrainSettings, validate
from ffcil.data.augment import Augmentation
from ffcil.errors import InputError, unknown
from ffcil.robustness import Robustness
from ffcil.stream import Increment
from ffcil.training import Engine, FitData, Progress, derive_seed, evaluating, fit

Value = TypeVar("Value")


class MethodConfig(Settings):
    """Base of the fields that are a method's own."""


@dataclass(frozen=True)
class LearnerSettings:
    """What a learner is built from."""

    backbone: str
    memory: MemorySettings
    train: TrainSettings
    robustness: Robustness
    augmentation: Augmentation
    engine: Engine
    seed: int
    evaluate_batch: int = 1000


class Learner(nn.Module, ABC):
    """A method. Subclass it in one file, decorate it with `@register("name")`, and override what differs."""

    title: ClassVar[str]
    """as in tables"""
    paper: ClassVar[str] = ""
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    classifiers: ClassVar[tuple[str, ...]] = ("linear",)
    """what `logits` returns; the first is the one that is scored"""
    uses_memory: ClassVar[bool] = False
    """keeps exemplars"""
    own_alignment: ClassVar[str] = "none"
    """alignment where neither `robust` nor `alignment` says otherwise"""
    views: ClassVar[int] = 1
    """augmentations of each image of a batch; `loss` gets them one after another, [view 1; view 2; ...]"""

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__()
        self.settings, self.config = settings, config
        self.engine, self.reduce = settings.engine, settings.robustness.reduction

    # --- what a method says -------------------------------------------------------------------------------------

    @abstractmethod
    def grow(self, increment: Increment) -> None:
        """Make room for the new classes, freeze what is to be frozen. Shapes only, no training and no look at data:
        taking a run up again calls this for every step so far, then loads the values."""

    @abstractmethod
    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Of a training batch: normalised images [B, 3, H, W], targets [B] -> scalar. Sample-wise terms go through
        `self.reduce(per_sample, targets)`.

        On a GPU this is captured once a step as a CUDA graph and replayed: no `.item()` or `.cpu()`, no branch on a
        tensor's value, no shape that depends on data. Change buffers in place; what Python does besides (counting
        batches, assigning attributes) happens at the capture and not again."""

    @abstractmethod
    def logits(self, images: Tensor) -> dict[str, Tensor]:
        """Scores [B, classes seen] of normalised images, by classifier. Calling it changes nothing."""

    def phase(self, increment: Increment) -> Phase:
        """How a step is optimised."""
        return self.settings.train.first if increment.seen_before == 0 else self.settings.train.later

    def training_rows(self, increment: Increment) -> Tensor:
        """Which rows of the store a step trains on."""
        return increment.rows

    def finish(self, increment: Increment) -> dict[str, Any]:
        """After a step's training: alignment, memory. Returns what is worth a record."""
        return {}

    # --- what every method has ------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """As of torch, but frozen parts stay in evaluation mode: their batch-norm statistics never move."""
        super().train(mode)
        for module in self.modules():
            parameters = list(module.parameters())
            if parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()
        return self

    def begin(self, increment: Increment) -> None:
        """Grow for a step, with an initialisation that depends on the seed and the step alone."""
        torch.manual_seed(derive_seed(self.settings.seed, increment.step, "initialisation"))
        self.grow(increment)

    def learn(
        self,
        increment: Increment,
        progress: Progress | None = None,
        after_epoch: Callable[[Progress], None] | None = None,
    ) -> dict[str, Any]:
        """Learn the classes of a step. `progress` takes up a step that was broken off: `begin` was then called already.

        Returns what a record holds of it: seconds by phase, images per second, the method's own notes.
        """
        if progress is None:
            self.begin(increment)
        self.train()
        rows = self.training_rows(increment).to(self.engine.device)
        with self.engine.settled():
            progress = self._fit(increment, rows, progress, after_epoch)
            self.eval()  # and so it stays until the next step: `logits` may be called at any time
            start = time.perf_counter()
            with evaluating(self):
                notes = self.finish(increment)
        return {
            "seconds": {"train": progress.seconds, "memory": time.perf_counter() - start},
            "images_per_second": progress.images / progress.seconds,
            "training_images": len(rows),
            "loss": progress.loss,
            **notes,
        }

    def _fit(
        self,
        increment: Increment,
        rows: Tensor,
        progress: Progress | None,
        after_epoch: Callable[[Progress], None] | None,
    ) -> Progress:
        settings = self.settings
        return fit(
            self.loss,
            [parameter for parameter in self.parameters() if parameter.requires_grad],
            FitData(increment.train, rows, settings.augmentation, self.views),
            self.phase(increment),
            settings.train,
            self.engine,
            derive_seed(settings.seed, increment.step),
            progress,
            after_epoch,
        )

    def over(self, store: Tensor, rows: Tensor, compute: Callable[[Tensor], Value]) -> list[Value]:
        """`compute` of the untouched images in `rows` of a store [N, 3, H, W], batch by batch."""
        plain = self.settings.augmentation.plain
        return [compute(plain(store[batch])) for batch in rows.to(store.device).split(self.settings.evaluate_batch)]

    def predictions(self, increment: Increment) -> dict[str, Tensor]:
        """Predicted classes of the increment's test images, by classifier, int64 [N]."""
        with self.engine.settled(), evaluating(self):
            batches = self.over(
                increment.test.images,
                increment.test_rows,
                lambda images: {name: scores.argmax(dim=1) for name, scores in self.logits(images).items()},
            )
        if not batches:
            return {name: torch.empty(0, dtype=torch.int64) for name in self.classifiers}
        return {name: torch.cat([batch[name] for batch in batches]) for name in self.classifiers}

    def state(self) -> dict[str, Any]:
        """All that the learner knows, as nested mappings and lists of tensors and plain values."""
        return {"modules": self.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a `state`; `begin` has been called for every step up to it."""
        self.load_state_dict(state["modules"])
        self.eval()


METHODS: dict[str, type[Learner]] = {}
Class = TypeVar("Class", bound=type[Learner])


def register(name: str) -> Callable[[Class], Class]:
    """`@register("icarl")` makes a learner known to recipes and the command line under that name."""

    def add(learner: Class) -> Class:
        if name in METHODS:
            raise ValueError(f"two methods are registered as {name!r}: {METHODS[name].__name__} and {learner.__name__}")
        METHODS[name] = learner
        return learner

    return add


def find_method(name: str) -> type[Learner]:
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    return METHODS[name]


def load_methods(path: str) -> None:
    """Run a Python file that registers methods of its own."""
    if not Path(path).is_file():
        raise InputError(f"There is no file {path!r} to import methods from: name a Python file with @register in it.")
    before = set(METHODS)
    runpy.run_path(path)
    if set(METHODS) == before:
        raise InputError(f'{path} registers no method: decorate its learner with @register("name").')


def complete(config: RunConfig) -> RunConfig:
    """The configuration with the method's own fields checked and filled in."""
    method = find_method(config.method)
    for option in config.options:
        if option not in method.Config.model_fields:
            known = [f"options.{name}" for name in method.Config.model_fields]
            if not known:
                raise InputError(f"Method {config.method!r} has no fields of its own: drop options.{option}.")
            raise unknown(f"field of method {config.method}", f"options.{option}", known)
    options = validate(method.Config, config.options).model_dump(mode="json")
    return config.model_copy(update={"options": options})


def build_learner(config: RunConfig, augmentation: Augmentation, engine: Engine) -> Learner:
    """The learner that a configuration describes, on the engine's device."""
    config = complete(config)
    method = find_method(config.method)
    settings = LearnerSettings(
        backbone=config.backbone,
        memory=config.memory,
        train=config.train.scaled(),
        robustness=Robustness.resolve(config, method.own_alignment),
        augmentation=augmentation,
        engine=engine,
        seed=config.train_seed,
        evaluate_batch=config.evaluate_batch,
    )
    torch.manual_seed(derive_seed(config.train_seed, 0, "initialisation"))
    return method(settings, method.Config.model_validate(config.options))
