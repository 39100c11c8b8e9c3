"""`Prototypes`: the mean feature of every class, compared by the cosine."""

from torch import Tensor

from ffcil.models.class_statistics import ClassMeans
from ffcil.models.heads import cosine

SCALE = 20.0
"""Factor on cosines, for the softmax through which HA is trained. It does not change which score is highest."""


class Prototypes(ClassMeans):
    """A classifier: the scaled cosine of a feature with the mean feature of every class."""

    def scores(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        return SCALE * cosine(features, self.means)
