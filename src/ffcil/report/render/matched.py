"""The table of matched differences as Markdown, CSV and JSON."""

from collections.abc import Sequence
from typing import Any

from ffcil.report.analyse.matched import Matched
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, T_INTERVAL, Change
from ffcil.report.render.tables import csv_text, markdown_table
from ffcil.report.render.text import DISTORTED, MATCHED_WITH_INTERVAL, TOO_FEW, change_text, interval_text, signed

AVERAGE_DIFFERENCE = "Ā − Ā of Equ.T: difference of the average accuracy between the same runs, for comparison."
"""Legend of the unmatched difference."""


def matched_legend(matched: Sequence[Matched]) -> str:
    """Meaning of both differences, with a warning about too few pairs."""
    few = any(one.difference.pairs < ENOUGH_PAIRS for one in matched)
    return "\n".join([MATCHED_WITH_INTERVAL, DISTORTED, AVERAGE_DIFFERENCE, *([TOO_FEW] if few else [])])


def matched_markdown(matched: Sequence[Matched]) -> str:
    """One line per method, classifier and setting."""
    head = ["Data", "Method", "Setting", "M", T_INTERVAL, "Conclusion", "Ā − Ā of Equ.T", "Pairs"]
    lines = []
    for one in matched:
        own = one.difference
        numbers = [signed(own.value), interval_text(own.interval), own.conclusion, change_text(one.average)]
        lines.append([one.group.data_label, one.label, one.setting, *numbers, str(own.pairs)])
    return markdown_table(head, ["---"] * 3 + ["---:"] * 2 + ["---"] + ["---:"] * 2, lines, matched_legend(matched))


def matched_csv(matched: Sequence[Matched]) -> str:
    """One line per method, classifier and setting; `low` and `high` are the bounds of the t interval."""
    values = matched_json(matched)
    numbers = ("value", "std", "low", "high", "pairs", "conclusion")
    names = [name for name in values[0] if name not in ("matched", "average")]
    head = [*names, *(f"{kind}_{name}" for kind in ("matched", "average") for name in numbers)]
    lines = [
        [*(one[name] for name in names), *(one[kind][name] for kind in ("matched", "average") for name in numbers)]
        for one in values
    ]
    return csv_text(head, lines)


def matched_json(matched: Sequence[Matched]) -> list[dict[str, Any]]:
    """All matched differences as values for JSON, with the difference of every pair."""
    return [
        {
            "dataset": one.group.dataset,
            "classes": one.group.classes,
            "steps": one.group.steps,
            "method": one.group.runs[0].method,
            "condition": one.group.label,
            "classifier": one.classifier,
            "scored": one.scored,
            "setting": one.setting,
            "matched": change_json(one.difference),
            "average": change_json(one.average),
        }
        for one in matched
    ]


def change_json(change: Change) -> dict[str, Any]:
    """A paired difference as values for JSON."""
    low, high = change.interval or (None, None)
    return {
        "versus": change.versus,
        "value": change.value,
        "std": change.std,
        "low": low,
        "high": high,
        "pairs": change.pairs,
        "conclusion": change.conclusion,
        "differences": list(change.differences),
    }
