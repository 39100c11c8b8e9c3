"""The page's tables: the comparison, whether its differences are real, and the ablation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ffcil.report.ablation import Ablation, shown_name
from ffcil.report.evidence import QUESTIONS, caution, evidence
from ffcil.report.groups import count
from ffcil.report.html import cell, classes, head, table, tbody
from ffcil.report.parts import Parts
from ffcil.report.statistics import LEVEL, Change
from ffcil.report.tables import (
    METRICS,
    NOTHING,
    Metric,
    Number,
    Row,
    arrow,
    legend,
    runs_text,
    settings_in,
    verdict,
)

SYMBOLS: dict[Metric, str] = {"average": "Ā", "last": "A<sub>T</sub>", "forgetting": "F"}
NAMES: dict[Metric, str] = {"average": "average", "last": "last step", "forgetting": "forgetting"}


def comparison(rows: Sequence[Row]) -> str:
    """Methods down; settings, each with three metrics, across. A narrow screen shows one metric at a time."""
    if not rows:
        return '<h2 id="comparison">Comparison</h2><p>No run to compare is finished yet.</p>'
    settings = settings_in(rows)
    heads = [head("Method")]
    heads += [head(f"{escape(s)} {SYMBOLS[m]}", _column(m)) for s in settings for m in METRICS]
    heads.append(f'<th scope="col" class="number" title="runs of {escape(", ".join(settings))}">n</th>')
    lines = []
    for row in rows:
        note = "" if row.scored else ", recorded beside the scored classifier"
        cells = [_number_cell(m, row.number(s, m), _column(m)) for s in settings for m in METRICS]
        counts = "".join(f"<div>{escape(runs_text(row.cells.get(s)))}</div>" for s in settings)
        lines.append(
            f"<tr{classes('' if row.scored else 'beside')}><th scope='row'>{escape(row.label)}"
            f"<small>{escape(row.data_label)}{note}</small></th>{''.join(cells)}<td class='number'>{counts}</td></tr>"
        )
    buttons = "".join(
        f'<button type="button" data-metric="{m}" aria-pressed="{"true" if m == "average" else "false"}">'
        f"{SYMBOLS[m]} {NAMES[m]}</button>"
        for m in METRICS
    )
    notes = "".join(f'<p class="small">{line}</p>' for line in escape(legend(rows)).split("\n"))
    return (
        '<h2 id="comparison">Comparison</h2>'
        f'<div class="switch" data-table="main-table" role="group" aria-label="Metric">{buttons}</div>'
        f"{table(heads, tbody(lines), 'comparison', 'main-table')}"
        f"{notes.replace('A_T', 'A<sub>T</sub>')}"
    )


def _column(metric: Metric) -> str:
    return f"number {metric}{' first' if metric == 'average' else ''}"


def _number_cell(metric: Metric, number: Number | None, kind: str = "") -> str:
    return cell(_number(metric, number), number.mean if number else None, kind.removeprefix("number "))


def _number(metric: Metric, number: Number | None) -> str:
    if number is None:
        return NOTHING
    small = [f"±{number.std:.2f}"] if number.std is not None else []
    if number.change is not None:
        versus = escape(f"against {number.change.versus}, {count(number.change.pairs, 'pair')}")
        kind = verdict(metric, number.change.value)
        small.append(f'<span class="{kind}" title="{versus}">{arrow(number.change.value)}</span>')
    return f"<b>{number.mean:.2f}</b>" + (f"<small>{' '.join(small)}</small>" if small else "")


def evidence_table(rows: Sequence[Row]) -> str:
    """Every change of the comparison as paired differences: their mean, interval, and what may be said of them."""
    lines = [_evidence_line(row, QUESTIONS[setting], metric, change) for row, setting, metric, change in evidence(rows)]
    if not lines:
        return ""
    heads = [head("Method"), head("Effect of"), head("on"), head("Difference", "number")]
    heads += [head(f"{LEVEL:.0%} interval", "number"), head("Same sign", "number"), head("Answer")]
    worth = f"<b>{caution(rows)}</b> " if caution(rows) else ""
    return (
        f'<h2 id="evidence">Is it real?</h2>{table(heads, tbody(lines), "evidence")}'
        '<p class="small">Differences in points between runs with the same seeds: the class order and the first weights '
        "are then the same, and a difference is not that of two draws. Intervals are bootstrap percentiles of the mean "
        f"difference. {worth}“Same sign” counts the pairs whose difference has the sign of the mean.</p>"
    )


def _evidence_line(row: Row, question: str, metric: Metric, change: Change) -> str:
    interval = change.interval
    bounds = f"{interval[0]:+.2f} to {interval[1]:+.2f}" if interval else NOTHING
    value = f'<b class="{verdict(metric, change.value)}">{change.value:+.2f}</b>'
    return (
        f"<tr><th scope='row'>{escape(row.label)}<small>{escape(row.data_label)}</small></th><td>{question}</td>"
        f"<td>{SYMBOLS[metric]}</td>{cell(value, change.value)}"
        f"{cell(bounds, interval[0] if interval else None)}"
        f"{cell(f'{change.same_sign} of {change.pairs}', change.same_sign / change.pairs)}<td>{change.answer}</td></tr>"
    )


def ablation_table(made: Sequence[Ablation]) -> str:
    """A line for each method and choice of parts."""
    if not made:
        return ""
    heads = [head("Method"), head("Parts"), head("CWM"), head("Alignment"), head("HA")]
    heads += [head(symbol, "number") for symbol in SYMBOLS.values()] + [head("n", "number")]
    lines = []
    for one in made:
        name = f"{escape(one.label)}<small>{escape(one.data_label)}</small>"
        for parts, numbers in one.lines:
            cells = "".join(_number_cell(metric, numbers.numbers[metric]) for metric in METRICS)
            lines.append(
                f"<tr><th scope='row'>{name}</th><td>{escape(shown_name(parts))}</td>{_ticks(parts)}{cells}"
                f"{cell(str(numbers.runs), numbers.runs)}</tr>"
            )
    return (
        f'<h2 id="ablation">Ablation</h2>{table(heads, tbody(lines), "ablation")}'
        '<p class="small">Arrows: against the original method, the mean difference of runs with the same seeds. SF: '
        "surrogate features of earlier classes; identity: aligned features held near the features themselves.</p>"
    )


def _ticks(parts: Parts) -> str:
    def tick(on: bool) -> str:
        return '<span class="tick">✓</span>' if on else '<span class="cross">×</span>'

    alignment = {"own": "as the method", "none": "none", "wa": "WA", "diwa": "DIWA"}[parts.alignment]
    lacks = [word for word, there in (("SF", parts.surrogates), ("identity", parts.identity)) if not there]
    without = f" <small>no {', no '.join(lacks)}</small>" if parts.ha and lacks else ""
    return f"<td>{tick(parts.cwm)}</td><td>{alignment}</td><td>{tick(parts.ha)}{without}</td>"
