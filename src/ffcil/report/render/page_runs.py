"""Entries of the page's list of runs: results, and what is needed to repeat each run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ffcil.metrics import average_accuracy, last_accuracy
from ffcil.report.analyse.groups import Group
from ffcil.report.read.records import RunRecord

COSTS = (
    ("step", "step", "{}"),
    ("parameters", "parameters", "{:,}"),
    ("trained", "trained_parameters", "{:,}"),
    ("exemplars", "memory", "{:,}"),
    ("images/s", "images_per_second", "{:,.0f}"),
    ("peak GPU bytes", "peak_memory_bytes", "{:,}"),
)
"""Title, field of a record and format of each column of costs."""


@dataclass(frozen=True)
class RunEntry:
    """One run in the list."""

    run: RunRecord
    title: str
    labels: list[str]
    """Labels that distinguish the run from others with the same method, setting and seeds."""

    @property
    def results(self) -> list[float | None]:
        """Average and last accuracy of the scored classifier; None for an unfinished run."""
        counts = self.run.tables.get(self.run.scored or "")
        if not self.run.finished or counts is None:
            return [None, None]
        return [average_accuracy(counts), last_accuracy(counts)]

    @property
    def seconds(self) -> float:
        """Duration of the run."""
        total = (self.run.summary or {}).get("seconds")
        return float(total or sum(sum(record.get("seconds", {}).values()) for record in self.run.records))

    @property
    def duration(self) -> str:
        """Duration in words, with no-break spaces."""
        if self.seconds < 60:
            return f"{self.seconds:.1f}\N{NO-BREAK SPACE}s"
        minutes = round(self.seconds / 60)
        text = f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"
        return text.replace(" ", "\N{NO-BREAK SPACE}")

    @property
    def details(self) -> list[tuple[str, str, str]]:
        """Title, text and CSS class of everything that the entry unfolds."""
        run, environment, parts = self.run, dict(self.run.environment), []
        if command := environment.pop("command", None):
            parts.append(
                ("Recorded command", shlex.join(map(str, command)) if isinstance(command, list) else str(command), "")
            )
        parts.append(("Command that repeats this run", repeat_command(run), ""))
        if run.records:
            parts.append(("Costs per step", _costs(run), "columns"))
        parts += [("Configuration", _json(run.config), ""), ("Schedule", " ".join(map(str, run.sizes)), "")]
        return [*parts, ("Environment", _json(environment), "")] if environment else parts


def run_entries(runs: Sequence[RunRecord], groups: Sequence[Group]) -> list[RunEntry]:
    """One entry per run, with the data set if there are several, and the condition of its group."""
    several = len({run.data_name for run in runs} | {group.dataset for group in groups}) > 1
    entries = []
    for run in runs:
        found = [group for group in groups if run in group.runs]
        dataset = found[0].dataset if found else run.data_name
        labels = [dataset if several else "", found[0].label if len(found) == 1 else ""]
        entries.append(RunEntry(run, found[0].title if found else run.method_name, [text for text in labels if text]))
    return entries


def repeat_command(run: RunRecord) -> str:
    """Command that repeats a run in another folder.

    This is the recorded command with all its options. For a run that was started from Python, it is `ffcil run` with
    the run's configuration.
    """
    words = _words(run.environment.get("command", ""))
    if words[:2] != ["ffcil", "run"]:
        words = ["ffcil", "run", str(run.folder / "config.json")]
    kept = [
        word
        for before, word in pairwise(["", *words])
        if word != "--out" and before != "--out" and not word.startswith("--out=")
    ]
    return shlex.join([*kept, "--out", f"again/{run.folder.name}"])


def _words(command: Any) -> list[str]:
    if isinstance(command, list):
        return [str(word) for word in command]
    try:
        return shlex.split(str(command))
    except ValueError:  # the command was edited by hand and has an unclosed quote
        return []


def _costs(run: RunRecord) -> str:
    """Costs of every step in text columns, without columns that the records lack."""
    columns = [cost for cost in COSTS if all(record.get(cost[1]) is not None for record in run.records)]
    lines = [[title for title, _, _ in columns]]
    lines += [[template.format(record[field]) for _, field, template in columns] for record in run.records]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def _json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
