"""Texts that several formats share: symbols, numbers in words, and the legend of the comparison."""

from collections.abc import Sequence

from ffcil.report.analyse.groups import Group, count
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, T_INTERVAL, Change, Interval
from ffcil.report.analyse.tables import BASELINES, Cell, Metric, Number, Row, effects, settings_in

SYMBOLS: dict[Metric, str] = {"average": "Ā", "last": "A_T", "forgetting": "F"}
HTML_SYMBOLS: dict[Metric, str] = {"average": "Ā", "last": "A<sub>T</sub>", "forgetting": "F"}
TEX_SYMBOLS: dict[Metric, str] = {"average": r"$\overline{A}$", "last": "$A_T$"}
"""Symbols of the two accuracies that the paper reports."""
NOTHING = "–"
"""Text in place of a number that does not exist."""
ARROWS = "Arrows: against the original method, the mean difference of runs with the same seeds."
"""Legend of ablations."""
MATCHED = (
    "M: matched difference, the mean over the steps of A_t minus the accuracy of the Equ.T run with the same class and "
    "training seeds at the same number of classes seen (linear between its steps, 100 % at one class)"
)
"""Legend of the matched difference, without a full stop."""
MATCHED_WITH_INTERVAL = f"{MATCHED}, with its {T_INTERVAL}."
DISTORTED = (
    "Ā cannot say what free flow costs: A_t falls with the number of classes seen whatever the learner does, and free "
    "flow is tested at other numbers of classes than equal steps. The matched difference M compares at equal numbers; "
    "A_T is not affected."
)
"""Why the average accuracies of different schedules cannot be compared."""
TOO_FEW = (
    f"With fewer than {ENOUGH_PAIRS} pairs no difference is called real: an interval then rests on differences being "
    "normal, which so few cannot show. More seeds are the only remedy."
)


def arrow(value: float) -> str:
    """Change with its direction: `↓14.35`, `↑6.70` or `=0.00`."""
    rounded = round(value, 2)
    return f"{'↑' if rounded > 0 else '↓' if rounded < 0 else '='}{abs(rounded):.2f}"


def signed(value: float) -> str:
    """Change with its sign: `+1.25`, and never `-0.00`."""
    return f"{round(value, 2) + 0.0:+.2f}"


def interval_text(interval: Interval | None) -> str:
    """Bounds of an interval: `+0.25 to +1.50`."""
    return f"{signed(interval[0])} to {signed(interval[1])}" if interval else NOTHING


def change_text(change: Change | None) -> str:
    """Mean difference with its interval: `-3.20 (-4.10 to -2.30)`."""
    if change is None:
        return NOTHING
    return f"{signed(change.value)} ({interval_text(change.interval)})" if change.interval else signed(change.value)


def number_text(number: Number | None) -> str:
    """Mean, deviation and change: `55.90 ± 1.50 ↓14.35`."""
    if number is None:
        return NOTHING
    std = f" ± {number.std:.2f}" if number.std is not None else ""
    return f"{number.mean:.2f}{std}{f' {arrow(number.change.value)}' if number.change else ''}"


def runs_text(cell: Cell | None) -> str:
    """Number of runs: `3`, or `3 (2 pairs)` if fewer runs could be paired."""
    if cell is None:
        return NOTHING
    pairs = cell.change.pairs if cell.change else cell.runs
    return f"{cell.runs}" if pairs == cell.runs else f"{cell.runs} ({count(pairs, 'pair')})"


def legend(rows: Sequence[Row]) -> str:
    """Meaning of the symbols, deviations and arrows of these rows, the seeds that vary, and notes on the runs."""
    settings = settings_in(rows)
    compared = [f"{setting} against {BASELINES[setting]}" for setting in settings if BASELINES.get(setting) in settings]
    arrows = f" Arrows: {', '.join(compared)}; the mean difference of runs with the same seeds." if compared else ""
    meaning = (
        "Ā: accuracy averaged over the steps; A_T: accuracy after the last step; F: forgetting (lower is better). "
        f"All in percent, mean ± sample standard deviation over n runs.{arrows}"
    )
    by_group = {row.group.name: _varied_seeds(row.group) for row in rows}
    same = len(set(by_group.values())) < 2
    seeds = [text.capitalize() if same else f"{name}: {text}" for name, text in by_group.items()]
    notes = [note for row in rows for note in row.group.notes]
    distorted = [DISTORTED] if any(row.matched for row in rows) else []
    return "\n".join([meaning, *distorted, *dict.fromkeys([*seeds, *notes])])


def _varied_seeds(group: Group) -> str:
    """The seeds that vary over the runs of a group and thus cause its deviations, in words."""
    kinds = ("class", "arrival", "training")
    varied = [kind for k, kind in enumerate(kinds) if len({run.seeds[k] for run in group.runs}) > 1]
    if not varied:
        return "one seed."
    fixed = ", ".join(kind for kind in kinds if kind not in varied)
    return f"seeds that vary: {', '.join(varied)}{f'; fixed: {fixed}' if fixed else ''}."


def caution(rows: Sequence[Row]) -> str:
    """Warning about too few pairs; empty if there are enough."""
    fewest = min((change.pairs for effect in effects(rows) for change in effect.changes.values()), default=ENOUGH_PAIRS)
    return TOO_FEW if fewest < ENOUGH_PAIRS else ""
