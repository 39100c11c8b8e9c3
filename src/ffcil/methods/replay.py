"""Replay: cross-entropy on new images and on exemplars that herding chooses."""

from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.registry import register


@register("replay")
class Replay(Conventional):
    """Cross-entropy on new images and exemplars together; a nearest-mean classifier beside the linear head."""

    title = "Replay"
    classifiers = REHEARSAL
    uses_memory = True
    retrains = True
