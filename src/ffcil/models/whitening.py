"""Cosines with class means in a metric that all classes share.

Images of one class differ much in some directions of the feature space and little in others. A difference in the
former says little about the class. So features are whitened before they are compared: their covariance within classes
becomes the identity. The covariance is summed over all images seen so far, whatever their step. A class that arrives
alone is compared in the metric of all others, and the number of steps has no effect.

In your own loop, with `whitening = Whitening(D)`, made once, after each step with features [N, D] of its images:

    whitening.grow(classes_so_far)
    whitening.add(features, targets)

Score with `cosine(whitening(features), whitening(class_means))`.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ffcil.models.discriminant import ClassSums, Discriminant


class Whitening(nn.Module):
    """Centres features at the mean of the class means, and makes their covariance within classes the identity.

    With few images, the covariance is shrunk towards a diagonal, by a closed form of the sums alone: there is nothing
    to choose. It keeps D x D numbers, and no image.
    """

    centre: Tensor
    matrix: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.sums = ClassSums(features)
        self.register_buffer("centre", torch.zeros(features), persistent=False)
        self.register_buffer("matrix", torch.eye(features), persistent=False)
        """The map of centred features, [D, D]. It follows from the sums."""
        self.register_load_state_dict_post_hook(_renew)  # type: ignore[no-untyped-call]

    def grow(self, classes: int) -> None:
        """Add classes without images, up to `classes`."""
        self.sums.grow(classes)

    def add(self, features: Tensor, targets: Tensor) -> None:
        """Add images: features [N, D] and their classes [N]."""
        self.sums.add(features, targets)
        self.renew()

    def restart(self) -> None:
        """Remove all images."""
        self.sums.restart()
        self.renew()

    @torch.no_grad()
    def renew(self) -> None:
        """Compute the map from the sums."""
        if not self.sums.counts.any():
            self.centre.zero_()
            self.matrix.copy_(torch.eye(len(self.centre)))
            return
        discriminant = Discriminant.of(self.sums)
        axes = discriminant.centre + torch.eye(len(self.centre)).to(discriminant.centre)
        self.centre.copy_(discriminant.centre)
        self.matrix.copy_(discriminant.whitened(axes, discriminant.shrinkage_from_sums()))

    def forward(self, features: Tensor) -> Tensor:
        """[..., D] -> [..., D]"""
        return (features - self.centre) @ self.matrix


def _renew(module: Any, _: object) -> None:
    module.renew()
