"""Head-Agnostic Alignment (HA): a small residual map on the features of a frozen learner, for any classifier.

After a step, HA is trained on the features of the step and on features drawn from the stored mean and standard
deviation of every earlier class, so that one correction serves all classes seen. This module needs torch and no
training loop of ffcil. In your own loop, after each step:

    statistics.grow(classes_seen)
    optimiser = torch.optim.Adam(alignment.parameters(), 1e-3)
    for epoch in range(10):
        drawn, drawn_classes = draw_surrogates(statistics, old_classes, 20, generator)
        pool, labels = torch.cat([features, drawn]), torch.cat([targets, drawn_classes])
        for rows in torch.randperm(len(pool)).split(128):
            loss = alignment_loss(alignment, pool[rows], labels[rows], classify)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    statistics.remember(features, targets)

with `alignment = HeadAgnosticAlignment(D)` and `statistics = ClassStatistics(D)`, both made once; `old_classes` and
`classes_seen`, the numbers of classes before and after the step; and `classify`, which computes the scores of all
classes from aligned features. Predict with `classify(alignment(features))`.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.losses import Reduction, cross_entropy, mean
from ffcil.models.class_statistics import ClassStatistics

__all__ = ["ClassStatistics", "HeadAgnosticAlignment", "alignment_loss", "draw_surrogates"]


class HeadAgnosticAlignment(nn.Module):
    """The map h + W_up GELU(W_down LN(h)), paper eq. (14). It starts as the identity, because W_up starts at zero."""

    def __init__(self, features: int, bottleneck: int = 64) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.down = nn.Linear(features, bottleneck)
        self.up = nn.Linear(bottleneck, features)
        nn.init.zeros_(self.up.weight)
        nn.init.zeros_(self.up.bias)

    def forward(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        correction: Tensor = self.up(F.gelu(self.down(self.norm(features))))
        return features + correction


def draw_surrogates(
    statistics: ClassStatistics, classes: int, each: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Draw `each` features of every one of the first `classes` classes, paper eq. (15).

    Returns:
        The features [classes * each, D] and their classes.
    """
    means = statistics.means
    noise = torch.randn(each, classes, means.shape[1], generator=generator, device=means.device)
    drawn = statistics.draw(noise.transpose(0, 1)).transpose(0, 1)
    return drawn.flatten(0, 1), torch.arange(classes, device=means.device).repeat(each)


def alignment_loss(
    alignment: HeadAgnosticAlignment,
    features: Tensor,
    targets: Tensor,
    classify: Callable[[Tensor], Tensor],
    identity_weight: float = 1.0,
    reduce: Reduction = mean,
) -> Tensor:
    """Loss of a batch, paper eq. (16): classification of the aligned features, which must stay near the features.

    Args:
        features: Features as the learner extracts them, [B, D].
        targets: Their classes, [B].
        classify: Function from aligned features to the scores of all classes seen, by the learner's own rule.
            Gradients must reach its argument.
        identity_weight: Weight of the squared distance between aligned features and features, which is a sum over
            the D features. A weight of 1 / D makes it a mean squared error, another reading of eq. (16).
    """
    aligned = alignment(features)
    per_sample = cross_entropy(classify(aligned), targets)
    if identity_weight:
        per_sample = per_sample + identity_weight * (aligned - features).square().sum(dim=1)
    return reduce(per_sample, targets)
