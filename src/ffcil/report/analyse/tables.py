"""The comparison table: Equ.T, FF.org, FF.ours side by side as the paper prints it, with seeds compared in pairs."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ffcil.errors import unknown
from ffcil.metrics import CountTable, average_accuracy, forgetting, last_accuracy
from ffcil.report.analyse.groups import Group, count, group_runs
from ffcil.report.analyse.statistics import Change
from ffcil.report.read.records import (
    RunRecord,
    Seeds,
    classifiers_of,
    setting_rank,
    settings_of,
)

if TYPE_CHECKING:
    from rich.table import Table

Metric = Literal["average", "last", "forgetting"]
METRICS: dict[Metric, Callable[[CountTable], float | None]] = {
    "average": average_accuracy,
    "last": last_accuracy,
    "forgetting": forgetting,
}
SYMBOLS: dict[Metric, str] = {"average": "Ā", "last": "A_T", "forgetting": "F"}
HTML_SYMBOLS: dict[Metric, str] = {"average": "Ā", "last": "A<sub>T</sub>", "forgetting": "F"}
TEX_SYMBOLS: dict[Metric, str] = {"average": r"$\overline{A}$", "last": "$A_T$"}
"""Of the two accuracies that the paper shows."""
BASELINES = {"FF.org": "Equ.T", "FF.ours": "FF.org", "Equ.ours": "Equ.T"}
"""The setting that each is compared with."""
NOTHING = "–"


@dataclass(frozen=True)
class Number:
    """One metric in one setting. `std` is the sample standard deviation: None with a single run."""

    mean: float
    std: float | None
    n: int
    change: Change | None


@dataclass(frozen=True)
class Cell:
    """One setting of a row. A metric that cannot be measured (forgetting of a single step) is None."""

    runs: int
    numbers: dict[Metric, Number | None]


Cells = dict[str, Cell]
Versus = Callable[[str], str]


@dataclass(frozen=True, eq=False)
class Row:
    """One method with one classifier on one dataset and number of steps: a cell a setting."""

    group: Group
    classifier: str
    scored: bool
    cells: Cells

    @property
    def data_label(self) -> str:
        return self.group.data_label

    @property
    def label(self) -> str:
        return self.group.method_label(self.classifier)

    def number(self, setting: str, metric: Metric) -> Number | None:
        cell = self.cells.get(setting)
        return cell.numbers[metric] if cell else None

    def drop(self, metric: Metric) -> Change | None:
        """FF.org minus Equ.T: what free flow costs."""
        number = self.number("FF.org", metric)
        return number.change if number else None

    def recovery(self, metric: Metric) -> Change | None:
        """FF.ours minus FF.org: what the paper's components bring back."""
        number = self.number("FF.ours", metric)
        return number.change if number else None


def compare(runs: Sequence[RunRecord], classifier: str | None = None) -> list[Row]:
    """One row per (dataset, number of steps, method, condition, classifier), further points of sweeps last.

    Only finished runs count, with the original method or the whole framework: `ablation` has those with parts of it.
    """
    finished = [run for run in runs if run.finished]
    known = {name for run in finished for name in run.tables}
    if classifier is not None and finished and classifier not in known:
        raise unknown("classifier", classifier, known)
    rows = []
    for group in group_runs(finished):
        whole = [run for run in group.runs if run.parts.name in ("org", "ours")]
        for name in classifiers_of(whole):
            if classifier in (None, name):
                rows.append(_row(group, [run for run in whole if name in run.tables], name))
    return sorted(rows, key=lambda row: not row.group.is_main)


def verdict(metric: Metric, value: float) -> Literal["better", "worse", "same"]:
    """Whether a change is for the better, as far as two decimals show. Forgetting is better when it falls."""
    shown = round(value, 2) * (-1 if metric == "forgetting" else 1)
    return "better" if shown > 0 else "worse" if shown < 0 else "same"


def arrow(value: float) -> str:
    """`↓14.35`, `↑6.70`, or `=0.00`: the direction of the number, whether that is good or bad."""
    shown = round(value, 2)
    return f"{'↑' if shown > 0 else '↓' if shown < 0 else '='}{abs(shown):.2f}"


