"""`ffcil data`: list, prepare, check and show data sets."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ffcil.commands.options import AllowOutside, AsJson, Data
from ffcil.commands.output import print_json, print_table, stoppable
from ffcil.errors import InputError, printable

app = typer.Typer(help="List, prepare, check and show data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="Name of a data set, or a folder, .parquet or .csv file of your images.")]
ImageSize = Annotated[int | None, typer.Option(help="Side of the input in pixels (default: the data set's).", min=1)]


@app.command("list")
def list_(as_json: AsJson = False, data: Data = None) -> None:
    """List the data sets: origin, licence, size, number of classes, and whether their files were found."""
    from rich.console import Console

    from ffcil.data.catalogue import describe_sources

    rows = describe_sources(data)
    if as_json:
        print_json(rows)
        return
    console = Console(soft_wrap=True, highlight=False)  # addresses stay on one line
    for row in rows:
        console.print(_paragraph(row))


def _paragraph(row: dict[str, Any]) -> str:
    from rich.markup import escape

    size = "" if row["gigabytes"] is None else f", {row['gigabytes']:g} GB"
    counts = " + ".join(f"{n:,}" if n else "?" for n in (row["train_images"], row["test_images"]))
    facts = f"{row['classes']} classes, {counts} images{size}" if row["classes"] else "any images"
    found = "[green]found[/green]" if row["found"] else "[yellow]not found[/yellow]"
    lines = [f"[bold]{row['name']}[/bold]  {facts}  {found}", escape(row["about"])]
    if row["classes"]:
        lines += [f"from {escape(row['origin'])}", f"licence: {escape(row['licence'])}"]
    if row["missing"]:
        lines.append(escape(row["missing"]))
    return "\n    ".join(lines)


@app.command()
def prepare(
    name: Name,
    data: Data = None,
    image_size: ImageSize = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out unreadable images in all runs.")] = False,
    allow_outside: AllowOutside = False,
    as_json: AsJson = False,
) -> None:
    """Download a data set if possible, and decode every image once. The same command resumes after an interruption."""
    from ffcil.data.catalogue import locate_source, prepare_dataset

    source_name, root = locate_source(name, data)
    with stoppable():
        summary = prepare_dataset(source_name, root, image_size, skip_bad, allow_outside, _warn)
    if as_json:
        print_json(summary)
        return
    skipped = f"; {len(summary['left_out'])} left out" if summary["left_out"] else ""
    ready = f"ready for image_size={summary['image_size']}{skipped}"
    print(f"{name}: {_counts(summary)} of {summary['classes']} classes, {ready}")
    _print_untested(summary["without_test_images"])


@app.command()
def check(
    name: Name,
    data: Data = None,
    image_size: ImageSize = None,
    allow_outside: AllowOutside = False,
    as_json: AsJson = False,
) -> None:
    """Find the files, compare the split with the published one, read every image, find images that occur twice, and
    verify prepared files."""
    from ffcil.data.catalogue import check_dataset, locate_source, stored_size
    from ffcil.data.sources import find_source

    source_name, root = locate_source(name, data)
    source = find_source(source_name)
    found = check_dataset(source_name, root, image_size, allow_outside, _warn)
    if as_json:
        print_json(found)
        return
    print(f"{name}: {_compared_counts(source.counts, found)}")
    if source.list_images is not None:
        left_out = f"{len(found['left_out'])} left out" if found["left_out"] else "all of them intact"
        print(f"{found['images_read']:,} images read, {left_out}")
        state = "checksums are correct" if found["prepared"] else "not prepared yet"
        print(f"store for image_size={stored_size(source, image_size)}: {state}")
        _print_pairs("test image(s) are also training images", found["in_both_parts"])
        _print_pairs("image(s) are in two classes", found["in_two_classes"])
    else:
        print("the checksums of its files are correct")


def _counts(found: dict[str, Any]) -> str:
    return f"{found['train_images']:,} training and {found['test_images']:,} test images"


def _compared_counts(published: tuple[int | None, int | None] | None, found: dict[str, Any]) -> str:
    """Numbers of images, with "as published" if they were compared and no image is left out."""
    if published is None or found.get("left_out"):
        return _counts(found)
    if None not in published:
        return f"{_counts(found)} as published"
    train, test = f"{found['train_images']:,} training images", f"{found['test_images']:,} test images"
    known, other = (test, train) if published[0] is None else (train, test)
    return f"{known} as published and {other} (not compared: no number is published, or publications disagree)"


@app.command()
def show(
    name: Name,
    data: Data = None,
    image_size: ImageSize = None,
    out: Annotated[Path | None, typer.Option(help="PNG file of the contact sheet (default: NAME.png).")] = None,
    class_name: Annotated[str | None, typer.Option("--class", help="Show many images of only this class.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show the number of images per class, the imbalance, and a contact sheet of training images."""
    from ffcil.data.catalogue import locate_source
    from ffcil.data.overview import contact_sheet, describe, some_classes
    from ffcil.data.sources import load_dataset

    source_name, root = locate_source(name, data)
    if out is None:
        place = root.resolve() if name != source_name and root else Path(source_name)
        out = Path(f"{place.stem if place.is_file() else place.name}.png")
    if out.suffix.lower() != ".png" or out.is_dir():
        raise InputError(f"--out {out} is not a PNG file: give a name that ends in .png.")
    images = load_dataset(source_name, root, image_size)
    about, train = describe(images), images.train
    classes, rows = ([class_name], 12) if class_name is not None else (some_classes(train.class_names, 20), 1)
    sheet = contact_sheet(train, classes, rows)
    out.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(out)
    if as_json:
        print_json({**about, "sheet": str(out)})
        return
    _print_classes(name, about)
    _warn(f"wrote {out}")


def _print_classes(name: str, about: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table("class", "training", "test", title=escape(f"ffcil data show {name}"))
    for row in about["per_class"]:
        table.add_row(escape(printable(row["class"])), f"{row['train_images']:,}", f"{row['test_images']:,}")
    print_table(table)
    small, large = (
        f"{about[key]['train_images']} ({printable(about[key]['class'])})" for key in ("smallest", "largest")
    )
    ratio = "" if about["imbalance"] is None else f" ({about['imbalance']:.1f} to 1)"
    print(f"{_counts(about)} of {about['classes']} classes; training images per class: {small} to {large}{ratio}")
    _print_untested(about["without_test_images"])


def _print_untested(names: list[str]) -> None:
    if names:
        shown = printable(", ".join(names[:10]))
        print(f"{len(names)} class(es) without test images: {shown}{' ...' * (len(names) > 10)}")


def _print_pairs(what: str, pairs: list[tuple[str, str]]) -> None:
    if pairs:
        shown = printable(", ".join(f"{one} = {other}" for one, other in pairs[:3]))
        print(f"{len(pairs):,} {what}, so accuracies are wrong: {shown}{' ...' * (len(pairs) > 3)}")


def _warn(text: str) -> None:
    print(printable(text), file=sys.stderr)
