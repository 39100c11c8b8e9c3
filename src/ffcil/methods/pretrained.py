"""`Pretrained`: the base of all methods on a frozen, pre-trained network, with Head-Agnostic Alignment (HA)."""

import hashlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.comparable import ComparableScores
from ffcil.config.settings import Phase
from ffcil.data.feature_store import FeatureStore
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.ha import ClassStatistics, HeadAgnosticAlignment
from ffcil.losses import ClassCentres
from ffcil.methods.learner import Learner, LearnerSettings, MethodConfig
from ffcil.methods.parts.former_keys import present_key
from ffcil.methods.parts.ha_training import AlignmentTraining
from ffcil.methods.parts.spaces import WaitingFeatures, space_boundaries, step_of, tuning_steps
from ffcil.methods.registry import METHODS
from ffcil.models.analytic import fit_drift
from ffcil.models.heads import cosine
from ffcil.models.pretrained import build_network, refusing_sizes
from ffcil.models.tuners import Adapters, Tuning
from ffcil.models.vit import UNTUNED, ViT, why_not_plain
from ffcil.models.whitening import Whitening
from ffcil.stream import Increment
from ffcil.training.fit import Training
from ffcil.training.seeds import derive_seed

Network = Callable[[Tensor], Tensor]
"""Function from normalised images [B, 3, H, W] to features [B, D]."""
NETWORK = "network."
"""Prefix of the frozen network's keys in a state."""


