"""Sets of runs that used the same images. For users' own images, the name of the data set does not determine this."""

from collections.abc import Iterable
from typing import Any

from ffcil.report.read.records import RunRecord

ImageSets = dict[RunRecord, int]
"""Number of the image set of each run, from 1; 0 if there is only one set of that name."""


def image_sets(runs: Iterable[RunRecord]) -> ImageSets:
    """Number of the image set of each run; 0 if all runs on data of that name may have used the same images."""
    # image sets by the name of the data, each with the runs that describe it in different ways
    sets: dict[str, list[list[RunRecord]]] = {}
    found = {}
    for run in runs:
        known_sets = sets.setdefault(run.dataset, [])
        fitting = (k for k, one in enumerate(known_sets) if all(may_share_images(run, other) for other in one))
        number = next(fitting, len(known_sets))
        if number == len(known_sets):
            known_sets.append([])
        if all(run.data != known.data or _all_arrive(run) != _all_arrive(known) for known in known_sets[number]):
            known_sets[number].append(run)
        found[run] = number + 1
    return {run: number if len(sets[run.dataset]) > 1 else 0 for run, number in found.items()}


def data_labels(images: ImageSets) -> dict[RunRecord, str]:
    """Name of the data of each run: `glyphs`, or `my-birds (images 2)` if runs on data of that name had others."""
    sets: dict[str, list[tuple[str, int]]] = {}
    for run, number in images.items():
        known = sets.setdefault(run.data_name, [])
        if (run.dataset, number) not in known:
            known.append((run.dataset, number))
    return {run: _label(run.data_name, sets[run.data_name], (run.dataset, number)) for run, number in images.items()}


def _label(name: str, sets: list[tuple[str, int]], own: tuple[str, int]) -> str:
    return f"{name} (images {sorted(sets).index(own) + 1})" if len(sets) > 1 else name


def may_share_images(run: RunRecord, other: RunRecord) -> bool:
    """Whether the recorded image data of two runs are compatible.

    Seeds change the order of the classes and, if not all classes arrive, also their choice. Then only the classes of
    both runs can be compared. The sample of pixels can only be compared if the class order is the same. Files or
    folders of different names have the same images only if all of their classes are the same.
    """
    own, others = run.data, other.data
    if not own or not others:
        return True
    same_order = all(own.get(field) == others.get(field) for field in ("classes", "image_size"))
    if same_order and own.get("sample") != others.get("sample"):
        return False
    counts, other_counts = _counts(own), _counts(others)
    all_arrive = _all_arrive(run) and _all_arrive(other)
    if (all_arrive or run.data_name != other.data_name) and counts.keys() != other_counts.keys():
        return False
    return all(counts[name] == other_counts[name] for name in counts.keys() & other_counts.keys())


def _counts(data: dict[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Numbers of training and test images by class."""
    names: list[str] = data.get("classes", [])
    numbers = [data.get(split) or [None] * len(names) for split in ("train_images", "test_images")]
    return dict(zip(names, zip(*numbers, strict=True), strict=True))


def _all_arrive(run: RunRecord) -> bool:
    """Whether the schedule includes every class of the data set."""
    arrivals = run.config.get("arrivals", {})
    return arrivals.get("classes") is None and arrivals.get("kind") not in ("given", "trace")
