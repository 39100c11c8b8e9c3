"""LaTeX tables in the layout of the paper's tables."""

from collections.abc import Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from ffcil.report.analyse.ablation import Ablation
from ffcil.report.analyse.matched import Matched
from ffcil.report.analyse.sensitivity import SensitivityTable
from ffcil.report.analyse.statistics import T_INTERVAL, Interval
from ffcil.report.analyse.tables import Cell, Row, direction, settings_in
from ffcil.report.read.parts import Parts
from ffcil.report.render.matched import matched_legend
from ffcil.report.render.sensitivity import SENSITIVITY, last_text
from ffcil.report.render.text import ARROWS, NOTHING, TEX_SYMBOLS, arrow, legend, runs_text, signed

DATA_SETS_ACROSS = 2
"""Number of data sets side by side, as in the paper; further data sets go below."""
ByData = dict[str, Row]
"""Rows of one method by data set."""


def comparison_latex(rows: Sequence[Row]) -> str:
    """The paper's Table 1: methods in lines; data sets, settings and accuracies in columns.

    Methods on the same data sets share a block. Only the main point of a sweep is included.
    """
    rows = [row for row in rows if row.group.is_main]
    by_method: dict[tuple[str, ...], ByData] = {}
    for row in rows:
        method = (row.group.runs[0].method, row.classifier, repr(row.group.condition))
        by_method.setdefault(method, {})[row.data_label] = row
    methods: dict[tuple[str, ...], list[ByData]] = {}
    for by_data in by_method.values():
        methods.setdefault(tuple(by_data), []).append(by_data)
    across = min(DATA_SETS_ACROSS, max(map(len, methods), default=1))
    blocks = [
        (data[start : start + across], [[by_data[one] for one in data[start : start + across]] for by_data in found])
        for data, found in methods.items()
        for start in range(0, len(data), across)
    ]
    return _render("table.tex", blocks=blocks, across=across, settings=settings_in(rows), legend=legend(rows))


def ablation_latex(ablations: Sequence[Ablation]) -> str:
    """The paper's Table 2: choices of parts in lines, methods in columns, each with its number of runs.

    A column names the parts of flow, if any run has one.
    """
    blocks: dict[tuple[str, bool], list[Ablation]] = {}
    for one in ablations:
        blocks.setdefault((one.data_label, any(parts.pretrained for parts in one.cells)), []).append(one)
    with_flow = any(parts.flow for one in ablations for parts in one.cells)
    across = max(map(len, blocks.values()), default=1)
    return _render("ablation.tex", blocks=blocks, across=across, with_flow=with_flow)


def matched_latex(matched: Sequence[Matched]) -> str:
    """Matched differences of the scored classifiers, without secondary points of sweeps; one block per data set."""
    main = [one for one in matched if one.scored and one.group.is_main]
    blocks: dict[str, list[Matched]] = {}
    for one in main:
        blocks.setdefault(one.group.data_label, []).append(one)
    return _render("matched.tex", blocks=blocks, legend=matched_legend(main))


def sensitivity_latex(tables: Sequence[SensitivityTable]) -> str:
    """Arrival sensitivity: one table per data set, schedules in columns."""
    return _render("sensitivity.tex", tables=tables, legend=SENSITIVITY)


def _ablation_lines(methods: Sequence[Ablation]) -> list[tuple[Parts, list[Cell | None]]]:
    """Every choice of parts with the results of each method."""
    choices = {parts.label: parts for one in methods for parts in one.cells}
    by_label = [{parts.label: cell for parts, cell in one.cells.items()} for one in methods]
    ordered = sorted(choices.values(), key=lambda parts: parts.rank)
    return [(parts, [cells.get(parts.label) for cells in by_label]) for parts in ordered]


def _rules(width: int, times: int, first: int = 2) -> str:
    """Lines below heads that span `width` columns each."""
    return " ".join(f"\\cmidrule(lr){{{first + width * i}-{first - 1 + width * (i + 1)}}}" for i in range(times))


def _escape(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    written = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", NOTHING: "--"}
    written |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}  # other characters in OT1
    written |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(written.get(character, character) for character in text)


def _interval(interval: Interval | None) -> str:
    """Bounds of an interval, with minus signs instead of hyphens."""
    return " to ".join(f"${signed(bound)}$" for bound in interval) if interval else "--"


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        *("<%", "%>", "<<", ">>", "<#", "#>"),  # braces and percent signs belong to LaTeX
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
        loader=PackageLoader("ffcil.report.render"),
    )
    environment.filters["tex"] = _escape
    environment.globals |= {"ARROWS": ARROWS, "SYMBOLS": TEX_SYMBOLS, "arrow": arrow, "direction": direction}
    environment.globals |= {"rules": _rules, "runs_text": runs_text, "ablation_lines": _ablation_lines}
    environment.globals |= {"T_INTERVAL": T_INTERVAL, "signed": signed, "interval": _interval}
    environment.globals["last_text"] = last_text
    return environment.get_template(template).render(values)
