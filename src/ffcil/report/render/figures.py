"""Static figures for papers and slides (matplotlib). The suffix of a path selects the format."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ffcil.arrivals import Arrivals
from ffcil.errors import InputError
from ffcil.metrics import step_accuracy
from ffcil.report.analyse import curves
from ffcil.report.analyse.groups import Group, count, group_runs
from ffcil.report.analyse.overhead import TIMES, Cost
from ffcil.report.analyse.sensitivity import SensitivityTable
from ffcil.report.analyse.sweeps import Sweep
from ffcil.report.analyse.tables import HEADLINES, Metric, Row
from ffcil.report.read.records import RunRecord, classifiers_of, settings_of
from ffcil.report.render.colours import colour, schedule_colour
from ffcil.report.render.text import TEX_SYMBOLS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png", ".pdf")


def plain(text: str) -> str:
    """A text with escaped dollar signs, in which matplotlib finds no formulas."""
    return text.replace("$", r"\$")


def plot_arrivals(arrivals: Arrivals, path: Path | str) -> Path:
    """Draw a schedule: new classes of every step as bars, classes seen so far as a line."""
    figure = _new_figure([path], (6.4, 3.8))
    from matplotlib.ticker import MaxNLocator

    total, bars = figure.subplots(2, 1, sharex=True, height_ratios=[2, 3])
    steps = np.arange(1, len(arrivals.sizes) + 1)
    total.plot(steps, np.cumsum(arrivals.sizes), color="0.35", marker="o", markersize=3, linewidth=1.2)
    total.set(ylabel="Classes seen", title=plain(_arrivals_title(arrivals)))
    total.set_ylim(0, 1.1 * sum(arrivals.sizes))
    bars.bar(steps, arrivals.sizes, color=colour("Equ.T" if arrivals.kind == "equal" else "FF.org"), width=0.75)
    if len(steps) <= 30:
        for step, size in zip(steps, arrivals.sizes, strict=True):
            bars.annotate(f"{size}", (step, size), (0, 2), textcoords="offset points", ha="center", fontsize=8)
    bars.set(xlabel="Step", ylabel="New classes")
    bars.set_ylim(0, 1.15 * max(arrivals.sizes))
    bars.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    _count_in_whole_numbers(bars.yaxis)
    _remove_frame(total, bars)
    return _save(figure, [path])


def plot_history(changes: Sequence[Mapping[str, Any]], path: Path | str) -> Path:
    """Draw the history of a classifier: after every change, the accuracy on left-out images and the new images."""
    figure = _new_figure([path], (max(5.6, 1.6 + 0.4 * len(changes)), 4.4))
    accuracy, images = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    numbers = np.arange(1, len(changes) + 1)
    for key, label, form in (
        ("accuracy", "all classes, then", "o-"),
        ("new_accuracy", "its new classes, then", "s"),
        ("accuracy_now", "its new classes, now", "^"),
    ):
        values = [np.nan if change[key] is None else change[key] for change in changes]
        if not np.isnan(values).all():
            accuracy.plot(numbers, values, form, color="0.35" if key == "accuracy" else None, markersize=4, label=label)
    if accuracy.lines:
        accuracy.legend(frameon=False, fontsize=8)
    accuracy.set(ylabel="Accuracy on\nleft-out images (%)", title="History of the classifier")
    images.bar(numbers, [sum(change["images"].values()) for change in changes], width=0.75, color=colour("FF.org"))
    images.set(xlabel="Change", ylabel="Images")
    images.set_xticks(numbers, [change["kind"] for change in changes], rotation=45, ha="right", fontsize=7)
    _count_in_whole_numbers(images.yaxis)
    _remove_frame(accuracy, images)
    return _save(figure, [path])


def plot_curves(runs: Sequence[RunRecord], *paths: Path | str) -> Path:
    """Draw accuracy against classes seen, one panel per data set and method, with the schedules below.

    Thin lines are single runs, thick lines their mean. Only finished runs and the scored classifier are drawn.
    """
    return plot_group_curves(group_runs(runs), *paths)


def plot_group_curves(groups: Sequence[Group], *paths: Path | str) -> Path:
    """Draw accuracy against classes seen, one panel per group."""
    if not groups:
        raise InputError("None of these runs is finished; finish at least one run to draw its curve.")
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    figure = _new_figure(paths, (max(5.6, 4.2 * columns), 4.4 * rows))
    for panel, group in zip(np.ravel(figure.subfigures(rows, columns, squeeze=False)), groups, strict=False):
        schedules = curves.distinct_schedules(group.runs)
        above, below = panel.subplots(2, 1, sharex=True, height_ratios=[4, 1 + 0.15 * len(schedules)])
        _draw_curves(above, group)
        _draw_schedules(below, schedules)
        _remove_frame(above, below)
    return _save(figure, paths)


def _draw_curves(axes: Axes, group: Group) -> None:
    scored = classifiers_of(group.runs)[0]
    runs = [run for run in group.runs if scored in run.tables]
    for setting in settings_of(runs):
        tables = [run.tables[scored] for run in runs if run.setting == setting]
        for table in tables if len(tables) > 1 else []:
            shown = curves.thinned(len(table.sizes))
            seen = [table.seen[k] for k in shown]
            axes.plot(seen, table.curve[shown], color=colour(setting), linewidth=0.8, alpha=0.4)
        label = plain(f"{setting}, {count(len(tables), 'run')}")
        # markers show steps, which a mean over different schedules does not have
        few = max(len(table.sizes) for table in tables) <= curves.MOST_CELLS
        marker = "o" if few and len({table.seen for table in tables}) == 1 else None
        axes.plot(
            *curves.mean_curve(tables), color=colour(setting), linewidth=2, marker=marker, markersize=3, label=label
        )
    _set_title(axes, 10, 4.2, group.method_label(scored), group.data_label)
    axes.set_ylabel("Accuracy on all classes seen (%)")
    axes.set_ylim(*curves.accuracy_range(runs))
    axes.grid(axis="y", linewidth=0.5, alpha=0.4)
    axes.legend(frameon=True, framealpha=0.7, edgecolor="none", fontsize=8 if len(settings_of(runs)) < 5 else 6.5)


def _draw_schedules(axes: Axes, schedules: dict[str, RunRecord]) -> None:
    each = "one step"
    for row, run in enumerate(schedules.values()):
        seen, steps = np.cumsum(run.sizes), len(run.sizes)
        edges = [0, *(seen[last - 1] for _, last in curves.bins(steps))]
        spans = [(start, end - start) for start, end in pairwise(edges)]
        axes.broken_barh(spans, (row - 0.4, 0.8), facecolor=schedule_colour(run), edgecolor="white", linewidth=1)
        each = curves.bins_text(steps) if steps > curves.MOST_CELLS else each
    axes.set_yticks(range(len(schedules)), list(map(plain, schedules)), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel(f"Classes seen (each bar is {each})")
    _count_in_whole_numbers(axes.xaxis)


def plot_changes(rows: Sequence[Row], *paths: Path | str) -> Path:
    """Draw the effects of free flow and of the frameworks on every scored row.

    Bars are means, dots pairs of runs, whiskers t intervals.
    """
    shown = [row for row in rows if row.scored and any(row.change(setting, "last") for setting in HEADLINES)]
    settings = [setting for setting in HEADLINES if any(row.change(setting, "last") for row in shown)]
    height = 0.72 / len(settings)
    figure = _new_figure(paths, (9.6, 1.4 + 0.62 * len(shown)))
    panels = _named_panels(figure, [(row.label, row.data_label) for row in shown])
    for axes, (metric, symbol) in zip(panels, TEX_SYMBOLS.items(), strict=True):
        for k, setting in enumerate(settings):
            for place, row in enumerate(shown):
                change = row.change(setting, metric)
                if change is None:
                    continue
                error = [[side] for side in change.whiskers] if any(change.whiskers) else None
                y = place + (k - (len(settings) - 1) / 2) * height
                bar: dict[str, Any] = {
                    "color": colour(setting),
                    "alpha": 0.8,
                    "xerr": error,
                    "ecolor": "0.25",
                    "capsize": 2,
                }
                axes.barh(y, change.value, 0.94 * height, **bar)
                axes.plot(change.differences, [y] * change.pairs, ".", color="0.2", markersize=4, zorder=3)
            axes.barh(0, 0, color=colour(setting), alpha=0.8, label=HEADLINES[setting])  # entry of the legend
        axes.axvline(0, color="0.3", linewidth=0.8)
        axes.set_xlabel(f"Change of {symbol} (points)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside upper right", ncols=3, frameon=False, fontsize=8)
    return _save(figure, paths)


def plot_sweeps(sweeps: Sequence[Sweep], *paths: Path | str) -> Path:
    """Draw accuracy at every value of a field, one row per method. Alpha is drawn as lines, the order as bars."""
    figure = _new_figure(paths, (8.4, 0.3 + 3.1 * len(sweeps)))
    entries: dict[str, Any] = {}
    for panels, sweep in zip(figure.subplots(len(sweeps), 2, squeeze=False), sweeps, strict=True):
        for axes, (metric, symbol) in zip(panels, TEX_SYMBOLS.items(), strict=True):
            _draw_sweep(axes, sweep, metric)
            axes.set(xlabel=sweep.field, ylabel=f"{symbol} (%)")
            _set_title(axes, 8, 4.2, sweep.title)
            _remove_frame(axes)
        entries |= dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries, loc="outside upper right", ncols=len(entries), frameon=False, fontsize=8)
    return _save(figure, paths)


def _draw_sweep(axes: Axes, sweep: Sweep, metric: Metric) -> None:
    places = np.arange(len(sweep.points))
    for k, setting in enumerate(sweep.settings):
        numbers = sweep.numbers(setting, metric)
        means = np.array([n.mean if n else np.nan for n in numbers])
        spread = np.array([n.std or 0.0 if n else 0.0 for n in numbers])
        if sweep.field == "alpha":
            style = ":" if setting.startswith("Equ") else "-"  # equal steps have no alpha
            axes.errorbar(
                places,
                means,
                spread,
                fmt=f"o{style}",
                color=colour(setting),
                capsize=2,
                markersize=4,
                label=plain(setting),
            )
        else:
            width = 0.8 / len(sweep.settings)
            aside = (k - (len(sweep.settings) - 1) / 2) * width
            axes.bar(places + aside, means, width, yerr=spread, color=colour(setting), capsize=2, label=plain(setting))
    axes.set_xticks(places, [f"{value:g}" if isinstance(value, float) else plain(str(value)) for value in sweep.values])


def plot_costs(costs: Sequence[Cost], *paths: Path | str) -> Path:
    """Draw the ratio of training and testing times with and without parts of the framework. Dots are pairs of runs."""
    figure = _new_figure(paths, (9.6, 1.4 + 0.4 * len(costs)))
    panels = _named_panels(figure, list(map(_cost_name, costs)))
    for axes, time in zip(panels, TIMES, strict=True):
        for place, cost in enumerate(costs):
            ratio, ratios = cost.ratio(time), cost.ratios(time)
            if ratio is not None:
                axes.barh(place, ratio, 0.6, color=colour("Equ.T"), alpha=0.7)
                axes.plot(ratios, [place] * len(ratios), ".", color="0.2", markersize=4)
        axes.axvline(1, color="0.3", linewidth=0.8, linestyle=":")
        axes.set_xlabel(f"{time.capitalize()} time,\nrelative to the original method")
    return _save(figure, paths)


def _cost_name(cost: Cost) -> tuple[str, str]:
    condition = f", {cost.group.label}" if cost.group.label else ""
    return f"{cost.group.title}, {cost.schedule}, {cost.parts}", f"{cost.group.data_label}{condition}"


def plot_sensitivities(tables: Sequence[SensitivityTable], *paths: Path | str) -> Path:
    """Draw the accuracy after the last step by schedule, one panel per method. Thin lines are single permutations."""
    panels = [(table, rows) for table in tables for rows in table.methods.values()]
    columns = min(2, len(panels))
    lines = -(-len(panels) // columns)
    figure = _new_figure(paths, (max(5.6, 4.8 * columns), 3.8 * lines))
    for axes, (table, rows) in zip(np.ravel(figure.subplots(lines, columns, squeeze=False)), panels, strict=False):
        names = list(map(plain, table.schedules))
        for row in rows:
            for one in row.permutations if row.permutations[1:] else ():
                heights = [one.last.get(name, np.nan) for name in table.schedules]
                axes.plot(names, heights, color=colour(row.setting), linewidth=0.8, alpha=0.4)
            means = [row.last(name) for name in table.schedules]
            label = plain(f"{row.framework}: range {row.range:.1f}")
            heights = [np.nan if mean is None else mean for mean in means]
            axes.plot(names, heights, "o-", color=colour(row.setting), linewidth=2, markersize=4, label=label)
        _set_title(axes, 9, 4.8, rows[0].label, table.data_label)
        axes.set_ylabel("Accuracy after the last step (%)")
        axes.tick_params("x", labelrotation=35, labelsize=8)
        axes.legend(frameon=True, framealpha=0.7, edgecolor="none", fontsize=8)
        _remove_frame(axes)
    for axes in figure.axes[len(panels) :]:
        axes.set_visible(False)
    return _save(figure, paths)


def _named_panels(figure: Figure, names: Sequence[tuple[str, str]]) -> list[Axes]:
    """Two panels side by side, with names of two lines each at the left."""
    panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    panels[0].set_yticks(range(len(names)), [plain("\n".join(lines)) for lines in names], fontsize=8)
    panels[0].invert_yaxis()
    _remove_frame(*panels)
    return panels


def plot_memory(group: Group, *paths: Path | str) -> Path:
    """Draw the accuracy after each step (rows) on the classes of each earlier step (columns), for runs of one seed."""
    runs = curves.runs_by_seeds(run for run in group.runs if run.scored in run.tables)[0]
    figure = _new_figure(paths, (3.1 * len(runs) + 0.9, 3.4))
    panels = np.ravel(figure.subplots(1, len(runs), squeeze=False))
    for axes, run in zip(panels, runs, strict=True):
        table = run.tables[str(run.scored)]
        extent = (0.5, len(table.sizes) + 0.5, len(table.sizes) + 0.5, 0.5)
        accuracy = step_accuracy(table.merged(curves.MOST_CELLS))
        image = axes.imshow(accuracy, vmin=0, vmax=100, cmap="viridis", extent=extent)
        axes.set(xlabel="classes of step", ylabel="after step")
        _set_title(axes, 9, 3.1, f"{group.title}, {run.setting}, {run.seed_label}")
        _count_in_whole_numbers(axes.xaxis, axes.yaxis)
    figure.colorbar(image, ax=list(panels), label="Accuracy (%)", shrink=0.8)
    return _save(figure, paths)


def plot_class_sizes(groups: Sequence[Group], *paths: Path | str) -> Path:
    """Draw accuracy by step size, and the difference from the same class under equal steps."""
    figure = _new_figure(paths, (8.4, 3.1 * len(groups)))
    for panels, group in zip(figure.subplots(len(groups), 2, squeeze=False), groups, strict=True):
        scored = classifiers_of(group.runs)[0]
        for axes, paired in zip(panels, (False, True), strict=True):
            by_setting = curves.class_points(group.runs, scored, paired)
            axes.set_visible(any(by_setting.values()))  # there is no difference without Equ.T
            for setting, points in by_setting.items():
                means = curves.mean_by_size(points)
                heights = [mean for mean, _ in means.values()]
                axes.plot(list(means), heights, "o-", color=colour(setting), markersize=4, label=plain(setting))
            axes.set_xlabel("New classes in the step of the class")
            _count_in_whole_numbers(axes.xaxis)
            axes.set_ylabel("Difference from equal steps (points)" if paired else "Accuracy after the last step (%)")
            _remove_frame(axes)
        _set_title(panels[0], 8, 4.2, group.method_label(scored), group.data_label)
        _set_title(panels[1], 8, 4.2, "Difference from the same class under equal steps")
        panels[1].axhline(0, color="0.3", linewidth=0.8)
        panels[0].legend(frameon=True, framealpha=0.7, edgecolor="none", fontsize=7)
    return _save(figure, paths)


def _arrivals_title(arrivals: Arrivals) -> str:
    parts = [arrivals.kind.replace("-", " ").capitalize()]
    if arrivals.kind == "free-flow":
        parts += [arrivals.order, f"alpha {arrivals.alpha:g}"] if arrivals.alpha is not None else [arrivals.order]
    if arrivals.seed is not None:
        parts.append(f"seed {arrivals.seed}")
    return f"{', '.join(parts)}: {sum(arrivals.sizes)} classes in {len(arrivals.sizes)} steps"


def _new_figure(paths: Sequence[Path | str], size: tuple[float, float]) -> Figure:
    for path in paths:
        if Path(path).suffix.lower() not in FORMATS:
            raise InputError(f"Cannot draw {path}: the name must end in {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # without pyplot, which has global state and may open windows
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, paths: Sequence[Path | str]) -> Path:
    for path in map(Path, paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        # without a date, so that equal runs give equal files
        dated = {".svg": "Date", ".pdf": "CreationDate"}.get(path.suffix.lower())
        figure.savefig(path, dpi=160, metadata={dated: None} if dated else None)
        figure.set_layout_engine("none")  # reuse the computed layout for the other formats
    return Path(paths[0])


def _count_in_whole_numbers(*sides: Axis) -> None:
    """Let axes of steps, classes or images have no ticks between whole numbers."""
    from matplotlib.ticker import MaxNLocator

    for side in sides:
        side.set_major_locator(MaxNLocator(integer=True))


def _set_title(axes: Axes, size: float, width: float, *lines: str) -> None:
    """Set the title of a panel that is `width` inches wide; long lines are wrapped."""
    letters = round(105 * width / size) - 2
    axes.set_title(plain("\n".join(textwrap.fill(line, letters) for line in lines)), fontsize=size)


def _remove_frame(*axes: Axes) -> None:
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
