"""What there is to report of some runs, and what there is not, with the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ffcil.report.analyse.ablation import Ablation, ablations
from ffcil.report.analyse.groups import Group, count, group_runs
from ffcil.report.analyse.overhead import Cost, costs
from ffcil.report.analyse.sweeps import Sweep, sweeps
from ffcil.report.analyse.tables import Row, compare
from ffcil.report.read.records import RunRecord, read_runs


@dataclass(frozen=True, eq=False)
class Contents:
    """Everything that tables, figures and the page are made of."""

    runs: tuple[RunRecord, ...]
    groups: tuple[Group, ...]
    """of finished runs"""
    rows: tuple[Row, ...]
    ablations: tuple[Ablation, ...]
    alphas: tuple[Sweep, ...]
    orders: tuple[Sweep, ...]
    costs: tuple[Cost, ...]
    damaged: tuple[str, ...] = ()
    """a sentence on each run that cannot be read"""

    @classmethod
    def read(cls, folder: Path | str) -> Contents:
        """Of the runs at or below a folder; those that are damaged are named, and the rest is reported."""
        return cls.of(*read_runs(folder))

    @classmethod
    def of(cls, runs: Sequence[RunRecord], damaged: Sequence[str] = ()) -> Contents:
        rows = tuple(compare(runs))
        return cls(
            runs=tuple(runs),
            groups=tuple(group_runs(run for run in runs if run.finished)),
            rows=rows,
            ablations=tuple(ablations(runs)),
            alphas=tuple(sweeps(rows, "alpha")),
            orders=tuple(sweeps(rows, "order")),
            costs=tuple(cost for cost in costs(runs) if cost.group.is_main),
            damaged=tuple(damaged),
        )

    @property
    def changed(self) -> list[Row]:
        """Scored rows with a drop or a recovery; of a sweep its main point."""
        scored = [row for row in self.rows if row.scored and row.group.is_main]
        return [row for row in scored if row.drop("average") or row.recovery("average")]

    @property
    def uneven(self) -> list[Group]:
        """Groups in which classes arrived in steps of different sizes."""
        return [group for group in self.groups if group.is_uneven]

    @property
    def left_out(self) -> dict[str, str]:
        """Tables and figures for which there are no records, with what would make them."""
        alike = "finished runs of one method, alike in all else"
        reasons = {
            "comparison": (self.rows, "no run of an original method or of the whole framework is finished"),
            "curves and forgetting": (self.groups, "no run is finished"),
            "drop and recovery": (self.changed, "it needs finished runs of two settings with the same seeds"),
            "alpha": (self.alphas, f"it needs {alike}, at two or more values of arrivals.alpha"),
            "order": (self.orders, f"it needs {alike}, with two or more of arrivals.order"),
            "ablation": (self.ablations, "no finished run has a part of the framework without the rest"),
            "overhead": (self.costs, "no finished run with the framework has one without it: same seeds, same device"),
            "class sizes": (self.uneven, "no finished run has steps of different sizes"),
        }
        return {name: reason for name, (there, reason) in reasons.items() if not there}

    @property
    def notes(self) -> list[str]:
        """Damaged, unfinished and repeated runs, which are in no result, and those whose images are not the others'."""
        damaged = [f"Left out of every result: {sentence}" for sentence in self.damaged]
        unfinished = [
            f"{run.folder.name} ({run.method_name}, {run.setting}, {run.seed_label}) is unfinished, "
            f"{len(run.records)} of {count(len(run.sizes), 'step')}, and is left out of every result."
            for run in self.runs
            if not run.finished
        ]
        return [*damaged, *unfinished, *dict.fromkeys(note for group in self.groups for note in group.notes)]
