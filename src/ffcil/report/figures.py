"""Figures: still ones for paper (matplotlib), and the specifications of the page's interactive ones (plotly).

A specification is the plain dictionary that plotly.js reads. It carries no colours of text or background: the page sets
those, to suit a light or a dark screen.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ffcil.arrivals import Arrivals
from ffcil.errors import InputError
from ffcil.metrics import CountTable, class_accuracy, curve, step_accuracy
from ffcil.report.records import CLASSIFIER_NAMES, RunRecord, classifiers_of, settings_of
from ffcil.report.tables import group_runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SETTING_COLOURS = {"Equ.T": "#3f8fd2", "FF.org": "#e0662f", "FF.ours": "#12a17a", "Equ.ours": "#a874c9"}
OTHER_COLOUR = "#8a8f98"
FORMATS = (".svg", ".png", ".pdf")

Floats = NDArray[np.float64]
Spec = dict[str, Any]


def colour(setting: str) -> str:
    """A setting has one colour in every figure."""
    return SETTING_COLOURS.get(setting, OTHER_COLOUR)


def mean_curve(tables: Sequence[CountTable]) -> tuple[Floats, Floats]:
    """The mean accuracy of several runs against the number of classes seen.

    Under free flow no two runs stop at the same numbers of classes, so between its steps a run counts as a straight
    line, and the mean goes only as far as every run does.
    """
    grid = np.array(sorted({n for table in tables for n in table.seen}), dtype=np.float64)
    first, last = max(table.seen[0] for table in tables), min(table.seen[-1] for table in tables)
    grid = grid[(grid >= first) & (grid <= last)]
    lines = []
    for table in tables:
        accuracy = np.array(curve(table))
        known = ~np.isnan(accuracy)
        seen = np.array(table.seen, dtype=np.float64)
        lines.append(np.interp(grid, seen[known], accuracy[known]) if known.any() else np.full(len(grid), np.nan))
    return grid, np.mean(lines, axis=0)


def accuracy_range(runs: Sequence[RunRecord]) -> tuple[float, float]:
    """One range for the curves of all classifiers of these runs, so that figures side by side can be compared."""
    values = [a for run in runs for table in run.tables.values() for a in curve(table) if not np.isnan(a)]
    return 10 * np.floor(min(values, default=0.0) / 10), 101.0


def plot_arrivals(arrivals: Arrivals, path: Path | str) -> Path:
    """Draw a schedule: new classes at every step as bars, classes seen so far as a line. The suffix is the format."""
    figure = _new_figure(path, (6.4, 3.8))
    from matplotlib.ticker import MaxNLocator

    total, bars = figure.subplots(2, 1, sharex=True, height_ratios=[2, 3])
    steps = np.arange(1, len(arrivals.sizes) + 1)
    total.plot(steps, np.cumsum(arrivals.sizes), color="0.35", marker="o", markersize=3, linewidth=1.2)
    total.set(ylabel="Classes seen", title=_arrivals_title(arrivals))
    total.set_ylim(0, 1.1 * sum(arrivals.sizes))
    bars.bar(steps, arrivals.sizes, color=colour("Equ.T" if arrivals.kind == "equal" else "FF.org"), width=0.75)
    if len(steps) <= 30:
        for step, size in zip(steps, arrivals.sizes, strict=True):
            bars.annotate(f"{size}", (step, size), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    bars.set(xlabel="Step", ylabel="New classes")
    bars.set_ylim(0, 1.15 * max(arrivals.sizes))
    bars.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    bars.yaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(total, bars)
    return _save(figure, path)


def plot_curves(runs: Sequence[RunRecord], path: Path | str) -> Path:
    """Draw accuracy against classes seen, a panel per dataset and method, with the schedules below it.

    Thin lines are single runs, thick lines their mean; the classifier is the scored one. Only finished runs count.
    """
    groups = group_runs([run for run in runs if run.finished])
    if not groups:
        raise InputError("None of these runs is finished; finish one to draw its curve.")
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure = _new_figure(path, (max(5.6, 4.2 * columns), 4.4 * rows))
    for panel, group in zip(np.ravel(figure.subfigures(rows, columns, squeeze=False)), groups, strict=False):
        curves, schedule = panel.subplots(2, 1, sharex=True, height_ratios=[4, 1 + 0.15 * len(_schedules(group))])
        _draw_curves(curves, group)
        _draw_schedules(schedule, _schedules(group))
        _plain(curves, schedule)
    return _save(figure, path)


def _draw_curves(axes: Axes, runs: list[RunRecord]) -> None:
    scored = classifiers_of(runs)[0]
    runs = [run for run in runs if scored in run.tables]
    for setting in settings_of(runs):
        tables = [run.tables[scored] for run in runs if run.setting == setting]
        for table in tables if len(tables) > 1 else []:
            axes.plot(table.seen, curve(table), color=colour(setting), linewidth=0.8, alpha=0.4)
        label = f"{setting}, {len(tables)} {'run' if len(tables) == 1 else 'runs'}"
        # Points mark steps; a mean over different schedules has none.
        marker = "o" if len({table.seen for table in tables}) == 1 else None
        axes.plot(*mean_curve(tables), color=colour(setting), linewidth=2, marker=marker, markersize=3, label=label)
    name = f"{runs[0].method_name}, {CLASSIFIER_NAMES.get(scored, scored)}"
    axes.set_title(
        f"{name}\n{runs[0].dataset}, {sum(runs[0].sizes)} classes in {len(runs[0].sizes)} steps", fontsize=10
    )
    axes.set_ylabel("Accuracy on all classes seen (%)")
    axes.set_ylim(*accuracy_range(runs))
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    axes.legend(frameon=False, fontsize=8)


def _draw_schedules(axes: Axes, schedules: dict[str, RunRecord]) -> None:
    for row, run in enumerate(schedules.values()):
        edges = [0, *np.cumsum(run.sizes)]
        spans = [(start, end - start) for start, end in pairwise(edges)]
        axes.broken_barh(
            spans, (row - 0.4, 0.8), facecolor=colour(_schedule_setting(run)), edgecolor="white", linewidth=1
        )
    axes.set_yticks(range(len(schedules)), list(schedules), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("Classes seen (each bar above is a step)")


def curves_spec(runs: Sequence[RunRecord], classifier: str) -> Spec:
    """Accuracy against classes seen: thin lines single runs, thick lines their mean."""
    traces: list[Spec] = []
    for setting in settings_of(runs):
        name = escape(setting)
        mine = [run for run in runs if run.setting == setting and classifier in run.tables]
        for run in mine if len(mine) > 1 else []:
            traces.append(_curve_trace(run, classifier, {"width": 1}, opacity=0.55, showlegend=False, mode="lines"))
        if len(mine) == 1:
            traces.append(_curve_trace(mine[0], classifier, {"width": 2.5}, name=name, mode="lines+markers"))
        elif mine:
            x, y = mean_curve([run.tables[classifier] for run in mine])
            mean = _line(setting, [int(n) for n in x], _numbers(y), {"width": 3})
            hover = f"<b>{name}, mean of {len(mine)} runs</b><br>%{{x}} classes: %{{y:.2f}} %<extra></extra>"
            traces.append(mean | {"name": name, "mode": "lines", "hovertemplate": hover})
    axes = {
        "xaxis": {"title": {"text": "classes seen"}, "range": [0, 1.02 * sum(runs[0].sizes)]},
        "yaxis": {"title": {"text": "accuracy on them, %"}, "range": list(accuracy_range(runs))},
    }
    return {"data": traces, "layout": _layout(360) | axes}


def schedule_spec(schedules: dict[str, RunRecord]) -> Spec:
    """New classes at every step: the equal split beside the free flow of one seed."""
    traces: list[Spec] = []
    steps: list[int] = []
    for name, run in schedules.items():
        steps = list(range(1, len(run.sizes) + 1))
        seen = [int(n) for n in np.cumsum(run.sizes)]
        hover = f"<b>{escape(name)}</b>, step %{{x}}<br>%{{y}} new classes, %{{customdata}} seen<extra></extra>"
        bar = {"type": "bar", "x": steps, "y": list(run.sizes), "customdata": seen, "hovertemplate": hover}
        traces.append(bar | {"name": escape(name), "marker": {"color": colour(_schedule_setting(run))}})
    axes = {
        "xaxis": {"title": {"text": "step"}, "tickformat": "d", "showgrid": False} | _every_step(steps),
        "yaxis": {"title": {"text": "new classes"}, "tickformat": "d", "rangemode": "tozero"},
        "barmode": "group",
        "bargap": 0.25,
    }
    return {"data": traces, "layout": _layout(230) | axes}


def memory_spec(run: RunRecord, classifier: str) -> Spec:
    """Heat map: after each step (downwards), the accuracy on the classes of each step so far (across)."""
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
        across |= {"title": {"text": "classes of step (below: how many)"}, "tickangle": 0, "tickfont": {"size": 10}}
        across |= {"ticktext": [f"{t}<br>{n}" for t, n in enumerate(table.sizes, start=1)]}
    down = plain | {"title": {"text": "after step"}, "autorange": "reversed"} | _every_step(steps)
    return {"data": [heat], "layout": _layout(320, top=8) | {"xaxis": across, "yaxis": down}}


def class_size_spec(runs: Sequence[RunRecord], classifier: str) -> Spec:
    """Accuracy on each class after the last step, against how many classes arrived together with it."""
    traces: list[Spec] = []
    means: list[Spec] = []  # drawn after all dots, to lie on top of them
    runs = [run for run in runs if classifier in run.tables]
    settings = settings_of(runs)
    for place, setting in enumerate(settings):
        name = escape(setting)
        sizes, accuracies, texts = _class_points([r for r in runs if r.setting == setting], classifier)
        # Sizes are whole numbers: classes are spread a little around them so that they do not hide each other.
        aside = (place - (len(settings) - 1) / 2) * 0.25
        spread = (np.arange(len(sizes)) * 0.618034) % 1 * 0.2 - 0.1
        x = _numbers(sizes + aside + spread)
        dots: Spec = {"type": "scatter", "mode": "markers", "x": x, "y": _numbers(accuracies)}
        dots |= {"marker": {"size": 4, "color": colour(setting), "opacity": 0.35}, "text": texts, "hoverinfo": "text"}
        traces.append(dots | {"legendgroup": setting, "showlegend": False, "name": name})
        distinct = np.unique(sizes)
        heights = [float(accuracies[sizes == size].mean()) for size in distinct]
        line = _line(setting, _numbers(distinct + aside), _numbers(heights), {"width": 1.5})
        counted = [[int((sizes == size).sum()), int(size)] for size in distinct]
        hover = f"<b>{name}</b>: %{{customdata[0]}} classes that<br>arrived %{{customdata[1]}} at a time: %{{y:.1f}} %"
        line |= {"customdata": counted, "hovertemplate": f"{hover}<extra></extra>"}
        ring = {"size": 11, "line": {"color": "white", "width": 1.5}}
        means.append(line | {"name": name, "mode": "lines+markers", "marker": ring})
    largest = max(max(run.sizes) for run in runs)
    title = {"text": "new classes in the step of the class"}
    ticks = {"tick0": 0, "dtick": -(-largest // 15), "range": [0, largest + 1]}
    axes = {
        "xaxis": {"title": title, "tickformat": "d", "showgrid": False} | ticks,
        "yaxis": {"title": {"text": "accuracy at the end, %"}, "range": [-2, 102]},
    }
    return {"data": traces + means, "layout": _layout(360) | axes}


def _class_points(runs: Sequence[RunRecord], classifier: str) -> tuple[Floats, Floats, list[str]]:
    sizes: list[float] = []
    accuracies: list[float] = []
    texts: list[str] = []
    for run in runs:
        table = run.tables[classifier]
        last = class_accuracy(table)[-1]
        for step, (size, group) in enumerate(zip(table.sizes, table.groups, strict=True), start=1):
            for position in range(group.start, group.stop):
                if not np.isnan(last[position]):
                    sizes.append(size)
                    accuracies.append(float(last[position]))
                    where = f"class {position + 1}, arrived at step {step} with {size - 1} others"
                    texts.append(f"<b>{escape(run.setting)}</b>, {run.seed_label}<br>{where}<br>{last[position]:.1f} %")
    return np.array(sizes), np.array(accuracies), texts


def seed_schedules(runs: Sequence[RunRecord]) -> dict[str, dict[str, RunRecord]]:
    """For each seed its schedules, each once: FF.org and FF.ours of a seed share one."""
    result: dict[str, dict[str, RunRecord]] = {}
    for run in sorted(runs, key=lambda r: r.seeds):
        of_seed = result.setdefault(run.seed_label, {})
        if all(other.sizes != run.sizes for other in of_seed.values()):
            name = {"equal": "equal", "free-flow": "free flow"}.get(run.arrivals["kind"], str(run.arrivals["kind"]))
            of_seed[name if name not in of_seed else f"{name}, {run.setting}"] = run
    return result


def _schedules(runs: Sequence[RunRecord]) -> dict[str, RunRecord]:
    """Every different schedule once, under a name that fits beside an axis."""
    different: dict[str, RunRecord] = {}
    for seed, of_seed in seed_schedules(runs).items():
        for name, run in of_seed.items():
            if all(other.sizes != run.sizes for other in different.values()):
                different["equal" if name == "equal" else f"{name}, {seed}"] = run
    return different


def _schedule_setting(run: RunRecord) -> str:
    """A schedule has the colour of the original method's setting, whichever run it is read from."""
    return {"Equ.ours": "Equ.T", "FF.ours": "FF.org"}.get(run.setting, run.setting)