def settings_in(rows: Sequence[Row]) -> list[str]:
    """The settings that any row has, in the order in which to show them."""
    return sorted({setting for row in rows for setting in row.cells}, key=setting_rank)


def legend(rows: Sequence[Row]) -> str:
    """What the symbols, deviations and arrows of these rows mean, with any caution that is due."""
    settings = settings_in(rows)
    compared = [f"{setting} against {BASELINES[setting]}" for setting in settings if BASELINES.get(setting) in settings]
    arrows = f" Arrows: {', '.join(compared)}; the mean difference of runs with the same seeds." if compared else ""
    meaning = (
        "Ā: accuracy averaged over the steps; A_T: accuracy after the last step; F: forgetting (lower is better). "
        f"All in percent, mean ± sample standard deviation over n runs.{arrows}"
    )
    of_group = {row.group.name: seeds_text(row.group) for row in rows}
    alike = len(set(of_group.values())) < 2
    seeds = [text.capitalize() if alike else f"{name}: {text}" for name, text in of_group.items()]
    repeated = [note for row in rows for note in row.group.notes]
    return "\n".join([meaning, *dict.fromkeys([*seeds, *repeated])])


def seeds_text(group: Group) -> str:
    """Which of the three seeds vary over a group's runs: a deviation is of nothing else."""
    kinds = ("class", "arrival", "training")
    varied = [kind for k, kind in enumerate(kinds) if len({run.seeds[k] for run in group.runs}) > 1]
    if not varied:
        return "one seed."
    fixed = ", ".join(kind for kind in kinds if kind not in varied)
    return f"seeds that vary: {', '.join(varied)}{f'; fixed: {fixed}' if fixed else ''}."


def runs_text(cell: Cell | None) -> str:
    """`3`, or `3 (2 pairs)` where fewer seeds could be paired than there are runs."""
    if cell is None:
        return NOTHING
    average = cell.numbers["average"]
    pairs = average.change.pairs if average and average.change else cell.runs
    return f"{cell.runs}" if pairs == cell.runs else f"{cell.runs} ({count(pairs, 'pair')})"


