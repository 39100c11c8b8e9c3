"""`Learner`: the interface of a method. The training loop, the optimiser, precision and checkpoints are given."""

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypeVar

import torch
from torch import Tensor, nn

from ffcil.config.base import Settings
from ffcil.config.settings import MemorySettings, Phase, TrainSettings
from ffcil.data.augment import Augmentation
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import Images
from ffcil.errors import InputError
from ffcil.methods.framework import Framework
from ffcil.methods.parts.feature_cache import FeatureCache
from ffcil.models.folding import compute_folded
from ffcil.models.resnet import BUILT_IN, Backbone, build_backbone
from ffcil.stream import Increment
from ffcil.training.batch_norm import synchronise_batch_norm
from ffcil.training.batches import ImageSource
from ffcil.training.engine import Engine, evaluating
from ffcil.training.fit import Optimisation, ParameterGroup, Training, fit
from ffcil.training.progress import FitProgress, Listener, report_images, reporting_to
from ffcil.training.seeds import derive_seed

Value = TypeVar("Value")
Part = TypeVar("Part", bound=nn.Module)


class MethodConfig(Settings):
    """Base class of a method's own fields."""


@dataclass(frozen=True)
class LearnerSettings:
    """Everything that a learner is built from."""

    backbone: str
    weights: str | None
    """Weights of a pre-trained backbone."""
    memory: MemorySettings
    train: TrainSettings
    framework: Framework
    augmentation: Augmentation
    engine: Engine
    seed: int
    evaluate_batch: int = 1000
    stored_features: bool = False
    """Whether features of a frozen network are kept on disk for all runs."""


def _evaluate_frozen(module: nn.Module) -> None:
    """Put the parts of a module whose parameters are all frozen into evaluation mode."""
    for part in module.children():
        parameters = list(part.parameters())
        if parameters and not any(parameter.requires_grad for parameter in parameters):
            part.eval()
        else:
            _evaluate_frozen(part)


