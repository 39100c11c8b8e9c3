"""What still and interactive figures share: a colour for every setting, mean curves, and the schedules to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ffcil.metrics import CountTable, curve
from ffcil.report.read.records import RunRecord

Floats = NDArray[np.float64]

SETTING_COLOURS = {"Equ.T": "#3f8fd2", "FF.org": "#e0662f", "FF.ours": "#12a17a", "Equ.ours": "#a874c9"}
PART_COLOURS = {
    "CWM": "#c9a227",
    "DIWA": "#9c6b3f",
    "HA": "#9c6b3f",
    "CWM + HA without surrogates": "#d45087",
    "CWM + HA without identity": "#6a7fdb",
}
OTHER_COLOUR = "#8a8f98"


def colour(setting: str) -> str:
    """A setting has one colour in every figure."""
    parts = setting.partition(" with ")[2]
    return SETTING_COLOURS.get(setting) or PART_COLOURS.get(parts, OTHER_COLOUR)


def mean_curve(tables: Sequence[CountTable]) -> tuple[Floats, Floats]:
    """The mean accuracy of several runs against the number of classes seen.

    Under free flow no two runs stop at the same numbers of classes, so between its steps a run counts as a straight
    line, and the mean goes only as far as every run does.
    """
    grid = np.array(sorted({n for table in tables for n in table.seen}), dtype=np.float64)
    first, last = max(table.seen[0] for table in tables), min(table.seen[-1] for table in tables)
    grid = grid[(grid >= first) & (grid <= last)]
    lines = []
    for table in tables:
        accuracy = np.array(curve(table))
        known = ~np.isnan(accuracy)
        seen = np.array(table.seen, dtype=np.float64)
        lines.append(np.interp(grid, seen[known], accuracy[known]) if known.any() else np.full(len(grid), np.nan))
    return grid, np.mean(lines, axis=0)


def accuracy_range(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """One range for the curves of all classifiers of these runs, so that figures side by side can be compared."""
    values = [a for run in runs for table in run.tables.values() for a in curve(table) if not np.isnan(a)]
    return 10 * np.floor(min(values, default=0.0) / 10), 101.0


def seed_schedules(runs: Sequence[RunRecord]) -> dict[str, dict[str, RunRecord]]:
    """For each seed its schedules, each once: FF.org and FF.ours of a seed share one."""
    result: dict[str, dict[str, RunRecord]] = {}
    for run in sorted(runs, key=lambda r: r.seeds):
        of_seed = result.setdefault(run.seed_label, {})
        if all(other.sizes != run.sizes for other in of_seed.values()):
            name = {"equal": "equal", "free-flow": "free flow"}.get(run.arrivals["kind"], str(run.arrivals["kind"]))
            of_seed[name if name not in of_seed else f"{name}, {run.setting}"] = run
    return result


def distinct_schedules(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Every different schedule once, under a name that fits beside an axis."""
    different: dict[str, RunRecord] = {}
    for seed, of_seed in seed_schedules(runs).items():
        for name, run in of_seed.items():
            if all(other.sizes != run.sizes for other in different.values()):
                different["equal" if name == "equal" else f"{name}, {seed}"] = run
    return different


def schedule_setting(run: RunRecord) -> str:
    """A schedule has the colour of the original method's setting, whichever run it is read from."""
    return {"Equ.ours": "Equ.T", "FF.ours": "FF.org"}.get(run.setting, run.setting)
