"""The page's list of runs: their names, and what is needed to repeat each run."""

import math
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from ffcil.report.analyse.curves import MOST_CELLS, thinned
from ffcil.report.analyse.groups import Group
from ffcil.report.analyse.tables import METRICS, Metric
from ffcil.report.read.records import RunRecord
from ffcil.runs.published import SUFFIX

COSTS = (
    ("step", "step", "{}"),
    ("parameters", "parameters", "{:,}"),
    ("trained", "trained_parameters", "{:,}"),
    ("exemplars", "memory", "{:,}"),
    ("images/s", "images_per_second", "{:,.0f}"),
    ("peak GPU bytes", "peak_memory_bytes", "{:,}"),
)
"""Title, field of a record and format of each column of costs."""


def run_entries(runs: Sequence[RunRecord], groups: Sequence[Group]) -> list[tuple[RunRecord, str, list[str]]]:
    """Every run with its title and the labels that distinguish it: its data set, if there are several, and its
    condition."""
    several = len({run.data_name for run in runs} | {group.dataset for group in groups}) > 1
    entries = []
    for run in runs:
        found = [group for group in groups if run in group.runs]
        dataset = found[0].dataset if found else run.data_name
        labels = [dataset if several else "", found[0].label if len(found) == 1 else ""]
        entries.append((run, found[0].title if found else run.method_name, labels))
    return entries


def total_seconds(run: RunRecord) -> float:
    """Duration of a run."""
    total = (run.summary or {}).get("seconds")
    return float(total or sum(sum(record.get("seconds", {}).values()) for record in run.records))


def duration(seconds: float) -> str:
    """Duration in words, with no-break spaces."""
    minutes = round(seconds / 60)
    text = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
    return (f"{seconds:.1f} s" if seconds < 60 else text).replace(" ", "\N{NO-BREAK SPACE}")


def command_words(run: RunRecord) -> list[str]:
    """Recorded command of a run; empty if there is none that can be split into words."""
    command: Any = run.environment.get("command", "")
    if isinstance(command, list):
        return [str(word) for word in command]
    try:
        return shlex.split(str(command))
    except ValueError:  # the command was edited by hand and has an unclosed quote
        return []


def recorded_command(run: RunRecord) -> str:
    """Recorded command of a run as it was written."""
    command = run.environment.get("command") or ""
    return shlex.join(command_words(run)) if isinstance(command, list) else str(command)


def repeat_command(run: RunRecord) -> str:
    """Command that repeats a run in another folder.

    It is the recorded command with all its options. For a run that was started from Python, it is `ffcil run` with the
    run's configuration. For a published run, the recipe is its file.
    """
    words = command_words(run)
    if words[:2] != ["ffcil", "run"]:
        words = ["ffcil", "run", str(run.folder / "config.json")]
    published = run.folder.with_name(f"{run.folder.name}{SUFFIX}")
    if published.exists():
        words[2] = str(published)
    kept = [
        word
        for before, word in pairwise(["", *words])
        if word != "--out" and before != "--out" and not word.startswith("--out=")
    ]
    return shlex.join([*kept, "--out", f"again/{run.folder.name}"])


def cost_columns(run: RunRecord) -> str:
    """Costs of every step in text columns, or of some of very many steps. Columns that the records lack are omitted."""
    records = [run.records[k] for k in thinned(len(run.records), MOST_CELLS)]
    columns = [cost for cost in COSTS if all(record.get(cost[1]) is not None for record in records)]
    lines = [[title for title, _, _ in columns]]
    lines += [[template.format(record[field]) for _, field, template in columns] for record in records]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def final_result(run: RunRecord, metric: Metric) -> float | None:
    """Result of the scored classifier of a finished run; None if it is unfinished or has no test images."""
    value = METRICS[metric](run.tables[run.scored]) if run.finished and run.scored in run.tables else None
    return None if value is None or math.isnan(value) else value
