"""The page: one HTML file with all tables and interactive figures. It needs no network."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.curves import accuracy_range, runs_by_seeds, seed_schedules
from ffcil.report.analyse.evidence import effects
from ffcil.report.analyse.groups import Group, count
from ffcil.report.analyse.overhead import timed_phases
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, LEVEL, Change
from ffcil.report.analyse.tables import METRICS, Metric, Row, direction, settings_in
from ffcil.report.read.records import RunRecord, classifiers_of, settings_of
from ffcil.report.render import specs
from ffcil.report.render.page_runs import run_entries
from ffcil.report.render.text import (
    ARROWS,
    HTML_SYMBOLS,
    NOTHING,
    arrow,
    caution,
    interval_text,
    legend,
    runs_text,
    signed,
)

TITLE = "Free-flow class-incremental learning"
ACCURACIES: dict[Metric, str] = {"average": "Average accuracy Ā", "last": "Accuracy after the last step"}


def write_page(
    runs: Sequence[RunRecord] | Contents, path: Path | str, title: str = TITLE, command: str | None = None
) -> Path:
    """Write the report of these runs as one self-contained HTML file.

    Unfinished runs are listed, but left out of every result. `command` is the command that the page gives for making it
    again; by default, a report of the folder that holds all of the runs.
    """
    path = Path(path)
    contents = runs if isinstance(runs, Contents) else Contents.from_runs(runs)
    if command is None and contents.runs:
        command = shlex.join(["ffcil", "report", os.path.commonpath([run.folder.parent for run in contents.runs])])
    text = _environment().get_template("page.html").render(contents=contents, title=title, command=command)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def _environment() -> Environment:
    """Templates with all functions that they use. Every value is escaped unless it is `Markup`."""
    from plotly.offline import get_plotlyjs

    environment = Environment(
        loader=PackageLoader("ffcil.report.render"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}

    def asset(name: str) -> Markup:
        assert environment.loader is not None
        return Markup(environment.loader.get_source(environment, name)[0])

    environment.globals |= {function.__name__: function for function in (*FUNCTIONS, asset)}
    environment.globals |= {name: value for name, value in vars(specs).items() if name.endswith("_spec")}
    environment.globals |= {"METRICS": METRICS, "ACCURACIES": ACCURACIES, "ARROWS": ARROWS}
    environment.globals |= {"NOTHING": NOTHING, "ENOUGH_PAIRS": ENOUGH_PAIRS, "LEVEL": f"{LEVEL:.0%}"}
    environment.globals["SYMBOLS"] = {metric: Markup(symbol) for metric, symbol in HTML_SYMBOLS.items()}
    environment.globals["plotly"] = Markup(get_plotlyjs())
    environment.filters["subscript"] = lambda text: escape(text).replace("A_T", Markup("A<sub>T</sub>"))
    return environment


def what_was_run(contents: Contents) -> list[str]:
    """One sentence for all methods with equal data, settings and seeds, and one with the number of runs."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in contents.groups:
        families.setdefault((group.title, group.data_label), []).append(group)
    titles: dict[tuple[str, str], list[str]] = {}
    for (title, data), groups in families.items():
        runs = [run for group in groups for run in group.runs]
        seeds = count(len({run.seeds for run in runs}), "seed")
        several = f"; {len(groups)} conditions: {'; '.join(group.label for group in groups)}" if groups[1:] else ""
        titles.setdefault((data, f"{', '.join(settings_of(runs))}; {seeds}{several}"), []).append(title)
    parts = [f"{', '.join(methods)} on {data}: {settings}." for (data, settings), methods in titles.items()]
    finished = sum(run.finished for run in contents.runs)
    unfinished = len(contents.runs) - finished
    out = [f"{n} {what}" for n, what in ((unfinished, "unfinished"), (len(contents.damaged), "damaged")) if n]
    left_out = f", {' and '.join(out)}: left out of every result" if out else ""
    return [*parts, f"{count(finished, 'finished run')}{left_out}."]


def headlines(rows: Sequence[Row]) -> list[tuple[Row, list[tuple[str, Change, Change]]]]:
    """Scored rows with the causes of their changes, and the changes of the average and the last accuracy."""
    causes = {
        "free flow instead of equal steps": Row.drop,
        "under free flow, adding the paper’s components": Row.recovery,
    }
    found = []
    for row in rows:
        both = [(cause, change(row, "average"), change(row, "last")) for cause, change in causes.items()]
        known = [(cause, average, last) for cause, average, last in both if average and last]
        if row.scored and row.group.is_main and known:
            found.append((row, known))
    return found


def run_counts(row: Row, settings: Sequence[str]) -> list[str]:
    """Number of runs in each setting, or one number if all settings of the row agree."""
    texts = {setting: runs_text(row.cells.get(setting)) for setting in settings}
    distinct = {texts[setting] for setting in row.cells}
    return list(distinct if len(distinct) == 1 else texts.values())


FUNCTIONS: tuple[Callable[..., Any], ...] = (
    *(accuracy_range, arrow, caution, classifiers_of, count, direction, effects, headlines),
    *(interval_text, legend, run_counts, run_entries, runs_by_seeds, runs_text, seed_schedules, settings_in),
    *(settings_of, signed, timed_phases, what_was_run),
)
"""Functions that the templates use."""
