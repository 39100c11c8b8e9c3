"""The static figures of a report: what is drawn, and whether it can be read."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ffcil.report import Contents
from ffcil.report.analyse.groups import group_runs
from ffcil.report.read.records import load_runs
from ffcil.report.render import figures
from invented_runs import IMAGES, random_hits, write_run

if TYPE_CHECKING:
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

Draw = Callable[..., "Figure"]


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Draw:
    """Draws a figure, writes it and returns it."""
    saved: list[Figure] = []
    save = figures._save
    monkeypatch.setattr(figures, "_save", lambda figure, paths: (saved.append(figure), save(figure, paths))[1])

    def draw(plot: Callable[..., Path], values: object) -> Figure:
        plot(values, tmp_path / "figure.png")
        return saved[-1]

    return draw


def ticks(axis: Axis) -> list[str]:
    """Labels of the ticks within the limits of an axis."""
    low, high = sorted(axis.get_view_interval())
    shown = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=True)
    return [label.get_text() for place, label in shown if low <= place <= high]


def test_axes_of_steps_and_classes_have_whole_numbers(tmp_path: Path, drawn: Draw) -> None:
    for seed, sizes in ((0, (1, 2)), (1, (2, 1))):
        for setting in ("Equ.T", "FF.org"):
            hits = random_hits(setting, seed)
            write_run(tmp_path / f"{setting}-{seed}", setting, seed, hits, classifiers=("linear",), sizes=sizes)
    groups = group_runs(load_runs(tmp_path))
    memory, sizes = drawn(figures.plot_memory, groups[0]), drawn(figures.plot_class_sizes, groups)
    curves = drawn(figures.plot_group_curves, groups)
    axes = [axis for panel in memory.axes[:2] for axis in (panel.xaxis, panel.yaxis)]
    axes += [panel.xaxis for panel in (*sizes.axes, *curves.axes[1::2])]
    assert len(axes) >= 7
    for axis in axes:
        assert ticks(axis)
        assert all("." not in label for label in ticks(axis))


def test_a_difference_from_equal_steps_is_drawn_only_where_there_are_equal_steps(tmp_path: Path, drawn: Draw) -> None:
    for budget, settings in ((20, ("Equ.T", "FF.org")), (40, ("FF.org",))):
        for setting in settings:
            hits = random_hits(setting, 0)
            write_run(tmp_path / f"{budget}-{setting}", setting, 0, hits, memory={"budget": budget})
    figure = drawn(figures.plot_class_sizes, group_runs(load_runs(tmp_path)))
    assert [panel.get_visible() for panel in figure.axes] == [True, True, True, False]


def test_titles_and_names_of_axes_are_not_cut_off(tmp_path: Path, drawn: Draw) -> None:
    for budget in (1000, 2000, 4000):
        for setting in ("Equ.T", "FF.org", "FF.ours"):
            fields = {"memory": {"budget": budget}, "train": {"epochs_scale": budget / 8000}}
            write_run(tmp_path / f"{budget}-{setting}", setting, 0, random_hits(setting, 0), **fields)
    contents = Contents.from_runs(load_runs(tmp_path))
    for plot, values in (
        (figures.plot_group_curves, contents.groups),
        (figures.plot_class_sizes, contents.groups),
        (figures.plot_memory, contents.groups[0]),
        (figures.plot_costs, contents.costs),
        (figures.plot_changes, contents.changed),
    ):
        figure = drawn(plot, values)
        figure.canvas.draw()  # places texts for the resolution of the figure, not for that of the file
        right = figure.bbox.x1
        texts = [text for axes in figure.axes for text in (axes.title, axes.xaxis.label) if text.get_text()]
        boxes = [text.get_window_extent() for text in texts]
        assert all(box.x0 >= 0 and box.x1 <= right for box in boxes), plot.__name__
        assert not any(a.overlaps(b) for a, b in itertools.combinations(boxes, 2)), plot.__name__


def test_costs_of_different_conditions_have_different_names(tmp_path: Path, drawn: Draw) -> None:
    for budget in (20, 40):
        for setting in ("FF.org", "FF.ours"):
            hits = random_hits(setting, 0)
            write_run(tmp_path / f"{budget}-{setting}", setting, 0, hits, memory={"budget": budget})
    names = ticks(drawn(figures.plot_costs, Contents.from_runs(load_runs(tmp_path)).costs).axes[0].yaxis)
    assert [name.rsplit(", ", 1)[1] for name in names] == ["memory.budget 20", "memory.budget 40"]


def test_curves_of_a_method_without_errors_have_an_axis_below_100_percent(tmp_path: Path, drawn: Draw) -> None:
    write_run(tmp_path / "run", "FF.org", 0, lambda *_: IMAGES, classifiers=("linear",))
    accuracy = drawn(figures.plot_group_curves, group_runs(load_runs(tmp_path))).axes[0]
    assert accuracy.get_ylim() == (90, 101)
