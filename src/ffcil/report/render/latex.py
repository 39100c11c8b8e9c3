"""LaTeX tables in the layout of the paper's tables."""

from __future__ import annotations

from collections.abc import Sequence

from ffcil.report.analyse.ablation import Ablation, AblationLine
from ffcil.report.analyse.tables import Cell, Metric, Number, Row, direction, settings_in
from ffcil.report.render.text import ARROWS, NOTHING, TEX_SYMBOLS, arrow, legend, runs_text

COLOURS = {"better": "34,139,34", "worse": "178,34,34", "same": "128,128,128"}
DATA_SETS_ACROSS = 2
"""Number of data sets side by side, as in the paper; further data sets go below."""


def comparison_latex(rows: Sequence[Row]) -> str:
    """The paper's Table 1: methods in lines; data sets, settings and accuracies in columns.

    Methods on the same data sets share a block. Only the main point of a sweep is included.
    """
    rows = [row for row in rows if row.group.is_main]
    settings = settings_in(rows)
    width = len(settings) * len(TEX_SYMBOLS)
    across = min(DATA_SETS_ACROSS, max((len(data) for data, _ in _blocks(rows)), default=1))
    lines = [
        "% \\usepackage{booktabs,xcolor}",
        *(f"% {line}" for line in legend(rows).split("\n")),
        f"\\begin{{tabular}}{{@{{}}l*{{{width * across}}}{{c}}@{{}}}}",
        "\\toprule",
    ]
    for data, by_method in _blocks(rows):
        for start in range(0, len(data), across):
            if lines[-1] != "\\toprule":
                lines.append("\\midrule")
            lines += _block(data[start : start + across], by_method, settings, across)
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


ByMethod = dict[tuple[str, ...], dict[str, Row]]
"""Rows by line of the table and by data."""


def _blocks(rows: Sequence[Row]) -> list[tuple[tuple[str, ...], ByMethod]]:
    by_method: ByMethod = {}
    for row in rows:
        method: tuple[str, ...] = (row.group.runs[0].method, row.classifier, repr(row.group.condition))
        by_method.setdefault(method, {})[row.data_label] = row
    blocks: dict[tuple[str, ...], ByMethod] = {}
    for method, by_data in by_method.items():
        blocks.setdefault(tuple(by_data), {})[method] = by_data
    return list(blocks.items())


def _block(data: Sequence[str], by_method: ByMethod, settings: Sequence[str], across: int) -> list[str]:
    width = len(settings) * len(TEX_SYMBOLS)
    empty = " &" * (width * (across - len(data)))
    heads = [f"\\multicolumn{{{width}}}{{c}}{{\\textbf{{{escape(one)}}}}}" for one in data]
    names = [f"\\multicolumn{{{len(TEX_SYMBOLS)}}}{{c}}{{\\textbf{{{escape(s)}}}}}" for s in settings] * len(data)
    metrics = list(TEX_SYMBOLS.values()) * len(settings) * len(data)
    lines = [
        f"& {' & '.join(heads)}{empty} \\\\",
        _rules(width, len(data)),
        f"& {' & '.join(names)}{empty} \\\\",
        _rules(len(TEX_SYMBOLS), len(settings) * len(data)),
        f"Method & {' & '.join(metrics)}{empty} \\\\",
        "\\midrule",
    ]
    for by_data in by_method.values():
        label = by_data[data[0]].label
        counts = "; ".join(", ".join(runs_text(by_data[one].cells.get(s)) for s in settings) for one in data)
        lines.append(f"\\shortstack[l]{{{escape(label)}\\strut\\\\{{\\scriptsize\\strut $n$ = {escape(counts)}}}}}")
        lines += [f"  & {_number(m, by_data[one].number(s, m))}" for one in data for s in settings for m in TEX_SYMBOLS]
        lines[-1] += f"{empty} \\\\"
    return lines


def _rules(width: int, times: int, first: int = 2) -> str:
    return " ".join(f"\\cmidrule(lr){{{first + width * i}-{first - 1 + width * (i + 1)}}}" for i in range(times))


