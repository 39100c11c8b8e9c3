"""`ffcil learn`, `ffcil predict` and `ffcil test`: a classifier of your own images."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ffcil.commands.options import (
    AllowOutside,
    AsJson,
    Assignments,
    Device,
    FalseAlarms,
    Imports,
    Model,
    SkipBad,
    Texts,
    import_methods,
    parse_share,
)
from ffcil.commands.output import check_place, print_json, print_table, stoppable, write_csv
from ffcil.errors import InputError, printable

if TYPE_CHECKING:
    from ffcil.classifier.classifier import Classifier

COLUMNS = ("image", "rank", "class", "score", "unknown")
"""Columns of the CSV file of `ffcil predict`."""
WORST = 5
"""Number of classes that `ffcil test` names, those with the lowest accuracy."""


def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the classifier; created if it is new.")],
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES...", help="Labelled images: a folder of class folders, .parquet or .csv."),
    ],
    recipe: Annotated[str | None, typer.Option(help="Recipe of a new classifier (default: own-images).")] = None,
    versions: Annotated[
        int | None, typer.Option(help="Number of latest versions to keep from now on (default: 5).", min=1)
    ] = None,
    days: Annotated[
        float | None, typer.Option(help="From now on, also remove versions older than this many days.", min=0)
    ] = None,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Teach a classifier new classes and, if its method can, more images of known ones.

    The same command resumes an interrupted one. Several IMAGES are learned one after another.
    After the first call, --set can only change weights, memory, train, evaluate_batch and checkpoint_seconds.
    """
    from rich.console import Console

    from ffcil.classifier.teaching import teach
    from ffcil.classifier.versions import MODEL
    from ffcil.config.resolve import parse_assignments, resolve
    from ffcil.runs.progress import ConsoleProgress

    import_methods(imports)
    changes = parse_assignments(assignments or [])
    new = recipe is not None or not (model / MODEL).is_file()
    config = resolve(recipe or "own-images", changes) if new else None
    progress = ConsoleProgress(Console(stderr=True))
    with stoppable(), progress.bars:
        classifier, notes = teach(
            model, images, config, changes, device, progress, allow_outside, versions, days, skip_bad
        )
    if skip_bad:
        report_skipped(images, classifier.size)
    steps = iter(classifier.steps[len(classifier.steps) - sum(note is not None for note in notes) :])
    if as_json:
        learned = [(next(steps), note) for note in notes if note is not None]
        print_json([{"classes": list(step.names), "again": list(step.again), **note} for step, note in learned])
        return
    for place, note in zip(images, notes, strict=True):
        if note is None:
            print(f"{place} was learned before")
        else:
            step, seconds = next(steps), sum(note["seconds"].values())
            names = ", ".join([*step.names, *(f"{name} (again)" for name in step.again)])
            print(printable(f"{place}: learned {names} from {note['new_images']:,} images in {seconds:.1f} s"))
            _report_repeated(note)
    print(f"{model} knows {len(classifier.class_names)} class(es) from {len(classifier.steps)} step(s)")


