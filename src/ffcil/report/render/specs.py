"""Specifications of the interactive figures on the page.

A specification is the dictionary that plotly.js reads. The page's script adds the layout that all figures share, and
the colours of text and background, for light and dark screens.
"""

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from ffcil.metrics import step_accuracy
from ffcil.report.analyse.curves import (
    MOST_CELLS,
    ClassPoint,
    Floats,
    accuracy_range,
    bins,
    bins_text,
    class_points,
    mean_by_size,
    mean_curve,
    thinned,
)
from ffcil.report.analyse.groups import count
from ffcil.report.analyse.overhead import Cost
from ffcil.report.analyse.sensitivity import Sensitivity
from ffcil.report.analyse.statistics import T_INTERVAL, Change
from ffcil.report.analyse.sweeps import Sweep
from ffcil.report.analyse.tables import HEADLINES, Metric, Row
from ffcil.report.read.records import RunRecord, settings_of
from ffcil.report.render.colours import OTHER_COLOUR, colour, schedule_colour
from ffcil.report.render.text import HTML_SYMBOLS, interval_text

Spec = dict[str, Any]


def curves_spec(runs: Sequence[RunRecord], classifier: str) -> Spec:
    """Accuracy against classes seen. Thin lines are single runs, thick lines their mean."""
    traces: list[Spec] = []
    for setting in settings_of(runs):
        selected = [run for run in runs if run.setting == setting and classifier in run.tables]
        if len(selected) == 1:
            single = _curve_trace(selected[0], classifier, width=2.5)
            traces.append(single | {"name": escape(setting), "mode": "lines+markers"})
        elif selected:
            thin = {"opacity": 0.55, "showlegend": False, "mode": "lines"}
            traces += [_curve_trace(run, classifier, width=1) | thin for run in selected]
            x, y = mean_curve([run.tables[classifier] for run in selected])
            mean = _line(setting, [int(n) for n in x], _numbers(y), width=3)
            hover = f"<b>{escape(setting)}, mean of {len(selected)} runs</b><br>%{{x}} classes: %{{y:.2f}} %"
            traces.append(mean | _hover(hover) | {"name": escape(setting), "mode": "lines"})
    across = _axis("classes seen", range=[0, 1.02 * sum(runs[0].sizes)])
    return _figure(traces, 360, across, _axis("accuracy, %", range=list(accuracy_range(runs))))


def _curve_trace(run: RunRecord, classifier: str, width: float) -> Spec:
    table = run.tables[classifier]
    hover = (
        f"<b>{escape(run.setting)}, {escape(run.seed_label)}</b><br>"
        "step %{customdata[0]}: %{customdata[1]} new classes, %{x} seen<br>%{y:.2f} %"
    )
    shown = thinned(len(table.sizes))
    points = [[k + 1, table.sizes[k]] for k in shown]
    line = _line(run.setting, [table.seen[k] for k in shown], _numbers(table.curve[shown]), width)
    return line | _hover(hover, points)


