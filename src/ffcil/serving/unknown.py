"""Which images a classifier calls unknown."""

import math

from ffcil.classifier.classifier import Classifier
from ffcil.errors import InputError


def novelty_limit(classifier: Classifier, false_alarms: float) -> float | None:
    """The novelty above which an image is called unknown; None if the method cannot tell, or has too few images to."""
    if not 0 < false_alarms < 1:
        raise InputError(f"The rate of false alarms is {false_alarms}: choose one between 0 and 1, such as 0.05.")
    try:
        limit = classifier.learner.novelty_limit(false_alarms)
    except InputError:  # most methods cannot tell
        return None
    return limit if math.isfinite(limit) else None
