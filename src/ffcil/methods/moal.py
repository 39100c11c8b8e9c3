"""MoAL: adapters that follow every step slowly, and ridge regression in closed form that rehearses old classes.

Gao et al., "Knowledge Memorization and Rumination for Pre-trained Model-based Class-Incremental Learning", CVPR 2025.
"""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Self

import torch
from pydantic import Field, PositiveInt, model_validator
from torch import Tensor, nn

from ffcil.data.augment import Draws
from ffcil.data.ragged import image_sizes
from ffcil.errors import InputError
from ffcil.losses import class_wise_mean, cross_entropy
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.analytic import SCALE, AnalyticConfig, is_largest_step
from ffcil.methods.parts.sgd_map import fit_map
from ffcil.methods.pretrained import Network, Pretrained
from ffcil.methods.registry import register
from ffcil.models.analytic import AnalyticHead, fit_drift
from ffcil.models.heads import GrowingCosine, cosine
from ffcil.models.recursive import RecursiveHead
from ffcil.stream import Increment
from ffcil.training.fit import Training
from ffcil.training.seeds import derive_seed


class MoALConfig(AnalyticConfig):
    """MoAL's own fields. `released` has these departures, all from the authors' code:

    - The head is computed by recursion in single precision (`RecursiveHead`), and so is the choice of lambda. Where
      numbers overflow, the code stops; here predictions are at the level of chance, and the run continues.
    - The map of the prototypes is fitted by 1000 epochs of SGD from a random start (`fit_map`). A step with few images
      or classes determines little of it, and it then moves the means of old classes far from their features.
    - Augmented images are used for the features that are memorised, for the choice of lambda and for the map.
    - The training head is drawn again after the first step, and its rows of new classes start at zero.
    """

    hidden: PositiveInt = 15000
    """Number of random features."""
    momentum: float = Field(0.999, ge=0, le=1)
    """Momentum alpha of eq. (5): the share of the adapters that an epoch leaves unchanged."""
    first_targets: float = Field(0.9, gt=0, le=1)
    """Regression target of the first step's features; 0.9 in the published code, not mentioned in the paper."""
    released: bool = False
    """Whether to follow the authors' released code where it departs from their algorithm and results change."""

    @model_validator(mode="after")
    def _one_ridge(self) -> Self:
        if self.released and self.ridge_from != "published":
            raise ValueError("the recursion of released=true keeps the first step's ridge: set ridge_from=published")
        return self


