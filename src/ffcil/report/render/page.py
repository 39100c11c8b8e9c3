"""The page: one HTML file that needs no network, with the comparison, interactive figures, and how to make it again."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.groups import count
from ffcil.report.analyse.statistics import LEVEL, Change
from ffcil.report.analyse.tables import Row, arrow
from ffcil.report.read.records import RunRecord, settings_of
from ffcil.report.render.html import fold
from ffcil.report.render.page_figures import across_methods, by_method, what_was_run
from ffcil.report.render.page_runs import runs_table
from ffcil.report.render.page_tables import ablation_table, comparison, evidence_table

TITLE = "Free-flow class-incremental learning"
SENTENCES_SHOWN = 6  # further ones are folded away
MEANINGS = {
    "Equ.T": "the classes arrive in equal steps; the method is the original one.",
    "FF.org": "the same classes in as many steps, but in free flow: some steps bring one class, others many. "
    "The method is still the original one.",
    "FF.ours": "free flow, and the method has the paper's components: the class-wise mean objective (CWM) with "
    "dynamic intervention weight alignment (DIWA), or with head-agnostic alignment (HA) for pre-trained backbones.",
    "Equ.ours": "equal steps, and the method has the paper's components.",
}


def write_page(
    runs: Sequence[RunRecord] | Contents, path: Path | str, title: str = TITLE, command: str | None = None
) -> Path:
    """Write the report of these runs as one HTML file that needs nothing else.

    Unfinished runs are listed, and left out of every result. `command` is what makes the page again; None: a report of
    the folder that holds all of the runs.
    """
    from plotly.offline import get_plotlyjs

    path = Path(path)
    contents = runs if isinstance(runs, Contents) else Contents.of(runs)
    said = [f"<p>{escape(sentence)}</p>" for sentence in what_was_run(contents)]
    sections = [
        f"<h1>{escape(title)}</h1>",
        f'<div class="lead">{_shortened(said[:-1], 3, "The other methods and conditions")}{said[-1]}</div>',
        comparison(contents.rows),
        _meanings(contents.runs),
        _headlines(contents.rows),
        evidence_table(contents.rows),
        across_methods(contents),
        ablation_table(contents.ablations),
        by_method(contents.groups),
        runs_table(contents.runs, contents.groups),
        _about(contents, command),
    ]
    body = "\n".join(section for section in sections if section)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n{_contents(body)}\n"
        f"<main>\n{body}\n"
        "<noscript><p>The figures need JavaScript, which is turned off; the tables do not.</p></noscript>"
        f"\n</main>\n<script>{get_plotlyjs()}</script>\n<script>{_asset('page.js')}</script>\n</body>\n</html>\n"
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    return path


def _asset(name: str) -> str:
    return files("ffcil.report").joinpath(name).read_text(encoding="utf-8")


SECTIONS = {
    "comparison": "Comparison",
    "evidence": "Is it real?",
    "changes": "Drop and recovery",
    "alpha": "Alpha",
    "order": "Order",
    "overhead": "Overhead",
    "ablation": "Ablation",
    "methods": "Method by method",
    "runs": "Runs",
    "about": "About",
}


def _contents(body: str) -> str:
    """Links to the parts that the page has."""
    links = "".join(f'<a href="#{i}">{name}</a>' for i, name in SECTIONS.items() if f'<h2 id="{i}">' in body)
    return f'<nav aria-label="Contents"><div>{links}</div></nav>'


def _shortened(items: list[str], shown: int, rest: str) -> str:
    more = "".join(items[shown:])
    return "".join(items[:shown]) + (fold(f"{rest} ({len(items) - shown})", more) if more else "")


def _headlines(rows: Sequence[Row]) -> str:
    """One sentence a scored row: what free flow did, and what the components did, as far as seeds can tell."""

    def did(what: str, average: Change | None, last: Change | None) -> str:
        if average is None or last is None:
            return ""
        verbs = {"↓": "lowers", "↑": "raises", "=": "changes"}
        first, second = (verbs[arrow(change.value)[0]] for change in (average, last))
        return (
            f"{what} {first} average accuracy Ā by <b>{abs(average.value):.2f}</b> ({average.told}) and "
            f"{second + ' ' if second != first else ''}final accuracy A<sub>T</sub> by <b>{abs(last.value):.2f}</b> "
            f"({last.told}; {count(average.pairs, 'pair')} of runs)"
        )

    items = []
    for row in rows:
        free_flow = did("free flow in place of equal steps", row.drop("average"), row.drop("last"))
        ours = did("under free flow, adding the paper’s components", row.recovery("average"), row.recovery("last"))
        said = [sentence for sentence in (free_flow, ours) if sentence]
        if row.scored and row.group.is_main and said:
            items.append(f"<li>{escape(f'{row.label} on {row.data_label}')}: {'; '.join(said)}.</li>")
    shown, rest = items[:SENTENCES_SHOWN], items[SENTENCES_SHOWN:]
    more = fold(f"{len(rest)} more", f"<ul>{''.join(rest)}</ul>") if rest else ""
    note = (
        f'<p class="small">In brackets: whether the {LEVEL:.0%} t interval of the difference, over runs with the same '
        "seeds, holds 0; <a href='#evidence'>Is it real?</a> has the intervals.</p>"
    )
    return f"<ul>{''.join(shown)}</ul>{more}{note}" if items else ""


def _meanings(runs: Sequence[RunRecord]) -> str:
    items = [f"<dt>{s}</dt><dd>{escape(MEANINGS[s])}</dd>" for s in settings_of(runs) if s in MEANINGS]
    return f"<dl>{''.join(items)}</dl>" if items else ""


def _about(contents: Contents, command: str | None) -> str:
    """What was left out and why, and how to make the page again."""
    if command is None and contents.runs:
        command = shlex.join(["ffcil", "report", os.path.commonpath([run.folder.parent for run in contents.runs])])
    notes = "".join(f"<li>{escape(note)}</li>" for note in contents.notes)
    missing = "".join(f"<li>{escape(name)}: {escape(reason)}.</li>" for name, reason in contents.left_out.items())
    return (
        '<h2 id="about">About this page</h2>'
        + (f"<h3>Notes on the runs</h3><ul>{notes}</ul>" if notes else "")
        + (f"<h3>Not shown, for want of records</h3><ul>{missing}</ul>" if missing else "")
        + (f"<h3>To make this page again</h3><pre>{escape(command)}</pre>" if command else "")
        + '<p class="small">Every number is counted again from the runs’ count tables; nothing is trained or loaded '
        "from elsewhere. The file needs no network.</p>"
    )
