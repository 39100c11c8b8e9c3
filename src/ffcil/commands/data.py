"""`ffcil data`: which data sets there are, and preparing, checking and looking at one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffcil.commands.options import AsJson, Data, print_json, print_table, stoppable
from ffcil.errors import InputError

if TYPE_CHECKING:
    from ffcil.data.own_images import Listing
    from ffcil.data.sources import Source

app = typer.Typer(help="Data sets: list, prepare, check and show them.", no_args_is_help=True)

Name = Annotated[
    str, typer.Argument(help="A data set's name (`ffcil data list`), or a folder, .parquet or .csv file of your own.")
]
ImageSize = Annotated[
    int | None,
    typer.Option(help="Side of the network's input, as a run's image_size (default: the data set's).", min=1),
]


def resolve_source(name: str, data: Path | None) -> tuple[str, Path | None]:
    """A source by its own name, or by a path: then what is there says what it is."""
    from ffcil.data.sources import SOURCES, find_source, form_of

    path = Path(name).expanduser()
    if name in SOURCES or not path.exists():
        if path.suffix in (".parquet", ".csv") or len(path.parts) > 1:
            raise InputError(f"There is no file or folder {name}: correct the path.")
        find_source(name)
        if name == "glyphs" and data is not None:
            raise InputError("Data set 'glyphs' is drawn, not read from files: drop --data.")
        return name, data
    if data is not None:
        raise InputError(f"{name} is a path already: drop --data, or name a data set of `ffcil data list`.")
    return form_of(path), path


@app.command("list")
def list_(as_json: AsJson = False, data: Data = None) -> None:
    """List the data sets: origin, licence, size, classes, and whether their files are here."""
    from rich.console import Console

    from ffcil.commands.listing import dataset_lines, datasets_as_json

    if as_json:
        print_json(datasets_as_json(data))
    else:
        Console(soft_wrap=True, highlight=False).print(dataset_lines(data))


@app.command()
def prepare(
    name: Name,
    data: Data = None,
    image_size: ImageSize = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, in every run from then on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Download what can be, and decode every image once; broken off and started again, it goes on."""
    from ffcil.data.cache import cache_folder
    from ffcil.data.decoding import UnreadableImages
    from ffcil.data.overview import without_test_images
    from ffcil.data.sources import find_source, load_dataset
    from ffcil.data.store import open_store

    source_name, root = resolve_source(name, data)
    source = find_source(source_name)
    if skip_bad and source.list_images is None:
        raise InputError(f"Data set {name!r} has no image files of its own that could be bad: drop --skip-bad.")
    try:
        with stoppable():
            made = load_dataset(source_name, root, image_size, skip_bad)
    except UnreadableImages as error:
        _name_all(error.images)
        raise
    size = _size(source, image_size)
    summary: dict[str, Any] = {
        "name": source_name,
        "data": str(root) if root else None,
        "image_size": image_size or size,
        "classes": made.train.classes,
        "train_images": len(made.train),
        "test_images": len(made.test),
        "without_test_images": without_test_images(made),
    }
    left_out = []
    if source.list_images is not None:
        store = cache_folder() / source.list_images(root).key(size)
        left_out = list(open_store(store).left_out)
        summary["store"] = str(store)
    summary["left_out"] = [image.name for image in left_out]
    if as_json:
        print_json(summary)
        return
    _name_all(left_out)
    print(
        f"{name}: {len(made.train):,} training and {len(made.test):,} test images of {made.train.classes} classes, "
        f"ready for image_size={summary['image_size']}" + (f"; {len(left_out)} left out" if left_out else "")
    )
    _tell_untested(summary["without_test_images"])


@app.command()
def check(name: Name, data: Data = None, image_size: ImageSize = None, as_json: AsJson = False) -> None:
    """Look for the files, compare the split with the published one, read every image, verify what was prepared."""
    from ffcil.data.sources import find_source

    source_name, root = resolve_source(name, data)
    source = find_source(source_name)
    if problem := source.find(root):
        raise InputError(problem)
    found: dict[str, Any] = {"name": source_name, "data": str(root) if root else None}
    if source.list_images is None:
        made = source.load(root, None, False)  # its files have checksums of their own
        found |= {"train_images": len(made.train), "test_images": len(made.test)}
    else:
        found |= _read(source.list_images(root), source_name, root, image_size, _size(source, image_size))
    if as_json:
        print_json(found)
        return
    print(f"{name}: {_told_counts(source, found)}")
    if source.list_images is None:
        if source.gigabytes is not None:
            print("the checksums of its files are right")
        return
    left_out = len(found["left_out"])
    print(f"{found['images_read']:,} images read, " + (f"{left_out} left out" if left_out else "all of them whole"))
    size = _size(source, image_size)
    print(f"store for image_size={size}: {'checksums right' if found['prepared'] else 'not prepared yet'}")


