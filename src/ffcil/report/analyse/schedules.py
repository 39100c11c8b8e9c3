"""Names of schedules that distinguish several schedules of one class permutation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ffcil.report.read.records import RunRecord

ORDER = ("equal", "half", "jumbled", "ascending", "descending", "trickle")
"""Kinds of schedules in display order; others follow."""
DETAILS = {"steps": "{} steps", "smallest": "from {}", "largest": "up to {}", "alpha": "alpha {:g}", "seed": "seed {}"}
"""Fields in which schedules of one kind may differ, with their wording."""
SIZES_SHOWN = 4
"""Largest number of sizes in the name of given sizes."""


@dataclass(frozen=True)
class ScheduleName:
    """Name of a schedule and its place among others."""

    text: str
    rank: tuple[Any, ...]


ScheduleNames = dict[RunRecord, ScheduleName]


def schedule_names(permutations: Sequence[Sequence[RunRecord]]) -> ScheduleNames:
    """Names of the schedules of all runs: `equal`, `jumbled, seed 1`.

    The runs of one permutation have different schedules. A name has a detail only if schedules of its kind differ in
    this detail within a permutation. So schedules of different permutations that were drawn alike have the same name.
    """
    differing: dict[str, set[str]] = {}
    for runs in permutations:
        by_kind: dict[str, list[dict[str, Any]]] = {}
        for run in runs:
            by_kind.setdefault(_kind(run), []).append(_details(run))
        for kind, details in by_kind.items():
            differing.setdefault(kind, set()).update(
                name for name in DETAILS if len({one[name] for one in details}) > 1
            )
    names: ScheduleNames = {}
    for runs in permutations:
        taken: set[str] = set()
        for run in runs:
            name = _name(run, differing[_kind(run)])
            number = sum(text == name.text or text.startswith(f"{name.text} (") for text in taken)
            names[run] = ScheduleName(f"{name.text} ({number + 1})", (*name.rank, number)) if number else name
            taken.add(names[run].text)
    return names


def _name(run: RunRecord, differing: set[str]) -> ScheduleName:
    kind, details = _kind(run), _details(run)
    shown = {name: details[name] for name in DETAILS if name in differing and details[name] is not None}
    text = ", ".join([kind, *(DETAILS[name].format(value) for name, value in shown.items())])
    place = ORDER.index(kind) if kind in ORDER else len(ORDER)
    return ScheduleName(text, (place, kind, *shown.values()))


def _kind(run: RunRecord) -> str:
    """Kind of a schedule; for a spectrum, the order of its sizes; for given sizes, the first of them."""
    kind = str(run.arrivals["kind"])
    if kind == "given":
        more = "+…" if len(run.sizes) > SIZES_SHOWN else ""
        return f"given {'+'.join(map(str, run.sizes[:SIZES_SHOWN]))}{more}"
    return str(run.arrivals.get("order") or "jumbled") if kind == "free-flow" else kind


def _details(run: RunRecord) -> dict[str, Any]:
    return {"steps": len(run.sizes), **{name: run.arrivals.get(name) for name in DETAILS if name != "steps"}}