def schedule_spec(schedules: dict[str, RunRecord]) -> Spec:
    """New classes of every step, for all schedules of one seed. Very many steps are drawn as fewer bars of their
    means."""
    traces: list[Spec] = []
    steps: list[int] = []
    for name, run in schedules.items():
        steps, parts = list(range(1, len(run.sizes) + 1)), bins(len(run.sizes))
        new = [sum(run.sizes[first - 1 : last]) for first, last in parts]
        means = [n / (last - first + 1) for n, (first, last) in zip(new, parts, strict=True)]
        values = [[_steps_text(*part), n, int(seen)] for part, n, seen in zip(parts, new, np.cumsum(new), strict=True)]
        bar: Spec = {"type": "bar", "x": [(a + b) / 2 for a, b in parts], "y": means, "name": escape(name)}
        hover = "%{customdata[0]}<br>%{customdata[1]} new classes, %{customdata[2]} seen"
        bar |= _hover(f"<b>{escape(name)}</b>, {hover}", values)
        traces.append(bar | {"marker": {"color": schedule_colour(run)}})
    across = _axis("step", tickformat="d", showgrid=False) | _every_step(steps)
    most = max(max(run.sizes) for run in schedules.values())
    whole = {"tick0": 0, "dtick": -(-most // 6)} if len(steps) <= MOST_CELLS else {}  # bars of many steps are means
    down = _axis("new classes", rangemode="tozero", **whole)
    return _figure(traces, 230, across, down, barmode="group", bargap=0.25)


def _steps_text(first: int, last: int) -> str:
    return f"step {first}" if first == last else f"steps {first} to {last}"


def memory_spec(run: RunRecord, classifier: str) -> Spec:
    """Heat map of the accuracy after each step (rows) on the classes of each earlier step (columns).

    Very many steps are drawn as fewer cells: a column is then for several consecutive steps, a row for the last of
    them.
    """
    steps = len(run.tables[classifier].sizes)
    table, ends = run.tables[classifier].merged(MOST_CELLS), [last for _, last in bins(steps)]
    heat = {
        "type": "heatmap",
        "x": ends,
        "y": ends,
        "z": [_numbers(row) for row in step_accuracy(table)],
        "zmin": 0,
        "zmax": 100,
        "colorscale": "Viridis",
        "colorbar": {"ticksuffix": " %", "thickness": 10, "outlinewidth": 0},
        "hoverongaps": False,
    }
    heat |= {"xgap": 1, "ygap": 1} if len(ends) < MOST_CELLS else {}
    of = f"{bins_text(steps)} up to step" if steps > MOST_CELLS else "step"
    hover = f"after step %{{y}}, the %{{customdata}} classes of {of} %{{x}}: %{{z:.1f}} %"
    plain = {"tickformat": "d", "nticks": 10, "showgrid": False, "zeroline": False} | _every_step(ends)
    across = _axis("classes of step", **plain)
    if "tickvals" in plain:
        across |= _axis("classes of step (number of classes below)", tickangle=0, tickfont={"size": 10})
        across["ticktext"] = [f"{t}<br>{n}" for t, n in enumerate(table.sizes, start=1)]
    down = _axis("after step", **plain, autorange="reversed")
    return _figure([heat | _hover(hover, [list(table.sizes)] * len(ends))], 320, across, down, margin={"t": 8})


def class_size_spec(runs: Sequence[RunRecord], classifier: str, paired: bool = False) -> Spec:
    """Accuracy on each class after the last step, against the number of classes that arrived in the same step.

    With `paired`, the accuracy on the same class under equal steps is subtracted. The class has nearly the same age
    there.
    """
    traces: list[Spec] = []
    means: list[Spec] = []  # drawn last, on top of the dots
    by_setting = {setting: points for setting, points in class_points(runs, classifier, paired).items() if points}
    for place, (setting, points) in enumerate(by_setting.items()):
        # dots are spread a little around the whole number, so that they do not hide each other
        aside = (place - (len(by_setting) - 1) / 2) * 0.25
        means.append(_size_means(points, setting, aside, "points relative to equal steps" if paired else "%"))
        points = [points[k] for k in thinned(len(points))]
        spread = (np.arange(len(points)) * 0.618034) % 1 * 0.2 - 0.1
        dots: Spec = {"type": "scatter", "mode": "markers", "legendgroup": setting, "showlegend": False}
        dots["x"] = _numbers([point.size + aside + s for point, s in zip(points, spread, strict=True)])
        dots["y"] = _numbers([point.height for point in points])
        dots |= {"text": [_class_hover(point) for point in points], "hoverinfo": "text"}
        traces.append(dots | {"marker": {"size": 4, "color": colour(setting), "opacity": 0.35}})
    largest = max((max(run.sizes) for run in runs if classifier in run.tables), default=1)
    ticks = {"tickformat": "d", "tick0": 0, "dtick": -(-largest // 15), "range": [0, largest + 1]}
    across = _axis("new classes in the step of the class", showgrid=False, **ticks)
    down = _axis("accuracy after the last step, %", range=[-2, 102])
    return _figure(traces + means, 360, across, _axis("difference from equal steps, points") if paired else down)


def _size_means(points: Sequence[ClassPoint], setting: str, aside: float, unit: str) -> Spec:
    means = mean_by_size(points)
    heights = _numbers([mean for mean, _ in means.values()])
    line = _line(setting, _numbers([size + aside for size in means]), heights, width=1.5)
    hover = (
        f"<b>{escape(setting)}</b>: %{{customdata[0]}} classes from<br>steps of %{{customdata[1]}}: %{{y:.1f}} {unit}"
    )
    line |= _hover(hover, [[n, size] for size, (_, n) in means.items()])
    ring = {"size": 11, "line": {"color": "white", "width": 1.5}}
    return line | {"name": escape(setting), "mode": "lines+markers", "marker": ring}


def _class_hover(point: ClassPoint) -> str:
    run = point.run
    where = f"class {point.position + 1}, arrived at step {point.step} with {point.size - 1} others"
    return f"<b>{escape(run.setting)}</b>, {escape(run.seed_label)}<br>{where}<br>{point.accuracy:.1f} %"


def change_spec(rows: Sequence[Row], metric: Metric) -> Spec:
    """Effects of free flow and of the frameworks in points, with intervals over pairs of runs."""
    shown = [row for row in rows if row.scored and any(row.change(setting, metric) for setting in HEADLINES)]
    several = len({row.data_label for row in shown}) > 1
    names = [_lines(row.group.title, row.data_label if several else "", row.group.label) for row in shown]
    traces = []
    for setting, name in HEADLINES.items():
        changes = [row.change(setting, metric) for row in shown]
        if not any(changes):
            continue
        spans = [change.whiskers if change else (0.0, 0.0) for change in changes]
        error = _whiskers([below for below, _ in spans], [above for _, above in spans])
        bar: Spec = {"type": "bar", "orientation": "h", "y": names, "name": name, "marker": {"color": colour(setting)}}
        bar |= {"x": [round(c.value, 4) if c else None for c in changes], "error_x": error}
        hover = "<b>%{y}</b><br>%{x:+.2f} points, %{customdata}"
        traces.append(bar | _hover(hover, [_pairs(change) for change in changes]))
    across = _axis(f"change of {HTML_SYMBOLS[metric]}, points", zeroline=True)
    return _figure(traces, 110 + 56 * len(shown), across, NAMES_DOWN, barmode="group", bargap=0.35)


def _pairs(change: Change | None) -> str:
    if change is None:
        return ""
    interval = f", {T_INTERVAL} {interval_text(change.interval)}" if change.interval else ""
    return f"{count(change.pairs, 'pair')}{interval}"


def sweep_spec(sweep: Sweep, metric: Metric) -> Spec:
    """Accuracy at every value of a field. Alpha is drawn as lines, the order as bars."""
    traces = []
    lines = sweep.field == "alpha"
    for setting in sweep.settings:
        numbers = sweep.numbers(setting, metric)
        spread = [n.std or 0.0 if n else 0.0 for n in numbers]
        error = _whiskers(spread, spread) | ({"color": colour(setting)} if lines else {})
        trace: Spec = {
            "x": sweep.values if lines else _names(sweep.values),
            "y": [round(n.mean, 4) if n else None for n in numbers],
            "error_y": error,
        }
        trace |= {"name": escape(setting), "legendgroup": setting}
        hover = f"<b>{escape(setting)}</b>, {sweep.field} %{{x}}<br>%{{y:.2f}} %, n = %{{customdata}}"
        trace |= _hover(hover, [n.n if n else 0 for n in numbers])
        if lines:
            flat = {"dash": "dot"} if setting.startswith("Equ") else {}  # equal steps have no alpha
            trace |= {"type": "scatter", "mode": "lines+markers", "line": {"color": colour(setting)} | flat}
        else:
            trace |= {"type": "bar", "marker": {"color": colour(setting)}}
        traces.append(trace)
    across = _axis(sweep.field, showgrid=False)
    if lines:
        across |= {"type": "log", "tickvals": sweep.values, "ticktext": [f"{value:g}" for value in sweep.values]}
    return _figure(traces, 320, across, _axis(f"{HTML_SYMBOLS[metric]}, %", rangemode="tozero"), barmode="group")


def sensitivity_spec(rows: Sequence[Sensitivity], schedules: Sequence[str]) -> Spec:
    """Accuracy after the last step by schedule, one line per framework. Thin lines are single permutations."""
    traces: list[Spec] = []
    for row in rows:
        for one in row.permutations if row.permutations[1:] else ():
            heights = _numbers([one.last.get(name, np.nan) for name in schedules])
            thin = {"opacity": 0.45, "showlegend": False, "mode": "lines"}
            hover = f"<b>{escape(row.framework)}</b>, class seed {one.class_seed}<br>%{{x}}: %{{y:.2f}} %"
            traces.append(_line(row.setting, _names(schedules), heights, width=1) | thin | _hover(hover))
        means = [row.last(name) for name in schedules]
        mean = _line(row.setting, _names(schedules), _numbers([np.nan if m is None else m for m in means]), width=3)
        hover = f"<b>{escape(row.framework)}</b><br>%{{x}}: %{{y:.2f}} %"
        name = f"{escape(row.framework)}: range {row.range:.2f}"
        traces.append(mean | _hover(hover) | {"name": name, "mode": "lines+markers", "marker": {"size": 9}})
    across = _axis("", showgrid=False, type="category", tickangle=-30)
    return _figure(traces, 340, across, _axis(f"{HTML_SYMBOLS['last']}, %"))


def _names(names: Sequence[str]) -> list[Any]:
    return [escape(name) for name in names]


def cost_spec(costs: Sequence[Cost], time: str) -> Spec:
    """Ratio of the times with and without parts of the framework. Whiskers are the extreme pairs."""
    selected = [(cost, ratio) for cost in costs if (ratio := cost.ratio(time)) is not None]
    several = len({cost.group.data_label for cost, _ in selected}) > 1
    bar: Spec = {"type": "bar", "orientation": "h", "marker": {"color": colour("Equ.T")}}
    bar["x"] = _numbers([ratio for _, ratio in selected])
    bar["y"] = [_cost_name(cost, several) for cost, _ in selected]
    below = [max(0.0, ratio - min(cost.ratios(time))) for cost, ratio in selected]
    bar["error_x"] = _whiskers(below, [max(0.0, max(cost.ratios(time)) - ratio) for cost, ratio in selected])
    hover = "<b>%{y}</b><br>%{x:.3f} times the original<br>%{customdata}"
    bar |= _hover(hover, [_cost_hover(cost, time) for cost, _ in selected])
    one = {"type": "line", "x0": 1, "x1": 1, "y0": 0, "y1": 1, "yref": "paper"}
    one["line"] = {"dash": "dot", "width": 1, "color": OTHER_COLOUR}
    across = _axis(f"{time} time relative to the original method", rangemode="tozero")
    more = {"margin": {"t": 8}, "shapes": [one], "showlegend": False, "bargap": 0.4}
    return _figure([bar], 80 + 44 * len(selected), across, NAMES_DOWN, **more)


def _cost_name(cost: Cost, with_data: bool) -> str:
    schedule = {"FF": "", "Equ": ", equal steps"}.get(cost.schedule, f", {cost.schedule}")
    data = cost.group.data_label if with_data else ""
    return _lines(f"{cost.group.title}{schedule}", data, cost.group.label, cost.parts)


def _cost_hover(cost: Cost, time: str) -> str:
    before, after = (sum(seconds) / len(seconds) for seconds in cost.seconds(time))
    devices = ", ".join(dict.fromkeys(run.device for run, _ in cost.pairs))
    return f"{before:.2f} s without, {after:.2f} s with<br>{count(len(cost.pairs), 'pair')} on {escape(devices)}"


NAMES_DOWN = {"autorange": "reversed", "showgrid": False, "automargin": True}
"""Vertical axis whose values are names."""


def _lines(*texts: str) -> str:
    """Name on several lines, without empty ones; plotly does not wrap lines."""
    return "<br>".join(escape(text) for text in texts if text)


def _whiskers(below: Sequence[float], above: Sequence[float]) -> Spec:
    error: Spec = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": OTHER_COLOUR}
    return error | {"arrayminus": _numbers(below), "array": _numbers(above)}


def _line(setting: str, x: Sequence[float | None], y: Sequence[float | None], width: float) -> Spec:
    line = {"color": colour(setting), "width": width}
    return {"type": "scatter", "x": x, "y": y, "legendgroup": setting, "line": line}


def _hover(template: str, values: Sequence[Any] = ()) -> Spec:
    """Text below the pointer; `values` are the template's `customdata`."""
    hover: Spec = {"hovertemplate": f"{template}<extra></extra>"}
    return hover | {"customdata": values} if values else hover


def _every_step(steps: list[int]) -> Spec:
    """Ticks at every step if there are few steps; otherwise plotly chooses them."""
    return {"tickvals": steps} if len(steps) <= 12 else {}


def _axis(title: str, **options: Any) -> Spec:
    return {"title": {"text": title}} | options


def _figure(traces: list[Spec], height: int, xaxis: Spec, yaxis: Spec, **options: Any) -> Spec:
    return {"data": traces, "layout": {"height": height, "xaxis": xaxis, "yaxis": yaxis} | options}


def _numbers(values: Sequence[float] | Floats) -> list[float | None]:
    """Values for JSON: rounded to four decimals, None instead of NaN."""
    return [None if np.isnan(value) else round(float(value), 4) for value in values]
