"""Tables in the terminal: the comparison of settings, and the differences between runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ffcil.report.analyse.differences import Classifiers, Comparison, Differences, PairedMeans
from ffcil.report.analyse.groups import count
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, T_INTERVAL, Change
from ffcil.report.analyse.tables import METRICS, Metric, Number, Row, direction, settings_in
from ffcil.report.read.records import PHASES, RunRecord
from ffcil.report.render.text import MATCHED, NOTHING, SYMBOLS, TOO_FEW, arrow, interval_text, legend, runs_text, signed

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table
    from rich.text import Text

COLOURS = {"better": "green", "worse": "red", "same": "dim"}


def terminal_table(rows: Sequence[Row]) -> RenderableType:
    """One table per method and classifier, with a line per setting, so that any number of settings fits the terminal.

    Improvements are green, deteriorations are red. Of a sweep, only the main point is shown.
    """
    from rich.console import Group

    hidden = sum(not row.group.is_main for row in rows)
    rows = [row for row in rows if row.group.is_main]
    settings = settings_in(rows)
    matched = any(row.matched for row in rows)
    below = [legend(rows), *([f"{MATCHED}."] if matched else [])]
    below += [f"{count(hidden, 'further row')}: other spectra and orders."] if hidden else []
    tables = [_settings_table(row, settings, matched) for row in rows]
    return Group(*tables, _text("\n".join(below), "dim"))


def _settings_table(row: Row, settings: Sequence[str], matched: bool) -> Table:
    from rich import box
    from rich.table import Table

    title = _text(row.label, "bold" if row.scored else "").append(f"  {row.data_label}", "dim")
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", padding=(0, 0))
    table.add_column("", min_width=max(map(len, settings), default=0), no_wrap=True)
    for metric in METRICS:
        table.add_column(SYMBOLS[metric], min_width=18, no_wrap=True)
    if matched:
        table.add_column("M", min_width=6, no_wrap=True)
    table.add_column("n", no_wrap=True)
    for setting in settings:
        numbers = [_number(metric, row.number(setting, metric)) for metric in METRICS]
        numbers += [_change(row.matched.get(setting))] if matched else []
        table.add_row(_text(setting), *numbers, _text(runs_text(row.cells.get(setting)), "dim"))
    return table


def _number(metric: Metric, number: Number | None) -> Text:
    from rich.text import Text

    if number is None:
        return _text(NOTHING, "dim")
    parts: list[str | tuple[str, str]] = [f"{number.mean:.2f}"]
    if number.std is not None:
        parts.append((f" ±{number.std:.2f}", "dim"))
    if number.change is not None:
        parts.append((f" {arrow(number.change.value)}", COLOURS[direction(metric, number.change.value)]))
    return Text.assemble(*parts)


def _change(change: Change | None) -> Text:
    if change is None:
        return _text(NOTHING, "dim")
    return _text(signed(change.value), COLOURS[direction("average", change.value)])


def _text(text: str, style: str = "") -> Text:
    from rich.text import Text

    return Text(text, style)


def differences_tables(comparison: Comparison) -> Iterator[RenderableType]:
    """Configuration, results, steps and time of every kind of pair, then the runs without a partner."""
    for part in comparison.parts:
        yield _text(f"{part.name}: {count(len(part.pairs), 'pair')} of runs", "bold")
        for run in [run for pair in part.pairs for run in pair if not run.finished]:
            yield _text(_unfinished(run), "red")
        yield _configuration(part)
        for classifiers in part.classifiers:
            yield _results(part, classifiers)
        if not part.classifiers:
            yield _text("There is no accuracy to compare: no pair has a step that both runs finished.", "red")
        if 1 < len(part.pairs) < ENOUGH_PAIRS:
            yield _text(TOO_FEW, "dim")
        yield _times(part)
    for name, runs in (("A", comparison.only_a), ("B", comparison.only_b)):
        if runs:
            yield _text(f"Only in {name}: {', '.join(run.folder.name for run in runs)}", "dim")


def _unfinished(run: RunRecord) -> str:
    shown = "Only its finished steps are compared" if run.records else "It is not compared"
    return f"{run.folder} is unfinished ({len(run.records)} of {count(len(run.sizes), 'step')}). {shown}."


def _plain_table(title: str, columns: Sequence[str], right: int) -> Table:
    """Table without a frame, whose columns from the index `right` on are right-aligned."""
    from rich.table import Table

    table = Table(title=_text(title), title_justify="left", box=None, padding=(0, 2, 0, 0))
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k < right else "right")
    return table


def _configuration(part: Differences) -> RenderableType:
    if not part.config:
        return _text("The configurations are the same.", "dim")
    table = _plain_table("Configuration", ("field", "A", "B"), 3)
    for name, values in part.config.items():
        sides = [", ".join(dict.fromkeys(str(pair[side]) for pair in values)) for side in (0, 1)]
        table.add_row(*map(_text, (name, *sides)))
    return table


def _results(part: Differences, classifiers: Classifiers) -> RenderableType:
    first, second = part.pairs[0]
    a, b = first.display_name(classifiers.a), second.display_name(classifiers.b)
    name = a if a == b else f"{a} in A, {b} in B"
    scored = " (scored)" if classifiers == part.classifiers[0] else ""
    columns = ("", "A", "B", "B - A", T_INTERVAL, "pairs")
    table = _plain_table(f"Accuracy in percent, {name}{scored}", columns, 1)
    for metric in METRICS:
        table.add_row(SYMBOLS[metric], *_result(metric, part.means(classifiers, metric)))
    for step, means in enumerate(part.steps(classifiers), start=1):
        table.add_row(f"step {step}, {part.seen(classifiers, step)} classes", *_result("last", means))
    return table


def _result(metric: Metric, means: PairedMeans | None) -> list[str | Text]:
    if means is None:
        return [NOTHING, NOTHING, NOTHING, "", "0"]
    change = means.change
    shown = _text(signed(change.value), COLOURS[direction(metric, change.value)])
    bounds = interval_text(change.interval) if change.interval else ""
    return [f"{means.a:.2f}", f"{means.b:.2f}", shown, bounds, str(change.pairs)]


def _times(part: Differences) -> RenderableType:
    times = {phase: both for phase in PHASES if (both := part.seconds(phase)) and (any(both) or phase != "start_up")}
    if not times:
        return _text("There is no time to compare: no pair has two finished runs.", "dim")
    table = _plain_table("Mean seconds per run", ("", "A", "B", "B / A"), 1)
    times["total"] = (sum(a for a, _ in times.values()), sum(b for _, b in times.values()))
    for phase, (a, b) in times.items():
        table.add_row(phase, f"{a:.1f}", f"{b:.1f}", f"{b / a:.2f}" if a else NOTHING)
    devices = [", ".join(dict.fromkeys(run.device for run in side)) for side in zip(*part.finished, strict=True)]
    table.add_row("device", *map(_text, devices), "")
    return table
