"""The table of arrival sensitivity for the terminal and as Markdown, CSV and JSON."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ffcil.report.analyse.sensitivity import Sensitivity, SensitivityTable
from ffcil.report.render.matched import change_json
from ffcil.report.render.tables import csv_text, markdown_table
from ffcil.report.render.text import NOTHING, arrow

if TYPE_CHECKING:
    from rich.table import Table

SENSITIVITY = (
    "Accuracy A_T after the last step of one class permutation under several schedules. Range: largest minus smallest "
    "A_T; sd: sample standard deviation of A_T over the schedules. Both are 0 for a method that does not care how "
    "classes arrive. Numbers are means over n permutations, each with all schedules of its row."
)
"""Legend of the table."""
RANGE_CHANGE = "Arrows: range against framework none, the mean difference for the same permutations and schedules."
"""Legend of the arrows."""


def last_text(row: Sensitivity, schedule: str) -> str:
    """A_T under a schedule."""
    value = row.last(schedule)
    return NOTHING if value is None else f"{value:.2f}"


def range_text(row: Sensitivity) -> str:
    """Range with its change: `8.20 ↓3.10`."""
    return f"{row.range:.2f} {arrow(row.change.value)}" if row.change else f"{row.range:.2f}"


def _cells(row: Sensitivity, schedules: Sequence[str]) -> list[str]:
    numbers = [last_text(row, schedule) for schedule in schedules]
    return [row.label, row.framework, *numbers, range_text(row), f"{row.std:.2f}", str(len(row.permutations))]


def _head(schedules: Sequence[str]) -> list[str]:
    return ["Method", "Framework", *schedules, "Range", "sd", "n"]


def sensitivity_terminal(tables: Sequence[SensitivityTable]) -> "Table":
    """Table for the terminal: schedules in lines and frameworks in columns, for the scored classifiers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    caption = Text(f"{SENSITIVITY} {RANGE_CHANGE}", "dim")
    frameworks = list(dict.fromkeys(row.framework for one in tables for row in one.rows if row.scored))
    made = Table(box=box.SIMPLE, caption=caption, caption_justify="left", padding=(0, 1, 0, 0))
    for name in ("Arrival sensitivity", "", *frameworks):
        made.add_column(Text(name))
    for one in tables:
        for label, rows in one.methods.items():
            by_framework = {row.framework: row for row in rows}
            chosen = [by_framework.get(name) for name in frameworks]
            titles = [Text(label, "bold"), Text(one.data_label, "dim"), *[Text()] * len(one.schedules)]
            for title, schedule in zip(titles, one.schedules, strict=False):
                made.add_row(title, Text(schedule), *(last_text(row, schedule) if row else NOTHING for row in chosen))
            made.add_row("", "range", *(range_text(row) if row else NOTHING for row in chosen), style="bold")
            made.add_row("", "sd", *(f"{row.std:.2f}" if row else NOTHING for row in chosen))
            counts = [str(len(row.permutations)) if row else NOTHING for row in chosen]
            made.add_row("", "n", *counts, style="dim", end_section=True)
    return made


def sensitivity_markdown(tables: Sequence[SensitivityTable]) -> str:
    """One table per data set; one line per method, classifier and framework."""
    texts = []
    for one in tables:
        head, lines = _head(one.schedules), [_cells(row, one.schedules) for row in one.rows]
        rule = ["---"] * 2 + ["---:"] * (len(head) - 2)
        below = f"{SENSITIVITY} {RANGE_CHANGE}" if one is tables[-1] else ""
        texts.append(f"**{one.data_label}**\n\n{markdown_table(head, rule, lines, below)}")
    return "\n".join(texts)


def sensitivity_csv(tables: Sequence[SensitivityTable]) -> str:
    """One line per permutation and schedule with its A_T; range and sd are those of the permutation."""
    head = ["dataset", "classes", "method", "condition", "classifier", "scored", "framework"]
    head += ["class_seed", "train_seed", "schedule", "last", "range", "std"]
    lines = []
    for table in tables:
        for row in table.rows:
            method = [row.method, row.condition, row.classifier, row.scored, row.framework]
            for one in row.permutations:
                seeds = [_seed(one.class_seed), one.train_seed]
                for schedule, last in one.last.items():
                    values = [schedule, last, one.range, one.std]
                    lines.append([table.dataset, table.classes, *method, *seeds, *values])
    return csv_text(head, lines)


def sensitivity_json(tables: Sequence[SensitivityTable]) -> list[dict[str, Any]]:
    """All sensitivities as values for JSON, with the accuracies of every permutation."""
    return [
        {
            "dataset": table.dataset,
            "classes": table.classes,
            "method": row.method,
            "condition": row.condition,
            "classifier": row.classifier,
            "scored": row.scored,
            "framework": row.framework,
            "range": row.range,
            "std": row.std,
            "range_change": change_json(row.change) if row.change else None,
            "permutations": [
                {"class_seed": _seed(one.class_seed), "train_seed": one.train_seed, "last": one.last}
                | {"range": one.range, "std": one.std}
                for one in row.permutations
            ],
        }
        for table in tables
        for row in table.rows
    ]


def _seed(class_seed: int) -> int | None:
    """Class seed as the configuration has it: None for the order of the data set."""
    return None if class_seed == -1 else class_seed
