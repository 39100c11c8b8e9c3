"""Rows of a linear head for new classes, by logistic regression on the features of a network that does not change.

In your own loop, with features [N, D] of images of the new classes and of some images of old ones, and with the logits
of the old classes for these images:

    weight, bias = fit_new_rows(features, targets, logits, classes, decay=5e-4)
"""

import torch
import torch.nn.functional as F
from torch import Tensor

ITERATIONS = 100
"""Most iterations of the optimiser. The problem is convex, and it usually needs fewer."""


@torch.enable_grad()
def fit_new_rows(
    features: Tensor, targets: Tensor, logits: Tensor, classes: int, decay: float
) -> tuple[Tensor, Tensor]:
    """Weights [new classes, D] and biases [new classes] of the classes after those of `logits`, in float64.

    They minimise the cross-entropy over all classes, in which every class has the same weight however many images it
    has, plus `decay` / 2 times the squared weights. The logits of the old classes do not change.

    Args:
        features: Features of images of old and new classes, [N, D].
        targets: Their classes, [N].
        logits: Their logits of the old classes, [N, old classes].
        classes: Number of all classes, old and new.
        decay: Weight decay, greater than 0.
    """
    if classes <= logits.shape[1] or decay <= 0:
        raise ValueError(f"classes={classes} must be above {logits.shape[1]}, and decay={decay} above 0")
    features, logits = features.detach().double(), logits.detach().double()
    counts = torch.bincount(targets, minlength=classes)
    share = 1 / (counts[targets] * (counts > 0).sum())
    weight = features.new_zeros(classes - logits.shape[1], features.shape[1], requires_grad=True)
    bias = features.new_zeros(len(weight), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        scores = torch.cat([logits, F.linear(features, weight, bias)], dim=1)
        per_sample = F.cross_entropy(scores, targets, reduction="none")
        total = (share * per_sample).sum() + decay / 2 * weight.square().sum()
        total.backward()
        return total

    optimiser.step(loss)
    return weight.detach(), bias.detach()
