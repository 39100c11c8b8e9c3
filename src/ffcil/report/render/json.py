"""Differences between runs as values for JSON."""

from typing import Any

from ffcil.report.analyse.differences import Comparison, Differences, PairedMeans
from ffcil.report.analyse.tables import METRICS
from ffcil.report.read.records import PHASES


def differences_json(comparison: Comparison) -> dict[str, Any]:
    """All differences, ready for JSON."""
    return {
        "pairs": [_part(part) for part in comparison.parts],
        "only_a": [str(run.folder) for run in comparison.only_a],
        "only_b": [str(run.folder) for run in comparison.only_b],
    }


def _part(part: Differences) -> dict[str, Any]:
    classifiers = {}
    for pair in part.classifiers:
        steps = [{"step": step} | (_change(values) or {}) for step, values in enumerate(part.steps(pair), start=1)]
        summary = {metric: _change(part.means(pair, metric)) for metric in METRICS}
        classifiers[pair.name] = {"a": pair.a, "b": pair.b, "summary": summary, "steps": steps}
    times = {phase: part.seconds(phase) for phase in PHASES}
    return {
        "name": part.name,
        "runs": [[str(a.folder), str(b.folder)] for a, b in part.pairs],
        "unfinished": [str(run.folder) for pair in part.pairs for run in pair if not run.finished],
        "config": {name: [list(pair) for pair in values] for name, values in part.config.items()},
        "classifiers": classifiers,
        "seconds": {phase: {"a": both[0], "b": both[1]} if both else None for phase, both in times.items()},
    }


def _change(means: PairedMeans | None) -> dict[str, Any] | None:
    if means is None:
        return None
    change = means.change
    numbers = {"a": means.a, "b": means.b, "difference": change.value, "pairs": change.pairs}
    intervals = {"interval": change.interval, "bootstrap_interval": change.bootstrap}
    return numbers | intervals | {"differences": change.differences}
