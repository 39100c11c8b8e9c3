"""`Conventional`: the base of methods that train a network from scratch."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from ffcil.alignment import row_norms
from ffcil.losses import ClassCentres, cross_entropy
from ffcil.methods.learner import Learner, LearnerSettings, MethodConfig
from ffcil.methods.parts.exemplars import Exemplars
from ffcil.methods.parts.spaces import gathering_steps
from ffcil.models.heads import GrowingLinear
from ffcil.models.new_rows import fit_new_rows
from ffcil.stream import Increment

REHEARSAL = {"linear": "linear head", "nearest-mean": "nearest mean"}
"""Classifiers of a method with exemplars."""

LEAST_DECAY = 1e-5
"""Smallest weight decay of head rows that are fitted without the network. With none, rows of separable classes
diverge."""


class Conventional(Learner):
    """One backbone and one growing linear head, trained by cross-entropy over all classes seen.

    With `uses_memory = True` a method also has exemplars: it trains on them, and they give the nearest-mean classifier.

    With `flow.growth`, a step with few classes does not train the network, and `grow` is not called for it. Its classes
    get fitted rows of the head and wait for the next training.
    """

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        if self.retrains and not self.uses_memory:
            raise TypeError(f"{type(self).__name__} has retrains = True without exemplars: set uses_memory = True")
        self.backbone = self.build_backbone()
        width, device = self.backbone.feature_dim, self.engine.device
        self.head = GrowingLinear(width).to(device)
        if self.uses_memory:
            self.centres = ClassCentres(0, width)
        self.exemplars = Exemplars(settings.memory, width, device)
        self.past_ratios: list[tuple[int, float]] = []
        """Number of new classes and ratio of norms of every shrunk alignment so far."""
        self.prior: Tensor | None = None
        """Prior that the count-aware cross-entropy of this step adds to the logits of all classes, [C]; None if it is
        off."""
        self.prior_of_groups: Tensor | None = None
        """The prior with all old classes as one class, followed by the new classes, [1 + new classes]."""

    # --- what a method may override -------------------------------------------------------------------------------

    def grow(self, increment: Increment) -> None:
        self.head.grow(increment.seen_now)
        self.reset_centres(increment)

    def features(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] -> [B, D]; only the backbone runs in reduced precision."""
        return self.through(self.backbone, images)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        features = self.features(images)
        return self.classification_loss(features, cross_entropy(self.head(features), targets, self.prior), targets)

    def deployed(self) -> Iterable[nn.Module]:
        return [self.backbone, self.head]

    def finish(self, increment: Increment) -> dict[str, Any]:
        notes = {"row_norms": None, "alignment": None} if self.waits else self.align_head(increment)
        return {**notes, **self.update_exemplars(increment)} if self.uses_memory else notes

    # --- what all of them have ------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        before, now = [0, 0, *self.boundaries][-2:]
        if now == before:  # a step with images of known classes only always trains
            return False
        return not gathering_steps(self.boundaries, growth=self.settings.framework.growth)[-1]

    def begin(self, increment: Increment) -> None:
        super().begin(increment)
        if self.waits:
            self.head.grow(increment.seen_now)

    @property
    def prior_of_new(self) -> Tensor | None:
        """The prior for a loss among the new classes only, [new classes]."""
        return None if self.prior_of_groups is None else self.prior_of_groups[1:]

    def prepare(self, increment: Increment, rows: Tensor) -> None:
        """Count the images of each class in the training set of a step, for the count-aware cross-entropy.

        A method without exemplars has no images of old classes. Each old class is then assumed to have as many images
        as a new class has on average, so that the balance of old and new classes in the loss does not change."""
        labels = increment.train.labels
        counts = torch.bincount(labels[rows.to(labels.device)], minlength=increment.seen_now).to(self.engine.device)
        old, new = counts.float().split([increment.seen_before, len(increment.classes)])
        if not old.any():
            old = new.mean().expand(len(old))
        counts = torch.cat([old, new])
        prior = self.settings.framework.prior
        self.prior, self.prior_of_groups = prior(counts), prior(torch.cat([old.sum(dim=0, keepdim=True), new]))

    def through(self, network: nn.Module, images: Tensor) -> Tensor:
        """Apply a network in the engine's precision; its features are float32."""
        with self.engine.autocast():
            features: Tensor = network(images)
        return features.float()

    def reset_centres(self, increment: Increment) -> None:
        """Start new centres for the centre loss, because the training of a step moves all features."""
        if self.settings.framework.centre_weight:
            self.centres = ClassCentres(increment.seen_now, self.head.weight.shape[1]).to(self.engine.device)

    def classification_loss(self, features: Tensor, per_sample: Tensor, targets: Tensor) -> Tensor:
        """Reduce the per-sample loss [B], and add the centre loss."""
        return self.reduce(per_sample, targets) + self.centre_loss(features, targets)

    def centre_loss(self, features: Tensor, targets: Tensor) -> Tensor | float:
        """Centre loss of a batch, paper eq. (8), for the nearest-mean classifier; 0 if it is off."""
        if weight := self.settings.framework.centre_weight:
            gather = self.engine.parallel.gather  # the centres follow all samples of a batch
            distances: Tensor = self.centres(gather(features), gather(targets))
            return weight * distances.mean()
        return 0.0

    def scores(self, features: Tensor) -> dict[str, Tensor]:
        """Scores [B, classes], by classifier."""
        scores = {"linear": self.head(features)}
        return {**scores, "nearest-mean": self.exemplars.nearest_mean(features)} if self.uses_memory else scores

    def logits(self, images: Tensor) -> dict[str, Tensor]:
        return self.scores(self.features(images))

    def align_head(self, increment: Increment) -> dict[str, Any]:
        """Align the rows of the new classes. Returns notes: the norms of the rows before, and the alignment."""
        old_and_new = 0 < increment.seen_before < increment.seen_now
        before = row_norms(self.head.weight, increment.seen_before) if old_and_new else None
        done = self.settings.framework.align(self.head.weight, increment, self.past_ratios)
        if done and self.settings.framework.alignment == "shrunk":
            self.past_ratios.append((len(increment.classes), done.ratio))
        return {"row_norms": before, "alignment": asdict(done) if done else None}

    def update_exemplars(self, increment: Increment) -> dict[str, Any]:
        """Choose exemplars of the new classes and compute all class means. If the new classes wait, also fit their rows
        of the head. All of this uses the features of one pass over exemplars and new images."""
        new_rows, old_rows = increment.rows_by_class(), self.exemplars.by_class
        groups = [*old_rows, *new_rows]
        rows = torch.cat([group.to(self.engine.device) for group in groups])
        features = torch.cat(list(self.over(increment.train.images, rows, self.features)))
        if self.waits:
            labels = increment.train.labels
            self.fit_rows(increment, features, labels[rows.to(labels.device)].to(features.device))
        by_class = features.split([len(group) for group in groups])
        self.exemplars.choose(new_rows, by_class[len(old_rows) :])
        self.exemplars.update_means(groups, by_class)
        return {"memory": len(self.exemplars)}

    @torch.no_grad()
    def fit_rows(self, increment: Increment, features: Tensor, targets: Tensor) -> None:
        """Fit the head's rows of the new classes to features [N, D] of exemplars and new images. Nothing else
        changes."""
        old, decay = increment.seen_before, self.phase(increment).weight_decay
        known = self.head(features)[:, :old]
        weight, bias = fit_new_rows(features, targets, known, increment.seen_now, max(decay, LEAST_DECAY))
        self.head.weight[old:], self.head.bias[old:] = weight.to(features), bias.to(features)

    def training_rows(self, increment: Increment) -> Tensor:
        return torch.cat([increment.rows, self.exemplars.rows().to(increment.rows.device)])

    def kept_rows(self) -> Tensor:
        return self.exemplars.rows()

    def renumber(self, position: Tensor) -> None:
        self.exemplars.renumber(position)

    def state(self) -> dict[str, Any]:
        own = super().state()
        if self.settings.framework.alignment == "shrunk":
            own["past_ratios"] = [list(pair) for pair in self.past_ratios]
        return {**own, **self.exemplars.state()} if self.uses_memory else own

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.past_ratios = [(int(n), float(ratio)) for n, ratio in state.get("past_ratios", [])]
        if self.uses_memory:
            self.exemplars.restore(state)
