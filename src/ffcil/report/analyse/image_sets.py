"""Which runs saw the same images: a data set's name does not tell where the images are the user's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ffcil.report.read.records import RunRecord

ImageSets = dict[RunRecord, int]


def image_sets(runs: Iterable[RunRecord]) -> ImageSets:
    """By run: 0 where all runs on data of that name may have seen the same images, else the number of its images."""
    sets: dict[str, list[list[RunRecord]]] = {}
    """By name; of every set the runs that say something new of it."""
    found = {}
    for run in runs:
        of_name = sets.setdefault(run.dataset, [])
        number = next((k for k, one in enumerate(of_name) if all(may_share_images(run, r) for r in one)), len(of_name))
        if number == len(of_name):
            of_name.append([])
        if all(run.data != known.data or _all_arrive(run) != _all_arrive(known) for known in of_name[number]):
            of_name[number].append(run)
        found[run] = number + 1
    return {run: number if len(sets[run.dataset]) > 1 else 0 for run, number in found.items()}


def may_share_images(run: RunRecord, other: RunRecord) -> bool:
    """Whether what two runs wrote of their images fits together.

    Seeds put the classes into another order, and may choose others of them where not all arrive: then only the classes
    that both have can tell. The sample of pixels can be compared in the same order alone.
    """
    mine, theirs = run.data, other.data
    if not mine or not theirs:
        return True
    if _in_order(mine) == _in_order(theirs) and mine.get("sample") != theirs.get("sample"):
        return False
    counts, others = _counts(mine), _counts(theirs)
    if _all_arrive(run) and _all_arrive(other) and counts.keys() != others.keys():
        return False
    return all(counts[name] == others[name] for name in counts.keys() & others.keys())


def _in_order(data: dict[str, Any]) -> tuple[Any, ...]:
    return data.get("classes"), data.get("image_size")


def _counts(data: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Training and test images by class."""
    names: list[str] = data.get("classes", [])
    numbers = [data.get(split) or [None] * len(names) for split in ("train_images", "test_images")]
    return dict(zip(names, zip(*numbers, strict=True), strict=True))


def _all_arrive(run: RunRecord) -> bool:
    """Whether the schedule is made to bring every class that there is."""
    arrivals = run.config.get("arrivals", {})
    return arrivals.get("classes") is None and arrivals.get("kind") not in ("given", "trace")
