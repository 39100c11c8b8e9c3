"""Tables in the terminal: the comparison of settings, and the differences between runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ffcil.report.analyse.differences import Classifiers, Comparison, Differences, PairedValues
from ffcil.report.analyse.groups import count
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, LEVEL
from ffcil.report.analyse.tables import METRICS, Metric, Number, Row, direction, settings_in
from ffcil.report.read.records import PHASES, RunRecord
from ffcil.report.render.text import NOTHING, SYMBOLS, TOO_FEW, arrow, interval_text, legend, runs_text, signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

COLOURS = {"better": "green", "worse": "red", "same": "dim"}


def terminal_table(rows: Sequence[Row]) -> Table:
    """Comparison with three metrics and the number of runs per row; improvements are green, deteriorations red.

    Only the main point of a sweep is shown.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    hidden = sum(not row.group.is_main for row in rows)
    rows = [row for row in rows if row.group.is_main]
    settings = settings_in(rows)
    below = f"{legend(rows)}\n{count(hidden, 'further row')}: other spectra and orders." if hidden else legend(rows)
    table = Table(box=box.SIMPLE, caption=Text(below, style="dim"), caption_justify="left", padding=(0, 1, 0, 0))
    table.add_column("Method")
    table.add_column("")
    for setting in settings:
        table.add_column(setting, no_wrap=True)
    for row in rows:
        titles = [Text(row.label, style="bold" if row.scored else ""), Text(row.data_label, style="dim"), Text("")]
        for title, metric in zip(titles, METRICS, strict=True):
            table.add_row(title, SYMBOLS[metric], *(_number(metric, row.number(s, metric)) for s in settings))
        counts = [runs_text(row.cells.get(setting)) for setting in settings]
        table.add_row("", "n", *counts, style="dim", end_section=True)
    return table


def _number(metric: Metric, number: Number | None) -> Text:
    from rich.text import Text

    if number is None:
        return Text(NOTHING, style="dim")
    parts: list[str | tuple[str, str]] = [f"{number.mean:.2f}"]
    if number.std is not None:
        parts.append((f" ±{number.std:.2f}", "dim"))
    if number.change is not None:
        parts.append((f" {arrow(number.change.value)}", COLOURS[direction(metric, number.change.value)]))
    return Text.assemble(*parts)


def differences_tables(comparison: Comparison) -> Iterator[RenderableType]:
    """Configuration, results, steps and time of every kind of pair, then the runs without a partner."""
    from rich.text import Text

    for part in comparison.parts:
        yield Text(f"{part.name}: {count(len(part.pairs), 'pair')} of runs", style="bold")
        for run in [run for pair in part.pairs for run in pair if not run.finished]:
            yield Text(_unfinished(run), style="red")
        yield _configuration(part)
        for classifiers in part.classifiers:
            yield _results(part, classifiers)
        if not part.classifiers:
            yield Text("There is no accuracy to compare: no pair has a step that both runs finished.", style="red")
        if 1 < len(part.pairs) < ENOUGH_PAIRS:
            yield Text(TOO_FEW, style="dim")
        yield _times(part)
    for name, runs in (("A", comparison.only_a), ("B", comparison.only_b)):
        if runs:
            yield Text(f"Only in {name}: {', '.join(run.folder.name for run in runs)}", style="dim")


def _unfinished(run: RunRecord) -> str:
    shown = "Only its finished steps are compared" if run.records else "It is not compared"
    return f"{run.folder} is unfinished ({len(run.records)} of {count(len(run.sizes), 'step')}). {shown}."


def _plain_table(title: str, columns: Sequence[str], right: int) -> Table:
    """Table without a frame, whose columns from the index `right` on are right-aligned."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k < right else "right")
    return table


def _configuration(part: Differences) -> RenderableType:
    from rich.text import Text

    if not part.config:
        return Text("The configurations are the same.", style="dim")
    table = _plain_table("Configuration", ("field", "A", "B"), 3)
    for name, values in part.config.items():
        sides = [", ".join(dict.fromkeys(str(pair[side]) for pair in values)) for side in (0, 1)]
        table.add_row(name, *map(Text, sides))
    return table


def _results(part: Differences, classifiers: Classifiers) -> RenderableType:
    first, second = part.pairs[0]
    a, b = first.display_name(classifiers.a), second.display_name(classifiers.b)
    name = a if a == b else f"{a} in A, {b} in B"
    scored = " (scored)" if classifiers == part.classifiers[0] else ""
    columns = ("", "A", "B", "B - A", f"{LEVEL:.0%} t interval", "pairs")
    table = _plain_table(f"Accuracy in percent, {name}{scored}", columns, 1)
    for metric in METRICS:
        table.add_row(SYMBOLS[metric], *_result(metric, part.values(classifiers, metric)))
    for step, values in enumerate(part.steps(classifiers), start=1):
        table.add_row(f"step {step}, {part.seen(classifiers, step)} classes", *_result("last", values))
    return table


def _result(metric: Metric, paired: PairedValues) -> list[str | Text]:
    from rich.text import Text

    if not paired.values:
        return [NOTHING, NOTHING, NOTHING, "", "0"]
    change = paired.change
    shown = Text(signed(change.value), style=COLOURS[direction(metric, change.value)])
    bounds = interval_text(change.interval) if change.interval else ""
    return [*(f"{mean:.2f}" for mean in paired.means), shown, bounds, str(change.pairs)]


def _times(part: Differences) -> RenderableType:
    from rich.text import Text

    times = {phase: both for phase in PHASES if (both := part.seconds(phase))}
    if not times:
        return Text("There is no time to compare: no pair has two finished runs.", style="dim")
    table = _plain_table("Mean seconds per run", ("", "A", "B", "B / A"), 1)
    times["total"] = (sum(a for a, _ in times.values()), sum(b for _, b in times.values()))
    for phase, (a, b) in times.items():
        table.add_row(phase, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}" if a else NOTHING)
    devices = [", ".join(dict.fromkeys(run.device for run in side)) for side in zip(*part.finished, strict=True)]
    table.add_row("device", *devices, "")
    return table
