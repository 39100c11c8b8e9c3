"""The page's list of runs: results, and what it takes to make each again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from html import escape
from itertools import pairwise
from typing import Any

from ffcil.metrics import average_accuracy, last_accuracy
from ffcil.report.analyse.groups import Group, count
from ffcil.report.analyse.tables import NOTHING
from ffcil.report.read.records import RunRecord
from ffcil.report.render.html import cell, fold, head, table, tbody


def runs_table(runs: Sequence[RunRecord], groups: Sequence[Group]) -> str:
    """A line a run, and below it the configuration, environment and commands, which open."""
    several = len({run.data_name for run in runs} | {group.dataset for group in groups}) > 1
    lines = []
    for run in runs:
        mine = [group for group in groups if run in group.runs]
        dataset = mine[0].dataset if mine else run.data_name
        below = [dataset if several else "", mine[0].label if len(mine) == 1 else ""]
        lines.append(_run(run, mine[0].title if mine else run.method_name, [text for text in below if text]))
    heads = [head("Run"), head("Setting"), head("Seeds"), head("Ā", "number"), head("A<sub>T</sub>", "number")]
    heads.append(head("Time", "number"))
    return (
        '<h2 id="runs">Runs</h2><p class="small">Below each run is its folder: it opens the commands to make the run '
        "again, its configuration and environment. Accuracies are of the scored classifier. Three seeds are those of "
        "the class order, the arrivals and the training; one stands for all three where they are the same.</p>"
        f"{table(heads, ''.join(lines), 'runs')}"
    )


def _run(run: RunRecord, title: str, below: Sequence[str]) -> str:
    """`below`: what tells it from others of its method, setting and seeds."""
    counts = run.tables.get(run.scored or "")
    results: list[float | None] = [None, None]
    if run.finished and counts is not None:
        results = [average_accuracy(counts), last_accuracy(counts)]
    steps = f"<small class='unfinished'>{len(run.records)} of {count(len(run.sizes), 'step')}, unfinished</small>"
    cells = [
        f"<th scope='row'>{escape(title)}{''.join(f'<small>{escape(text)}</small>' for text in below)}</th>",
        f"<td>{escape(run.setting)}{'' if run.finished else steps}</td><td>{escape(run.seed_label.split(' ')[1])}</td>",
        *(cell(NOTHING if value is None else f"{value:.2f}", value) for value in results),
        cell(_duration(run), _seconds(run)),
    ]
    where = f"{run.folder.name}, on {run.device}"
    more = f"<tr class='more'><td colspan='6'>{fold(where, _how(run))}</td></tr>"
    return tbody([f"<tr>{''.join(cells)}</tr>", more])


def _how(run: RunRecord) -> str:
    parts = [("Made by", _command(run), "")] if run.environment.get("command") else []
    parts.append(("To make this run alone again", _again(run), ""))
    if run.records:
        parts.append(("Cost, step by step", _cost(run), "columns"))
    parts += [("Configuration", _json(run.config), ""), ("Schedule", " ".join(str(size) for size in run.sizes), "")]
    rest = {name: value for name, value in run.environment.items() if name != "command"}
    if rest:
        parts.append(("Environment", _json(rest), ""))
    return "".join(f'<h4>{name}</h4><pre class="{kind}">{escape(text)}</pre>' for name, text, kind in parts)


def _command(run: RunRecord) -> str:
    command = run.environment["command"]
    return shlex.join(str(word) for word in command) if isinstance(command, list) else str(command)


def _again(run: RunRecord) -> str:
    """The command that made it, into another folder: it knows of --data, --import and --threads.

    A run made from Python has no such command, and its configuration has to do.
    """
    words = _words(run)
    if words[:2] != ["ffcil", "run"]:
        words = ["ffcil", "run", str(run.folder / "config.json")]
    kept = [
        word
        for before, word in pairwise(["", *words])
        if word != "--out" and before != "--out" and not word.startswith("--out=")
    ]
    return shlex.join([*kept, "--out", f"again/{run.folder.name}"])


def _words(run: RunRecord) -> list[str]:
    command = run.environment.get("command", "")
    if isinstance(command, list):
        return [str(word) for word in command]
    try:
        return shlex.split(str(command))
    except ValueError:  # a quote that is not closed: edited by hand
        return []


COSTS = (
    ("step", "step", "{}"),
    ("parameters", "parameters", "{:,}"),
    ("trained", "trained_parameters", "{:,}"),
    ("exemplars", "memory", "{:,}"),
    ("images/s", "images_per_second", "{:,.0f}"),
    ("peak GPU bytes", "peak_memory_bytes", "{:,}"),
)
"""title, field of a record, how it is written"""


def _cost(run: RunRecord) -> str:
    """What every step needs, in columns of text; what the records say nothing of is left out."""
    told = [cost for cost in COSTS if all(record.get(cost[1]) is not None for record in run.records)]
    lines = [[title for title, _, _ in told]]
    lines += [[written.format(record[field]) for _, field, written in told] for record in run.records]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _seconds(run: RunRecord) -> float:
    return float((run.summary or {}).get("seconds") or sum(sum(r.get("seconds", {}).values()) for r in run.records))


def _duration(run: RunRecord) -> str:
    """With spaces at which a line does not break."""
    seconds = _seconds(run)
    if seconds < 60:
        return f"{seconds:.1f}\N{NO-BREAK SPACE}s"
    minutes = round(seconds / 60)
    text = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
    return text.replace(" ", "\N{NO-BREAK SPACE}")