def _curve_trace(run: RunRecord, classifier: str, line: Spec, **more: Any) -> Spec:
    table = run.tables[classifier]
    hover = (
        f"<b>{escape(run.setting)}, {run.seed_label}</b><br>step %{{customdata[0]}}: %{{customdata[1]}} new classes, "
        "%{x} seen<br>%{y:.2f} %<extra></extra>"
    )
    points = [[step, size] for step, size in enumerate(table.sizes, start=1)]
    trace = _line(run.setting, list(table.seen), _numbers(curve(table)), line)
    return trace | {"customdata": points, "hovertemplate": hover} | more


def _line(setting: str, x: Sequence[float | None], y: Sequence[float | None], line: Spec) -> Spec:
    return {"type": "scatter", "x": x, "y": y, "legendgroup": setting, "line": {"color": colour(setting)} | line}


def _every_step(steps: list[int]) -> Spec:
    """Ticks: every step where there is room for it, otherwise as plotly likes."""
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
    """For JSON, which knows no NaN; four decimals are plenty for percent."""
    return [None if np.isnan(value) else round(float(value), 4) for value in values]


def _arrivals_title(arrivals: Arrivals) -> str:
    made = [arrivals.kind.replace("-", " ").capitalize()]
    if arrivals.kind == "free-flow":
        made += [arrivals.order, f"alpha {arrivals.alpha:g}"] if arrivals.alpha is not None else [arrivals.order]
    if arrivals.seed is not None:
        made.append(f"seed {arrivals.seed}")
    return f"{', '.join(made)}: {sum(arrivals.sizes)} classes in {len(arrivals.sizes)} steps"


def _new_figure(path: Path | str, size: tuple[float, float]) -> Figure:
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"Cannot draw {path}: the name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # A figure of its own, outside pyplot: no global state, and no window wherever this runs.
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path | str) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The date is left out so that the same runs give the same file.
    dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
    figure.savefig(path, dpi=160, metadata={dated: None} if dated else None)
    return path


def _plain(*axes: Axes) -> None:
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