ABLATED = [*TEX_SYMBOLS.values(), "$n$"]
"""Columns of each method in an ablation."""


def ablation_latex(ablations: Sequence[Ablation]) -> str:
    """The paper's Table 2: choices of parts in lines, methods in columns, each with its number of runs."""
    kinds: dict[tuple[str, bool], list[Ablation]] = {}
    for one in ablations:
        kinds.setdefault((one.data_label, any(line.parts.ha for line in one.lines)), []).append(one)
    most = max((len(methods) for methods in kinds.values()), default=1)
    lines = [
        "% \\usepackage{booktabs,xcolor,amssymb}",
        f"% Mean and sample standard deviation over $n$ runs. {ARROWS}",
        f"\\begin{{tabular}}{{@{{}}cccc*{{{len(ABLATED) * most}}}{{c}}@{{}}}}",
        "\\toprule",
    ]
    for (data, with_ha), methods in kinds.items():
        if lines[-1] != "\\toprule":
            lines.append("\\midrule")
        lines += _ablation_block(data, with_ha, methods, most)
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _ablation_block(data: str, with_ha: bool, methods: Sequence[Ablation], most: int) -> list[str]:
    second = ["HA", r"$\mathcal{L}_{\mathrm{idn}}$", "SF"] if with_ha else ["WA", "DIWA", ""]
    empty = " &" * (len(ABLATED) * (most - len(methods)))
    heads = [f"\\multicolumn{{{len(ABLATED)}}}{{c}}{{{escape(one.label)}}}" for one in methods]
    lines = [
        f"\\multicolumn{{4}}{{@{{}}l}}{{\\textit{{{escape(data)}}}}} & {' & '.join(heads)}{empty} \\\\",
        _rules(len(ABLATED), len(methods), first=5),
        f"CWM & {' & '.join(second)} & {' & '.join(ABLATED * len(methods))}{empty} \\\\",
        "\\midrule",
    ]
    choices = {line.name: line for one in methods for line in one.lines}
    for choice in sorted(choices.values(), key=lambda line: line.parts.rank):
        cells = [{line.name: line.cell for line in one.lines}.get(choice.name) for one in methods]
        texts = [text for cell in cells for text in _ablated(cell)]
        lines.append(f"{' & '.join(_ticks(choice, with_ha))} & {' & '.join(texts)}{empty} \\\\")
    return lines


def _ablated(cell: Cell | None) -> list[str]:
    return [*(_number(m, cell.numbers[m] if cell else None) for m in TEX_SYMBOLS), escape(runs_text(cell))]


def _ticks(line: AblationLine, with_ha: bool) -> list[str]:
    parts = line.parts

    def tick(on: bool) -> str:
        return "\\checkmark" if on else "$\\times$"

    if with_ha:
        inner = [tick(parts.identity), tick(parts.surrogates)] if parts.ha else ["--", "--"]
        return [tick(parts.cwm), tick(parts.ha), *inner]
    alignment = {"own": "own", "none": tick(False), "wa": tick(True), "diwa": tick(False)}[parts.alignment]
    return [tick(parts.cwm), alignment, tick(parts.alignment == "diwa"), "centre loss" if parts.centre else ""]


def escape(text: str) -> str:
    """Text with the special characters of LaTeX escaped."""
    written = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", NOTHING: "--"}
    written |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(written.get(character, character) for character in text)


def _number(metric: Metric, number: Number | None) -> str:
    if number is None:
        return "--"
    small = [f"$\\pm {number.std:.2f}$"] if number.std is not None else []
    if number.change is not None:
        mark = arrow(number.change.value)
        sign = {"↑": "\\uparrow", "↓": "\\downarrow", "=": "="}[mark[0]]
        small.append(f"\\textcolor[RGB]{{{COLOURS[direction(metric, number.change.value)]}}}{{${sign} {mark[1:]}$}}")
    mean = f"${number.mean:.2f}$"
    return f"\\shortstack{{{mean}\\strut\\\\{{\\scriptsize\\strut {' '.join(small)}}}}}" if small else mean
