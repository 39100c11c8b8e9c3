"""Tables as Markdown with their legends, and as CSV at full precision, where an empty field is a missing number."""

import csv
import io
from collections.abc import Sequence
from typing import Any

from ffcil.report.analyse.ablation import Ablation
from ffcil.report.analyse.groups import Group
from ffcil.report.analyse.statistics import LEVEL, T_INTERVAL, Change
from ffcil.report.analyse.tables import METRICS, Cell, Row, effects, settings_in
from ffcil.report.render.text import (
    ARROWS,
    MATCHED_WITH_INTERVAL,
    SYMBOLS,
    caution,
    change_text,
    interval_text,
    legend,
    number_text,
    runs_text,
    signed,
)

NUMBERS = [f"{metric}{part}" for metric in METRICS for part in ("", "_std", "_change")]
DATA = ["dataset", "classes", "steps"]


def comparison_markdown(rows: Sequence[Row]) -> str:
    """One line per row and metric."""
    settings = settings_in(rows)
    lines = []
    for row in rows:
        head = [row.data_label, row.label]
        for metric in METRICS:
            lines.append([*head, SYMBOLS[metric], *(number_text(row.number(s, metric)) for s in settings)])
        if row.matched:
            lines.append([*head, "M", *(change_text(row.matched.get(s)) for s in settings)])
        lines.append([*head, "n", *(runs_text(row.cells.get(s)) for s in settings)])
    below = legend(rows) + (f"\n{MATCHED_WITH_INTERVAL}" if any(row.matched for row in rows) else "")
    return markdown_table(["Data", "Method", "", *settings], ["---"] * 3 + ["---:"] * len(settings), lines, below)


def comparison_csv(rows: Sequence[Row]) -> str:
    """One line per row and setting."""
    head = [*DATA, "method", "condition", "classifier", "scored", "setting", "runs", "versus", "pairs", *NUMBERS]
    head += ["matched", "matched_low", "matched_high", "matched_pairs"]
    lines = []
    for row in rows:
        for setting, cell in row.cells.items():
            versus = cell.change.versus if cell.change else None
            method = [row.group.runs[0].method, row.group.label, row.classifier, row.scored]
            numbers = [*_numbers(cell), *_matched(row.matched.get(setting))]
            lines.append([*_data(row.group), *method, setting, cell.runs, versus, *numbers])
    return csv_text(head, lines)


def ablation_markdown(ablations: Sequence[Ablation]) -> str:
    """One line per method and choice of parts."""
    lines = []
    for ablation in ablations:
        for parts, cell in ablation.cells.items():
            numbers = [number_text(number) for number in cell.numbers.values()]
            lines.append([ablation.data_label, ablation.label, parts.label, *numbers, runs_text(cell)])
    head = ["Data", "Method", "Parts", *SYMBOLS.values(), "n"]
    return markdown_table(head, ["---"] * 3 + ["---:"] * 4, lines, ARROWS)


def ablation_csv(ablations: Sequence[Ablation]) -> str:
    """One line per method and choice of parts."""
    head = [*DATA, "schedule", "method", "condition", "classifier", "parts", "runs", "pairs", *NUMBERS]
    lines = []
    for ablation in ablations:
        group = ablation.group
        method = [ablation.schedule, group.runs[0].method, group.label, ablation.classifier]
        for parts, cell in ablation.cells.items():
            lines.append([*_data(group), *method, parts.label, cell.runs, *_numbers(cell)])
    return csv_text(head, lines)


def evidence_markdown(rows: Sequence[Row]) -> str:
    """One line per effect and accuracy."""
    lines = []
    for effect in effects(rows):
        for metric, change in effect.changes.items():
            method = [effect.row.data_label, effect.row.label, effect.cause, SYMBOLS[metric]]
            bounds = [interval_text(change.interval), interval_text(change.bootstrap)]
            signs = f"{change.same_sign} of {change.pairs}"
            lines.append([*method, signed(change.value), *bounds, signs, change.conclusion])
    head = [
        "Data",
        "Method",
        "Effect of",
        "on",
        "Difference",
        T_INTERVAL,
        f"{LEVEL:.0%} bootstrap",
        "Same sign",
        "Conclusion",
    ]
    note = (
        "Differences in points between runs with the same seeds. The conclusion says whether the t interval of the "
        "mean difference contains 0. Bootstrap intervals are too narrow for few pairs."
    )
    return markdown_table(head, ["---"] * 4 + ["---:"] * 4 + ["---"], lines, f"{note} {caution(rows)}".strip())


def evidence_csv(rows: Sequence[Row]) -> str:
    """One line per effect and accuracy; `low` and `high` are the bounds of the t interval."""
    head = [*DATA, "method", "condition", "classifier", "setting", "versus", "metric", "pairs"]
    head += ["difference", "std", "low", "high", "bootstrap_low", "bootstrap_high", "same_sign"]
    head += ["conclusion", "differences"]
    lines = []
    for effect in effects(rows):
        row = effect.row
        method = [row.group.runs[0].method, row.group.label, row.classifier, effect.setting]
        for metric, change in effect.changes.items():
            bounds = [*(change.interval or (None, None)), *(change.bootstrap or (None, None))]
            numbers = [change.pairs, change.value, change.std, *bounds, change.same_sign, change.conclusion]
            differences = " ".join(map(repr, change.differences))
            lines.append([*_data(row.group), *method, change.versus, metric, *numbers, differences])
    return csv_text(head, lines)


def _data(group: Group) -> list[Any]:
    return [group.dataset, group.classes, group.steps]


def _numbers(cell: Cell) -> list[float | None]:
    """Number of pairs, then mean, deviation and change of every metric."""
    values: list[float | None] = [cell.change.pairs if cell.change else None]
    for number in cell.numbers.values():
        values += [number.mean, number.std] if number else [None, None]
        values.append(number.change.value if number and number.change else None)
    return values


def _matched(change: Change | None) -> list[float | None]:
    if change is None:
        return [None] * 4
    return [change.value, *(change.interval or (None, None)), change.pairs]


def markdown_table(head: Sequence[str], rule: Sequence[str], lines: Sequence[Sequence[str]], below: str) -> str:
    """A table with the column rule `rule`, and paragraphs below it."""
    escaped = [[_escape(field).replace("|", "\\|") for field in line] for line in (head, rule, *lines)]
    paragraphs = _escape(below).replace("\n", "\n\n")
    return "\n".join([*(f"| {' | '.join(line)} |" for line in escaped), "", paragraphs]) + "\n"


def _escape(text: str) -> str:
    """Text without HTML, in which the underscores of symbols do not mean emphasis."""
    return text.replace("<", "&lt;").replace("A_T", "A\\_T").replace("A_t", "A\\_t")


def csv_text(head: Sequence[str], lines: Sequence[Sequence[Any]]) -> str:
    """Lines as CSV; None is an empty field."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([head, *lines])
    return out.getvalue()
