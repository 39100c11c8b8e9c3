"""`StoredRun`: everything that is stored about a run, as a value, and the checks of its parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ffcil.config.earlier import renewed
from ffcil.errors import InputError
from ffcil.metrics import CountTable
from ffcil.runs.fields import (
    MOST_CLASSES,
    ArrivalsFields,
    ConfigFields,
    DataFields,
    EnvironmentFields,
    MethodFields,
    RecordFields,
    SummaryFields,
    check_types,
)

Fields = dict[str, Any]
REMEDY = "remove it and start the run again"
"""Remedy in error messages for a damaged part."""
CONFIG_FIELDS = ("dataset", "method", "framework", "class_seed", "arrival_seed", "train_seed")
PARTS: dict[str, type[BaseModel]] = {
    "summary": SummaryFields,
    "environment": EnvironmentFields,
    "method": MethodFields,
    "data": DataFields,
}
"""Fields of the parts of a run that need no other check than that of their types."""


@dataclass(frozen=True, eq=False)
class StoredRun:
    """One run as its folder or its published file stores it."""

    folder: Path
    """Folder of the run. For a published run: its file without the suffix."""
    config: Fields
    arrivals: Fields
    records: list[Fields]
    """Records of the finished steps, in order."""
    summary: Fields | None
    """Results of a finished run, else None."""
    environment: Fields
    tables: dict[str, CountTable]
    """Confusion counts of each classifier after each finished step; empty before the first step is finished."""
    finished: bool
    data: Fields
    """Fingerprint of the images; empty if it was not stored."""
    method_facts: Fields
    """`own_alignment` and `framework` (reduction, alignment, ha, flow) of the method, and more in new runs."""

    def __post_init__(self) -> None:
        if self.summary is not None and self.summary["scored"] not in self.tables:
            raise InputError(f"{self.folder} is damaged (its scored classifier has no counts): {REMEDY}.")


def derive_method(config: Fields, records: Sequence[Fields], summary: Fields | None) -> Fields:
    """The method's part for a run of an earlier version, which did not write it.

    The paper's framework is DIWA for some methods and HA for others. Only the records show which: a method that trains
    HA records its loss; a method with a linear head, which DIWA aligns, records the norms of its rows.
    """
    paper, ha = config["framework"] == "paper", config.get("ha", {})
    reduction, alignment, use_ha = config.get("reduction", "auto"), config.get("alignment", "auto"), ha.get("use")
    own_alignment = (summary or {}).get("own_alignment")
    recorded = {name for record in records for name in record}
    if use_ha is None:
        use_ha = paper and "ha_loss" in recorded
    if reduction == "auto":
        reduction = "class_wise_mean" if paper else "mean"
    if alignment == "auto":
        has_no_head = ha.get("use") is False and "row_norms" not in recorded
        if paper and not use_ha and not has_no_head:
            alignment = "diwa"
        else:
            alignment = own_alignment = own_alignment or _recorded_alignment(records)
    framework = {"reduction": reduction, "alignment": alignment, "ha": use_ha}
    return {"own_alignment": own_alignment, "framework": framework}


def _recorded_alignment(records: Sequence[Fields]) -> str:
    done = records[-1].get("alignment") if records else None
    return "none" if not isinstance(done, dict) else "wa" if done.get("eta") == 1 else "diwa"


def check_fields(value: Any, where: object, needed: Sequence[str] = ()) -> Fields:
    """Check that a value is a JSON object with the fields that a reader needs."""
    if not isinstance(value, dict):
        raise InputError(f"{where} is damaged (it is not a JSON object): {REMEDY}.")
    for name in needed:
        if name not in value:
            raise InputError(f"{where} is damaged (it has no field {name!r}): {REMEDY}.")
    return value


def check_config(value: Any, where: object) -> Fields:
    """Check that a value is the configuration of a run. Fields of earlier versions are renewed."""
    fields = check_fields(value, where)
    try:
        config = renewed(fields)
    except InputError as error:
        raise InputError(f"{where} is damaged ({error}): {REMEDY}.") from None
    return check_types(ConfigFields, check_fields(config, where, CONFIG_FIELDS), where, REMEDY)


def check_part(name: str, value: Any, where: object) -> Fields:
    """Check one of `PARTS`."""
    return check_types(PARTS[name], check_fields(value, where), where, REMEDY)


def check_sizes(arrivals: Mapping[str, Any], where: object) -> tuple[int, ...]:
    """Check a schedule and return its sizes."""
    sizes = tuple(check_types(ArrivalsFields, arrivals, where, REMEDY)["sizes"])
    if sum(sizes) > MOST_CLASSES:
        raise InputError(f"{where} is damaged (it has more than {MOST_CLASSES:,} classes): {REMEDY}.")
    return sizes


def check_record(record: Any, step: int, where: object) -> Fields:
    """Check that a value is the record of a step."""
    if not isinstance(record, dict) or record.get("step") != step or not record.get("accuracy"):
        raise InputError(f"{where} is not the record of step {step}: remove the run and start it again.")
    return check_types(RecordFields, record, where, REMEDY)