class Pretrained(Learner):
    """A learner on one frozen network. A method defines its features, its classifier, and how the classifier is fitted.

    The network is a plain ViT, or any network of timm if the method only reads features.

    After the training of a step, the features of its images are extracted once (`extract_features`), the method fits
    its classifier to them (`fit_classifier`), HA is trained if it is on, and the statistics of the classes are stored.

    A step with fewer classes than `flow.enough`, or than `flow.share` of those seen before, does not tune the network:
    its classes are learned in the latest space.
    Classes that arrive before the first tuning are learned in the untuned space. At the first tuning their features are
    moved to the tuned space, and the classifier is fitted to them and to the step's features together.
    """

    pretrained = True
    classifiers: ClassVar[Mapping[str, str]] = {"prototype": "prototypes"}
    fixed_features: ClassVar[bool] = False
    """Whether later steps never change the network of `features`."""
    any_network: ClassVar[bool] = False
    """Whether the method can leave the network untuned and only read its features, so that any network of timm will do.
    It then does not use `vit` if `tunes_network` is False."""
    untuned_by: ClassVar[str] = "options.rank=0"
    """Assignment by which a user leaves the network untuned, for a method with `any_network` that can also tune it."""
    compares_spaces: ClassVar[bool] = False
    """Whether the method scores classes in the spaces of different steps. It then defines `space_scores`, its scores
    pass through `compared`, and `flow.comparable` applies."""
    chooses_ridge: ClassVar[bool] = False
    """Whether the method chooses the ridge of an analytic head; `flow.shared_ridge` then applies."""
    drifts: ClassVar[bool] = False
    """Whether later steps change the network of earlier spaces, in which class means are stored. The method then moves
    the means if `flow.follow` is on."""
    training_only: ClassVar[tuple[str, ...]] = ()
    """Names of modules that prediction does not need."""

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        network = build_network(settings.backbone, settings.weights)
        self._fingerprint = network.fingerprint()
        self.network = self.placed(network)
        width, device = self.feature_dim, self.engine.device
        self.statistics = ClassStatistics(width).to(device)
        """Statistics of the features before HA, in the space in which each class was learned."""
        self.ha: HeadAgnosticAlignment | None = None
        if settings.framework.ha is not None:
            alignment = HeadAgnosticAlignment(width, settings.framework.ha.bottleneck)
            self.ha = alignment.to(device).requires_grad_(False)
        self.waiting = WaitingFeatures(width, device)
        self.comparable: ComparableScores | None = None
        if settings.framework.comparable and self.compares_spaces:
            self.comparable = ComparableScores().to(device)
        self.whitening = Whitening(width).to(device) if settings.framework.whiten else None
        """The metric in which features are compared with class means, if `flow.whiten` is on."""

    @cached_property
    def _store(self) -> FeatureStore | None:
        """Store of features that all runs share; None if they are computed in every run. Its key is a hash of
        everything that the features depend on."""
        if not self.settings.stored_features:
            return None
        if self.tunes_network:
            raise InputError(
                f"features=stored is not supported by {self.title}, which tunes the network: set features=computed."
            )
        prepared = self.settings.augmentation.preparation
        content = f"{self._fingerprint} {prepared} {self.engine.precision} {self.feature_kind}"
        return FeatureStore(hashlib.sha256(content.encode()).hexdigest()[:16], self.feature_dim)

    # --- what a method defines ------------------------------------------------------------------------------------

    @property
    def feature_dim(self) -> int:
        """Number of features that `features` returns and `classify` receives."""
        return self.network.feature_dim

    @property
    def feature_kind(self) -> str:
        """What `features` reads from the network, for the key of stored features."""
        return "features"

    @property
    def tunes_network(self) -> bool:
        """Whether any step tunes the network."""
        return self.trains

    @abstractmethod
    def features(self, images: Tensor) -> Tensor:
        """Features of normalised images, by the network that learns the newest classes: [B, feature_dim]"""

    @abstractmethod
    def classify(self, features: Tensor) -> Tensor:
        """Scores of all classes seen, by the method's own rule: [B, classes]. HA is trained through it: gradients must
        reach the features, and the scores must be large enough for a confident softmax."""

    @abstractmethod
    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        """Fit the classifier to the features [N, D], before HA, of all images of a step. Returns notes.

        At the first tuning, features of classes that waited for it come first, and `restart` was called."""

    def restart(self) -> None:
        """Reset all sums that the classifier has accumulated over the steps. Means need no reset, because fitting a
        class again replaces its mean."""

    def untuned_features(self, images: Tensor) -> Tensor:
        """What `features` returns before the network is tuned."""
        return self.network_features(images)

    def fixed_networks(self) -> Sequence[Network]:
        """Networks that never change again, those of earlier steps first. Test features are computed once by each."""
        return [self.features] if self.fixed_features and self.is_tuned else []

    def changing_network(self) -> Network | None:
        """A network that may change in a later step. Its features follow those of the fixed networks."""
        return None if self.fixed_networks() else self.features

    def score_features(self, features: Tensor) -> Tensor:
        """Scores [B, classes] from the features of all these networks side by side, [B, D of all]."""
        if self.compares_spaces:
            return self.compared(self.space_scores(features))
        return self.classify(self.aligned(features))

    def space_scores(self, features: Tensor) -> Tensor:
        """Scores [B, classes] before those of different spaces are standardised. Required if `compares_spaces`."""
        raise TypeError(f"{type(self).__name__} compares spaces, but does not define its scores")

    # --- what all methods have ------------------------------------------------------------------------------------

    @property
    def spaces(self) -> list[int]:
        """Number of classes in the first space, in the first two, ...; without `flow.enough` and `flow.share`, a space
        is a step."""
        return self._spaces_of(self.boundaries)

    @property
    def opens_space(self) -> bool:
        """Whether the newest step opens a space after the first one."""
        return len(self.spaces) > max(1, len(self._spaces_of(self.boundaries[:-1])))

    def _spaces_of(self, boundaries: Sequence[int]) -> list[int]:
        return space_boundaries(boundaries, self.settings.framework.enough, self.settings.framework.share)

    @property
    def tunes(self) -> bool:
        """Whether the newest step tunes the network."""
        return self.tuned_steps[-1]

    @property
    def tunes_first(self) -> bool:
        """Whether the newest step is the first that tunes the network."""
        return self.tunes and not any(self.tuned_steps[:-1])

    @property
    def is_tuned(self) -> bool:
        """Whether a step has tuned the network already, or no step ever will."""
        return not self.tunes_network or any(self.tuned_steps)

    @property
    def tuned_steps(self) -> list[bool]:
        """Whether each step so far tunes the network."""
        if not self.tunes_network:
            return [False] * len(self.boundaries)
        return tuning_steps(self.boundaries, self.settings.framework.enough, self.settings.framework.share)

    def phase(self, increment: Increment) -> Phase:
        """Epochs and learning rates of a step, prolonged to about `flow.min_steps` optimiser steps if there are
        fewer."""
        train = self.settings.train
        batches = max(1, math.ceil(len(self.training_rows(increment)) / train.batch))
        return (train.first if self.tunes_first else train.later).lasting(batches, self.settings.framework.min_steps)

    def training_plan(self, increment: Increment) -> Training | None:
        return self.train_on_images(increment) if self.tunes else None

    @property
    def old_classes(self) -> int:
        """Number of classes before the newest step."""
        return self.boundaries[-2] if len(self.boundaries) > 1 else 0

    @property
    def vit(self) -> ViT:
        """The network as a plain ViT, for methods that tune it. Other networks are an error."""
        if isinstance(self.network, ViT):
            return self.network
        problem = f"Backbone {self.settings.backbone!r} {why_not_plain(self.network.net)}, and {self.title} tunes it"
        plain = "choose a plain ViT, such as vit_base_patch16_224"
        if self.any_network:
            raise InputError(f"{problem}: set {self.untuned_by} to read its features only, or {plain}.")
        others = ", ".join(
            sorted(name for name, method in METHODS.items() if issubclass(method, Pretrained) and method.any_network)
        )
        raise InputError(f"{problem}: {plain}, or a method that takes any network ({others}).")

    def vit_features(self, images: Tensor, tunings: Sequence[Tuning] = UNTUNED, blocks: int | None = None) -> Tensor:
        """Features of the ViT, or of its first blocks: [B, 3, H, W] -> [B, D]. Only it runs in reduced precision."""
        with self._reading(images):
            features: Tensor = self.vit(images, tunings, blocks)
        return features.float()

    def network_features(self, images: Tensor) -> Tensor:
        """Features of the untuned network, a ViT or another: [B, 3, H, W] -> [B, D]"""
        with self._reading(images):
            features: Tensor = self.network(images)
        return features.float()

    def deep_features(self, images: Tensor, blocks: int, tunings: Sequence[Tuning] = UNTUNED) -> Tensor:
        """Features of the network and of its last `blocks` blocks, side by side:
        [B, 3, H, W] -> [B, self.network.deep_dim(blocks)]

        With `tunings`, the network must be a plain ViT."""
        with self._reading(images):
            features = self.vit.deep(images, blocks, tunings) if tunings else self.network.deep(images, blocks)
        return features.float()

    @contextmanager
    def _reading(self, images: Tensor) -> Iterator[None]:
        """Run the network in reduced precision, and report images of a size that it does not take."""
        with refusing_sizes(self.network, self.settings.backbone, images), self.engine.autocast():
            yield

    def fresh_adapters(self, rank: int) -> Adapters:
        """Adapters that change nothing yet; none for rank 0."""
        if not rank:
            return Adapters(0, self.feature_dim, 1)
        return Adapters(self.vit.depth, self.vit.width, rank).to(self.engine.device)

    def adapted(self, adapters: Adapters, images: Tensor) -> Tensor:
        """Features of the network with a set of adapters: [B, 3, H, W] -> [B, D]"""
        tunings = adapters.tunings()
        return self.vit_features(images, tunings) if tunings else self.network_features(images)

    def aligned(self, features: Tensor) -> Tensor:
        """Features as the classifier receives them: after HA if it is on."""
        return features if self.ha is None else self.ha(features)

    def all_features(self, images: Tensor) -> Tensor:
        """Features of all networks side by side: [B, 3, H, W] -> [B, D of all]"""
        networks = [*self.fixed_networks(), self.changing_network()]
        return torch.cat([network(images) for network in networks if network], dim=1)

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        return {self.scored: self.score_features(self.all_features(images))}

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        for features in self.test_features(increment, self.fixed_networks(), self.changing_network()):
            yield {self.scored: self.score_features(features)}

    def grow(self, increment: Increment) -> None:
        self.statistics.grow(increment.seen_now)
        if self.comparable is not None:
            self.comparable.grow(len(self.spaces))
        if self.whitening is not None and self.compares_spaces:
            self.whitening.grow(len(self.spaces))
        if self.settings.framework.centre_weight:  # new centres, because the training of a step moves all features
            self.centres = ClassCentres(increment.seen_now, self.network.feature_dim).to(self.engine.device)

    def centre_loss(self, features: Tensor, targets: Tensor) -> Tensor | float:
        """Centre loss of a batch of trained features [B, D], paper eq. (8), on features of length 1; 0 if it is off.

        Cosines ignore the length. The features of a ViT have norms such as 55, at which the squared distance, a sum
        over the features, would outweigh the cross-entropy by orders of magnitude. At length 1 it is at most 4.
        """
        if weight := self.settings.framework.centre_weight:
            distances: Tensor = self.centres(F.normalize(features, dim=1), targets)
            return weight * distances.mean()
        return 0.0

    def generator(self, increment: Increment, use: str) -> torch.Generator:
        """A generator on the device. Its seed depends on the seed of the run, the step and the use only."""
        seed = derive_seed(self.settings.seed, increment.step, use)
        return torch.Generator(self.engine.device).manual_seed(seed)

    def applied(self, images: ImageSet, rows: Tensor, network: Network) -> Tensor:
        if self._store is None or network != self.features or not len(rows):
            return super().applied(images, rows, network)
        compute = super().applied
        return self._store.features(images.digests(rows), lambda missing: compute(images, rows[missing], network))

    def extract_features(self, increment: Increment, network: Network | None = None) -> tuple[Tensor, Tensor]:
        """Features of a step's training images, without augmentation, and their classes. Default: `features`."""
        features = self.applied(increment.train, increment.rows, network or self.features)
        return features, increment.train.labels[increment.rows]

    def finish(self, increment: Increment) -> dict[str, Any]:
        features, targets = self.features_to_fit(increment)
        everywhere = self._features_everywhere(increment)
        if self.whitening is not None:
            self._update_metric(self.whitening, features, targets, everywhere)
        notes = self.fit_classifier(increment, features, targets)
        if self.ha is not None:
            notes |= self._train_ha(self.ha, increment, features, targets)
        self.statistics.remember(features, targets)
        if self.comparable is not None and everywhere is not None:
            self._observe_scores(self.comparable, *everywhere)
        return {"alignment": None, **notes}

    def _features_everywhere(self, increment: Increment) -> tuple[Tensor, Tensor] | None:
        """Features of a step's images in all spaces, [N, D of all], and their classes, [N]; None if no part of flow
        needs them."""
        in_several = self.whitening is not None and len(self.whitening.classes) > 1
        if self.comparable is None and not in_several:
            return None
        return self.extract_features(increment, self.all_features)

    def _update_metric(
        self, metric: Whitening, features: Tensor, targets: Tensor, everywhere: tuple[Tensor, Tensor] | None
    ) -> None:
        """Add a step's images to the metric: their features in the newest space, and those in all earlier spaces."""
        newest = len(metric.classes) - 1
        metric.add(features, targets, newest)
        if everywhere is not None:
            for space, own in enumerate(everywhere[0].split(self.feature_dim, dim=1)[:newest]):
                metric.add(own, everywhere[1], space)
        metric.renew()  # now, because the first prediction may be traced for an export

    def similarity(self, features: Tensor, means: Tensor, space: int = 0) -> Tensor:
        """Cosines of features with class means of a space, whitened if `flow.whiten` is on: [B, D] -> [B, C]"""
        if self.whitening is not None:
            features, means = self.whitening(features, space), self.whitening(means, space)
        return cosine(features, means)

    def _observe_scores(self, comparable: ComparableScores, features: Tensor, targets: Tensor) -> None:
        """Add the scores of a step's images in all spaces to the statistics of the spaces."""
        spaces = self.space_of_classes()
        for some, classes in zip(features.split(1000), targets.split(1000), strict=True):
            comparable.observe(self.space_scores(some), classes, spaces)

    def compared(self, scores: Tensor) -> Tensor:
        """Standardise the scores [..., classes] of each space if `flow.comparable` is on."""
        return scores if self.comparable is None else self.comparable(scores, self.space_of_classes())

    def space_of_classes(self) -> Tensor:
        """The space of each class seen, [classes]."""
        return step_of(torch.arange(self.boundaries[-1], device=self.engine.device), self.spaces)

    def features_to_fit(self, increment: Increment) -> tuple[Tensor, Tensor]:
        """Features [N, D] to which a step fits the classifier, and their classes [N].

        Before the first tuning, they are also kept for it, because the tuned network will not see their images again.
        The first tuning moves all kept features to the tuned space and puts them before those of its own step."""
        features, targets = self.extract_features(increment)
        if not self.is_tuned:
            self.waiting.add(features, targets)
        elif len(self.waiting):
            untuned, _ = self.extract_features(increment, self.untuned_features)
            moved = fit_drift(untuned, features, self.generator(increment, "waiting"))(self.waiting.features)
            features, targets = torch.cat([moved, features]), torch.cat([self.waiting.targets, targets])
            self.waiting.clear()
            if self.comparable is not None:
                self.comparable.sums.zero_()
            if self.whitening is not None:
                self.whitening.restart()
            self.restart()
        return features, targets

    def _train_ha(
        self, alignment: HeadAgnosticAlignment, increment: Increment, features: Tensor, targets: Tensor
    ) -> dict[str, Any]:
        """Train HA on the features of a step and on surrogates of earlier classes. Returns notes."""
        settings = self.settings.framework.ha
        assert settings is not None
        training = AlignmentTraining(settings, self.classify, self.reduce, self.engine, self.may_collapse)
        waited = len(targets) > len(increment.rows)  # then all earlier classes have real features here
        known = (self.statistics, 0 if waited else increment.seen_before)
        return training.train(alignment, features, targets, known, self.generator(increment, "HA"))

    def deployed(self) -> Iterable[nn.Module]:
        return [module for name, module in self.named_children() if name not in self.training_only]

    def state(self) -> dict[str, Any]:
        """The state with a fingerprint of the network's weights instead of the weights, which never change."""
        own = {key: value for key, value in self.state_dict().items() if not key.startswith(NETWORK)}
        return {**super().state(), "modules": own, "weights": self._fingerprint, **self.waiting.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        if state.get("weights") != self._fingerprint:
            backbone = self.settings.backbone
            raise InputError(f"The state was saved with other weights of {backbone!r}: set them, or restart the run.")
        known = self.state_dict()
        modules = {key: value for key, value in known.items() if key.startswith(NETWORK)}
        modules |= {present_key(key, known): value for key, value in state["modules"].items()}
        super().restore({**state, "modules": modules})
        self.waiting.restore(state)
