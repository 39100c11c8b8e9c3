"""The data sets that ffcil knows: facts about each, preparing one, and checking its files."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ffcil.data.cache import cache_folder
from ffcil.data.decoding import UnreadableImages, read_all
from ffcil.data.duplicates import images_in_both_parts, images_in_two_classes
from ffcil.data.overview import without_test_images
from ffcil.data.own_images import TEST, TRAIN, UNUSED, Listing
from ffcil.data.sources import SOURCES, Source, check_drawn, find_source, form_of, load_dataset, remedy_for_bad_images
from ffcil.data.store import BadImage, open_store, verify_store
from ffcil.errors import InputError

FACTS = ("about", "origin", "licence", "gigabytes", "classes", "image_size")
Report = Callable[[str], None]
"""Function that receives a line about an image or a file."""


def describe_sources(data: Path | None = None) -> list[dict[str, Any]]:
    """Facts about every data set, and whether its files are in `data` or the data folder."""
    rows = []
    for name, source in SOURCES.items():
        facts = {fact: getattr(source, fact) for fact in FACTS}
        train, test = source.counts or (None, None)
        problem = source.find(data)
        counts = {"train_images": train, "test_images": test}
        rows.append({"name": name, **facts, **counts, "found": problem is None, "missing": problem})
    return rows


def locate_source(name: str, data: Path | None) -> tuple[str, Path | None]:
    """The name and the path of a data set that is given by its name, or by the path of a user's own images."""
    path = Path(name).expanduser()
    if name in SOURCES or not path.exists():
        if path.suffix.lower() in (".parquet", ".csv") or len(path.parts) > 1:
            raise InputError(f"There is no file or folder {name}: correct the path.")
        find_source(name)
        check_drawn(name, data)
        return name, data
    if data is not None:
        raise InputError(f"{name} is already a path: leave --data out, or give the name of a data set.")
    return form_of(path), path


def prepare_dataset(
    name: str, root: Path | None, image_size: int | None, skip_bad: bool, allow_outside: bool, report: Report
) -> dict[str, Any]:
    """Download and decode a data set. Report unreadable images, and return a summary."""
    source = find_source(name)
    if skip_bad and source.list_images is None:
        raise InputError(f"Data set {name!r} has no image files that could be unreadable: leave --skip-bad out.")
    try:
        data = load_dataset(name, root, image_size, skip_bad, allow_outside)
    except UnreadableImages as error:
        _report_bad(error.images, report)
        raise
    size = stored_size(source, image_size)
    summary: dict[str, Any] = {
        "name": name,
        "data": str(root) if root else None,
        "image_size": image_size or size,
        "classes": data.train.classes,
        "train_images": len(data.train),
        "test_images": len(data.test),
        "without_test_images": without_test_images(data),
    }
    if source.list_images is None:
        return {**summary, "left_out": []}
    store = cache_folder() / source.list_images(root).key(size)
    left_out = source.list_images(root).left_out(size)
    _report_bad(left_out, report)
    return {**summary, "store": str(store), "left_out": [image.name for image in left_out]}


def check_dataset(
    name: str, root: Path | None, image_size: int | None, allow_outside: bool, report: Report
) -> dict[str, Any]:
    """Find the files of a data set, compare its split with the published one, read every image, verify its store."""
    source = find_source(name)
    if problem := source.find(root):
        raise InputError(problem)
    found: dict[str, Any] = {"name": name, "data": str(root) if root else None}
    if source.list_images is None:
        data = source.load(root, None, False, False)  # The files of CIFAR-100 have checksums of their own.
        if source.verify:
            source.verify()
        return {**found, "train_images": len(data.train), "test_images": len(data.test)}
    remedy = remedy_for_bad_images(name, root, image_size)
    size = stored_size(source, image_size)
    return {**found, **_check_images(source.list_images(root), size, allow_outside, remedy, report)}


def _check_images(listing: Listing, size: int, allow_outside: bool, remedy: str, report: Report) -> dict[str, Any]:
    """Decode every image, and verify the store if there is one. The store may leave out unreadable images."""
    if listing.ignored:
        report(listing.ignored_message())
    read = list(read_all(listing.encoded(allow_outside), len(listing), size))
    bad = [image for image in read if isinstance(image, BadImage)]
    store = cache_folder() / listing.key(size)
    prepared = store.is_dir()
    if prepared:
        verify_store(store)
    left_out = {image.position for image in open_store(store).left_out} if prepared else set()
    _report_bad(bad, report)
    if new := [image for image in bad if image.position not in left_out]:
        raise UnreadableImages(new, remedy)
    if len(left_out) > len(bad):
        raise InputError(
            f"The store {store} leaves out {len(left_out) - len(bad)} image(s) that can be read now: remove the store, "
            "and the next run writes it again."
        )
    used = np.delete(listing.parts[listing.parts != UNUSED], sorted(left_out))
    return {
        "train_images": int((used == TRAIN).sum()),
        "test_images": int((used == TEST).sum()),
        "images_read": len(listing),
        "left_out": [image.name for image in bad],
        "ignored": list(listing.ignored),
        "in_both_parts": images_in_both_parts(listing, read),
        "in_two_classes": images_in_two_classes(listing, read),
        "prepared": prepared,
    }


def _report_bad(images: Iterable[BadImage], report: Report) -> None:
    for image in images:
        report(f"{image.name}: {image.reason}")


def stored_size(source: Source, image_size: int | None) -> int:
    """Side of the stored images in pixels."""
    return source.image_size or image_size or source.usual_size
