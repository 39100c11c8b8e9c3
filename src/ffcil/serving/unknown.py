"""The novelty above which a classifier calls an image unknown."""

import math

from ffcil.classifier.classifier import Classifier
from ffcil.classifier.unknown import check_rate


def novelty_limit(classifier: Classifier, false_alarms: float) -> float | None:
    """The novelty above which an image is called unknown; None if the method cannot tell, or has too few images to."""
    check_rate(false_alarms)
    if not classifier.learner.tells_unknown:
        return None
    limit = classifier.learner.novelty_limit(false_alarms)
    return limit if math.isfinite(limit) else None
