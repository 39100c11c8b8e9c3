"""Every change of the comparison as paired differences: is the recovery real?"""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Iterator, Sequence

from ffcil.report.statistics import ENOUGH_PAIRS, LEVEL, Change, bounds_text, signed
from ffcil.report.tables import BASELINES, NOTHING, SYMBOLS, Metric, Row, pipes

QUESTIONS = {
    "FF.org": "free flow instead of equal steps",
    "FF.ours": "the framework under free flow",
    "Equ.ours": "the framework under equal steps",
}
"""What a setting, against its baseline, is the effect of."""


def evidence(rows: Sequence[Row]) -> Iterator[tuple[Row, str, Metric, Change]]:
    """Row, setting, metric and change, of both accuracies, wherever two settings share seeds."""
    metrics: tuple[Metric, ...] = ("average", "last")
    for row in rows:
        for setting in QUESTIONS:
            for metric in metrics:
                number = row.number(setting, metric)
                if number and number.change:
                    yield row, setting, metric, number.change


def caution(rows: Sequence[Row]) -> str:
    """A plain word where there are too few pairs; empty where there are enough."""
    fewest = min((change.pairs for *_, change in evidence(rows)), default=ENOUGH_PAIRS)
    if fewest >= ENOUGH_PAIRS:
        return ""
    return (
        f"With fewer than {ENOUGH_PAIRS} pairs an interval is of little worth: it says little more than the smallest "
        "and the largest difference, and more seeds are the only remedy."
    )


def evidence_markdown(rows: Sequence[Row]) -> str:
    """A Markdown table, a line a change."""
    head = ["Data", "Method", "Effect of", "on", "Difference", f"{LEVEL:.0%} interval", "Same sign", "Told"]
    lines = [pipes(head), pipes(["---"] * 4 + ["---:"] * 3 + ["---"])]
    for row, setting, metric, change in evidence(rows):
        interval = change.interval
        bounds = bounds_text(interval) if interval else NOTHING
        about = [row.data_label, row.label, QUESTIONS[setting], SYMBOLS[metric]]
        signs = f"{change.same_sign} of {change.pairs}"
        lines.append(pipes([*about, signed(change.value), bounds, signs, change.told]))
    note = "Differences in points between runs with the same seeds; bootstrap percentiles of the mean difference."
    return "\n".join([*lines, "", f"{note} {caution(rows)}".strip()]) + "\n"


def evidence_csv(rows: Sequence[Row]) -> str:
    """Full precision, a line a change."""
    out = io.StringIO()
    writer = csv_format.writer(out, lineterminator="\n")
    head = ["dataset", "classes", "steps", "method", "condition", "classifier", "setting", "versus", "metric", "pairs"]
    writer.writerow([*head, "difference", "std", "low", "high", "same_sign", "differences"])
    for row, setting, metric, change in evidence(rows):
        group, (low, high) = row.group, change.interval or (None, None)
        about = [group.dataset, group.classes, group.steps, group.runs[0].method, group.label, row.classifier]
        numbers = [change.pairs, change.value, change.std, low, high, change.same_sign]
        each = " ".join(repr(difference) for difference in change.differences)
        writer.writerow([*about, setting, BASELINES[setting], metric, *numbers, each])
    return out.getvalue()
