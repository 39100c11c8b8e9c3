"""Synthetic run folders, whose numbers tests can sum up themselves."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from oracles import stream_metrics

IMAGES = 20  # test images per class
FREE_FLOW = {0: (1, 4, 1, 2), 1: (3, 1, 3, 1), 2: (2, 1, 1, 4)}
SETTINGS = {
    "Equ.T": (False, "none"),
    "FF.org": (True, "none"),
    "FF.ours": (True, "paper"),
    "FF.flow": (True, "flow"),
    "Equ.flow": (False, "flow"),
    "Equ.ours": (False, "paper"),
}
FLOW = {"reduction": "mean", "alignment": "none", "ha": False, "flow": {"adjust": 1.5, "growth": 0.1}}


def counts_with(hits: list[int]) -> np.ndarray:
    """Count table with `hits[c]` correct predictions of IMAGES for class c; its neighbour gets the others.

    A single class has no neighbour and is always predicted correctly.
    """
    table = np.diag(hits)
    for c, right in enumerate(hits):
        table[c, (c + 1) % len(hits)] += IMAGES - right
    return table.astype(np.int64)


def write_run(
    folder: Path,
    setting: str,
    seed: int,
    hits: Callable[[str, int, int], int],
    *,
    classifiers: tuple[str, ...] = ("linear", "nearest-mean"),
    method: str = "icarl",
    done: bool = True,
    sizes: tuple[int, ...] | None = None,
    steps: int | None = None,
    drawn: dict[str, Any] | None = None,
    **config: Any,
) -> Path:
    """Write a run folder. `hits(classifier, step, class)` is the number of correct predictions of IMAGES.

    `drawn` has further fields of arrivals.json.
    """
    free, framework = SETTINGS[setting]
    sizes = sizes or (FREE_FLOW[seed] if free else (2, 2, 2, 2))
    seeds = {"class_seed": seed, "arrival_seed": seed, "train_seed": seed}
    config = {"dataset": "glyphs", "method": method, "framework": framework, "train": {"epochs": 3}} | seeds | config
    arrivals = {"sizes": sizes, "kind": "free-flow" if free else "equal", "seed": seed} | (drawn or {})
    environment = {"device": "cpu", "torch": "2.12", "command": f"ffcil run {folder.name} --seed {seed}"}
    (folder / "counts").mkdir(parents=True)
    lines = []
    for t in range(1, (steps or len(sizes)) + 1):
        seen = sum(sizes[:t])
        tables = {c: counts_with([hits(c, t, k) for k in range(seen)]) for c in classifiers}
        np.savez(folder / "counts" / f"step-{t:03d}.npz", **tables)
        accuracy = {c: 100 * float(np.trace(table)) / (seen * IMAGES) for c, table in tables.items()}
        record = {"step": t, "new_classes": sizes[t - 1], "seen_classes": seen, "accuracy": accuracy}
        lines.append(json.dumps(record | {"seconds": {"train": 1.5, "memory": 0.5}}))
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    for name, value in (("config", config), ("arrivals", arrivals), ("environment", environment)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    if framework == "flow":  # earlier versions, which did not write this file, had no flow
        (folder / "method.json").write_text(json.dumps({"own_alignment": "wa", "framework": FLOW}))
    if done:
        # Wrong on purpose: reports must compute numbers from the count tables.
        wrong = {c: {"average": -1, "last": -1, "forgetting": -1, "curve": []} for c in classifiers}
        summary = {
            "title": {"icarl": "iCaRL"}.get(method, method.title()),
            "scored": classifiers[0],
            "classifiers": wrong,
            "seconds": 4000.0,
        }
        (folder / "summary.json").write_text(json.dumps(summary))
        (folder / "done").touch()
    return folder


def random_hits(setting: str, seed: int) -> Callable[[str, int, int], int]:
    """Reproducible numbers of hits by classifier, step and class."""
    level = {"Equ.T": 14, "FF.org": 8, "FF.ours": 11, "FF.flow": 12, "Equ.flow": 16, "Equ.ours": 15}[setting]

    def hits(classifier: str, step: int, position: int) -> int:
        place = [len(setting), seed, step, position, len(classifier)]
        return int(np.clip(np.random.default_rng(place).integers(-4, 5) + level - step, 0, IMAGES))

    return hits


def naive(setting: str, seed: int, classifier: str) -> tuple[float, float, float]:
    """Average accuracy, last accuracy and forgetting of a run with `random_hits`, by loops over its test images."""
    sizes, hits, steps = FREE_FLOW[seed] if SETTINGS[setting][0] else (2, 2, 2, 2), random_hits(setting, seed), []
    for t in range(1, len(sizes) + 1):
        seen = sum(sizes[:t])
        right = [hits(classifier, t, k) if seen > 1 else IMAGES for k in range(seen)]
        steps.append([(k, k if image < right[k] else seen) for k in range(seen) for image in range(IMAGES)])
    metrics = stream_metrics(sizes, steps)
    assert metrics.average is not None
    assert metrics.last is not None
    assert metrics.forgetting is not None
    return metrics.average, metrics.last, metrics.forgetting


def write_study(folder: Path) -> Path:
    """Write runs of three settings and three seeds; the run of FF.ours with seed 2 is unfinished."""
    for setting, seed in itertools.product(("Equ.T", "FF.org", "FF.ours"), (0, 1, 2)):
        unfinished = setting == "FF.ours" and seed == 2
        hits = random_hits(setting, seed)
        steps = 2 if unfinished else None
        write_run(folder / f"{setting}-{seed}", setting, seed, hits, done=not unfinished, steps=steps)
    return folder


def write_sweep(folder: Path) -> Path:
    """Write runs of Equ.T, and of FF.org and FF.ours at three alphas and two orders."""
    points = [(1.0, "jumbled", (0, 1, 2)), (0.1, "jumbled", (0, 1)), (4.0, "jumbled", (0, 1))]
    points.append((1.0, "ascending", (0, 1)))

    def write(name: str, setting: str, seed: int, **arrivals: Any) -> None:
        arrivals |= {"steps": 4}
        hits = random_hits(setting, seed)
        write_run(folder / name, setting, seed, hits, classifiers=("linear",), arrivals=arrivals)

    for seed in (0, 1, 2):
        write(f"e{seed}", "Equ.T", seed)
    for alpha, order, seeds in points:
        for setting, seed in itertools.product(("FF.org", "FF.ours"), seeds):
            name = f"{setting}-{alpha}-{order}-{seed}"
            write(name, setting, seed, kind="free-flow", alpha=alpha, order=order)
    return folder


SCHEDULES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "equal": ((2, 2, 2, 2), {"kind": "equal"}),
    "jumbled, seed 0": ((1, 4, 1, 2), {"kind": "free-flow", "order": "jumbled", "seed": 0}),
    "jumbled, seed 1": ((3, 1, 3, 1), {"kind": "free-flow", "order": "jumbled", "seed": 1}),
    "jumbled, seed 2": ((2, 1, 1, 4), {"kind": "free-flow", "order": "jumbled", "seed": 2}),
    "ascending": ((1, 1, 2, 4), {"kind": "free-flow", "order": "ascending", "seed": 0}),
    "descending": ((4, 2, 1, 1), {"kind": "free-flow", "order": "descending", "seed": 0}),
    "trickle": ((2, 2, 1, 1, 1, 1), {"kind": "trickle"}),
}
"""Seven schedules of eight classes: sizes, and fields of arrivals.json."""


def write_schedules(
    folder: Path, level: Callable[[str, str, int], int], seeds: tuple[int, ...] = (0, 1), **fields: Any
) -> Path:
    """Write runs of seven schedules without a framework and with flow.

    `level(schedule, framework, seed)` is the number of correct predictions of IMAGES for every class at every step.
    """
    for (name, (sizes, drawn)), framework, seed in itertools.product(SCHEDULES.items(), ("none", "flow"), seeds):
        kind, hits = (name != "equal", framework), level(name, framework, seed)
        arrivals = {key: value for key, value in drawn.items() if key != "seed"}
        write_run(
            folder / f"{name}-{framework}-{seed}".replace(", ", "-"),
            next(setting for setting, known in SETTINGS.items() if known == kind),
            seed,
            lambda *_, n=hits: n,
            sizes=sizes,
            drawn=drawn,
            arrivals=arrivals,
            **{"arrival_seed": drawn.get("seed", 0)} | fields,
        )
    return folder
