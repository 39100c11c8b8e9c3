"""Fields of earlier versions, which configurations, folders of runs and published runs may still have."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ffcil.config.flow import FLOW_PARTS
from ffcil.errors import InputError

_BOOL = TypeAdapter(bool)


def identity_term(value: Any) -> Any:
    """The value of `ha.identity`; earlier versions had true for `sum` and false for `none`."""
    return {True: "sum", False: "none"}[value] if isinstance(value, bool) else value


def _later_parts(fields: Mapping[str, Any], flow: Mapping[str, Any]) -> dict[str, Any]:
    """The parts of `flow` that did not exist yet when a run or a classifier stored its settings, turned off.

    Stored settings have all parts of the first version. Settings with fewer parts are written by users, and all other
    parts keep their defaults."""
    first = [name for name, part in FLOW_PARTS.items() if not part.later]
    if fields.get("framework") != "flow" or not all(name in flow for name in first):
        return {}
    later = {name: part for name, part in FLOW_PARTS.items() if part.later and name not in flow}
    return {name: part.off for name, part in later.items() if fields.get("method") in part.methods}


def renewed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings in their present form.

    `framework` replaces `robust` (true was `paper`, false was `none`), `normalise: published` replaces `auto`, values
    of `ha.identity` are the present ones, and parts of `flow` that did not exist yet are turned off."""
    fields = dict(settings)
    if fields.get("normalise") == "auto":
        fields["normalise"] = "published"
    ha = fields.get("ha")
    if isinstance(ha, Mapping) and "identity" in ha:
        fields["ha"] = {**ha, "identity": identity_term(ha["identity"])}
    flow = fields.get("flow")
    if isinstance(flow, Mapping):
        fields["flow"] = {**flow, **_later_parts(fields, flow)}
    if "robust" not in fields:
        return fields
    given = fields.pop("robust")
    try:
        framework = "paper" if _BOOL.validate_python(given) else "none"
    except ValidationError:
        raise InputError(f"Bad value for robust: it is true or false, not {given!r}; or set framework.") from None
    if fields.setdefault("framework", framework) != framework:
        raise InputError(f"robust={str(given).lower()} contradicts framework={fields['framework']}: drop robust.")
    return fields
