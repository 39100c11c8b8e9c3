"""`FixedPrototypes`: class means that do not change while a network is trained towards them."""

from typing import NamedTuple, Self

from torch import Tensor

from ffcil.models.discriminant import ClassSums, Discriminant
from ffcil.models.heads import cosine

SCALE = 16.0
"""Factor on cosines, for a confident softmax."""


class FixedPrototypes(NamedTuple):
    """Class means of standardised features: centred, and with variance 1 within classes.

    Because the prototypes are fixed, training changes the features of classes without images only a little."""

    centre: Tensor
    """Mean of the class means before standardisation, [D]."""
    deviations: Tensor
    """Standard deviations within classes before standardisation, [D]."""
    means: Tensor
    """Class means of the standardised features, [C, D]."""

    @classmethod
    def of(cls, sums: ClassSums) -> Self:
        found = Discriminant.of(sums)
        return cls(found.centre.float(), found.deviations.float(), found.means.float())

    def scores(self, features: Tensor) -> Tensor:
        """Scaled cosine of each feature with each prototype: [B, D] -> [B, C]"""
        return SCALE * cosine((features - self.centre) / self.deviations, self.means)
