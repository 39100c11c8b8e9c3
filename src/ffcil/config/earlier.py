"""Fields of earlier versions, which configurations, run folders and published runs may still have."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ffcil.errors import InputError

_BOOL = TypeAdapter(bool)


def renewed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings with `framework` in place of `robust`: true was `paper`, false was `none`."""
    fields = dict(settings)
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
