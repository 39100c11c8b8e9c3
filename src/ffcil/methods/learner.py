"""`Learner`: what every method is. A method says what is different about it; the loop, the optimiser, precision,
memory of progress and robustness are given.
"""

from __future__ import annotations

import copy
import runpy
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from ffcil.config.settings import MemorySettings, Phase, RunConfig, Settings, TrainSettings, validate
from ffcil.data.augment import Augmentation
from ffcil.data.ragged import Images
from ffcil.errors import InputError, unknown
from ffcil.methods.framework import Robustness
from ffcil.methods.parts.feature_cache import FeatureCache
from ffcil.models.resnet import BACKBONES, Backbone, build_backbone
from ffcil.stream import Increment
from ffcil.training.fit import Engine, FitData, Progress, Rate, derive_seed, evaluating, fit

Value = TypeVar("Value")
Part = TypeVar("Part", bound=nn.Module)


def unheard(done: int, total: int) -> None:
    """Nobody wants to know."""


class MethodConfig(Settings):
    """Base of the fields that are a method's own."""


@dataclass(frozen=True)
class LearnerSettings:
    """What a learner is built from."""

    backbone: str
    weights: str | None
    """of a pre-trained backbone"""
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
    pretrained: ClassVar[bool] = False
    """stands on a pre-trained backbone: the framework is then HA instead of DIWA"""
    views: ClassVar[int] = 1
    """augmentations of each image of a batch; `loss` gets them one after another, [view 1; view 2; ...]"""

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__()
        self.settings, self.config = settings, config
        self.engine, self.reduce = settings.engine, settings.robustness.reduction
        self.boundaries: list[int] = []
        """classes seen after each step so far"""
        self._test_cache = FeatureCache()
        self.looked_at: Callable[[int, int], None] = unheard
        """told after every batch of an epoch, or of a look at untouched images: how many so far, how many in all"""

    # --- what a method says -------------------------------------------------------------------------------------

    @abstractmethod
    def grow(self, increment: Increment) -> None:
        """Make room for the new classes, freeze what is to be frozen. Shapes only, no training and no look at data:
        taking a run up again calls this for every step so far, then loads the values."""

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Of a training batch: normalised images [B, 3, H, W], targets [B] -> scalar. Sample-wise terms go through
        `self.reduce(per_sample, targets)`.

        On a GPU this is captured once a step as a CUDA graph and replayed: no `.item()` or `.cpu()`, no branch on a
        tensor's value, no shape that depends on data. Change buffers in place; what Python does besides (counting
        batches, assigning attributes) happens at the capture and not again."""
        raise TypeError(f"{type(self).__name__} trains, but does not say its loss")

    @abstractmethod
    def logits(self, images: Tensor) -> dict[str, Tensor]:
        """Scores [B, classes seen] of normalised images, by classifier. Calling it changes nothing."""

    def trains(self, increment: Increment) -> bool:
        """Whether a step has anything to optimise."""
        return True

    def phase(self, increment: Increment) -> Phase:
        """How a step is optimised."""
        return self.settings.train.first if increment.seen_before == 0 else self.settings.train.later

    def rates(self) -> list[Rate]:
        """What is trained, and at what share of the learning rate."""
        return [Rate([parameter for parameter in self.parameters() if parameter.requires_grad and parameter.numel()])]

    def training_rows(self, increment: Increment) -> Tensor:
        """Which rows of the store a step trains on."""
        return increment.rows

    def epoch_ended(self, increment: Increment) -> None:
        """After each epoch of a step's training, before a checkpoint of it is written; never inside a captured graph.
        What it changes must be in the state, parameters in place."""

    def finish(self, increment: Increment) -> dict[str, Any]:
        """After a step's training: alignment, memory. Returns what is worth a record."""
        return {}

    def kept_rows(self) -> Tensor:
        """Rows of the store that later steps train on again, int64."""
        return torch.empty(0, dtype=torch.int64)

    def renumber(self, position: Tensor) -> None:
        """The store was made anew: what was row k of it is now row `position[k]`."""

    def deployed(self) -> Iterable[nn.Module]:
        """The modules that prediction needs; a teacher, for one, is not among them."""
        return [self]

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        """Scores of the increment's test images, batch by batch. Override it where part of the work was done before."""
        yield from self.over(increment.test.images, increment.test_rows, self.logits)

    # --- what every method has ------------------------------------------------------------------------------------

    def train(self, mode: bool = True) -> Self:
        """As of torch, but frozen parts stay in evaluation mode: their batch-norm statistics never move."""
        super().train(mode)
        for module in self.modules():
            parameters = list(module.parameters())
            if module is not self and parameters and not any(parameter.requires_grad for parameter in parameters):
                module.eval()
        return self

    def begin(self, increment: Increment) -> None:
        """Grow for a step, with an initialisation that depends on the seed and the step alone."""
        torch.manual_seed(derive_seed(self.settings.seed, increment.step, "initialisation"))
        self.boundaries = [*self.boundaries, increment.seen_now]
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
        on_gpu = self.engine.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.engine.device)
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
            "images_per_second": progress.images / progress.seconds if progress.seconds else 0.0,
            "training_images": len(rows),
            "loss": progress.loss,
            "parameters": sum(p.numel() for module in self.deployed() for p in module.parameters()),
            "trained_parameters": sum(p.numel() for p in self.parameters() if p.requires_grad),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.engine.device) if on_gpu else None,
            **notes,
        }

    def build_backbone(self) -> Backbone:
        """A fresh one on the device."""
        return self.placed(build_backbone(self.settings.backbone))

    def placed(self, network: Part) -> Part:
        """Moved to the device, and compiled where asked: a backbone in two parts, because some methods need the maps
        between them or behind them."""
        for part in (network.lower, network.upper) if isinstance(network, Backbone) else (network,):
            self.engine.place(part)
        return network

    def frozen_copy(self, network: Part) -> Part:
        """A copy that never changes: no gradients, evaluation mode, batch-norm statistics as they are."""
        return self.placed(copy.deepcopy(network)).requires_grad_(False).eval()

    def _fit(
        self,
        increment: Increment,
        rows: Tensor,
        progress: Progress | None,
        after_epoch: Callable[[Progress], None] | None,
    ) -> Progress:
        settings = self.settings
        if not self.trains(increment):
            return Progress(loss=0.0)

        def ended(now: Progress) -> None:
            self.epoch_ended(increment)
            if after_epoch is not None:
                after_epoch(now)

        return fit(
            self.loss,
            self.rates(),
            FitData(increment.train, rows, settings.augmentation, self.views),
            self.phase(increment),
            settings.train,
            self.engine,
            derive_seed(settings.seed, increment.step),
            progress,
            ended,
            self.looked_at,
        )

    def over(self, store: Images, rows: Tensor, compute: Callable[[Tensor], Value]) -> Iterator[Value]:
        """`compute` of the untouched images in `rows` of a store, batch by batch."""
        plain, done = self.settings.augmentation.plain, 0
        for batch in rows.to(store.device).split(self.settings.evaluate_batch):
            if len(batch):
                computed = compute(plain(store, batch))
                done += len(batch)
                self.looked_at(done, len(rows))
                yield computed

    def cached_test_features(self, increment: Increment, networks: Sequence[Callable[[Tensor], Tensor]]) -> Tensor:
        """Features of the increment's test images by networks that no longer change, side by side, [N, D of all].

        Each is computed once in a run: the first of `networks` are those of earlier steps. At least one is needed."""

        def of(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
            if len(rows):
                return torch.cat(list(self.over(increment.test.images, rows, network)))
            any_image = self.settings.augmentation.plain(increment.train.images, increment.rows[:1])
            return network(any_image)[:0]  # no images, but as many features

        return self._test_cache.features(increment, self.boundaries, [partial(of, network) for network in networks])

    def predictions(self, increment: Increment) -> dict[str, Tensor]:
        """Predicted classes of the increment's test images, by classifier, int64 [N]."""
        predicted: dict[str, list[Tensor]] = {name: [] for name in self.classifiers}
        with self.engine.settled(), evaluating(self):
            for batch in self.test_scores(increment):
                for name in predicted:
                    predicted[name].append(batch[name].argmax(dim=1))
        none = torch.empty(0, dtype=torch.int64, device=self.engine.device)
        return {name: torch.cat([none, *batches]) for name, batches in predicted.items()}

    def state(self) -> dict[str, Any]:
        """All that the learner knows, as nested mappings and lists of tensors and plain values."""
        return {"modules": self.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take up a `state`; `begin` has been called for every step up to it."""
        self.load_state_dict(state["modules"])
        self._test_cache = FeatureCache()
        self.eval()


METHODS: dict[str, type[Learner]] = {}
Class = TypeVar("Class", bound=type[Learner])


def register(name: str) -> Callable[[Class], Class]:
    """`@register("icarl")` makes a learner known to recipes and the command line under that name."""

    def add(learner: Class) -> Class:
        if name in METHODS:
            there, new = METHODS[name].__name__, learner.__name__
            raise InputError(
                f"There are two methods called {name!r}, {there} and {new}: register one under another name."
            )
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
    if method.pretrained and config.backbone in BACKBONES:
        raise InputError(
            f"Method {config.method!r} stands on a pre-trained ViT, not on {config.backbone!r}: take a recipe that has "
            "one, such as cifar100-vit, or set backbone and weights."
        )
    if config.centre_weight and not method.uses_memory:
        raise InputError(f"centre_weight has no meaning for {config.method!r}, which has no exemplars: leave it at 0.")
    if not method.pretrained and config.backbone not in BACKBONES:
        raise unknown("backbone", config.backbone, BACKBONES)
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
        weights=config.weights,
        memory=config.memory,
        train=config.train.scaled(),
        robustness=Robustness.resolve(config, method.own_alignment, method.pretrained),
        augmentation=augmentation,
        engine=engine,
        seed=config.train_seed,
        evaluate_batch=config.evaluate_batch,
    )
    torch.manual_seed(derive_seed(config.train_seed, 0, "initialisation"))
    return method(settings, method.Config.model_validate(config.options))