@register("moal")
class MoAL(Pretrained):
    """One set of adapters. After the training of a step, their running mean over the epochs replaces them, eq. (5).

    Then the means of the old classes follow the adapters, and the features of the step are memorised, eq. (9). Features
    of old classes are synthesised from those of new ones. Those that the new weights misclassify are memorised, too
    (rumination, eq. (14)). `statistics.means` are the prototypes, around which HA draws features of old classes.

    Where the paper and the published code differ, this follows the code: the map of the prototypes is linear (an MLP in
    the paper), features move from the mean of the new class to that of the old one (eq. (12) has the opposite signs),
    and real features of the new classes are ruminated as well.

    Departures from the code, unless `released` is set:
    - Sums, solved twice per step, replace many small recursive updates. The weights are the same.
    - The map of the prototypes is found by ridge regression (`fit_drift`), not by 1000 epochs of SGD.
    - All features are of images without augmentation, as at test time. The code memorises augmented ones.
    - Rows of new classes in the cosine head start at random values, because the first gradient of a row of zeros is
      about 1e12. The rows of the first step are kept, where the code draws a new head.

    With the class-wise mean, all classes seen have equal weights in the sums (with `released`, all classes of a step)
    and among the candidates for rumination. The first step chooses lambda once, unless `ridge_from` is `largest` or
    `flow.shared_ridge` lets the images of all steps choose it. With `flow.enough`, the first step that has enough
    classes is trained without a running mean.
    """

    title = "MoAL"
    paper = (
        "https://openaccess.thecvf.com/content/CVPR2025/html/Gao_Knowledge_Memorization_and_Rumination_for_"
        "Pre-trained_Model-based_Class-Incremental_Learning_CVPR_2025_paper.html"
    )
    classifiers: ClassVar[Mapping[str, str]] = {"analytic": "analytic head"}
    Config = MoALConfig
    config: MoALConfig
    training_only = ("head", "running", "earlier")
    chooses_ridge = True

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.adapters = self.fresh_adapters(self.config.rank)
        self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
        """Head for the training of the adapters. Predictions do not use it."""
        bound = self.feature_dim**-0.5
        draw = partial(nn.init.uniform_, a=-bound, b=bound)
        self.analytic = self._build_head(draw).to(self.engine.device)
        self.running = copy.deepcopy(self.adapters).requires_grad_(False)
        """Running mean of the adapters over the epochs of a step. It starts at the adapters of the previous step."""
        self.earlier = copy.deepcopy(self.adapters).requires_grad_(False)
        """The adapters at the end of the previous step."""

    def _build_head(self, draw: Callable[[Tensor], Tensor]) -> AnalyticHead | RecursiveHead:
        framework, balanced = self.settings.framework, self.reduce is class_wise_mean
        if not self.config.released:
            return AnalyticHead(self.feature_dim, self.config.hidden, draw, framework.shared_ridge, balanced)
        if framework.shared_ridge or framework.enough > 1:
            raise InputError(
                "options.released=true is the authors' code, without the parts of flow: set framework=none."
            )
        return RecursiveHead(self.feature_dim, self.config.hidden, draw, self.settings.train.batch, balanced)

    @property
    def may_collapse(self) -> bool:
        return self.config.released

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if self.config.released and len(self.boundaries) == 2:
            self.head = GrowingCosine(self.feature_dim).to(self.engine.device)
            self.head.grow(increment.seen_before)
        self.head.grow(increment.seen_now, zeros=self.config.released and increment.seen_before > 0)
        self.analytic.grow(increment.seen_now)
        for part in (self.adapters, self.head):
            part.requires_grad_(self.tunes)
        for copied in (self.running, self.earlier):
            copied.load_state_dict(self.adapters.state_dict())

    def training_plan(self, increment: Increment) -> Training | None:
        if not self.tunes:
            return None
        # the adapters of the first tuning are not averaged with the untuned ones
        return self.train_on_images(increment, after_epoch=None if self.tunes_first else self._average)

    @torch.no_grad()
    def _average(self) -> None:
        """Update the running mean, eq. (5)."""
        for average, now in zip(self.running.parameters(), self.adapters.parameters(), strict=True):
            average.lerp_(now, 1 - self.config.momentum)

    def features(self, images: Tensor) -> Tensor:
        return self.adapted(self.adapters, images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        return self.reduce(cross_entropy(self.head(self.features(images)), targets), targets)

    def finish(self, increment: Increment) -> dict[str, Any]:
        if not self.tunes_first:
            self.adapters.load_state_dict(self.running.state_dict())
        return super().finish(increment)

    def classify(self, features: Tensor) -> Tensor:
        scores: Tensor = self.analytic(features)
        return SCALE * scores

    def fit_classifier(self, increment: Increment, features: Tensor, targets: Tensor) -> dict[str, Any]:
        self.statistics.remember(features, targets)
        memorised, labels = features, targets
        # the classifier starts anew if features of earlier classes waited for this step to tune the network
        first = increment.seen_before == 0 or bool((targets < increment.seen_before).any())
        if self.config.released:
            (memorised,), labels = self.augmented_features(increment, "memorising", self.features)
        by_this_step = first if self.config.ridge_from == "published" else is_largest_step(self.boundaries)
        if by_this_step or self.settings.framework.shared_ridge:
            self.analytic.choose(memorised, labels, self.generator(increment, "ridge"))
        if not first:
            self._move_means(increment, features)
        self.analytic.add(memorised, labels)
        if first:
            self.analytic.scale_targets(self.config.first_targets)
        self.analytic.solve()
        ruminated = 0 if first else self._ruminate(increment, features, targets)
        notes = {"ridge": self.analytic.ridge.item(), "ruminated": ruminated}
        return {**notes, "collapsed": self.analytic.collapsed} if self.config.released else notes

    def restart(self) -> None:
        if isinstance(self.analytic, AnalyticHead):
            self.analytic.restart()

    def _move_means(self, increment: Increment, features: Tensor) -> None:
        """Move the means of old classes as the training moved the features of the step's images."""
        earlier, generator = partial(self.adapted, self.earlier), self.generator(increment, "drift")
        old = self.statistics.means[: increment.seen_before]
        if self.config.released:
            (before, after), _ = self.augmented_features(increment, "moving", earlier, self.features)
            old.copy_(fit_map(before, after, generator, self.engine)(old))
        else:
            before, _ = self.extract_features(increment, earlier)
            old.copy_(fit_drift(before, features, generator)(old))

    def augmented_features(
        self, increment: Increment, use: str, *networks: Network
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """Features of all images of a step, each augmented once, by each network, and their classes, in random order.

        `use` names the purpose: each has its own random numbers."""
        generator = torch.Generator().manual_seed(derive_seed(self.settings.seed, increment.step, use))
        store, augmentation = increment.train.images, self.settings.augmentation
        rows = increment.rows.cpu()[torch.randperm(len(increment.rows), generator=generator)]
        draws = augmentation.draw(len(rows), generator, image_sizes(store).cpu()[rows])
        rows, parts = rows.to(store.device), tuple(part.to(store.device) for part in draws)
        features = []
        for batch in torch.arange(len(rows), device=rows.device).split(self.settings.evaluate_batch):
            images = augmentation.train(store, rows[batch], Draws(*(part[batch] for part in parts)))
            features.append([network(images) for network in networks])
        by_network = tuple(torch.cat(part) for part in zip(*features, strict=True))
        return by_network, increment.train.labels[rows]

    def _ruminate(self, increment: Increment, features: Tensor, targets: Tensor) -> int:
        """Memorise those features of old and new classes that the present weights misclassify. Returns their
        number."""
        synthesised, old_targets = pseudo_features(features, targets, self.statistics.means, increment.seen_before)
        pool, labels = torch.cat([synthesised, features]), torch.cat([old_targets, targets])
        wrong = self.analytic.predict(pool) != labels
        self.analytic.add(pool[wrong], labels[wrong], self.analytic.row_weights(labels)[wrong])
        self.analytic.solve()
        return int(wrong.sum())


def pseudo_features(features: Tensor, targets: Tensor, means: Tensor, old_classes: int) -> tuple[Tensor, Tensor]:
    """Synthesised features of each old class: those of the most similar new class, moved to the mean of the old class.

    Args:
        features: Features of the new classes, [N, D].
        targets: Their classes, [N].
        means: Means of all classes, [C, D]; the first `old_classes` are old.

    Returns:
        The features and their classes, old class by old class.
    """
    nearest = old_classes + cosine(means[:old_classes], means[old_classes:]).argmax(dim=1)  # new class, [old classes]
    moved = [features[targets == new] - means[new] + means[old] for old, new in enumerate(nearest.tolist())]
    classes = [torch.full((len(rows),), old, device=targets.device) for old, rows in enumerate(moved)]
    return torch.cat(moved), torch.cat(classes)
