"""The fields of stored runs that readers need, with their types. A folder may be damaged, edited or of unknown
origin."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveInt, ValidationError, model_validator

from ffcil.errors import InputError

MOST_CLASSES = 10_000_000
"""Largest number of classes that is accepted, so that a damaged number does not exhaust the memory."""

_CONTROL = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
"""Characters that would break a line of a table or move the cursor of a terminal."""
_BROKEN = re.compile("[\\ud800-\\udfff]")
"""Halves of surrogate pairs, which cannot be written to a file."""


def _printable(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("it has control characters")
    return text


Name = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
"""A text that is shown in tables and figures."""
Number = Annotated[float, Field(allow_inf_nan=False)]
Seed = Annotated[int, Field(ge=-1, lt=2**64)]
Scalar = bool | int | Number | Name | None


class _Fields(BaseModel):
    """Fields with their types. Further fields are allowed, because other versions and methods have more."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Ha(_Fields):
    use: bool | None = None
    surrogates: Number = 1
    identity: Literal["sum", "mean", "none"] = "sum"


class _ConfiguredArrivals(_Fields):
    kind: Name | None = None
    classes: int | None = None
    alpha: Number | None = None
    order: Name | None = None


class ConfigFields(_Fields):
    """Fields of config.json."""

    dataset: Name
    method: Name
    framework: Name
    class_seed: Seed | None
    arrival_seed: Seed
    train_seed: Seed
    reduction: Name = "auto"
    alignment: Name = "auto"
    centre_weight: Number = 0
    ha: _Ha = _Ha()
    arrivals: _ConfiguredArrivals = _ConfiguredArrivals()


class ArrivalsFields(_Fields):
    """Fields of arrivals.json."""

    sizes: list[PositiveInt] = Field(min_length=1)
    kind: Name
    order: Name | None = None
    alpha: Number | None = None
    seed: Seed | None = None
    smallest: int | None = None
    largest: int | None = None
    labels: list[str] | None = None


class RecordFields(_Fields):
    """Fields of a record."""

    step: int
    accuracy: dict[Name, Number | None] = Field(min_length=1)
    seconds: dict[str, Number] = {}
    images_per_second: Number | None = None
    parameters: int | None = None
    trained_parameters: int | None = None
    memory: int | None = None
    peak_memory_bytes: int | None = None


class SummaryFields(_Fields):
    """Fields of summary.json."""

    scored: Name
    title: Name = ""
    seconds: Number | None = None
    own_alignment: Name | None = None


class _Framework(_Fields):
    reduction: Name
    alignment: Name
    ha: bool
    flow: dict[Name, Scalar] = {}


class MethodFields(_Fields):
    """Fields of method.json."""

    own_alignment: Name | None
    framework: _Framework
    display_names: dict[str, Name] = {}
    bound: Literal["lower", "upper"] | None = None


class EnvironmentFields(_Fields):
    """Fields of environment.json."""

    device: Name = ""
    data: Name | None = None
    command: str | list[str] | None = None


class DataFields(_Fields):
    """Fields of data.json."""

    classes: list[str] = []
    train_images: list[int] | None = None
    test_images: list[int] | None = None

    @model_validator(mode="after")
    def _one_number_per_class(self) -> Self:
        if any(numbers and len(numbers) != len(self.classes) for numbers in (self.train_images, self.test_images)):
            raise ValueError("there must be one number of images for each class")
        return self


def check_types(fields: type[BaseModel], value: Any, where: object, remedy: str) -> dict[str, Any]:
    """Return the value if its fields have the right types; otherwise raise an error that names the first wrong
    field."""
    try:
        fields.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place, reason = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
        raise InputError(f"{where} is damaged (field {place[:80]!a}: {reason}): {remedy}.") from None
    wrong = _BROKEN if fields is not ConfigFields else re.compile(f"{_BROKEN.pattern}|{_CONTROL.pattern}")
    if text := next(filter(wrong.search, _texts(value)), None):
        raise InputError(f"{where} is damaged (unprintable characters in {text[:80]!a}): {remedy}.")
    checked: dict[str, Any] = value
    return checked


def _texts(value: Any) -> Iterator[str]:
    """All texts in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, dict):
        for item in (*value, *value.values()):
            yield from _texts(item)
