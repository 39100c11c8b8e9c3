"""Specifications of the interactive figures on the page.

A specification is the dictionary that plotly.js reads. The page sets the colours of text and background, for light and
dark screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from ffcil.metrics import curve, step_accuracy
from ffcil.report.analyse.class_sizes import ClassPoint, class_points, mean_by_size
from ffcil.report.analyse.curves import Floats, accuracy_range, mean_curve
from ffcil.report.analyse.groups import count
from ffcil.report.analyse.overhead import Cost
from ffcil.report.analyse.statistics import LEVEL, Change
from ffcil.report.analyse.sweeps import Sweep
from ffcil.report.analyse.tables import Metric, Row
from ffcil.report.read.records import RunRecord, settings_of
from ffcil.report.render.colours import OTHER_COLOUR, colour, schedule_colour
from ffcil.report.render.text import HTML_SYMBOLS, interval_text

Spec = dict[str, Any]


def curves_spec(runs: Sequence[RunRecord], classifier: str) -> Spec:
    """Accuracy against classes seen. Thin lines are single runs, thick lines their mean."""
    traces: list[Spec] = []
    for setting in settings_of(runs):
        name = escape(setting)
        selected = [run for run in runs if run.setting == setting and classifier in run.tables]
        for run in selected if len(selected) > 1 else []:
            traces.append(_curve_trace(run, classifier, {"width": 1}, opacity=0.55, showlegend=False, mode="lines"))
        if len(selected) == 1:
            traces.append(_curve_trace(selected[0], classifier, {"width": 2.5}, name=name, mode="lines+markers"))
        elif selected:
            x, y = mean_curve([run.tables[classifier] for run in selected])
            mean = _line(setting, [int(n) for n in x], _numbers(y), {"width": 3})
            hover = f"<b>{name}, mean of {len(selected)} runs</b><br>%{{x}} classes: %{{y:.2f}} %<extra></extra>"
            traces.append(mean | {"name": name, "mode": "lines", "hovertemplate": hover})
    axes = {
        "xaxis": {"title": {"text": "classes seen"}, "range": [0, 1.02 * sum(runs[0].sizes)]},
        "yaxis": {"title": {"text": "accuracy, %"}, "range": list(accuracy_range(runs))},
    }
    return {"data": traces, "layout": _layout(360) | axes}


def schedule_spec(schedules: dict[str, RunRecord]) -> Spec:
    """New classes of every step, for all schedules of one seed."""
    traces: list[Spec] = []
    steps: list[int] = []
    for name, run in schedules.items():
        steps = list(range(1, len(run.sizes) + 1))
        seen = [int(n) for n in np.cumsum(run.sizes)]
        hover = f"<b>{escape(name)}</b>, step %{{x}}<br>%{{y}} new classes, %{{customdata}} seen<extra></extra>"
        bar = {"type": "bar", "x": steps, "y": list(run.sizes), "customdata": seen, "hovertemplate": hover}
        traces.append(bar | {"name": escape(name), "marker": {"color": schedule_colour(run)}})
    axes = {
        "xaxis": {"title": {"text": "step"}, "tickformat": "d", "showgrid": False} | _every_step(steps),
        "yaxis": {"title": {"text": "new classes"}, "tickformat": "d", "rangemode": "tozero"},
        "barmode": "group",
        "bargap": 0.25,
    }
    return {"data": traces, "layout": _layout(230) | axes}


def memory_spec(run: RunRecord, classifier: str) -> Spec:
    """Heat map of the accuracy after each step (rows) on the classes of each earlier step (columns)."""
    table = run.tables[classifier]
    steps = list(range(1, len(table.sizes) + 1))
    accuracy = [_numbers(row) for row in step_accuracy(table)]
    hover = "after step %{y}, the %{customdata} classes of step %{x}: %{z:.1f} %<extra></extra>"
    heat = {
        "type": "heatmap",
        "x": steps,
        "y": steps,
        "z": accuracy,
        "customdata": [list(table.sizes)] * len(steps),
        "zmin": 0,
        "zmax": 100,
        "colorscale": "Viridis",
        "colorbar": {"ticksuffix": " %", "thickness": 10, "outlinewidth": 0},
        "hoverongaps": False,
        "hovertemplate": hover,
        "xgap": 1,
        "ygap": 1,
    }
    plain = {"tickformat": "d", "nticks": 10, "showgrid": False, "zeroline": False}
    across = plain | {"title": {"text": "classes of step"}} | _every_step(steps)
    if "tickvals" in across:
        across |= {
            "title": {"text": "classes of step (number of classes below)"},
            "tickangle": 0,
            "tickfont": {"size": 10},
        }
        across |= {"ticktext": [f"{t}<br>{n}" for t, n in enumerate(table.sizes, start=1)]}
    down = plain | {"title": {"text": "after step"}, "autorange": "reversed"} | _every_step(steps)
    return {"data": [heat], "layout": _layout(320, top=8) | {"xaxis": across, "yaxis": down}}


def class_size_spec(runs: Sequence[RunRecord], classifier: str, paired: bool = False) -> Spec:
    """Accuracy on each class after the last step, against the number of classes that arrived in the same step.

    With `paired`, the accuracy on the same class under equal steps is subtracted, at nearly the same age of the class.
    """
    traces: list[Spec] = []
    means: list[Spec] = []  # drawn last, on top of the dots
    runs = [run for run in runs if classifier in run.tables]
    points = [p for p in class_points(runs, classifier) if not paired or _has_partner(p)]
    settings = [setting for setting in settings_of(runs) if any(p.run.setting == setting for p in points)]
    for place, setting in enumerate(settings):
        selected = [point for point in points if point.run.setting == setting]
        # Dots are spread a little around the whole number so that they do not hide each other.
        aside = (place - (len(settings) - 1) / 2) * 0.25
        spread = (np.arange(len(selected)) * 0.618034) % 1 * 0.2 - 0.1
        heights = [point.against_equal if paired else point.accuracy for point in selected]
        dots: Spec = {"type": "scatter", "mode": "markers", "y": [None if h is None else round(h, 4) for h in heights]}
        dots |= {"x": _numbers([p.size + aside + s for p, s in zip(selected, spread, strict=True)])}
        dots |= {"marker": {"size": 4, "color": colour(setting), "opacity": 0.35}, "hoverinfo": "text"}
        traces.append(dots | {"text": [_class_hover(p) for p in selected], "legendgroup": setting, "showlegend": False})
        means.append(_size_means(mean_by_size(selected, paired), setting, aside, paired))
    largest = max((max(run.sizes) for run in runs), default=1)
    title = {"text": "new classes in the step of the class"}
    ticks = {"tick0": 0, "dtick": -(-largest // 15), "range": [0, largest + 1]}
    down = {"title": {"text": "difference from equal steps, points"}} if paired else {"range": [-2, 102]}
    axes = {
        "xaxis": {"title": title, "tickformat": "d", "showgrid": False} | ticks,
        "yaxis": {"title": {"text": "accuracy after the last step, %"}} | down,
    }
    return {"data": traces + means, "layout": _layout(360) | axes}


def _has_partner(point: ClassPoint) -> bool:
    return point.against_equal is not None and point.run.setting != "Equ.T"


def _size_means(means: dict[int, tuple[float, int]], setting: str, aside: float, paired: bool) -> Spec:
    name, unit = escape(setting), "points relative to equal steps" if paired else "%"
    line = _line(
        setting, _numbers([s + aside for s in means]), _numbers([m for m, _ in means.values()]), {"width": 1.5}
    )
    hover = f"<b>{name}</b>: %{{customdata[0]}} classes from<br>steps of %{{customdata[1]}}: %{{y:.1f}} {unit}"
    line |= {"customdata": [[n, size] for size, (_, n) in means.items()], "hovertemplate": f"{hover}<extra></extra>"}
    ring = {"size": 11, "line": {"color": "white", "width": 1.5}}
    return line | {"name": name, "mode": "lines+markers", "marker": ring}


def _class_hover(point: ClassPoint) -> str:
    run = point.run
    where = f"class {point.position + 1}, arrived at step {point.step} with {point.size - 1} others"
    return f"<b>{escape(run.setting)}</b>, {escape(run.seed_label)}<br>{where}<br>{point.accuracy:.1f} %"


def change_spec(rows: Sequence[Row], metric: Metric) -> Spec:
    """Effects of free flow and of the framework in points, with intervals over pairs of runs."""
    shown = [row for row in rows if row.scored and (row.drop(metric) or row.recovery(metric))]
    several = len({row.data_label for row in shown}) > 1
    names = [_two_lines(r.group.title, [r.data_label if several else "", r.group.label]) for r in shown]
    traces = []
    for name, setting, of in (("free flow", "FF.org", Row.drop), ("framework", "FF.ours", Row.recovery)):
        changes = [of(row, metric) for row in shown]
        spans = [change.whiskers if change else (0.0, 0.0) for change in changes]
        bar: Spec = {"type": "bar", "orientation": "h", "y": names, "name": name, "marker": {"color": colour(setting)}}
        bar |= {
            "x": [round(c.value, 4) if c else None for c in changes],
            "error_x": _whiskers([s[0] for s in spans], [s[1] for s in spans]),
        }
        hover = "<b>%{y}</b><br>%{x:+.2f} points, %{customdata}<extra></extra>"
        traces.append(bar | {"customdata": [_pairs(c) for c in changes], "hovertemplate": hover})
    axes = {
        "xaxis": {"title": {"text": f"change of {HTML_SYMBOLS[metric]}, points"}, "zeroline": True},
        "yaxis": {"autorange": "reversed", "showgrid": False, "automargin": True},
        "barmode": "group",
        "bargap": 0.35,
    }
    return {"data": traces, "layout": _layout(110 + 56 * len(shown)) | axes}


def _two_lines(title: str, below: Sequence[str]) -> str:
    """Name of a category on several lines; plotly does not wrap lines."""
    return "<br>".join(escape(text) for text in (title, *below) if text)


def _pairs(change: Change | None) -> str:
    if change is None:
        return ""
    interval = f", {LEVEL:.0%} t interval {interval_text(change.interval)}" if change.interval else ""
    return f"{count(change.pairs, 'pair')}{interval}"


def sweep_spec(sweep: Sweep, metric: Metric) -> Spec:
    """Accuracy at every value of a field. Alpha is drawn as lines, the order as bars."""
    traces = []
    for setting in sweep.settings:
        numbers = [row.number(setting, metric) for _, row in sweep.points]
        spread = [n.std or 0.0 if n else 0.0 for n in numbers]
        error = _whiskers(spread, spread) | ({"color": colour(setting)} if sweep.field == "alpha" else {})
        trace: Spec = {"x": sweep.values, "y": [round(n.mean, 4) if n else None for n in numbers], "error_y": error}
        trace |= {"name": escape(setting), "legendgroup": setting, "customdata": [n.n if n else 0 for n in numbers]}
        hover = f"<b>{escape(setting)}</b>, {sweep.field} %{{x}}<br>%{{y:.2f}} %, n = %{{customdata}}<extra></extra>"
        trace |= {"hovertemplate": hover}
        if sweep.field == "alpha":
            flat = {"dash": "dot"} if setting.startswith("Equ") else {}  # equal steps have no alpha
            traces.append(
                trace | {"type": "scatter", "mode": "lines+markers", "line": {"color": colour(setting)} | flat}
            )
        else:
            traces.append(trace | {"type": "bar", "marker": {"color": colour(setting)}})
    across: Spec = {"title": {"text": sweep.field}, "showgrid": False}
    if sweep.field == "alpha":
        across |= {"type": "log", "tickvals": sweep.values, "ticktext": [f"{value:g}" for value in sweep.values]}
    axes = {
        "xaxis": across,
        "yaxis": {"title": {"text": f"{HTML_SYMBOLS[metric]}, %"}, "rangemode": "tozero"},
        "barmode": "group",
    }
    return {"data": traces, "layout": _layout(320) | axes}


def cost_spec(costs: Sequence[Cost], phase: str) -> Spec:
    """Ratio of the times with and without parts of the framework. Whiskers are the extreme pairs."""
    selected = [cost for cost in costs if cost.ratio(phase) is not None]
    several = len({cost.group.data_label for cost in selected}) > 1
    ratios = [cost.ratio(phase) or 0.0 for cost in selected]
    spans = [(min(cost.ratios(phase)), max(cost.ratios(phase))) for cost in selected]
    hover = [
        f"{sum(c.original[phase]) / c.pairs:.2f} s without, {sum(c.changed[phase]) / c.pairs:.2f} s with<br>"
        f"{count(c.pairs, 'pair')} on {escape(', '.join(dict.fromkeys(c.devices)))}"
        for c in selected
    ]
    below = [max(0.0, r - s[0]) for r, s in zip(ratios, spans, strict=True)]
    above = [max(0.0, s[1] - r) for r, s in zip(ratios, spans, strict=True)]
    bar: Spec = {"type": "bar", "orientation": "h", "x": _numbers(ratios), "error_x": _whiskers(below, above)}
    bar |= {
        "y": [_cost_name(cost, several) for cost in selected],
        "customdata": hover,
        "marker": {"color": colour("Equ.T")},
    }
    bar |= {"hovertemplate": "<b>%{y}</b><br>%{x:.3f} times the original<br>%{customdata}<extra></extra>"}
    one = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper"}
    axes = {
        "xaxis": {"title": {"text": f"{phase} time relative to the original method"}, "rangemode": "tozero"},
        "yaxis": {"autorange": "reversed", "showgrid": False, "automargin": True},
        "shapes": [one | {"line": {"dash": "dot", "width": 1, "color": OTHER_COLOUR}}],
        "showlegend": False,
        "bargap": 0.4,
    }
    return {"data": [bar], "layout": _layout(80 + 44 * len(selected), top=8) | axes}


def _cost_name(cost: Cost, with_data: bool) -> str:
    schedule = {"FF": "", "Equ": ", equal steps"}.get(cost.schedule, f", {cost.schedule}")
    data = cost.group.data_label if with_data else ""
    return _two_lines(f"{cost.group.title}{schedule}", [data, cost.group.label, cost.parts])


def _whiskers(below: Sequence[float], above: Sequence[float]) -> Spec:
    error: Spec = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": OTHER_COLOUR}
    return error | {"arrayminus": _numbers(below), "array": _numbers(above)}


def _curve_trace(run: RunRecord, classifier: str, line: Spec, **more: Any) -> Spec:
    table = run.tables[classifier]
    hover = (
        f"<b>{escape(run.setting)}, {escape(run.seed_label)}</b><br>"
        "step %{customdata[0]}: %{customdata[1]} new classes, %{x} seen<br>%{y:.2f} %<extra></extra>"
    )
    points = [[step, size] for step, size in enumerate(table.sizes, start=1)]
    trace = _line(run.setting, list(table.seen), _numbers(curve(table)), line)
    return trace | {"customdata": points, "hovertemplate": hover} | more


def _line(setting: str, x: Sequence[float | None], y: Sequence[float | None], line: Spec) -> Spec:
    return {"type": "scatter", "x": x, "y": y, "legendgroup": setting, "line": {"color": colour(setting)} | line}


def _every_step(steps: list[int]) -> Spec:
    """Ticks at every step if there are few steps; otherwise plotly chooses them."""
    return {"tickvals": steps} if len(steps) <= 12 else {}


def _layout(height: int, top: int = 28) -> Spec:
    return {
        "height": height,
        "margin": {"l": 48, "r": 8, "t": top, "b": 40},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
        "hovermode": "closest",
        "showlegend": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
    }


def _numbers(values: Sequence[float] | Floats) -> list[float | None]:
    """Values for JSON: rounded to four decimals, None instead of NaN."""
    return [None if np.isnan(value) else round(float(value), 4) for value in values]