def _told_counts(source: Source, found: dict[str, Any]) -> str:
    """Images of either split, "as published" where their number was compared and nothing is left out."""
    train, test = f"{found['train_images']:,} training", f"{found['test_images']:,} test images"
    if source.counts is None or found.get("left_out"):
        return f"{train} and {test}"
    if None not in source.counts:
        return f"{train} and {test} as published"
    unknown = "(not compared: no number is published, or not by all alike)"
    if source.counts[0] is None:
        return f"{test} as published and {train} images {unknown}"
    return f"{train} images as published and {test} {unknown}"


def _read(listing: Listing, name: str, root: Path | None, image_size: int | None, size: int) -> dict[str, Any]:
    """Every image decoded, and the store verified where there is one; it may have left bad images out."""
    import numpy as np

    from ffcil.data.cache import cache_folder
    from ffcil.data.decoding import UnreadableImages, find_unreadable
    from ffcil.data.own_images import TEST, TRAIN, UNUSED
    from ffcil.data.sources import remedy_for_bad_images
    from ffcil.data.store import open_store, verify_store

    if listing.ignored:
        print(listing.ignored_message(), file=sys.stderr)
    bad = find_unreadable(listing.encoded(), len(listing), listing.decoder(size))
    store = cache_folder() / listing.key(size)
    prepared = store.is_dir()
    if prepared:
        verify_store(store)
    left_out = {image.position for image in open_store(store).left_out} if prepared else set()
    _name_all(bad)
    if new := [image for image in bad if image.position not in left_out]:
        raise UnreadableImages(new, remedy_for_bad_images(name, root, image_size))
    if len(left_out) > len(bad):
        raise InputError(
            f"The store {store} leaves out {len(left_out) - len(bad)} image(s) that can be read by now: remove it, and "
            "it is made again."
        )
    used = np.delete(listing.parts[listing.parts != UNUSED], sorted(left_out))
    return {
        "train_images": int((used == TRAIN).sum()),
        "test_images": int((used == TEST).sum()),
        "images_read": len(listing),
        "left_out": [image.name for image in bad],
        "ignored": list(listing.ignored),
        "prepared": prepared,
    }


@app.command()
def show(
    name: Name,
    data: Data = None,
    image_size: ImageSize = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="PNG file of the contact sheet (default: the data set's name).")
    ] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="Show many images of this class, not a few of several.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Counts per class, imbalance, and a picture of some training images."""
    from ffcil.data.overview import contact_sheet, describe, some_classes
    from ffcil.data.sources import load_dataset

    source_name, root = resolve_source(name, data)
    if out is None:
        shown = root.resolve() if name != source_name and root else Path(source_name)
        out = Path(f"{shown.stem if shown.is_file() else shown.name}.png")
    if out.suffix.lower() != ".png" or out.is_dir():
        raise InputError(f"--out {out} is no PNG file: name one that ends in .png.")
    made = load_dataset(source_name, root, image_size)
    about = describe(made)
    names = made.train.class_names
    sheet = (
        contact_sheet(made.train, [class_name], rows=12)
        if class_name is not None
        else contact_sheet(made.train, some_classes(names, 20))
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out)
    if as_json:
        print_json({**about, "sheet": str(out)})
        return
    print_table(_class_table(name, about))
    small, large = about["smallest"], about["largest"]
    ratio = "" if about["imbalance"] is None else f" ({about['imbalance']:.1f} to 1)"
    print(
        f"{about['train_images']:,} training and {about['test_images']:,} test images of {about['classes']} classes; "
        f"training images a class: {small['train_images']} ({small['class']}) to {large['train_images']} "
        f"({large['class']}){ratio}"
    )
    _tell_untested(about["without_test_images"])
    print(f"wrote {out}", file=sys.stderr)


def _class_table(name: str, about: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table("class", "training", "test", title=escape(f"ffcil data show {name}"))
    for row in about["per_class"]:
        table.add_row(escape(row["class"]), f"{row['train_images']:,}", f"{row['test_images']:,}")
    return table


def _tell_untested(names: list[str]) -> None:
    if names:
        print(f"{len(names)} class(es) without test images: {', '.join(names[:10])}{' ...' * (len(names) > 10)}")


def _size(source: Source, image_size: int | None) -> int:
    """Of the images in the store."""
    return source.image_size or image_size or source.usual_size


def _name_all(images: Any) -> None:
    for image in images:
        print(f"{image.name}: {image.reason}", file=sys.stderr)
