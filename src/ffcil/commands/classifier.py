"""`ffcil learn`, `ffcil predict` and `ffcil test`: a classifier of your own images."""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ffcil.commands.options import AllowOutside, AsJson, Assignments, Device, Imports, Texts, import_methods
from ffcil.commands.output import print_json, print_table, stoppable
from ffcil.errors import InputError, printable

if TYPE_CHECKING:
    from ffcil.classifier.classifier import Classifier

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the classifier.")]
WORST = 5
"""Number of classes that `ffcil test` names, those with the lowest accuracy."""


def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of the classifier; created if it is new.")],
    images: Annotated[
        list[Path],
        typer.Argument(metavar="IMAGES...", help="New classes: a folder with one folder per class, .parquet or .csv."),
    ],
    recipe: Annotated[str | None, typer.Option(help="Recipe of a new classifier (default: own-images).")] = None,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    allow_outside: AllowOutside = False,
    as_json: AsJson = False,
) -> None:
    """Teach a classifier any number of new classes. The same command resumes an interrupted one.

    Several IMAGES are learned one after another.
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
        classifier, notes = teach(model, images, config, changes, device, progress, allow_outside)
    steps = iter(classifier.steps[len(classifier.steps) - sum(note is not None for note in notes) :])
    if as_json:
        print_json([{"classes": list(next(steps).names), **note} for note in notes if note is not None])
        return
    for place, note in zip(images, notes, strict=True):
        if note is None:
            print(f"{place} was learned before")
        else:
            names, seconds = ", ".join(next(steps).names), sum(note["seconds"].values())
            print(printable(f"{place}: learned {names} from {note['new_images']:,} images in {seconds:.1f} s"))
    print(f"{model} knows {len(classifier.class_names)} class(es) from {len(classifier.steps)} step(s)")


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(help="Number of classes per image, most likely first.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option(help="CSV file with the columns image, rank, class and score.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Name and skip images that cannot be read.")] = False,
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Predict the class of each image among all learned classes."""
    from ffcil.data.layouts import image_files
    from ffcil.data.own_images import readable

    files = image_files(images)
    if out and not out.absolute().parent.is_dir():  # Checked before the work, not after it.
        raise InputError(f"There is no folder {out.absolute().parent} for {out.name}: create it, or choose another.")
    with _loaded(model, assignments, device, imports) as classifier:
        guesses = classifier.predict(files, top, skip_bad)
    rows = []
    for image, ranked in zip(map(readable, files), guesses, strict=True):
        if not ranked:
            print(printable(f"ffcil: {image} cannot be read and is skipped."), file=sys.stderr)
        for rank, guess in enumerate(ranked, 1):
            rows.append({"image": image, "rank": rank, "class": guess.name, "score": guess.score})
    if out:
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", "rank", "class", "score"])
            writer.writeheader()
            writer.writerows(rows)
    if as_json:
        print_json(rows)
    elif out is None:
        for row in rows:
            print(printable(f"{row['image']}\t{row['class']}\t{row['score']:.3f}"))


def measure(
    model: Model,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Labelled images, in a form that `learn` reads.")],
    assignments: Assignments = None,
    device: Device = None,
    imports: Imports = None,
    allow_outside: AllowOutside = False,
    as_json: AsJson = False,
) -> None:
    """Measure the accuracy of a classifier on labelled images: overall, and by the step that introduced a class."""
    from rich.table import Table

    with _loaded(model, assignments, device, imports) as classifier:
        tested = classifier.test(images, allow_outside)
    if as_json:
        print_json(tested)
        return
    table = Table("step", "classes", "accuracy, %", title=f"{tested['accuracy']:.1f} % of {tested['images']:,} images")
    for number, (step, accuracy) in enumerate(zip(classifier.steps, tested["by_step"], strict=True), 1):
        table.add_row(str(number), str(len(step.names)), "" if accuracy is None else f"{accuracy:.1f}")
    print_table(table)
    worst = sorted(tested["by_class"].items(), key=lambda item: item[1])[:WORST]
    print(printable("lowest: " + ", ".join(f"{name} {accuracy:.1f}" for name, accuracy in worst)))


@contextmanager
def _loaded(model: Path, assignments: Texts, device: str | None, imports: Texts) -> Iterator["Classifier"]:
    """A classifier for as long as it is used: an interrupt, or a lack of memory, ends the command with a sentence."""
    from ffcil.classifier.classifier import Classifier
    from ffcil.config.resolve import parse_assignments
    from ffcil.runs.run import exhaustion_explained

    with stoppable(remedy=""), exhaustion_explained(model):
        import_methods(imports)
        yield Classifier.load(model, device, parse_assignments(assignments or []))
