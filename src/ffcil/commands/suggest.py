"""`ffcil suggest`: which images to label next, which unknown ones look alike, and which labels look wrong."""

from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from ffcil.commands.classifier import loaded, report_skipped, usable_false_alarms
from ffcil.commands.options import AllowOutside, AsJson, Assignments, Device, FalseAlarms, Imports, Model, parse_share
from ffcil.commands.output import check_place, print_json, write_csv
from ffcil.errors import InputError, printable

UNLABELLED = ("image", "order", "group", "unknown", "class", "score")
LABELLED = ("image", "label", "label_score", "class", "score", "wrong")


def suggest(
    model: Model,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Images, without labels unless --labelled is given.")
    ],
    labelled: Annotated[
        bool, typer.Option("--labelled", help="List labels that look wrong, of images in a form that `learn` reads.")
    ] = False,
    count: Annotated[int, typer.Option(help="Number of images to label next.", min=1)] = 10,
    false_alarms: FalseAlarms = None,
    out: Annotated[Path | None, typer.Option(help="CSV file for the suggestions.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Skip images that cannot be read.")] = False,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    allow_outside: AllowOutside = False,
    as_json: AsJson = False,
) -> None:
    """Suggest which images to label next and which unknown ones look alike, or which labels look wrong.

    Images to label are uncertain and differ from each other. Unknown images that look alike may be a new class.

    Examples: ffcil suggest model photos/ --count 20;  ffcil suggest model monday/ --labelled --out doubtful.csv
    """
    check_place(out)
    asked = None if false_alarms is None else parse_share(false_alarms, "--false-alarms")
    if labelled and asked is not None:
        raise InputError("--false-alarms is for images without labels: leave it out, or leave out --labelled.")
    with loaded(model, assignments, device, imports) as classifier:
        if labelled:
            rows = _doubts(classifier, folder, allow_outside, skip_bad)
        else:
            rows = _suggestions(classifier, folder, count, usable_false_alarms(classifier, asked), skip_bad)
    if labelled and skip_bad:
        report_skipped([folder], classifier.size)
    if out:
        write_csv(out, LABELLED if labelled else UNLABELLED, rows)
    if as_json:
        print_json(rows)
    elif out is None:
        _print_doubts(rows) if labelled else _print_suggestions(rows)


def _suggestions(classifier: Any, folder: Path, count: int, rate: float | None, skip_bad: bool) -> list[dict[str, Any]]:
    from ffcil.classifier.suggesting import suggest as make_suggestions
    from ffcil.data.layouts import image_files
    from ffcil.data.own_images import readable

    files = image_files([folder])
    return [
        {
            "image": readable(files[each.image]),
            "order": each.order,
            "group": each.group,
            "unknown": None if rate is None else each.unknown,
            "class": each.guess.name,
            "score": each.guess.score,
        }
        for each in make_suggestions(classifier, files, count, rate, skip_bad)
    ]


def _doubts(classifier: Any, folder: Path, allow_outside: bool, skip_bad: bool) -> list[dict[str, Any]]:
    from ffcil.classifier.suggesting import doubt_labels

    return [
        {
            "image": doubt.image,
            "label": doubt.label.name,
            "label_score": doubt.label.score,
            "class": doubt.instead.name,
            "score": doubt.instead.score,
            "wrong": doubt.wrong,
        }
        for doubt in doubt_labels(classifier, folder, allow_outside, skip_bad)
    ]


def _print_suggestions(rows: list[dict[str, Any]]) -> None:
    print("label next:")
    for row in rows:
        if row["order"] is not None:
            print(printable(f"  {row['image']}\t{'unknown' if row['unknown'] else row['class']}\t{row['score']:.3f}"))
    grouped = sorted((row for row in rows if row["group"] is not None), key=lambda row: row["group"])
    for number, members in groupby(grouped, key=lambda row: row["group"]):
        images = [row["image"] for row in members]
        print(printable(f"group {number}: {len(images)} unknown images look alike; perhaps they are a new class:"))
        for image in images:
            print(printable(f"  {image}"))


def _print_doubts(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        print(
            printable(
                f"{row['image']}\t{row['label']}\tperhaps {row['class']}\twrong with probability {row['wrong']:.3f}"
            )
        )
    print(printable(f"{len(rows)} label(s) look wrong"))
