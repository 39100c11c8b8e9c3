"""`Settings`, the base class of everything that is configured, and `validate`, which builds one."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from ffcil.errors import InputError


class Settings(BaseModel):
    """Base class of all settings. They are immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def _sentence(error: ValidationError, place: str) -> str:
    first = error.errors()[0]
    parts = list(first["loc"])
    if parts[:1] == ["arrivals"]:
        del parts[1:2]  # pydantic inserts the kind of arrivals here
    name = ".".join(filter(None, (place, *map(str, parts))))
    message = first["msg"].removeprefix("Value error, ").removesuffix(".")
    given = "" if isinstance(first["input"], Mapping | BaseModel) else f", not {first['input']!r}"
    return f"Bad value for {name or 'the configuration'}: {message}{given}."


Model = TypeVar("Model", bound=BaseModel)


def validate(model: type[Model], settings: Mapping[str, Any], place: str = "") -> Model:
    """Build `model` from `settings`, which are the value of the field `place`, or raise an `InputError` of one
    sentence."""
    try:
        return model.model_validate(settings)
    except ValidationError as error:
        raise InputError(_sentence(error, place)) from error
