"""AnyArrival: a linear discriminant of deep features, from sums over everything seen. How classes arrive has no effect.

Every image contributes one feature of a frozen network to its class mean and to one covariance. Everything else (the
shrinkage of the covariance, the calibration of the scores, the novelties of known images) is chosen by leaving out one
training image at a time, in closed form. So any order of the images, any division into steps and any repetition gives
the same model, and removing images or classes gives the model that never saw them.

With `options.adapt`, adapters of the network are trained when enough classes have arrived. The features of earlier
images, which are gone by then, are moved as those of the available images move. So arrivals have a small effect.
"""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import NonNegativeInt, PositiveInt, model_validator
from torch import Tensor
from torch.nn import functional as F

from ffcil.calibration import Calibration, threshold_at
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.losses import cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.fixed_prototypes import FixedPrototypes
from ffcil.methods.parts.kept_features import KeptFeatures, half
from ffcil.methods.parts.left_out import MOST_IMAGES, choose_by_leaving_out
from ffcil.methods.parts.spaces import gathering_steps, tuning_steps
from ffcil.methods.parts.waiting_images import WaitingImages
from ffcil.methods.pretrained import Network, Pretrained
from ffcil.methods.registry import register
from ffcil.models.analytic import fit_drift
from ffcil.models.discriminant import ROWS, ClassSums, Discriminant
from ffcil.models.novelty import Novelty
from ffcil.models.tuners import Adapters
from ffcil.stream import Increment


class AnyArrivalConfig(MethodConfig):
    """AnyArrival's own fields."""

    blocks: NonNegativeInt | None = None
    """Number of last blocks (or stages) of the network whose mean patch features are used besides its own features;
    null: half of the blocks plus one."""
    width: PositiveInt = 1536
    """Largest number of features of an image. If there are more, they are projected onto this number of random
    directions."""
    hidden: NonNegativeInt = 0
    """Number of random features that the discriminant uses besides those of an image: rectified random projections of
    them. They raise the accuracy with hundreds of images per class, but not with a few dozen. The time of a step grows
    with the cube of their number."""
    keep: Literal["features", "statistics"] = "features"
    """What is kept of an image. `features`: its features in half precision (3 kB for 1,536 features). They choose the
    shrinkage and the calibration, and with them images and classes can be removed again. `statistics`: sums only, for
    data of which nothing may be kept. The shrinkage is then estimated from the sums, and scores are not calibrated."""
    adapt: Literal["never", "first", "gathered"] = "never"
    """When adapters of the network are trained. `never`: the network does not change. `first`: at the first step with
    `enough` classes. `gathered`: whenever `enough` classes have arrived since the last training, in one step or in
    several; their images are kept until then."""
    enough: PositiveInt = 80
    """Smallest number of new classes for which adapters are trained. With few classes, adapters lower the accuracy: on
    a choosing seed of Cars, 20 and 40 were below no adaptation, and 80 was above it under every schedule."""
    waiting: NonNegativeInt = 2000
    """Largest number of images that are kept until `gathered` trains adapters. If there are more, every class keeps the
    same number of them. After the training, no image is kept."""
    rank: PositiveInt = 16
    """Rank of the adapters."""

    @model_validator(mode="after")
    def _kept_features_move(self) -> Self:
        if self.adapt != "never" and self.keep != "features":
            raise ValueError(f"adapt={self.adapt} moves kept features: set keep=features, or adapt=never")
        return self

    @model_validator(mode="after")
    def _random_features_stay(self) -> Self:
        if self.adapt != "never" and self.hidden:
            raise ValueError(f"hidden={self.hidden} needs a network that does not change: set adapt=never, or hidden=0")
        return self

    @model_validator(mode="after")
    def _each_class_waits(self) -> Self:
        if self.adapt == "gathered" and self.waiting < self.enough:
            raise ValueError(
                f"waiting={self.waiting} is less than one image for each of enough={self.enough} classes: raise it"
            )
        return self


