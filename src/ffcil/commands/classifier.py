"""`ffcil learn`, `ffcil predict`, `ffcil test`: a classifier of one's own images, in a folder."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ffcil.commands.options import AsJson, Device, Imports, import_methods, print_json, print_table, stoppable
from ffcil.errors import InputError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The classifier's folder.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="For this call: weights, evaluate_batch, ... of the classifier."),
]
WORST = 5
"""classes that `ffcil test` names"""


def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The classifier's folder; made where there is none.")],
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGES...",
            help="New classes: a folder that holds one folder a class, or a .parquet or .csv file. Several are learned "
            "one after another.",
        ),
    ],
    recipe: Annotated[
        str | None, typer.Option(help="Of a new classifier: a recipe's name or a YAML file (default: own-images).")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a field of the recipe, for example method=moal; later only weights, memory, train, "
            "evaluate_batch and checkpoint_seconds can change. `ffcil fields` lists them.",
        ),
    ] = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Teach a classifier new classes, as many as there are; broken off and started again, it goes on."""
    from rich.console import Console

    from ffcil.classifier.classifier import MODEL
    from ffcil.classifier.teaching import teach
    from ffcil.config.resolve import parse_assignments, resolve
    from ffcil.runs.progress import ConsoleProgress

    import_methods(imports)
    changes = parse_assignments(assignments or [])
    new = recipe is not None or not (model / MODEL).is_file()
    config = resolve(recipe or "own-images", changes) if new else None
    shown = ConsoleProgress(Console(stderr=True))
    with stoppable(), shown.bars:
        taught, notes = teach(model, images, config, changes, device, shown)
    done = [(place, note) for place, note in zip(images, notes, strict=True) if note is not None]
    steps = taught.steps[len(taught.steps) - len(done) :]
    if as_json:
        print_json([{"classes": list(step.names), **note} for step, (_, note) in zip(steps, done, strict=True)])
        return
    for place, note in zip(images, notes, strict=True):
        if note is None:
            print(f"{place} was learned before")
    for step, (place, note) in zip(steps, done, strict=True):
        seconds = sum(note["seconds"].values())
        print(f"{place}: learned {', '.join(step.names)} from {note['new_images']:,} images in {seconds:.1f} s")
    print(f"{model} knows {len(taught.class_names)} class(es) from {len(taught.steps)} step(s)")


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(help="Classes of each image, likeliest first.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Write a CSV file: image, rank, class, score.")] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Pass over images that cannot be read; they are named.")
    ] = False,
    assignments: Changes = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Say which class each image is of, among all that were learned."""
    from ffcil.data.layouts import image_files
    from ffcil.data.own_images import readable
    from ffcil.runs.run import exhaustion_explained

    files = image_files(images)
    if out and not out.absolute().parent.is_dir():  # before all the work, not after it
        raise InputError(f"There is no folder {out.absolute().parent} for {out.name}: make it, or name another.")
    with stoppable(then=""), exhaustion_explained(model):
        guesses = _loaded(model, assignments, device, imports).predict(files, top, skip_bad)
    rows = [
        {"image": readable(path), "rank": rank, "class": guess.name, "score": guess.score}
        for path, of_image in zip(files, guesses, strict=True)
        for rank, guess in enumerate(of_image, 1)
    ]
    if out:
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", "rank", "class", "score"])
            writer.writeheader()
            writer.writerows(rows)
    for path, of_image in zip(files, guesses, strict=True):
        if not of_image:
            print(f"ffcil: {readable(path)} cannot be read and is passed over.", file=sys.stderr)
    if as_json:
        print_json(rows)
    elif out is None:
        for row in rows:
            print(f"{row['image']}\t{row['class']}\t{row['score']:.3f}")


def measure(
    model: Model,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Labelled images of known classes, as for `learn`.")],
    assignments: Changes = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Measure a classifier on labelled images: in all, and by the step in which a class came."""
    from rich.table import Table

    from ffcil.runs.run import exhaustion_explained

    with stoppable(then=""), exhaustion_explained(model):
        classifier = _loaded(model, assignments, device, imports)
        tested = classifier.test(images)
    if as_json:
        print_json(tested)
        return
    table = Table("step", "classes", "accuracy, %", title=f"{tested['accuracy']:.1f} % of {tested['images']:,} images")
    for number, (step, accuracy) in enumerate(zip(classifier.steps, tested["by_step"], strict=True), 1):
        table.add_row(str(number), str(len(step.names)), "" if accuracy is None else f"{accuracy:.1f}")
    print_table(table)
    worst = sorted(tested["by_class"].items(), key=lambda item: item[1])[:WORST]
    print("lowest: " + ", ".join(f"{name} {accuracy:.1f}" for name, accuracy in worst))


def _loaded(model: Path, assignments: list[str] | None, device: str | None, imports: list[str] | None) -> Any:
    from ffcil.classifier.classifier import Classifier
    from ffcil.config.resolve import parse_assignments

    import_methods(imports)
    return Classifier.load(model, device, parse_assignments(assignments or []))
