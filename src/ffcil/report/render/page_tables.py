"""The page's tables: the comparison, whether its differences are real, and the ablation."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ffcil.report.analyse.ablation import ARROWS, Ablation, shown_name
from ffcil.report.analyse.evidence import QUESTIONS, caution, evidence
from ffcil.report.analyse.groups import count
from ffcil.report.analyse.statistics import LEVEL, Change, bounds_text, signed
from ffcil.report.analyse.tables import (
    HTML_SYMBOLS,
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
from ffcil.report.read.parts import Parts
from ffcil.report.read.records import CLASSIFIER_NAMES
from ffcil.report.render.html import cell, classes, fold, head, table, tbody

NAMES: dict[Metric, str] = {"average": "average", "last": "last step", "forgetting": "forgetting"}


def comparison(rows: Sequence[Row]) -> str:
    """Methods down; settings, each with three metrics, across. A narrow screen shows one metric at a time."""
    if not rows:
        return '<h2 id="comparison">Comparison</h2><p>No run to compare is finished yet.</p>'
    main = [row for row in rows if row.group.is_main]
    further = [row for row in rows if not row.group.is_main]
    notes = "".join(f'<p class="small">{line}</p>' for line in escape(legend(rows)).split("\n"))
    return (
        f'<h2 id="comparison">Comparison</h2>{_comparison_table(main, "main-table")}'
        + (fold(f"Other spectra and orders ({len(further)})", _comparison_table(further, "sweeps")) if further else "")
        + notes.replace("A_T", "A<sub>T</sub>")
    )


def _comparison_table(rows: Sequence[Row], identity: str) -> str:
    settings = settings_in(rows)
    heads = [head("Method")]
    heads += [head(f"{escape(s)} {HTML_SYMBOLS[m]}", _column(m)) for s in settings for m in METRICS]
    heads.append(f'<th scope="col" class="number" title="runs of {escape(", ".join(settings))}">n</th>')
    several = len({row.data_label for row in rows}) > 1
    lines = []
    for row in rows:
        cells = "".join(_number_cell(m, row.number(s, m), _column(m)) for s in settings for m in METRICS)
        texts = [escape(runs_text(row.cells.get(s))) for s in settings]
        told = {text for text, s in zip(texts, settings, strict=True) if s in row.cells}
        counts = told.pop() if len(told) == 1 else "<br>".join(texts)
        kind = classes("" if row.scored else "beside")
        lines.append(f"<tr{kind}>{_row_head(row, several)}{cells}<td class='number'>{counts}</td></tr>")
    buttons = "".join(
        f'<button type="button" data-metric="{m}" aria-pressed="{"true" if m == "average" else "false"}">'
        f"{HTML_SYMBOLS[m]} {NAMES[m]}</button>"
        for m in METRICS
    )
    switch = f'<div class="switch" data-table="{identity}" role="group" aria-label="Metric">{buttons}</div>'
    return switch + table(heads, tbody(lines), "comparison", identity)


def _row_head(row: Row, with_data: bool) -> str:
    """The method with its classifier, and in small print what else tells the row from others."""
    below = [row.group.label, row.data_label if with_data else "", "" if row.scored else "not scored"]
    name = f"{row.group.title}, {CLASSIFIER_NAMES.get(row.classifier, row.classifier)}"
    return f"<th scope='row'>{escape(name)}{''.join(f'<small>{escape(text)}</small>' for text in below if text)}</th>"


def _column(metric: Metric) -> str:
    return f"number {metric}{' first' if metric == 'average' else ''}"


def _number_cell(metric: Metric, number: Number | None, kind: str = "") -> str:
    return cell(_number(metric, number), number.mean if number else None, kind.removeprefix("number "))


def _number(metric: Metric, number: Number | None) -> str:
    if number is None:
        return NOTHING
    small = [f"<span>±{number.std:.2f}</span>"] if number.std is not None else []
    if number.change is not None:
        versus = escape(f"against {number.change.versus}, {count(number.change.pairs, 'pair')}")
        kind = verdict(metric, number.change.value)
        small.append(f'<span class="{kind}" title="{versus}">{arrow(number.change.value)}</span>')
    return f"<b>{number.mean:.2f}</b>" + (f"<small>{' '.join(small)}</small>" if small else "")


def evidence_table(rows: Sequence[Row]) -> str:
    """Every change of the comparison as paired differences: their mean, interval, and what may be said of them."""
    found: dict[tuple[Row, str], dict[Metric, Change]] = {}
    for row, setting, metric, change in evidence(rows):
        found.setdefault((row, setting), {})[metric] = change
    if not found:
        return ""
    several = len({row.data_label for row in rows}) > 1
    lines: dict[bool, list[str]] = {True: [], False: []}
    for (row, setting), changes in found.items():
        line = f"<tr>{_row_head(row, several)}<td>{QUESTIONS[setting]}</td>{_evidence_cells(changes)}</tr>"
        lines[row.group.is_main and row.scored].append(line)
    heads = [head("Method"), head("Effect of"), *(head(HTML_SYMBOLS[m], "number") for m in ("average", "last"))]
    heads.append(head("Pairs", "number"))
    rest = table(heads, tbody(lines[False]), "evidence") if lines[False] else ""
    worth = f"<b>{caution(rows)}</b> " if caution(rows) else ""
    return (
        f'<h2 id="evidence">Is it real?</h2>{table(heads, tbody(lines[True]), "evidence")}'
        + (fold(f"Other classifiers, spectra and orders ({len(lines[False])})", rest) if rest else "")
        + '<p class="small">Differences in points between runs with the same seeds: the class order and the first '
        "weights are then the same, and a difference is not that of two draws. Below each: its "
        f"{LEVEL:.0%} t interval, whether that holds 0, how many pairs have the sign of the mean, and bootstrap "
        "percentiles of the mean difference, which are too narrow for few pairs. "
        f"{worth}</p>"
    )


def _evidence_cells(changes: dict[Metric, Change]) -> str:
    cells = []
    for metric, change in changes.items():
        bounds, beside = (
            f"<small>{name}{bounds_text(interval)}</small>" if interval else ""
            for name, interval in (("", change.interval), ("bootstrap ", change.bootstrap))
        )
        value = f'<b class="{verdict(metric, change.value)}">{signed(change.value)}</b>{bounds}'
        signs = f"; {change.same_sign} of {change.pairs} alike" if change.pairs > 1 else ""
        cells.append(cell(f"{value}<small>{change.told}{signs}</small>{beside}", change.value))
    pairs = max(change.pairs for change in changes.values())
    return "".join(cells) + cell(str(pairs), pairs)


def ablation_table(made: Sequence[Ablation]) -> str:
    """A line for each method and choice of parts."""
    if not made:
        return ""
    heads = [head("Method"), head("Parts"), *(head(name, "part") for name in ("CWM", "Alignment", "HA"))]
    heads += [head(symbol, "number") for symbol in HTML_SYMBOLS.values()] + [head("n", "number")]
    several = len({one.data_label for one in made}) > 1
    lines = []
    for one in made:
        name = f"{escape(one.group.title)}, {CLASSIFIER_NAMES.get(one.classifier, escape(one.classifier))}"
        below = [one.group.label, one.data_label if several else one.schedule_label]
        name += "".join(f"<small>{escape(text)}</small>" for text in below if text)
        for parts, numbers in one.lines:
            cells = "".join(_number_cell(metric, numbers.numbers[metric]) for metric in METRICS)
            lines.append(
                f"<tr><th scope='row'>{name}</th><td>{escape(shown_name(parts))}</td>{_ticks(parts)}{cells}"
                f"{cell(runs_text(numbers), numbers.runs)}</tr>"
            )
    return (
        f'<h2 id="ablation">Ablation</h2>{table(heads, tbody(lines), "ablation")}'
        f'<p class="small">{ARROWS} SF: '
        "surrogate features of earlier classes; identity: aligned features held near the features themselves.</p>"
    )


def _ticks(parts: Parts) -> str:
    def tick(on: bool) -> str:
        return '<span class="tick">✓</span>' if on else '<span class="cross">×</span>'

    alignment = {"own": "own", "none": "none", "wa": "WA", "diwa": "DIWA"}[parts.alignment]
    lacks = [word for word, there in (("SF", parts.surrogates), ("identity", parts.identity)) if not there]
    without = f" <small>no {', no '.join(lacks)}</small>" if parts.ha and lacks else ""
    return "".join(f"<td class='part'>{text}</td>" for text in (tick(parts.cwm), alignment, tick(parts.ha) + without))
