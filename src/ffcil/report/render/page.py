"""The page: one HTML file with all tables and interactive figures. It needs no network."""

import json
import os
import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from ffcil.report.analyse import curves, groups, overhead, statistics, tables
from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.groups import Group, count
from ffcil.report.analyse.tables import ACCURACIES, HEADLINES, Effect, Row, effects
from ffcil.report.read import records
from ffcil.report.read.records import RunRecord, settings_of
from ffcil.report.render import matched, page_runs, sensitivity, specs, text
from ffcil.report.render.text import HTML_SYMBOLS, runs_text

TITLE = "Free-flow class-incremental learning"


def write_page(
    runs: Sequence[RunRecord] | Contents, path: Path | str, title: str = TITLE, command: str | None = None
) -> Path:
    """Write the report of these runs as one self-contained HTML file.

    Unfinished runs are listed, but left out of every result. `command` is the command that the page names for making it
    again; by default, it is a report of the folder that contains all of the runs.
    """
    path = Path(path)
    contents = runs if isinstance(runs, Contents) else Contents.from_runs(runs)
    if command is None and contents.runs:
        command = shlex.join(["ffcil", "report", os.path.commonpath([run.folder.parent for run in contents.runs])])
    page = _environment().get_template("page.html").render(contents=contents, title=title, command=command)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _environment() -> Environment:
    """Templates, which can use all names of the modules below. Every value is escaped unless it is `Markup`."""
    from plotly.offline import get_plotlyjs

    loader = PackageLoader("ffcil.report.render")
    environment = Environment(
        loader=loader,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
        extensions=["jinja2.ext.do"],
    )
    environment.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}

    def asset(name: str) -> Markup:
        return Markup(loader.get_source(environment, name)[0])

    for module in (curves, groups, overhead, statistics, tables, records, page_runs, matched, sensitivity, specs, text):
        environment.globals |= vars(module)
    environment.globals |= {"asset": asset, "plotly": Markup(get_plotlyjs())}
    environment.globals |= {"what_was_run": what_was_run, "headlines": headlines, "run_counts": run_counts}
    environment.globals["SYMBOLS"] = {metric: Markup(symbol) for metric, symbol in HTML_SYMBOLS.items()}
    environment.filters["indented"] = partial(json.dumps, indent=2, ensure_ascii=False)
    environment.filters["subscript"] = lambda text: (
        escape(text).replace("A_T", Markup("A<sub>T</sub>")).replace("A_t", Markup("A<sub>t</sub>"))
    )
    return environment


def what_was_run(contents: Contents) -> list[str]:
    """One sentence for all methods with equal data, settings and seeds, and one with the number of runs."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in contents.groups:
        families.setdefault((group.title, group.data_label), []).append(group)
    titles: dict[tuple[str, str], list[str]] = {}
    for (title, data), family in families.items():
        runs = [run for group in family for run in group.runs]
        seeds = count(len({run.seeds for run in runs}), "seed")
        several = f"; {len(family)} conditions: {'; '.join(group.label for group in family)}" if family[1:] else ""
        titles.setdefault((data, f"{', '.join(settings_of(runs))}; {seeds}{several}"), []).append(title)
    parts = [f"{', '.join(methods)} on {data}: {settings}." for (data, settings), methods in titles.items()]
    finished = sum(run.finished for run in contents.runs)
    unfinished = len(contents.runs) - finished
    out = [f"{n} {what}" for n, what in ((unfinished, "unfinished"), (len(contents.damaged), "damaged")) if n]
    left_out = f", {' and '.join(out)}: left out of every result" if out else ""
    return [*parts, f"{count(finished, 'finished run')}{left_out}."]


def headlines(rows: Sequence[Row]) -> list[tuple[Row, list[Effect]]]:
    """Scored rows with the effects of free flow, and of the frameworks under free flow, on both accuracies."""
    found: dict[Row, list[Effect]] = {}
    for effect in effects([row for row in rows if row.scored and row.group.is_main]):
        if effect.setting in HEADLINES and len(effect.changes) == len(ACCURACIES):
            found.setdefault(effect.row, []).append(effect)
    return list(found.items())


def run_counts(row: Row, settings: Sequence[str]) -> list[str]:
    """Number of runs in each setting, or one number if all settings of the row agree."""
    texts = {setting: runs_text(row.cells.get(setting)) for setting in settings}
    distinct = {texts[setting] for setting in row.cells}
    return list(distinct if len(distinct) == 1 else texts.values())
