"""The parts of the framework `flow` and their constants. No other place has these constants."""

from typing import NamedTuple


class FlowPart(NamedTuple):
    """One part of `flow`."""

    on: float
    """Value of its field under `framework=flow`."""
    off: float
    """Value that leaves the method as it is."""
    pretrained: bool
    """Whether it applies to methods with a pre-trained backbone; else to methods that train from scratch."""
    needs: str = ""
    """Attribute that a method must have for it, such as `retrains`; empty: it applies to all of the kind."""
    methods: tuple[str, ...] = ()
    """The built-in methods that have this attribute."""
    acts_on: str = ""
    """Attribute without which a method of the kind stays as it is, although the part is on for all of them under
    `framework=flow`, and records name it. Setting it for such a method is an error."""
    later: bool = False
    """Whether it was added after the first version of `flow`, so that runs of then were stored without it."""


FLOW_PARTS = {
    "adjust": FlowPart(1.0, 0.0, pretrained=False),
    "growth": FlowPart(
        0.1, 0.0, pretrained=False, needs="retrains", methods=("bic", "icarl", "replay", "wa"), later=True
    ),
    "enough": FlowPart(5, 1, pretrained=True, acts_on="trains"),
    "share": FlowPart(0.5, 0.0, pretrained=True, needs="compares_spaces", methods=("cllora", "ease"), later=True),
    "follow": FlowPart(True, False, pretrained=True, needs="drifts", methods=("cllora",), later=True),
    "min_steps": FlowPart(100, 1, pretrained=True, acts_on="trains"),
    "comparable": FlowPart(True, False, pretrained=True, acts_on="compares_spaces"),
    "shared_ridge": FlowPart(True, False, pretrained=True, acts_on="chooses_ridge"),
    "whiten": FlowPart(
        True,
        False,
        pretrained=True,
        needs="compares_means",
        methods=("aper", "cllora", "ease", "simplecil"),
        later=True,
    ),
}
"""The parts by the name of their field."""


def meaning_of_null(part: str) -> str:
    """What null means, for the help text of a part."""
    return f"null: {FLOW_PARTS[part].on:g} if `framework` is `flow`, else {FLOW_PARTS[part].off:g}."