def terminal(rows: Sequence[Row]) -> Table:
    """For the terminal: three metrics and the number of runs a row; what got worse is red, what got better green.

    Of a sweep only its main point is shown.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colours = {"better": "green", "worse": "red", "same": "dim"}
    further = sum(not row.group.is_main for row in rows)
    rows = [row for row in rows if row.group.is_main]
    settings = settings_in(rows)
    told = f"{legend(rows)}\n{count(further, 'further row')}: other spectra and orders." if further else legend(rows)
    table = Table(box=box.SIMPLE, caption=Text(told, style="dim"), caption_justify="left", padding=(0, 1, 0, 0))
    table.add_column("Method")
    table.add_column("")
    for setting in settings:
        table.add_column(setting, no_wrap=True)

    def text(row: Row, setting: str, metric: Metric) -> Text:
        number = row.number(setting, metric)
        if number is None:
            return Text(NOTHING, style="dim")
        parts: list[Any] = [f"{number.mean:.2f}"]
        if number.std is not None:
            parts.append((f" ±{number.std:.2f}", "dim"))
        if number.change is not None:
            parts.append((f" {arrow(number.change.value)}", colours[verdict(metric, number.change.value)]))
        return Text.assemble(*parts)

    for row in rows:
        titles = [Text(row.label, style="bold" if row.scored else ""), Text(row.data_label, style="dim"), Text("")]
        for title, metric in zip(titles, METRICS, strict=True):
            table.add_row(title, SYMBOLS[metric], *(text(row, setting, metric) for setting in settings))
        table.add_row(
            "", "n", *(runs_text(row.cells.get(setting)) for setting in settings), style="dim", end_section=True
        )
    return table


def markdown(rows: Sequence[Row]) -> str:
    """A Markdown table, a line a metric, with its legend below."""
    settings = settings_in(rows)
    lines = [pipes(["Data", "Method", "", *settings]), pipes(["---"] * 3 + ["---:"] * len(settings))]

    for row in rows:
        head = [row.data_label, row.label]
        for metric in METRICS:
            lines.append(pipes([*head, SYMBOLS[metric], *(plain(row.number(s, metric)) for s in settings)]))
        lines.append(pipes([*head, "n", *(runs_text(row.cells.get(s)) for s in settings)]))
    notes = legend(rows).replace("A_T", "A\\_T").replace("\n", "\n\n")
    return "\n".join([*lines, "", notes]) + "\n"


def plain(number: Number | None) -> str:
    """`55.90 ± 1.50 ↓14.35`"""
    if number is None:
        return NOTHING
    std = f" ± {number.std:.2f}" if number.std is not None else ""
    return f"{number.mean:.2f}{std}{f' {arrow(number.change.value)}' if number.change else ''}"


def csv(rows: Sequence[Row]) -> str:
    """Full precision, one line per (row, setting); an empty field is a number that does not exist."""
    out = io.StringIO()
    names = [f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_change")]
    writer = csv_format.writer(out, lineterminator="\n")
    head = ["dataset", "classes", "steps", "method", "condition", "classifier", "scored", "setting", "runs", "versus"]
    head.append("pairs")
    writer.writerow([*head, *names])
    for row in rows:
        for setting in sorted(row.cells, key=setting_rank):
            cell = row.cells[setting]
            average = cell.numbers["average"]
            change = average.change if average else None
            group = row.group
            values: list[Any] = [group.dataset, group.classes, group.steps, group.runs[0].method, group.label]
            values += [
                row.classifier,
                row.scored,
                setting,
                cell.runs,
                change.versus if change else None,
                change.pairs if change else None,
            ]
            for number in cell.numbers.values():
                values += [number.mean, number.std] if number else [None, None]
                values.append(number.change.value if number and number.change else None)
            writer.writerow(values)
    return out.getvalue()


Values = dict[str, dict[Seeds, dict[Metric, float | None]]]
"""By setting and seeds."""


def cells_of(runs: Sequence[RunRecord], classifier: str, name: Callable[[RunRecord], str], versus: Versus) -> Cells:
    """Cells of runs under the names that `name` gives them, each compared with the one that `versus` names."""
    values: Values = {}
    for run in runs:
        table = run.tables[classifier]
        values.setdefault(name(run), {})[run.seeds] = {metric: measure(table) for metric, measure in METRICS.items()}
    return {
        key: Cell(len(of_seed), {metric: _measured(values, key, metric, versus(key)) for metric in METRICS})
        for key, of_seed in values.items()
    }


def _row(group: Group, runs: list[RunRecord], classifier: str) -> Row:
    cells = cells_of(runs, classifier, lambda run: run.setting, lambda setting: BASELINES.get(setting, ""))
    ordered = {setting: cells[setting] for setting in settings_of(runs)}
    return Row(group, classifier, classifier == runs[0].scored, ordered)


def _measured(values: Values, setting: str, metric: Metric, versus: str) -> Number | None:
    """Mean and deviation over seeds, and the differences to the setting `versus` of the same seeds."""

    def known(name: str) -> dict[Seeds, float]:
        of_seed = {seeds: numbers[metric] for seeds, numbers in values.get(name, {}).items()}
        return {seeds: value for seeds, value in of_seed.items() if value is not None and not np.isnan(value)}

    mine = known(setting)
    if not mine:
        return None
    theirs = known(versus)
    differences = tuple(value - theirs[seeds] for seeds, value in sorted(mine.items()) if seeds in theirs)
    return Number(
        mean=float(np.mean(list(mine.values()))),
        std=float(np.std(list(mine.values()), ddof=1)) if len(mine) > 1 else None,
        n=len(mine),
        change=Change(differences, versus) if differences else None,
    )


def pipes(fields: Sequence[str]) -> str:
    """A line of a Markdown table."""
    return "| " + " | ".join(field.replace("|", "\\|").replace("A_T", "A\\_T") for field in fields) + " |"
