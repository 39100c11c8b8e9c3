"""The comparison table: Equ.T, FF.org, FF.ours side by side as the paper prints it, with seeds compared in pairs."""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ffcil.errors import InputError, unknown
from ffcil.metrics import CountTable, average_accuracy, forgetting, last_accuracy
from ffcil.report.records import (
    CLASSIFIER_NAMES,
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
BASELINES = {"FF.org": "Equ.T", "FF.ours": "FF.org", "Equ.ours": "Equ.T"}
"""The setting that each is compared with."""
NOTHING = "–"


@dataclass(frozen=True)
class Change:
    """The mean difference to another setting, over runs of the same seeds."""

    value: float
    pairs: int
    versus: str


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


@dataclass(frozen=True)
class Row:
    """One method with one classifier on one dataset and number of steps: a cell a setting."""

    dataset: str
    steps: int
    classes: int
    method: str
    title: str
    """the method's name as in tables"""
    classifier: str
    scored: bool
    cells: dict[str, Cell]
    notes: tuple[str, ...] = ()

    @property
    def data_label(self) -> str:
        return f"{self.dataset}, {self.steps} {'step' if self.steps == 1 else 'steps'}"

    @property
    def label(self) -> str:
        """Always with the classifier: a nearest-mean accuracy must not pass for that of the linear head."""
        return f"{self.title}, {CLASSIFIER_NAMES.get(self.classifier, self.classifier)}"

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
    """One row per (dataset, number of steps, method, classifier); only finished runs count."""
    finished = [run for run in runs if run.finished]
    known = {name for run in finished for name in run.tables}
    if classifier is not None and finished and classifier not in known:
        raise unknown("classifier", classifier, known)
    rows = []
    for group in group_runs(finished):
        for name in classifiers_of(group):
            if classifier in (None, name):
                rows.append(_row([run for run in group if name in run.tables], name))
    return rows


def group_runs(runs: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Runs that may be compared: same dataset, classes, number of steps and method."""
    groups: dict[tuple[str, int, int, str], list[RunRecord]] = {}
    for run in runs:
        groups.setdefault((run.dataset, sum(run.sizes), len(run.sizes), run.method), []).append(run)

    def rank(key: tuple[str, int, int, str]) -> tuple[Any, ...]:
        *data, method = key  # the lower bound goes first, the upper bound last
        return (*data, method != "finetune", method == "joint", method)

    return [groups[key] for key in sorted(groups, key=rank)]


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
    return "\n".join([meaning, *dict.fromkeys(note for row in rows for note in row.notes)])


def runs_text(cell: Cell | None) -> str:
    """`3`, or `3 (2 pairs)` where fewer seeds could be paired than there are runs."""
    if cell is None:
        return NOTHING
    average = cell.numbers["average"]
    pairs = average.change.pairs if average and average.change else cell.runs
    return f"{cell.runs}" if pairs == cell.runs else f"{cell.runs} ({pairs} {'pair' if pairs == 1 else 'pairs'})"


def terminal(rows: Sequence[Row]) -> Table:
    """For the terminal: three metrics and the number of runs a row; what got worse is red, what got better green."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    colours = {"better": "green", "worse": "red", "same": "dim"}
    settings = settings_in(rows)
    table = Table(box=box.SIMPLE, caption=Text(legend(rows), style="dim"), caption_justify="left", padding=(0, 1, 0, 0))
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
    lines = [_pipes(["Data", "Method", "", *settings]), _pipes(["---"] * 3 + ["---:"] * len(settings))]

    def text(number: Number | None) -> str:
        if number is None:
            return NOTHING
        std = f" ± {number.std:.2f}" if number.std is not None else ""
        return f"{number.mean:.2f}{std}{f' {arrow(number.change.value)}' if number.change else ''}"

    for row in rows:
        head = [row.data_label, row.label]
        for metric in METRICS:
            lines.append(_pipes([*head, SYMBOLS[metric], *(text(row.number(s, metric)) for s in settings)]))
        lines.append(_pipes([*head, "n", *(runs_text(row.cells.get(s)) for s in settings)]))
    notes = legend(rows).replace("A_T", "A\\_T").replace("\n", "\n\n")
    return "\n".join([*lines, "", notes]) + "\n"


def csv(rows: Sequence[Row]) -> str:
    """Full precision, one line per (row, setting); an empty field is a number that does not exist."""
    out = io.StringIO()
    names = [f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_change")]
    writer = csv_format.writer(out, lineterminator="\n")
    head = ["dataset", "classes", "steps", "method", "classifier", "scored", "setting", "runs", "versus", "pairs"]
    writer.writerow([*head, *names])
    for row in rows:
        for setting in sorted(row.cells, key=setting_rank):
            cell = row.cells[setting]
            average = cell.numbers["average"]
            change = average.change if average else None
            values: list[Any] = [row.dataset, row.classes, row.steps, row.method, row.classifier, row.scored, setting]
            values += [cell.runs, change.versus if change else None, change.pairs if change else None]
            for number in cell.numbers.values():
                values += [number.mean, number.std] if number else [None, None]
                values.append(number.change.value if number and number.change else None)
            writer.writerow(values)
    return out.getvalue()


def latex(rows: Sequence[Row]) -> str:
    """The paper's layout: settings across, Ā, A_T and F under each, deviation and arrow in small print below."""
    settings = settings_in(rows)
    columns = len(settings) * len(METRICS)
    spans = [(2 + len(METRICS) * i, 1 + len(METRICS) * (i + 1)) for i in range(len(settings))]
    lines = [
        "% \\usepackage{booktabs,xcolor}",
        *(f"% {line}" for line in legend(rows).split("\n")),
        f"\\begin{{tabular}}{{@{{}}l*{{{columns}}}{{c}}@{{}}}}",
        "\\toprule",
        "".join(f" & \\multicolumn{{{len(METRICS)}}}{{c}}{{\\textbf{{{_tex(s)}}}}}" for s in settings) + r" \\",
        " ".join(f"\\cmidrule(lr){{{first}-{last}}}" for first, last in spans),
        "Method" + r" & $\overline{A}$ & $A_T$ & $F$" * len(settings) + r" \\",
    ]
    for i, row in enumerate(rows):
        if i == 0 or row.data_label != rows[i - 1].data_label:
            lines += [
                "\\midrule",
                f"\\multicolumn{{{columns + 1}}}{{@{{}}l}}{{\\textit{{{_tex(row.data_label)}}}}} \\\\",
            ]
        counts = ", ".join(_tex(runs_text(row.cells.get(setting))) for setting in settings)
        lines.append(f"\\shortstack[l]{{{_tex(row.label)}\\\\{{\\scriptsize $n$ = {counts}}}}}")
        lines += [f"  & {_tex_number(metric, row.number(s, metric))}" for s in settings for metric in METRICS]
        lines[-1] += r" \\"
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _row(runs: list[RunRecord], classifier: str) -> Row:
    values: dict[str, dict[Seeds, dict[Metric, float | None]]] = {}
    for setting in settings_of(runs):
        mine = [run for run in runs if run.setting == setting]
        _refuse_twins(mine)
        values[setting] = {
            run.seeds: {metric: measure(run.tables[classifier]) for metric, measure in METRICS.items()} for run in mine
        }
    cells = {
        setting: Cell(len(of_seed), {metric: _number(values, setting, metric) for metric in METRICS})
        for setting, of_seed in values.items()
    }
    first = runs[0]
    return Row(
        dataset=first.dataset,
        steps=len(first.sizes),
        classes=sum(first.sizes),
        method=first.method,
        title=first.method_name,
        classifier=classifier,
        scored=classifier == first.scored,
        cells=cells,
        notes=_notes(runs),
    )


def _number(values: dict[str, dict[Seeds, dict[Metric, float | None]]], setting: str, metric: Metric) -> Number | None:
    def known(name: str) -> dict[Seeds, float]:
        measured = {seeds: numbers[metric] for seeds, numbers in values.get(name, {}).items()}
        return {seeds: value for seeds, value in measured.items() if value is not None and not np.isnan(value)}

    mine = known(setting)
    if not mine:
        return None
    versus = BASELINES.get(setting, "")
    theirs = known(versus)
    differences = [value - theirs[seeds] for seeds, value in mine.items() if seeds in theirs]
    return Number(
        mean=float(np.mean(list(mine.values()))),
        std=float(np.std(list(mine.values()), ddof=1)) if len(mine) > 1 else None,
        n=len(mine),
        change=Change(float(np.mean(differences)), len(differences), versus) if differences else None,
    )


def _refuse_twins(runs: list[RunRecord]) -> None:
    """Two runs of one cell with the same seeds: pairs would be arbitrary, and the mean would count one seed twice."""
    by_seed: dict[Seeds, RunRecord] = {}
    for run in runs:
        twin = by_seed.setdefault(run.seeds, run)
        if twin is not run:
            fields = ", ".join(_differing([twin, run])) or "nothing"
            raise InputError(
                f"{twin.folder} and {run.folder} are both {run.setting} of {run.method_name} on {run.dataset} with the "
                f"same seeds, and differ in {fields}; report them apart, each from a folder of its own."
            )


def _notes(runs: list[RunRecord]) -> tuple[str, ...]:
    notes = []
    for setting in settings_of(runs):
        fields = _differing([run for run in runs if run.setting == setting])
        if fields:
            name = f"{runs[0].method_name} on {runs[0].dataset}, {setting}"
            notes.append(f"Caution: the runs of {name} differ in {', '.join(fields)}.")
    return tuple(notes)


def _differing(runs: list[RunRecord]) -> list[str]:
    """Names of the configuration fields, seeds apart, in which runs are not alike."""
    flat = [_flatten(run.config) for run in runs]
    names = sorted({name for config in flat for name in config if not name.endswith("seed")})
    return [name for name in names if any(config.get(name) != flat[0].get(name) for config in flat)]


def _flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _pipes(fields: Sequence[str]) -> str:
    return "| " + " | ".join(field.replace("|", "\\|").replace("A_T", "A\\_T") for field in fields) + " |"


def _tex(text: str) -> str:
    for character in "&%$#_{}":
        text = text.replace(character, f"\\{character}")
    return text.replace(NOTHING, "--")


def _tex_number(metric: Metric, number: Number | None) -> str:
    if number is None:
        return "--"
    small = [f"$\\pm {number.std:.2f}$"] if number.std is not None else []
    if number.change is not None:
        colour = {"better": "34,139,34", "worse": "178,34,34", "same": "128,128,128"}
        mark = arrow(number.change.value)
        sign = {"↑": "\\uparrow", "↓": "\\downarrow", "=": "="}[mark[0]]
        small.append(f"\\textcolor[RGB]{{{colour[verdict(metric, number.change.value)]}}}{{${sign} {mark[1:]}$}}")
    return (
        f"\\shortstack{{${number.mean:.2f}$\\\\{{\\scriptsize {' '.join(small)}}}}}"
        if small
        else f"${number.mean:.2f}$"
    )
