"""`FixedPrototypes`: class means that stay where they are while a network is trained towards them."""

from typing import NamedTuple, Self

from torch import Tensor

from ffcil.models.discriminant import ClassSums, Discriminant
from ffcil.models.heads import cosine

SCALE = 16.0
"""Factor on cosines, for a confident softmax."""


class FixedPrototypes(NamedTuple):
    """Class means of features that are centred and have variance 1 within classes.

    Nothing moves the goal during the training, so that features of classes without images move little."""

    centre: Tensor
    """[D]"""
    deviations: Tensor
    """[D]"""
    means: Tensor
    """[C, D]"""

    @classmethod
    def of(cls, sums: ClassSums) -> Self:
        found = Discriminant.of(sums)
        return cls(found.centre.float(), found.deviations.float(), found.means.float())

    def scores(self, features: Tensor) -> Tensor:
        """Scaled cosine of each feature with each prototype: [B, D] -> [B, C]"""
        return SCALE * cosine((features - self.centre) / self.deviations, self.means)
