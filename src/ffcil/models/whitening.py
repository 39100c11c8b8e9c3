"""Cosines with class means in a metric that all classes share.

Images of one class differ much in some directions of the feature space and little in others. A difference in the first
kind of directions says little about the class. So features are whitened before they are compared: their covariance
within classes becomes the identity. The covariance is summed over all images seen so far, of all steps. A class that
arrives alone is thus compared in the metric of all others, and the division of the stream into steps has no effect.

In your own loop, with `whitening = Whitening(D)`, made once, after each step with features [N, D] of its images:

    whitening.add(features, targets)

Score with `cosine(whitening(features), whitening(class_means))`. If steps tune the network, so that each step has its
own feature space, call `grow(spaces)`, and `add` the features in every space with the number of the space. All spaces
share the covariance, because that of a space with few classes, or of the images that tuned it, says little about
others.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ffcil.models.discriminant import ClassSums, Discriminant


class Whitening(nn.Module):
    """Centres features at the mean of the class means, and makes their covariance within classes the identity.

    The covariance is shrunk towards a diagonal matrix by a closed form of the sums, so there is nothing to choose. It
    keeps D x D numbers and no images.
    """

    scatter: Tensor
    freedom: Tensor
    sums: Tensor
    classes: Tensor
    matrix: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("scatter", torch.zeros(features, features, dtype=torch.float64))
        """Sum over all images and spaces of the outer product of x - mu_c, [D, D]"""
        self.register_buffer("freedom", torch.zeros((), dtype=torch.float64))
        """Number of these images minus number of their classes, summed over the spaces"""
        self.register_buffer("sums", torch.zeros(1, features, dtype=torch.float64))
        """Sum of the class means in each space, [S, D]"""
        self.register_buffer("classes", torch.zeros(1, dtype=torch.float64))
        """Number of classes in each space, [S]"""
        self.register_buffer("matrix", torch.eye(features), persistent=False)
        """The map of centred features, [D, D]. It is computed from the sums."""
        self._outdated = False
        """Whether the sums have changed since the map was computed. It is computed once for all images of a step."""
        self.register_load_state_dict_post_hook(_renew)  # type: ignore[no-untyped-call]

    def grow(self, spaces: int) -> None:
        """Add spaces without images, up to `spaces`."""
        new = spaces - len(self.classes)
        self.classes = torch.cat([self.classes, self.classes.new_zeros(new)])
        self.sums = torch.cat([self.sums, self.sums.new_zeros(new, self.sums.shape[1])])

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor, space: int = 0) -> None:
        """Add all images of some classes: features [N, D] in a space, and their classes [N]."""
        present, position = targets.unique(return_inverse=True)
        here = ClassSums(features.shape[1], len(present)).to(features.device)
        here.add(features, position)
        self.scatter += here.scatter
        self.freedom += len(features) - len(present)
        self.sums[space] += here.means.sum(dim=0)
        self.classes[space] += len(present)
        self._outdated = True

    @torch.no_grad()
    def move(self, drift: Callable[[Tensor], Tensor], space: int) -> None:
        """Move the class means of a space by an affine map, [N, D] -> [N, D]. The covariance stays as it is."""
        centre = (self.sums[space] / self.classes[space]).to(self.matrix)
        self.sums[space] = self.classes[space] * drift(centre[None])[0]
        self._outdated = True

    def restart(self) -> None:
        """Remove all images."""
        for values in (self.scatter, self.freedom, self.sums, self.classes):
            values.zero_()
        self._outdated = True

    @torch.no_grad()
    def renew(self) -> None:
        """Compute the map from the sums."""
        features = len(self.matrix)
        metric = Discriminant.of_scatter(self.scatter, float(self.freedom), self.scatter.new_zeros(1, features))
        axes = torch.eye(features, dtype=self.scatter.dtype, device=self.scatter.device)
        self.matrix.copy_(metric.whitened(axes, metric.shrinkage_from_sums()))
        self._outdated = False

    def forward(self, features: Tensor, space: int | Tensor = 0) -> Tensor:
        """Whiten features of a space, [..., D] -> [..., D], or of several spaces [S], [..., S, D] -> [..., S, D]"""
        if self._outdated:
            self.renew()
        centre = self.sums[space] / self.classes[space].clamp_min(1)[..., None]
        return (features - centre.to(features.dtype)) @ self.matrix


def _renew(module: Any, _: object) -> None:
    module.renew()