@register("anyarrival")
class AnyArrival(Pretrained):
    """The score of a class is its calibrated log-probability, so that the softmax of the scores is calibrated."""

    title = "AnyArrival"
    classifiers: ClassVar[Mapping[str, str]] = {"discriminant": "discriminant"}
    Config = AnyArrivalConfig
    config: AnyArrivalConfig
    trains = False  # unless `adapt` is set
    any_network = True
    untuned_by = "options.adapt=never"
    training_only = ("earlier",)
    fixed_features = True
    takes_known_classes = True
    projection: Tensor | None
    hidden: Tensor | None
    weight: Tensor
    bias: Tensor
    right: Tensor
    asked: Tensor

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        device, width = self.engine.device, self.feature_dim
        inputs = width + self.config.hidden
        self.sums = ClassSums(inputs).to(device)
        """Numbers, sums and the common scatter of the features of all classes."""
        self.kept = KeptFeatures(width, device)
        self.calibration = Calibration()
        self.shrinkage = 1.0
        self.novelty: Novelty | None = None
        self._distances: tuple[Network, Network] | None = None
        """Functions that give the distances of features to the classes, and to all images as one class. They are made
        when they are needed, and None before."""
        self.adapters = self.fresh_adapters(self.config.rank if self.tunes_network else 0)
        self.earlier = copy.deepcopy(self.adapters).requires_grad_(False)
        """The adapters at the end of the previous step."""
        self.waiting_images = WaitingImages(self.config.waiting, device)
        self._before = torch.empty(0, width, device=device)
        """Features of a step's training images under the earlier adapters, [N, D]. Only its training needs them."""
        self._prototypes: FixedPrototypes | None = None
        """Prototypes towards which a step trains the adapters."""
        deep = self.network.deep_dim(self._blocks)
        projection = _directions(deep, width, settings.seed) if deep > width else None
        self.register_buffer("projection", projection if projection is None else projection.to(device), False)
        hidden = _random_projection(width, self.config.hidden, settings.seed) if self.config.hidden else None
        self.register_buffer("hidden", hidden if hidden is None else hidden.to(device), False)
        """Projection onto the random features, [feature_dim, hidden]; None without them"""
        self.register_buffer("weight", torch.zeros(0, inputs, device=device))
        """Weights of the uncalibrated scores, [C, D]"""
        self.register_buffer("bias", torch.zeros(0, device=device))
        """Biases of the uncalibrated scores, [C]; -inf for a class without images"""
        self.register_buffer("right", torch.zeros(0, dtype=torch.float64, device=device))
        """Number of left-out images of each class whose highest score is right, [C]"""
        self.register_buffer("asked", torch.zeros(0, dtype=torch.float64, device=device))
        """Number of all left-out images of each class, [C]"""

    @property
    def _blocks(self) -> int:
        """Number of last blocks whose features are used."""
        readable = self.network.blocks
        return min(readable // 2 + 1, readable) if self.config.blocks is None else self.config.blocks

    @property
    def feature_dim(self) -> int:
        return min(self.network.deep_dim(self._blocks), self.config.width)

    @property
    def feature_kind(self) -> str:
        drawn = "" if self.projection is None else f" {self.config.width} {self.settings.seed}"
        return f"deep {self._blocks}{drawn}"

    def features(self, images: Tensor) -> Tensor:
        return self._adapted(self.adapters, images)

    def _adapted(self, adapters: Adapters, images: Tensor) -> Tensor:
        """Features under a set of adapters: [B, 3, H, W] -> [B, feature_dim]"""
        deep = self.deep_features(images, self._blocks, adapters.tunings())
        return deep if self.projection is None else deep @ self.projection

    def inputs(self, features: Tensor) -> Tensor:
        """What the discriminant reads: [N, feature_dim] -> [N, feature_dim + hidden]. It depends on the image alone: no
        statistics of other images scale the features, so that arrivals have no effect."""
        features = features.float()
        if self.hidden is None:
            return features
        return torch.cat([features, F.relu(F.layer_norm(features, features.shape[1:]) @ self.hidden)], dim=1)

    def _inputs_in_parts(self, features: Tensor, targets: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Inputs and classes of few images at a time, because inputs may be many times as large as features."""
        for rows, labels in zip(features.split(ROWS), targets.split(ROWS), strict=True):
            yield self.inputs(rows), labels

    def _add(self, features: Tensor, targets: Tensor) -> None:
        """Add images to the sums."""
        for inputs, labels in self._inputs_in_parts(features, targets):
            self.sums.add(inputs, labels)

    def _remove(self, chosen: Tensor) -> None:
        """Remove kept images, bool [N], from the sums."""
        for inputs, labels in self._inputs_in_parts(*self.kept.take(chosen)):
            self.sums.remove(inputs, labels)

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        self.adapters.requires_grad_(self.tunes)
        self.earlier.load_state_dict(self.adapters.state_dict())
        self.sums.grow(increment.seen_now)
        new = increment.seen_now - len(self.bias)
        self.weight = torch.cat([self.weight, self.weight.new_zeros(new, self.weight.shape[1])])
        self.bias = torch.cat([self.bias, self.bias.new_full((new,), -torch.inf)])
        self.right, self.asked = (torch.cat([known, known.new_zeros(new)]) for known in (self.right, self.asked))

    def classify(self, features: Tensor) -> Tensor:
        probabilities = self.calibration(F.linear(self.inputs(features), self.weight, self.bias))
        return probabilities.clamp_min(torch.finfo(probabilities.dtype).tiny).log()

    # --- adapting the network -------------------------------------------------------------------------------------

    @property
    def tunes_network(self) -> bool:
        return self.config.adapt != "never"

    @property
    def tuned_steps(self) -> list[bool]:
        if self.config.adapt == "gathered":
            return gathering_steps(self.boundaries, self.config.enough)
        large = tuning_steps(self.boundaries, self.config.enough)
        first = large.index(True) if self.config.adapt == "first" and any(large) else None
        return [step == first for step in range(len(large))]

    def fixed_networks(self) -> Sequence[Network]:
        return [] if self.config.adapt == "gathered" else super().fixed_networks()

    def training_rows(self, increment: Increment) -> Tensor:
        return torch.cat([self.waiting_images.rows, increment.rows])

    def kept_rows(self) -> Tensor:
        return self.waiting_images.rows

    def renumber(self, position: Tensor) -> None:
        self.waiting_images.renumber(position)

    @torch.no_grad()
    def prepare(self, increment: Increment, rows: Tensor) -> None:
        """Fix the prototypes of all classes, in the space before the training."""
        self._before = self.applied(increment.train, rows, partial(self._adapted, self.earlier))
        sums, new = copy.deepcopy(self.sums), len(self.waiting_images)
        sums.add(self._before[new:], increment.train.labels[rows[new:]])
        self._prototypes = FixedPrototypes.of(sums)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        assert self._prototypes is not None
        return self.reduce(cross_entropy(self._prototypes.scores(self.features(images)), targets), targets)

    def features_to_fit(self, increment: Increment) -> tuple[Tensor, Tensor]:
        return self.extract_features(increment)  # unlike in the base class, no further features wait for the tuning

    def _move_kept(self, increment: Increment, features: Tensor) -> None:
        """Move all kept features to the space of the newly trained adapters. Those of available images are computed
        again; all others are moved by a linear map."""
        train, rows, waiting = increment.train, self.training_rows(increment), self.waiting_images.rows
        if len(waiting):
            features = torch.cat([self.applied(train, waiting, self.features), features])
        drift = fit_drift(self._before, features, self.generator(increment, "drift"))
        self.kept.features = torch.cat([half(drift(part.float())) for part in self.kept.features.split(ROWS)])
        self.kept.replace(half(features), train.labels[rows], train.digests(rows))
        self.statistics.means.copy_(drift(self.statistics.means))
        self.sums.restart()
        self._add(self.kept.features, self.kept.targets)

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        if self.tunes:
            self._move_kept(increment, features)
            self.waiting_images.clear()
        features = half(features)
        if self.config.keep == "features":
            digests = increment.train.digests(increment.rows)
            new = self.kept.first_seen(digests, targets)
            features, targets = features[new], targets[new]
            self.kept.add(features, targets, digests[new])
            if self.config.adapt == "gathered" and not self.tunes:
                self.waiting_images.add(increment.train, increment.rows[new])
        self._add(features, targets)
        self._solve()
        return {"shrinkage": self.shrinkage, "temperature": self.calibration.temperature}

    def finish(self, increment: Increment) -> dict[str, Any]:
        notes = super().finish(increment)
        if self.ha is not None:
            self._remember_known_classes(increment)
        return notes

    def _remember_known_classes(self, increment: Increment) -> None:
        """Compute the statistics of known classes with new images from all of their kept features."""
        targets = increment.train.labels[increment.rows]
        rows = torch.isin(self.kept.targets, targets[targets < increment.seen_before])
        if rows.any():
            self.statistics.remember(self.kept.features[rows].float(), self.kept.targets[rows])

    @torch.no_grad()
    def _solve(self) -> None:
        """Compute the head from the sums. Left-out images choose what the sums do not determine, if there are any."""
        self._distances, self.novelty, self.calibration = None, None, Calibration()
        self.right, self.asked = torch.zeros_like(self.sums.counts), torch.zeros_like(self.sums.counts)
        if not self.sums.counts.any():  # all images have been removed
            self.weight, self.bias = torch.zeros_like(self.weight), torch.zeros_like(self.bias)
            return
        discriminant = Discriminant.of(self.sums)
        if discriminant.can_be_left_out(self.kept.targets).any():
            choice = choose_by_leaving_out(self.sums, discriminant, self.kept, self.inputs)
            self.shrinkage, self.calibration, self.novelty = choice.shrinkage, choice.calibration, choice.novelty
            self.right, self.asked = choice.right, choice.asked
        else:
            self.shrinkage = discriminant.shrinkage_from_sums()
        weight, bias = discriminant.linear(self.shrinkage)
        self.weight, self.bias = weight.to(self.weight), bias.to(self.bias)

    # --- for classifiers ------------------------------------------------------------------------------------------

    def left_out_counts(self) -> tuple[Tensor, Tensor] | None:
        return (self.right, self.asked) if self.config.keep == "features" else None

    def open_scores(self, images: Tensor) -> tuple[Tensor, Tensor | None]:
        return self.describe(images)[:2]

    def describe(self, images: Tensor) -> tuple[Tensor, Tensor | None, Tensor]:
        features = self.all_features(images)
        return self.score_features(features), self.novelty_of(features), features

    def novelty_of(self, features: Tensor) -> Tensor | None:
        """Novelty of images from their features, [B, D] -> [B]; None if no image could be left out."""
        if self.novelty is None:
            return None
        if self._distances is None:
            self._distances = (
                Discriminant.of(self.sums).distances(self.shrinkage),
                Discriminant.of(self.sums.merged()).distances(self.shrinkage),
            )
        (to_classes, to_all), inputs = self._distances, self.inputs(features)
        return self.novelty(to_classes(inputs), to_all(inputs)[:, 0])

    def comparable_features(self, features: Tensor) -> Tensor:
        # Whitening gives little weight to directions in which images of one class differ. Of ten car models that were
        # not learned, groups of such features found 5 to 10 (70 % of a group are of one model), groups of plain
        # features none.
        return Discriminant.of(self.sums).whitened(self.inputs(features), self.shrinkage).float()

    def unlearned_scores(self, images: ImageSet) -> Tensor:
        def plain(batch: Tensor) -> Tensor:
            return F.linear(self.inputs(self.all_features(batch)), self.weight, self.bias)

        scores = torch.cat(list(self.over(images.images, torch.arange(len(images)), plain)))
        learned, kept = self.kept.find(images.digests(torch.arange(len(images), device=images.labels.device)))
        if not len(learned):
            return scores
        discriminant = Discriminant.of(self.sums)
        removable = discriminant.can_be_left_out(self.kept.targets[kept])
        learned, kept = learned[removable], kept[removable]
        for rows, kept_rows in zip(learned.split(MOST_IMAGES), kept.split(MOST_IMAGES), strict=True):
            features, targets = self.inputs(self.kept.features[kept_rows]), self.kept.targets[kept_rows]
            scores[rows] = (-discriminant.left_out_distances(features, targets, self.shrinkage) / 2).to(scores)
        return scores

    @property
    def tells_unknown(self) -> bool:
        return self.config.keep == "features"

    def novelty_limit(self, false_alarms: float) -> float:
        self._check_kept("tell unknown images")
        return math.inf if self.novelty is None else threshold_at(self.novelty.known, false_alarms)

    def known_features(self) -> tuple[Tensor, Tensor] | None:
        return (self.kept.features, self.kept.targets) if self.config.keep == "features" else None

    def known_images(self) -> tuple[Tensor, Tensor] | None:
        return (self.kept.digests, self.kept.targets) if self.config.keep == "features" else None

    # --- removing -------------------------------------------------------------------------------------------------

    def forget(self, classes: Sequence[int]) -> None:
        self._check_removable("forget classes")
        gone = torch.tensor(sorted(set(classes)), dtype=torch.int64, device=self.bias.device)
        self._remove(torch.isin(self.kept.targets, gone))
        stay = torch.ones(len(self.bias), dtype=torch.bool, device=gone.device)
        stay[gone] = False
        rows = stay.nonzero().flatten()
        self.sums.select(rows)
        self.statistics.select(rows)
        self.kept.targets = (stay.cumsum(0) - 1)[self.kept.targets]
        self.weight, self.bias = self.weight[rows], self.bias[rows]
        self.boundaries = [int(stay[:boundary].sum()) for boundary in self.boundaries]
        self._solve()

    def remove(self, images: ImageSet, learned_again: bool = False) -> Tensor:
        self._check_removable("remove images")
        digests = images.digests(torch.arange(len(images), device=images.labels.device))
        found = torch.isin(digests, self.kept.digests)
        if found.any():
            self._remove(torch.isin(self.kept.digests, digests))
            if not learned_again:
                self._solve()
        return found

    def _check_removable(self, task: str) -> None:
        self._check_kept(task)
        if self.tunes_network:
            raise InputError(
                f"options.adapt={self.config.adapt} cannot {task}, because the network is trained on images: create "
                "the classifier with options.adapt=never, or return to an earlier version with ffcil undo."
            )
        if self.ha is not None:
            raise InputError(
                f"ha.use=true cannot {task}, because HA is trained on images: create the classifier with ha.use=false, "
                "or return to an earlier version with ffcil undo."
            )

    def _check_kept(self, task: str) -> None:
        if self.config.keep != "features":
            raise InputError(
                f"options.keep=statistics cannot {task}: create the classifier with options.keep=features."
            )

    # --- state ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        chosen = {
            "shrinkage": self.shrinkage,
            "calibration": asdict(self.calibration),
            "novelty": None if self.novelty is None else self.novelty.state(),
        }
        return {**super().state(), "chosen": chosen, "kept_features": self.kept.state(), **self.waiting_images.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._distances = None
        self.kept.restore(state["kept_features"])
        self.waiting_images.restore(state)
        chosen = state["chosen"]
        self.shrinkage = chosen["shrinkage"]
        fitted: dict[str, Any] = chosen["calibration"]  # a file has lists instead of tuples
        tuples = {name: tuple(value) for name, value in fitted.items() if isinstance(value, list | tuple)}
        self.calibration = Calibration(**{**fitted, **tuples})
        self.novelty = Novelty.restored(chosen["novelty"], self.engine.device) if chosen["novelty"] else None


def _directions(features: int, width: int, seed: int) -> Tensor:
    """Random orthonormal directions, [features, width]."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(features, width, generator=generator, dtype=torch.float64)
    directions: Tensor = torch.linalg.qr(noise)[0]
    return directions.float()


def _random_projection(features: int, hidden: int, seed: int) -> Tensor:
    """Projection of features of variance 1 onto random features of variance 1, [features, hidden]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(features, hidden, generator=generator) / math.sqrt(features)
