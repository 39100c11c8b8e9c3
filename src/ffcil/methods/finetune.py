"""Finetune: train on the new classes only. It is the lower bound: it forgets."""

from ffcil.methods.conventional import Conventional
from ffcil.methods.registry import register


@register("finetune")
class Finetune(Conventional):
    """Cross-entropy over all classes seen, on new images only."""

    title = "Finetune"
    bound = "lower"
