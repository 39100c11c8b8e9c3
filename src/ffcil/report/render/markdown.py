"""Markdown tables with their legends."""

from __future__ import annotations

from collections.abc import Sequence

from ffcil.report.analyse.ablation import Ablation
from ffcil.report.analyse.evidence import effects
from ffcil.report.analyse.statistics import LEVEL
from ffcil.report.analyse.tables import METRICS, Row, settings_in
from ffcil.report.render.text import ARROWS, SYMBOLS, caution, interval_text, legend, number_text, runs_text, signed


def comparison_markdown(rows: Sequence[Row]) -> str:
    """One line per row and metric."""
    settings = settings_in(rows)
    lines = []
    for row in rows:
        head = [row.data_label, row.label]
        for metric in METRICS:
            lines.append([*head, SYMBOLS[metric], *(number_text(row.number(s, metric)) for s in settings)])
        lines.append([*head, "n", *(runs_text(row.cells.get(s)) for s in settings)])
    below = legend(rows).replace("A_T", "A\\_T").replace("\n", "\n\n")
    return _table(["Data", "Method", "", *settings], ["---"] * 3 + ["---:"] * len(settings), lines, below)


def ablation_markdown(ablations: Sequence[Ablation]) -> str:
    """One line per method and choice of parts."""
    lines = []
    for ablation in ablations:
        for line in ablation.lines:
            numbers = [number_text(line.cell.numbers[metric]) for metric in METRICS]
            lines.append([ablation.data_label, ablation.label, line.name, *numbers, runs_text(line.cell)])
    head = ["Data", "Method", "Parts", *SYMBOLS.values(), "n"]
    return _table(head, ["---"] * 3 + ["---:"] * 4, lines, ARROWS)


def evidence_markdown(rows: Sequence[Row]) -> str:
    """One line per effect and accuracy."""
    lines = []
    for effect in effects(rows):
        for metric, change in effect.changes.items():
            method = [effect.row.data_label, effect.row.label, effect.cause, SYMBOLS[metric]]
            bounds = [interval_text(change.interval), interval_text(change.bootstrap)]
            signs = f"{change.same_sign} of {change.pairs}"
            lines.append([*method, signed(change.value), *bounds, signs, change.conclusion])
    head = ["Data", "Method", "Effect of", "on", "Difference", f"{LEVEL:.0%} t interval"]
    head += [f"{LEVEL:.0%} bootstrap", "Same sign", "Told"]
    note = (
        "Differences in points between runs with the same seeds. Told: whether the t interval of the mean difference "
        "holds 0; bootstrap percentiles, beside it, are too narrow for few pairs."
    )
    return _table(head, ["---"] * 4 + ["---:"] * 4 + ["---"], lines, f"{note} {caution(rows)}".strip())


def _table(head: Sequence[str], rule: Sequence[str], lines: Sequence[Sequence[str]], below: str) -> str:
    return "\n".join([*map(_line, [head, rule, *lines]), "", below]) + "\n"


def _line(fields: Sequence[str]) -> str:
    return "| " + " | ".join(field.replace("|", "\\|").replace("A_T", "A\\_T") for field in fields) + " |"