def _report_repeated(note: Mapping[str, Any]) -> None:
    """Say which of the new images were there before: copies do nothing, and an image in two classes is a mistake."""
    if copies := note.get("copies"):
        print(f"  copies of images with the same label, which count once: {copies:,}")
    if doubled := note.get("in_two_classes", {}).get("images"):
        such_as = " and ".join(map(repr, note["in_two_classes"]["such_as"]))
        print(
            printable(f"  images in two classes now: {doubled:,}, one of them in {such_as}: use ffcil correct or undo")
        )


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(help="Number of classes per image, most likely first.", min=1)] = 1,
    false_alarms: FalseAlarms = None,
    out: Annotated[Path | None, typer.Option(help=f"CSV file with the columns {', '.join(COLUMNS)}.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Name and skip images that cannot be read.")] = False,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Predict the class of each image among all learned classes, and say which images belong to none of them.

    Example: ffcil predict model photos/ --top 3 --false-alarms 1%
    """
    from ffcil.data.layouts import image_files
    from ffcil.data.own_images import readable

    files = image_files(images)
    check_place(out)
    asked = None if false_alarms is None else parse_share(false_alarms, "--false-alarms")
    with loaded(model, assignments, device, imports) as classifier:
        rate = usable_false_alarms(classifier, asked)
        answers = classifier.answer(files, top, rate, skip_bad)
    rows = []
    for image, answer in zip(map(readable, files), answers, strict=True):
        if answer is None:
            _report_skipped(image)
            continue
        told = None if rate is None else answer.unknown
        for rank, guess in enumerate(answer.guesses, 1):
            row = {"image": image, "rank": rank, "class": guess.name, "score": guess.score, "unknown": told}
            rows.append({**row, "novelty": answer.novelty})
    if out:
        write_csv(out, COLUMNS, [{name: row[name] for name in COLUMNS} for row in rows])
    if as_json:
        print_json(rows)
    elif out is None:
        for row in rows:
            unknown = "\tunknown" if row["unknown"] else ""
            print(printable(f"{row['image']}\t{row['class']}\t{row['score']:.3f}{unknown}"))


def measure(
    model: Model,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Labelled images, in a form that `learn` reads.")],
    unknown: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Images of no known class, to measure how many are found.")
    ] = None,
    false_alarms: FalseAlarms = None,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    allow_outside: AllowOutside = False,
    skip_bad: SkipBad = False,
    as_json: AsJson = False,
) -> None:
    """Measure the accuracy of a classifier on labelled images: overall, and by the step that introduced a class.

    The expected calibration error says by how much scores and accuracy differ.

    Example: ffcil test model labelled/ --unknown others/
    """
    from rich.table import Table

    from ffcil.classifier.answers import FALSE_ALARMS
    from ffcil.data.layouts import image_files

    asked = None if false_alarms is None else parse_share(false_alarms, "--false-alarms")
    if asked is not None and unknown is None:
        raise InputError("--false-alarms is for unknown images: add --unknown FOLDER, or leave it out.")
    others = None if unknown is None else image_files([unknown])
    with loaded(model, assignments, device, imports) as classifier:
        rate = None if others is None else usable_false_alarms(classifier, asked)
        tested = classifier.test(images, others, rate or FALSE_ALARMS, allow_outside, skip_bad)
    if skip_bad:
        report_skipped([images], classifier.size)
    if as_json:
        print_json(tested)
        return
    table = Table("step", "classes", "accuracy, %", title=f"{tested['accuracy']:.1f} % of {tested['images']:,} images")
    for number, (step, accuracy) in enumerate(zip(classifier.steps, tested["by_step"], strict=True), 1):
        table.add_row(str(number), str(len(step.names)), "" if accuracy is None else f"{accuracy:.1f}")
    print_table(table)
    worst = sorted(tested["by_class"].items(), key=lambda item: item[1])[:WORST]
    print(printable("lowest: " + ", ".join(f"{name} {accuracy:.1f}" for name, accuracy in worst)))
    print(f"expected calibration error: {tested['calibration_error']:.1f} %")
    if detection := tested.get("unknown"):
        print(
            f"unknown: {detection['found']:.1f} % of {detection['images']:,} images found with "
            f"{detection['false_alarms']:.1f} % false alarms, AUROC {detection['auroc']:.1f}; by the highest score: "
            f"{detection['softmax_found']:.1f} % found, AUROC {detection['softmax_auroc']:.1f}"
        )


def report_skipped(places: Sequence[Path], size: int) -> None:
    """Name the labelled images that could not be read for an input of `size` pixels."""
    from ffcil.classifier.reading import skipped

    for image in (name for place in places for name in skipped(place, size)):
        _report_skipped(image)


def _report_skipped(image: str) -> None:
    print(printable(f"ffcil: {image} cannot be read and is skipped."), file=sys.stderr)


def usable_false_alarms(classifier: "Classifier", asked: float | None) -> float | None:
    """The rate of false alarms that was asked for, or the default one. A rate that needs more images is reported."""
    rate = classifier.usual_false_alarms if asked is None else asked
    if classifier.class_names and rate is not None and math.isinf(classifier.learner.novelty_limit(rate)):
        needed = f"{math.ceil(1 / rate) - 1:,} learned images that are not alone in their class"
        print(f"ffcil: no image is called unknown: at {rate:.2%} it takes {needed}.", file=sys.stderr)
    return rate


@contextmanager
def loaded(model: Path, assignments: Texts, device: str | None, imports: Texts) -> Iterator["Classifier"]:
    """A classifier for as long as it is used: an interrupt, or a lack of memory, ends the command with a sentence."""
    from ffcil.classifier.classifier import Classifier
    from ffcil.config.resolve import parse_assignments
    from ffcil.runs.run import exhaustion_explained

    with stoppable(remedy=""), exhaustion_explained(model):
        import_methods(imports)
        yield Classifier.load(model, device, parse_assignments(assignments or []))
