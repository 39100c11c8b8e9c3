"""`Pretrained`: what the methods on a frozen, pre-trained ViT have in common, Head-Agnostic Alignment among it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ffcil.errors import InputError
from ffcil.ha import AlignmentTraining, ClassStatistics, HeadAgnosticAlignment, align_features
from ffcil.methods.learner import Learner, LearnerSettings, MethodConfig
from ffcil.models.tuners import Tuning
from ffcil.models.vit import UNTUNED, build_vit
from ffcil.stream import Increment
from ffcil.training.fit import derive_seed

VIT = "vit."
"""with which the names of the frozen network's weights begin"""


class Pretrained(Learner):
    """A learner on one frozen ViT. A method says its features, its classifier, and what a step leaves behind.

    After a step's training, the features of its images are computed once (`sweep`), the method settles its classifier
    on them (`settle`), HA is trained on top where it is on, and the classes' statistics are remembered.
    """

    pretrained = True
    classifiers = ("prototype",)

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        vit = build_vit(settings.backbone, settings.weights)
        self._weights = vit.fingerprint()
        self.vit = self.placed(vit)
        width, device = self.feature_dim, self.engine.device
        self.statistics = ClassStatistics(width).to(device)
        """of raw features, in the space in which each class was learned"""
        self.ha: HeadAgnosticAlignment | None = None
        if settings.robustness.ha is not None:
            alignment = HeadAgnosticAlignment(width, settings.robustness.ha.bottleneck)
            self.ha = alignment.to(device).requires_grad_(False)

    # --- what a method says -------------------------------------------------------------------------------------

    @property
    def feature_dim(self) -> int:
        """Of what `features` gives and `classify` takes."""
        return self.vit.feature_dim

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Of normalised images, as the newest classes are learned: [B, feature_dim]"""

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """Scores of all classes seen, by the method's own rule: [B, classes]. HA is trained against it: gradients must
        reach the features, and scores must be such that their softmax can be a sure one."""

    @abstractmethod
    def settle(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        """Prototypes, statistics, a head's second training: from raw features [N, D] of all of the step's images.
        Returns what is worth a record."""

    def fixed_networks(self) -> Sequence[Callable[[Tensor], Tensor]]:
        """From test images to features that will never change; where there are any, `cached_scores` gets them."""
        return ()

    def cached_scores(self, features: Tensor) -> dict[str, Tensor]:
        """From the features of all fixed networks side by side, [B, D of all], to scores."""
        return {self.classifiers[0]: self.classify(self.aligned(features))}

    # --- what all of them have ----------------------------------------------------------------------------------

    def tuned(self, images: Tensor, tunings: Sequence[Tuning] = UNTUNED, blocks: int | None = None) -> Tensor:
        """[B, 3, H, W] -> [B, D], by all blocks or the first few; the ViT alone runs in reduced precision."""
        with self.engine.autocast():
            features: Tensor = self.vit(images, tunings, blocks)
        return features.float()

    def aligned(self, features: Tensor) -> Tensor:
        """Features as the classifier gets them: through HA where it is on."""
        return features if self.ha is None else self.ha(features)

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        return {self.classifiers[0]: self.classify(self.aligned(self.features(images)))}

    def grow(self, increment: Increment) -> None:
        self.statistics.grow(increment.seen_now)

    def generator(self, increment: Increment, use: str) -> torch.Generator:
        """On the device, by seed, step and use alone."""
        seed = derive_seed(self.settings.seed, increment.step, use)
        return torch.Generator(self.engine.device).manual_seed(seed)

    def sweep(self, increment: Increment, compute: Callable[[Tensor], Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """`compute`, or `features`, of all of the step's training images, untouched, and their classes."""
        compute = compute or self.features
        features = torch.cat(list(self.over(increment.train.images, increment.rows, compute)))
        return features, increment.train.labels[increment.rows]

    def finish(self, increment: Increment) -> dict[str, Any]:
        features, targets = self.sweep(increment)
        notes = self.settle(increment, features, targets)
        if self.ha is not None:
            notes["ha_loss"] = self._train_ha(self.ha, increment, features, targets)
        self.statistics.remember(features, targets)
        return {"alignment": None, **notes}

    def _train_ha(
        self, alignment: HeadAgnosticAlignment, increment: Increment, features: Tensor, targets: Tensor
    ) -> float:
        settings = self.settings.robustness.ha
        assert settings is not None
        training = AlignmentTraining(**settings.model_dump(exclude={"use", "bottleneck"}))
        alignment.requires_grad_(True)
        try:
            with torch.enable_grad():
                return align_features(
                    alignment,
                    features,
                    targets,
                    self.statistics,
                    increment.seen_before,
                    self.classify,
                    training,
                    self.generator(increment, "HA"),
                    self.reduce,
                )
        finally:
            alignment.requires_grad_(False)

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        networks = self.fixed_networks()
        if not networks:
            yield from super().test_scores(increment)
            return
        for features in self.cached_test_features(increment, networks).split(self.settings.evaluate_batch):
            yield self.cached_scores(features)

    def deployed(self) -> Iterable[nn.Module]:
        return [self.vit, *([self.ha] if self.ha is not None else [])]

    def state(self) -> dict[str, Any]:
        """Without the ViT, which never changes and may be a hundred times as large: its fingerprint instead."""
        own = {key: value for key, value in self.state_dict().items() if not key.startswith(VIT)}
        return {**super().state(), "modules": own, "weights": self._weights}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("weights") != self._weights:
            raise InputError(
                f"The run was begun on other weights of {self.settings.backbone!r}: bring them back, or start it anew."
            )
        frozen = {key: value for key, value in self.state_dict().items() if key.startswith(VIT)}
        super().restore({**state, "modules": {**state["modules"], **frozen}})