class Learner(nn.Module, ABC):
    """A method. Subclass it in one file, decorate it with `@register("name")`, and override what differs."""

    title: ClassVar[str]
    """Name in tables."""
    paper: ClassVar[str] = ""
    Config: ClassVar[type[MethodConfig]] = MethodConfig
    classifiers: ClassVar[Mapping[str, str]] = {"linear": "linear head"}
    """Keys of what `logits` returns and their names in tables. The first one is scored."""
    uses_memory: ClassVar[bool] = False
    """Whether the method keeps exemplars."""
    retrains: ClassVar[bool] = False
    """Whether every step trains the same network again, on new images and on exemplars. `flow.growth` then applies:
    training a network again for every single class degrades it."""
    own_alignment: ClassVar[str] = "none"
    """Alignment of the head if neither `framework` nor `alignment` sets another one."""
    pretrained: ClassVar[bool] = False
    """Whether the method needs a pre-trained backbone. Its framework is then HA instead of DIWA."""
    trains: ClassVar[bool] = True
    """False for a method that optimises nothing: it needs no `loss`."""
    trains_prototypes: ClassVar[bool] = False
    """Whether a pre-trained method trains features that it compares, by the cosine, with class means or with rows of a
    head. The centre loss is for such methods, and for all methods with exemplars."""
    compares_means: ClassVar[bool] = False
    """Whether a pre-trained method scores classes by `similarity`, the cosines of features with class means.
    `flow.whiten` then applies."""
    takes_known_classes: ClassVar[bool] = False
    """Whether a step may also have images of known classes. It may then have no new class at all."""
    bound: ClassVar[Literal["lower", "upper"] | None] = None
    """Set for a method that serves as the lower or the upper bound in comparisons."""

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__()
        self.settings, self.config = settings, config
        self.engine = settings.engine
        self.reduce = self.engine.parallel.over_whole_batch(settings.framework.reduction)
        self.boundaries: list[int] = []
        """Number of classes seen after each step so far."""
        self._test_cache = FeatureCache()

    # --- what a method defines ------------------------------------------------------------------------------------

    @abstractmethod
    def grow(self, increment: Increment) -> None:
        """Add parameters for the new classes and freeze what must not change any more.

        It changes shapes only and reads no images: resuming calls it for every step so far, then loads the values."""

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        """Loss of a training batch: normalised images [B, 3, H, W] and targets [B] -> scalar. Sample-wise terms go
        through `self.reduce(per_sample, targets)`.

        On a GPU it is captured once per step as a CUDA graph and replayed: no `.item()` or `.cpu()`, no branch on a
        tensor's value, no shape that depends on data. Change buffers in place. Other Python side effects (counting
        batches, assigning attributes) happen during the capture only.

        On several devices, each process gets its part of a batch and must return the loss of the whole batch. For
        sample-wise terms, `self.reduce` does that; tensors in which samples are compared with each other go through
        `self.engine.parallel.gather` first."""
        raise TypeError(f"{type(self).__name__} trains, but does not define its loss")

    @abstractmethod
    def logits(self, images: Tensor) -> dict[str, Tensor]:
        """Scores [B, classes seen] of normalised images, by classifier. Calling it changes nothing."""

    def training_plan(self, increment: Increment) -> Training | None:
        """What a step optimises; None if it has nothing to optimise. Called after `grow`."""
        return self.train_on_images(increment) if self.trains else None

    def training_rows(self, increment: Increment) -> Tensor:
        """Rows of the store that a step trains on."""
        return increment.rows

    def prepare(self, increment: Increment, rows: Tensor) -> None:
        """Work before the training of a step on the images in `rows`, such as counting them."""

    def finish(self, increment: Increment) -> dict[str, Any]:
        """Work after the training of a step, such as alignment and memory. Returns notes for the record."""
        return {}

    def kept_rows(self) -> Tensor:
        """Rows of the store that later steps train on again, int64."""
        return torch.empty(0, dtype=torch.int64)

    def renumber(self, position: Tensor) -> None:
        """Follow a new store: the former row k is now row `position[k]`."""

    def deployed(self) -> Iterable[nn.Module]:
        """Modules that prediction needs. A teacher, for example, is not among them."""
        return [self]

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        """Scores of the increment's test images, batch by batch. Override it to reuse work of earlier steps."""
        yield from self.over(increment.test.images, increment.test_rows, self.logits)

    # --- what `Classifier` uses if the method supports it ---------------------------------------------------------

    def forget(self, classes: Sequence[int]) -> None:
        """Remove classes and renumber the others without gaps. The learner is then as if it had never seen them."""
        raise self._cannot("forget classes")

    def remove(self, images: ImageSet, learned_again: bool = False) -> Tensor:
        """Remove images from the classes that they were learned as. Returns which of them were found, bool [N].

        Args:
            learned_again: Whether a call of `learn` with these images follows immediately. The head is then not
                computed from the remaining images.
        """
        raise self._cannot("remove images")

    def open_scores(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        """Scores of the scored classifier, [B, classes], and the novelty of each image, [B]: how much it differs from
        everything learned. The novelty is None if the method cannot compute it."""
        return self.logits(images)[self.scored], None

    def describe(self, images: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        """Scores and novelties as in `open_scores`, and the features of the images, [B, D]."""
        raise self._cannot("compare images")

    def comparable_features(self, features: Tensor) -> Tensor:
        """Map features of `describe` or `known_features` to features whose cosines compare images: [N, D] -> [N, D]"""
        return features

    def unlearned_scores(self, images: ImageSet) -> Tensor:
        """Uncalibrated scores of images, [N, classes]. If the method can, it scores images that were learned as if they
        had not been."""
        rows = torch.arange(len(images))
        return torch.cat([scores for scores, _ in self.over(images.images, rows, self.open_scores)])

    @property
    def tells_unknown(self) -> bool:
        """Whether the method recognises unknown images: by novelties, and by a limit on them."""
        return False

    def novelty_limit(self, false_alarms: float) -> float:
        """The novelty that a share of `false_alarms` of the images of known classes exceeds."""
        raise self._cannot("tell unknown images")

    def left_out_counts(self) -> tuple[Tensor, Tensor] | None:
        """Numbers of correct predictions and of all predictions for each class, [classes] each, if each training image
        is left out and predicted; None if the method cannot compute them."""
        return None

    def known_features(self) -> tuple[Tensor, Tensor] | None:
        """Features [N, D] and classes [N] of the training images whose features are kept; None if none are."""
        return None

    def known_images(self) -> tuple[Tensor, Tensor] | None:
        """Digests [N] and classes [N] of the training images whose features are kept; None if none are."""
        return None

    def _cannot(self, task: str) -> InputError:
        return InputError(f"{self.title} cannot {task}: use a classifier with method=anyarrival.")

    # --- what every method has ------------------------------------------------------------------------------------

    @property
    def may_collapse(self) -> bool:
        """Whether training continues if numbers are no longer finite, as in published code that does not check them.
        Predictions are then at the level of chance."""
        return False

    @property
    def waits(self) -> bool:
        """Whether the newest step trains nothing and does not call `grow`: its classes wait for a later step."""
        return False

    @property
    def scored(self) -> str:
        """The classifier whose accuracy is the result."""
        return next(iter(self.classifiers))

    def train(self, mode: bool = True) -> Self:
        """As in torch, but frozen parts stay in evaluation mode: their batch-norm statistics never change."""
        super().train(mode)
        if mode:
            _evaluate_frozen(self)
        return self

    def begin(self, increment: Increment) -> None:
        """Grow for a step. The initialisation depends on the seed and the step only."""
        torch.manual_seed(derive_seed(self.settings.seed, increment.step, "initialisation"))
        self.boundaries = [*self.boundaries, increment.seen_now]
        if not self.waits:
            self.grow(increment)

    def phase(self, increment: Increment) -> Phase:
        """Epochs and learning rates of a step in the configuration."""
        return self.settings.train.first if increment.seen_before == 0 else self.settings.train.later

    def train_on_images(
        self,
        increment: Increment,
        phase: Phase | None = None,
        groups: Sequence[ParameterGroup] | None = None,
        views: int = 1,
        after_epoch: Callable[[], None] | None = None,
    ) -> Training:
        """The usual training of a step: `loss` over all trainable parameters, on augmented images of `training_rows`.

        Args:
            phase: Epochs and learning rates; default: those of the first step or of later steps.
            groups: Parameters with their learning rates.
            views: Augmentations of every image of a batch. `loss` receives them as [view 1; view 2; ...].
            after_epoch: Called after every epoch. What it changes must be in the state, parameters in place.
        """
        settings = self.settings
        phase = phase or self.phase(increment)
        if groups is None:
            trainable = [parameter for parameter in self.parameters() if parameter.requires_grad and parameter.numel()]
            groups = [ParameterGroup(trainable)]
        rows = self.training_rows(increment).to(self.engine.device)
        self.prepare(increment, rows)
        return Training(
            self.loss,
            groups,
            ImageSource(increment.train, rows, settings.augmentation, settings.train.batch, views),
            Optimisation.of_phase(phase, settings.train.momentum),
            derive_seed(settings.seed, increment.step),
            after_epoch,
            may_diverge=self.may_collapse,
            # the first step has other code: there is no teacher and no frozen network yet
            network=f"{self.title} {settings.backbone} {views * settings.train.batch} {min(increment.step, 2)}",
        )

    def learn(
        self, increment: Increment, listener: Listener | None = None, resume: FitProgress | None = None
    ) -> dict[str, Any]:
        """Learn the classes of a step.

        Args:
            listener: Receives the progress. Its `epoch_done` may save the state.
            resume: Progress of an interrupted step; `begin` was called for it and its state was restored.

        Returns:
            The notes of a record: seconds by phase, images per second, the method's own notes.
        """
        on_gpu = self.engine.device.type == "cuda"
        if on_gpu:
            torch.cuda.reset_peak_memory_stats(self.engine.device)
        listener = listener or Listener()
        if resume is None:
            self.begin(increment)
        self.train()
        training = None if self.waits else self.training_plan(increment)
        epochs = training.optimisation.epochs if training else 0
        listener.step_started(increment.step, len(increment.classes), increment.seen_now, epochs)
        with self.engine.settled(), reporting_to(listener):
            fitted = fit(training, self.engine, resume, listener) if training else FitProgress(loss=0.0)
            self.eval()  # it stays in evaluation mode until the next step: `logits` may be called at any time
            start = time.perf_counter()
            with evaluating(self):
                notes = self.finish(increment)
        start_up = {"start_up": fitted.start_up} if on_gpu else {}
        memory = time.perf_counter() - start
        return {
            "seconds": {"train": fitted.seconds - fitted.start_up, **start_up, "memory": memory},
            "images_per_second": fitted.images_per_second,
            "training_images": len(training.source if training else increment.rows),
            "loss": finite_or_none(fitted.loss),
            "parameters": sum(p.numel() for module in self.deployed() for p in module.parameters()),
            "trained_parameters": 0 if self.waits else sum(p.numel() for p in self.parameters() if p.requires_grad),
            "peak_memory_bytes": torch.cuda.max_memory_allocated(self.engine.device) if on_gpu else None,
            **notes,
        }

    def build_backbone(self) -> Backbone:
        """Build a fresh backbone on the device."""
        network, parallel = build_backbone(self.settings.backbone), self.engine.parallel
        if parallel.size > 1 and self.settings.train.batch_norm == "synchronised":
            synchronise_batch_norm(network, parallel)
        return self.placed(network)

    def placed(self, network: Part) -> Part:
        """Move a network to the device and compile it if compilation is on."""
        self.engine.place(network)
        return network

    def frozen_copy(self, network: Part) -> Part:
        """Copy a network without gradients, in evaluation mode, with fixed batch-norm statistics.

        Change the copy by `load_state_dict` only: on a GPU it computes with folded weights in the engine's precision,
        which are derived again whenever a state is loaded."""
        copied = self.placed(copy.deepcopy(network)).requires_grad_(False).eval()
        if self.engine.folds and self.settings.backbone in BUILT_IN:
            compute_folded(copied, self.engine.dtype, self.engine.place)
        return copied

    def over(self, store: Images, rows: Tensor, compute: Callable[[Tensor], Value]) -> Iterator[Value]:
        """Apply `compute` to the images in `rows` of a store, without augmentation, batch by batch."""
        plain, done = self.settings.augmentation.plain, 0
        for batch in rows.to(store.device).split(self.settings.evaluate_batch):
            if len(batch):
                computed = compute(plain(store, batch))
                done += len(batch)
                report_images(done, len(rows))
                yield computed

    def applied(self, images: ImageSet, rows: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
        """Features of the images in `rows`, at least one, without augmentation: [N, D]"""
        return torch.cat(list(self.over(images.images, rows, network)))

    def test_features(
        self,
        increment: Increment,
        fixed: Sequence[Callable[[Tensor], Tensor]],
        changing: Callable[[Tensor], Tensor] | None = None,
    ) -> Iterator[Tensor]:
        """Features of the increment's test images, batch by batch: [B, D of all networks].

        Args:
            fixed: Networks that never change again, those of earlier steps first. Each of them is applied to a test
                image once per run.
            changing: A network that may still change. Its features come last.
        """
        batch = self.settings.evaluate_batch

        def extract(network: Callable[[Tensor], Tensor], rows: Tensor) -> Tensor:
            if len(rows):
                return self.applied(increment.test, rows, network)
            any_image = self.settings.augmentation.plain(increment.train.images, increment.rows[:1])
            return network(any_image)[:0]  # no images, but the right number of features

        known = self._test_cache.features(increment, self.boundaries, fixed, extract) if fixed else None
        if changing is None:
            assert known is not None, "at least one network is needed"
            yield from known.split(batch)
            return
        done = 0
        for features in self.over(increment.test.images, increment.test_rows, changing):
            parts = [] if known is None else [known[done : done + len(features)]]
            yield torch.cat([*parts, features], dim=1)
            done += len(features)

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
        """Everything that the learner knows, as nested mappings and lists of tensors and plain values."""
        return {"modules": self.state_dict()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a `state`. `begin` has been called for every step up to it."""
        self.load_state_dict(state["modules"])
        self._test_cache = FeatureCache()
        self.eval()


def finite_or_none(value: float) -> float | None:
    """A number for a record, which is JSON and has no NaN."""
    return value if math.isfinite(value) else None
