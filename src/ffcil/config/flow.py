"""The parts of the framework `flow` and their constants. No other place has these constants."""

from typing import NamedTuple


class FlowPart(NamedTuple):
    """One part of `flow`."""

    on: float
    """Value of its field under `framework=flow`."""
    off: float
    """Value that leaves the method as it is."""
    pretrained: bool
    """Whether the part is for methods with a pre-trained backbone. Otherwise it is for methods that train from
    scratch."""
    needs: str = ""
    """Attribute that a method must have, such as `retrains`, for the part to be on; empty if it is on for all methods
    of its kind."""
    methods: tuple[str, ...] = ()
    """The built-in methods that have the attribute `needs`."""
    acts_on: str = ""
    """Attribute without which the part has no effect. With `framework=flow`, the part is on and in the records of all
    methods of its kind. Setting it for a method without the attribute is an error."""
    later: bool = False
    """Whether the part was added after the first version of `flow`. Runs of that version were stored without it."""


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
