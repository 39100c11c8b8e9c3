"""The training of Head-Agnostic Alignment (HA) after a step, and the guard that undoes it if it does harm."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ffcil.config.settings import HaSettings
from ffcil.ha import HeadAgnosticAlignment, alignment_loss, draw_surrogates
from ffcil.losses import Reduction
from ffcil.methods.learner import finite_or_none
from ffcil.models.class_statistics import ClassStatistics
from ffcil.training.batches import FeatureSource
from ffcil.training.engine import Engine
from ffcil.training.fit import Optimisation, ParameterGroup, Training, fit

HELD_OUT = 10
"""The guard holds out one in this number of a step's features."""
Features = tuple[Tensor, Tensor]
"""Features [N, D] and their classes [N]."""


@dataclass(frozen=True)
class AlignmentTraining:
    """Trains HA on the features of a step and on surrogates of earlier classes, paper eq. (16)."""

    settings: HaSettings
    classify: Callable[[Tensor], Tensor]
    """Function from aligned features [B, D] to scores of all classes seen, [B, C]."""
    reduce: Reduction
    engine: Engine
    may_diverge: bool = False
    """Whether training continues if the loss is not finite."""

    def train(
        self,
        alignment: HeadAgnosticAlignment,
        features: Tensor,
        targets: Tensor,
        known: tuple[ClassStatistics, int],
        generator: torch.Generator,
    ) -> dict[str, Any]:
        """Train `alignment` in place.

        Args:
            features: Features of the step, [N, D].
            targets: Their classes, [N].
            known: Statistics of all classes, and the number of earlier classes, from which surrogates are drawn.
            generator: Draws the surrogates and shuffles.

        Returns:
            Notes of a record: the loss of the last epoch and, with the guard, whether the training was kept.
        """
        if not self.settings.guard:
            return {"ha_loss": finite_or_none(self._fit(alignment, (features, targets), known, generator))}
        order = torch.randperm(len(targets), generator=generator, device=targets.device)
        held, rest = order[::HELD_OUT], order
        if len(order) > 1:  # a single feature is both held out and trained on
            rest = order[torch.arange(len(order), device=order.device) % HELD_OUT != 0]
        drawn, drawn_classes = draw_surrogates(*known, self.settings.surrogates, generator)
        unseen = torch.cat([features[held], drawn]), torch.cat([targets[held], drawn_classes])
        before = copy.deepcopy(alignment.state_dict())
        error_before = self._error(alignment, unseen)
        loss = self._fit(alignment, (features[rest], targets[rest]), known, generator)
        kept = self._error(alignment, unseen) < error_before
        if not kept:
            alignment.load_state_dict(before)
        return {"ha_loss": finite_or_none(loss), "ha_kept": kept}

    @torch.no_grad()
    def _error(self, alignment: HeadAgnosticAlignment, unseen: Features) -> float:
        """Error rate, averaged over classes, so that every class has the same weight."""
        features, targets = unseen
        wrong = (self.classify(alignment(features)).argmax(dim=1) != targets).double()
        classes, position = targets.unique(return_inverse=True)
        count = torch.bincount(position, minlength=len(classes))
        return (torch.bincount(position, wrong, minlength=len(classes)) / count).mean().item()

    def _fit(
        self,
        alignment: HeadAgnosticAlignment,
        own: Features,
        known: tuple[ClassStatistics, int],
        generator: torch.Generator,
    ) -> float:
        """Train on a step's own features and on surrogates, which are drawn again for every epoch. Returns the loss of
        the last epoch."""
        settings, (features, targets), (statistics, old) = self.settings, own, known
        factor = {"sum": 1.0, "mean": 1 / features.shape[1], "none": 0.0}[settings.identity]
        identity_weight, rate = settings.identity_weight * factor, settings.learning_rate

        def loss(features: Tensor, targets: Tensor) -> Tensor:
            return alignment_loss(alignment, features, targets, self.classify, identity_weight, self.reduce)

        def draw() -> Features:
            drawn, drawn_classes = draw_surrogates(statistics, old, settings.surrogates, generator)
            return torch.cat([features, drawn]), torch.cat([targets, drawn_classes])

        training = Training(
            loss,
            [ParameterGroup(list(alignment.parameters()))],
            FeatureSource(draw, len(features) + old * settings.surrogates, settings.batch, generator),
            Optimisation(settings.epochs, lambda epoch: rate, optimiser="adam"),
            generator.initial_seed(),
            remedy="lower ha.learning_rate",
            may_diverge=self.may_diverge,
        )
        alignment.requires_grad_(True)
        try:
            return fit(training, self.engine).loss
        finally:
            alignment.requires_grad_(False)
