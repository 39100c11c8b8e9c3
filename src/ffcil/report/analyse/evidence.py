"""Every change of the comparison as paired differences: is the recovery real?"""

from __future__ import annotations

import csv as csv_format
import io
from collections.abc import Iterator, Sequence

from ffcil.report.analyse.statistics import ENOUGH_PAIRS, LEVEL, TOO_FEW, Change, bounds_text, signed
from ffcil.report.analyse.tables import BASELINES, NOTHING, SYMBOLS, Metric, Row, pipes

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
    return TOO_FEW if fewest < ENOUGH_PAIRS else ""


def evidence_markdown(rows: Sequence[Row]) -> str:
    """A Markdown table, a line a change."""
    head = ["Data", "Method", "Effect of", "on", "Difference", f"{LEVEL:.0%} t interval"]
    head += [f"{LEVEL:.0%} bootstrap", "Same sign", "Told"]
    lines = [pipes(head), pipes(["---"] * 4 + ["---:"] * 4 + ["---"])]
    for row, setting, metric, change in evidence(rows):
        bounds = [bounds_text(one) if one else NOTHING for one in (change.interval, change.bootstrap)]
        about = [row.data_label, row.label, QUESTIONS[setting], SYMBOLS[metric]]
        signs = f"{change.same_sign} of {change.pairs}"
        lines.append(pipes([*about, signed(change.value), *bounds, signs, change.told]))
    note = (
        "Differences in points between runs with the same seeds. Told: whether the t interval of the mean difference "
        "holds 0; bootstrap percentiles, beside it, are too narrow for few pairs."
    )
    return "\n".join([*lines, "", f"{note} {caution(rows)}".strip()]) + "\n"


def evidence_csv(rows: Sequence[Row]) -> str:
    """Full precision, a line a change; `low` and `high` are those of the t interval."""
    out = io.StringIO()
    writer = csv_format.writer(out, lineterminator="\n")
    head = ["dataset", "classes", "steps", "method", "condition", "classifier", "setting", "versus", "metric", "pairs"]
    head += ["difference", "std", "low", "high", "bootstrap_low", "bootstrap_high", "same_sign", "told", "differences"]
    writer.writerow(head)
    for row, setting, metric, change in evidence(rows):
        group, bounds = row.group, [*(change.interval or (None, None)), *(change.bootstrap or (None, None))]
        about = [group.dataset, group.classes, group.steps, group.runs[0].method, group.label, row.classifier]
        numbers = [change.pairs, change.value, change.std, *bounds, change.same_sign, change.told]
        each = " ".join(repr(difference) for difference in change.differences)
        writer.writerow([*about, setting, BASELINES[setting], metric, *numbers, each])
    return out.getvalue()
