"""The page's figures: across methods, then method by method."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ffcil.report.analyse.contents import Contents
from ffcil.report.analyse.curves import accuracy_range, seed_schedules
from ffcil.report.analyse.groups import Group, count
from ffcil.report.analyse.overhead import TIMES
from ffcil.report.analyse.statistics import ENOUGH_PAIRS, LEVEL
from ffcil.report.analyse.sweeps import Sweep
from ffcil.report.analyse.tables import Metric
from ffcil.report.read.records import CLASSIFIER_NAMES, RunRecord, Seeds, classifiers_of, settings_of
from ffcil.report.render.html import figure, fold, plot
from ffcil.report.render.specs import (
    change_spec,
    class_size_spec,
    cost_spec,
    curves_spec,
    memory_spec,
    schedule_spec,
    sweep_spec,
)

SEEDS_SHOWN = 3  # further ones are folded away
ACCURACIES: dict[Metric, str] = {"average": "Average accuracy Ā", "last": "Accuracy after the last step"}


def across_methods(contents: Contents) -> str:
    """Drop and recovery, alpha, order, overhead: those for which there are records."""
    parts = []
    if contents.changed:
        plots = [(name, change_spec(contents.changed, metric)) for metric, name in ACCURACIES.items()]
        parts.append(
            '<h2 id="changes">Drop and recovery</h2>'
            + figure(
                "What free flow costs, and what the framework brings back",
                plots,
                "Free flow: FF.org minus Equ.T. Framework: FF.ours minus FF.org. Means over runs with the same seeds; "
                f"whiskers, from {ENOUGH_PAIRS} pairs on, are {LEVEL:.0%} t intervals, see <a href='#evidence'>Is it "
                "real?</a>",
            )
        )
    parts.append(_sweeps("alpha", "Spectrum: alpha", contents.alphas))
    parts.append(_sweeps("order", "Order of arrival", contents.orders))
    if contents.costs:
        timed = [phase for phase in TIMES if any(cost.ratio(phase) for cost in contents.costs)]
        plots = [(f"{phase.capitalize()} time", cost_spec(contents.costs, phase)) for phase in timed]
        parts.append(
            '<h2 id="overhead">Overhead</h2>'
            + figure(
                "Time with the framework's parts, against the original method",
                plots,
                "Pairs of runs with the same schedule and seeds on the same device; whiskers are the extreme pairs. "
                "Training holds what follows it in a step (alignment, HA, exemplars); testing is the prediction of all "
                "test images after every step. Runs that shared a device slow each other: short times say little.",
            )
        )
    return "".join(parts)


def _sweeps(name: str, title: str, sweeps: Sequence[Sweep]) -> str:
    if not sweeps:
        return ""
    notes = {
        "alpha": "Towards 0 the steps are equal, towards infinity only of the smallest and the largest size; equal "
        "steps have no alpha and are drawn at the height that they have.",
        "order": "The same sizes, in another order.",
    }
    figures = [
        figure(
            sweep.title,
            [(told, sweep_spec(sweep, metric)) for metric, told in ACCURACIES.items()],
            f"{notes[name]} Means over seeds, whiskers are sample standard deviations.",
        )
        for sweep in sweeps
    ]
    return f'<h2 id="{name}">{title}</h2>{"".join(figures)}'


def by_method(groups: Sequence[Group]) -> str:
    """A part that opens for each method and data set; the first is open."""
    if not groups:
        return ""
    parts = [
        fold(group.name, f'<div id="group-{i}">{_group(group)}</div>', "group", is_open=i == 0)
        for i, group in enumerate(groups)
    ]
    return f'<h2 id="methods">Method by method</h2>{"".join(parts)}'


def _group(group: Group) -> str:
    runs = list(group.runs)
    classifiers = classifiers_of(runs)
    scored = classifiers[0]
    name = escape(_classifier(scored))
    floor, _ = accuracy_range(runs)
    curves = [(f"{_classifier(c)}{' (scored)' if c == scored else ''}", curves_spec(runs, c)) for c in classifiers]
    caption = (
        "Accuracy over the test images of all classes seen so far. Thick lines are means over runs, thin lines single "
        "runs; where runs stop at different numbers of classes, the mean takes each as a straight line between steps."
        f"{f' The vertical axis starts at {floor:g}, not at 0.' if floor else ''}"
    )
    return "".join(
        (
            figure("Accuracy against classes seen", curves, caption),
            _schedules(runs),
            _memory([run for run in runs if scored in run.tables], name),
            _class_sizes(runs, scored, name) if group.is_uneven else "",
        )
    )


def _schedules(runs: list[RunRecord]) -> str:
    plots = [
        f"<div><h4>{escape(seed)}</h4>{plot(schedule_spec(of_seed))}</div>"
        for seed, of_seed in seed_schedules(runs).items()
    ]
    rest = plots[SEEDS_SHOWN:]
    return (
        f'<h3>Schedules</h3><figure><div class="grid">{"".join(plots[:SEEDS_SHOWN])}</div>'
        + (fold("The schedules of the other seeds", f'<div class="grid">{"".join(rest)}</div>') if rest else "")
        + "<figcaption>New classes at every step. Runs of a seed that share a schedule are drawn once.</figcaption>"
        + "</figure>"
    )


def _memory(runs: list[RunRecord], name: str) -> str:
    maps = {}
    for seeds in _seeds_by_completeness(runs):
        of_seed = sorted((r for r in runs if r.seeds == seeds), key=lambda r: settings_of(runs).index(r.setting))
        maps[seeds] = "".join(
            f"<div><h4>{escape(run.setting)}, {run.seed_label}</h4>{plot(memory_spec(run, str(run.scored)))}</div>"
            for run in of_seed
        )
    first, *others = [f'<div class="grid">{of_seed}</div>' for of_seed in maps.values()]
    return (
        f"<h3>What is remembered, step by step</h3><figure>{first}"
        f"{fold('The other seeds', ''.join(others)) if others else ''}"
        f"<figcaption>Accuracy ({name}) after each step on the classes of each step so far. A column that darkens "
        "downwards is a step whose classes are being forgotten.</figcaption></figure>"
    )


def _class_sizes(runs: list[RunRecord], scored: str, name: str) -> str:
    plots = [("Accuracy after the last step", class_size_spec(runs, scored))]
    paired = class_size_spec(runs, scored, paired=True)
    if paired["data"]:
        plots.append(("The same, minus the same class under equal steps", paired))
    caption = (
        f"Accuracy ({name}) on each class after the last step: small dots are classes, large ones the mean over the "
        "classes that arrived in steps of that size. In the first figure the age of a class is not held fixed. "
    )
    if paired["data"]:
        caption += (
            "The second takes each class in pairs, in the runs of one seed: the class and its place in the order "
            "are the same, only the bounds of the steps differ. Below 0: the class suffered from free flow."
        )
    return figure("Do classes that arrived alone suffer?", plots, caption)


def _seeds_by_completeness(runs: list[RunRecord]) -> list[Seeds]:
    """Seeds, those that have the most settings first: they show the settings side by side."""
    present = [run.seeds for run in runs]
    return sorted(set(present), key=lambda seeds: (-present.count(seeds), seeds))


def _classifier(name: str) -> str:
    return CLASSIFIER_NAMES.get(name, name)


def what_was_run(contents: Contents) -> list[str]:
    """One sentence for all methods that were tried alike on the same data, and how many runs are left out."""
    families: dict[tuple[str, str], list[Group]] = {}
    for group in contents.groups:
        families.setdefault((group.title, group.data_label), []).append(group)
    titles: dict[tuple[str, str], list[str]] = {}
    for (title, data), groups in families.items():
        runs = [run for group in groups for run in group.runs]
        seeds = count(len({run.seeds for run in runs}), "seed")
        several = f"; {len(groups)} conditions: {'; '.join(group.label for group in groups)}" if groups[1:] else ""
        titles.setdefault((data, f"{', '.join(settings_of(runs))}; {seeds}{several}"), []).append(title)
    parts = [f"{', '.join(methods)} on {data}: {tried}." for (data, tried), methods in titles.items()]
    finished = sum(run.finished for run in contents.runs)
    unfinished = len(contents.runs) - finished
    out = [f"{n} {what}" for n, what in ((unfinished, "unfinished"), (len(contents.damaged), "damaged")) if n]
    left_out = f", {' and '.join(out)}: left out of every result" if out else ""
    return [*parts, f"{count(finished, 'finished run')}{left_out}."]
