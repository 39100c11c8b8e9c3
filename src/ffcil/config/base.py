"""`Settings`, the base class of all settings, and `validate`, which builds them."""

from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from ffcil.errors import InputError


class Settings(BaseModel):
    """Base class of all settings. They are immutable, and unknown fields are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _true_is_no_number(cls, settings: Any) -> Any:
        """Refuse true and false for numbers. Pydantic would accept them as 1 and 0."""
        for name, value in settings.items() if isinstance(settings, Mapping) else ():
            if isinstance(value, bool) and name in cls.model_fields and _is_number(cls, name):
                raise ValueError(f"{name} is a number, not {str(value).lower()}")
        return settings


@cache
def _is_number(model: type[BaseModel], field: str) -> bool:
    """Whether a field is a number and not also true or false."""
    kinds = _kinds(model.model_fields[field].annotation)
    return bool(kinds & {int, float}) and bool not in kinds


def _kinds(annotation: Any) -> set[Any]:
    """All types in an annotation such as `int | None`."""
    parts = get_args(annotation)
    return {annotation}.union(*map(_kinds, parts)) if parts else {annotation}


_MAPPING = "Input should be a mapping of fields, {} for an empty one"
_PLAIN = {
    "tuple_type": "Input should be a list in brackets, such as [a, b]",
    "dict_type": _MAPPING,
    "model_type": _MAPPING,
    "too_short": "Input should not be empty",
}
"""Messages in the terms of YAML for errors that pydantic describes with types of Python."""


def _sentence(error: ValidationError, place: str) -> str:
    """The first of several errors, as one sentence with the dotted name of its field."""
    first = error.errors()[0]
    parts = list(first["loc"])
    if parts[:1] == ["arrivals"]:
        del parts[1:2]  # pydantic inserts the kind of arrivals here
    name = ".".join(filter(None, (place, *map(str, parts))))
    if first["type"] == "missing":
        return f"{name} is missing: add it."
    message = _PLAIN.get(first["type"], first["msg"]).removeprefix("Value error, ").removesuffix(".")
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
