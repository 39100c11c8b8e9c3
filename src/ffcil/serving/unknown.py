"""Which images a classifier calls unknown."""

import math

from ffcil.classifier.classifier import Classifier
from ffcil.errors import InputError


def novelty_limit(classifier: Classifier, false_alarms: float) -> float | None:
    """The novelty above which an image is called unknown; None if the method cannot tell, or has too few images to."""
    if not 0 < false_alarms < 1:
        raise InputError(f"The rate of false alarms is {false_alarms}: choose one between 0 and 1, such as 0.05.")
    if not classifier.learner.tells_unknown:
        return None
    limit = classifier.learner.novelty_limit(false_alarms)
    return limit if math.isfinite(limit) else None
