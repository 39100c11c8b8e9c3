"""Contents of a report: all tables and figures that the runs allow, and the reasons why others are missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ffcil.report.analyse.ablation import Ablation, ablations
from ffcil.report.analyse.groups import Group, count, group_runs
from ffcil.report.analyse.matched import Matched, matched_differences
from ffcil.report.analyse.overhead import Cost, costs
from ffcil.report.analyse.sensitivity import FEWEST, SensitivityTable, sensitivities
from ffcil.report.analyse.sweeps import Sweep, sweeps
from ffcil.report.analyse.tables import HEADLINES, Row, compare
from ffcil.report.read.records import RunRecord, read_runs


@dataclass(frozen=True, eq=False)
class Contents:
    """All values from which tables, figures and the page are made."""

    runs: tuple[RunRecord, ...]
    groups: tuple[Group, ...]
    """Groups of finished runs."""
    rows: tuple[Row, ...]
    ablations: tuple[Ablation, ...]
    alphas: tuple[Sweep, ...]
    orders: tuple[Sweep, ...]
    costs: tuple[Cost, ...]
    matched: tuple[Matched, ...]
    sensitivities: tuple[SensitivityTable, ...]
    damaged: tuple[str, ...] = ()
    """One sentence for each run that cannot be read."""

    @classmethod
    def read(cls, folder: Path | str) -> Self:
        """Contents from all runs at or below a folder. Damaged runs are listed and excluded."""
        return cls.from_runs(*read_runs(folder))

    @classmethod
    def from_runs(cls, runs: Sequence[RunRecord], damaged: Sequence[str] = ()) -> Self:
        """Contents from these runs. `damaged` has one sentence for each run that could not be read."""
        rows = tuple(compare(runs))
        return cls(
            runs=tuple(runs),
            groups=tuple(group_runs(runs)),
            rows=rows,
            ablations=tuple(ablations(runs)),
            alphas=tuple(sweeps(rows, "alpha")),
            orders=tuple(sweeps(rows, "order")),
            costs=tuple(cost for cost in costs(runs) if cost.group.is_main),
            matched=tuple(matched_differences(runs)),
            sensitivities=tuple(sensitivities(runs)),
            damaged=tuple(damaged),
        )

    @property
    def changed(self) -> list[Row]:
        """Scored rows with an effect of free flow or of a framework, without the secondary points of sweeps."""
        scored = [row for row in self.rows if row.scored and row.group.is_main]
        return [row for row in scored if any(row.change(setting, "average") for setting in HEADLINES)]

    @property
    def left_out(self) -> dict[str, str]:
        """Tables and figures that these runs do not allow, with the reason."""
        sweep = "it needs finished runs of one method that differ only in arrivals.{}, with at least two values"
        pairs = "it needs finished runs with and without a framework that have the same seeds and device"
        equal = "it needs a finished free-flow run and one of Equ.T with the same class and training seeds"
        several = f"it needs finished runs of one method and one class permutation under {FEWEST} schedules or more"
        reasons = {
            "comparison": (self.rows, "no run of an original method or of a whole framework is finished"),
            "curves and forgetting": (self.groups, "no run is finished"),
            "drop and recovery": (self.changed, "it needs finished runs of two settings with the same seeds"),
            "alpha": (self.alphas, sweep.format("alpha")),
            "order": (self.orders, sweep.format("order")),
            "ablation": (self.ablations, "no finished run has only some parts of a framework"),
            "overhead": (self.costs, pairs),
            "matched difference": (self.matched, equal),
            "arrival sensitivity": (self.sensitivities, several),
            "class sizes": (
                any(group.is_uneven for group in self.groups),
                "no finished run has steps whose sizes differ by more than one",
            ),
        }
        return {name: reason for name, (available, reason) in reasons.items() if not available}

    @property
    def notes(self) -> list[str]:
        """Notes on damaged, unfinished and repeated runs, which no result includes, and on runs with other images."""
        damaged = [f"Left out of every result: {sentence}" for sentence in self.damaged]
        unfinished = [
            f"{run.folder.name} ({run.method_name}, {run.setting}, {run.seed_label}) is unfinished "
            f"({len(run.records)} of {count(len(run.sizes), 'step')}) and is left out of every result."
            for run in self.runs
            if not run.finished
        ]
        return [*damaged, *unfinished, *dict.fromkeys(note for group in self.groups for note in group.notes)]
