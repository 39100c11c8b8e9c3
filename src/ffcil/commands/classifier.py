"""`ffcil learn`, `ffcil predict`, `ffcil test`: a classifier of one's own images, in a folder."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from ffcil.commands.options import AsJson, Device, Imports, import_methods, print_json, print_table, stoppable
from ffcil.errors import InputError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The classifier's folder.")]
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
            "--set", metavar="KEY=VALUE", help="Change a field of the recipe, for example method=icarl; `ffcil fields`."
        ),
    ] = None,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Teach a classifier new classes, as many as there are; broken off and started again, it goes on."""
    from rich.console import Console

    from ffcil.classifier import MODEL, teach
    from ffcil.data.sources import kind_of
    from ffcil.progress import Shown
    from ffcil.recipe import parse_assignments, resolve

    config, there = None, (model / MODEL).is_file()
    if there and (recipe or assignments):
        raise InputError(f"{model} has its configuration since it was made: leave --recipe and --set out.")
    import_methods(imports)
    if not there:
        config = resolve(recipe or "own-images", parse_assignments(assignments or []))
        if config.weights and Path(config.weights).is_file():  # the next call may come from another folder
            config = config.model_copy(update={"weights": str(Path(config.weights).resolve())})
    for place in images:
        kind_of(place)  # a slip of the pen makes no folder
    shown = Shown(Console(stderr=True))
    with stoppable(), shown.bars:
        taught, notes = teach(model, images, config, device, shown)
    steps = taught.steps[len(taught.steps) - len(notes) :]
    if as_json:
        print_json([{"classes": list(names), **note} for names, note in zip(steps, notes, strict=True)])
        return
    for names, note in zip(steps, notes, strict=True):
        seconds = sum(note["seconds"].values())
        print(f"learned {', '.join(names)} from {note['training_images']:,} images in {seconds:.1f} s")
    print(f"{model} knows {len(taught.class_names)} class(es) from {len(taught.steps)} step(s)")


def predict(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES...", help="Image files, or folders of them.")],
    top: Annotated[int, typer.Option(help="Classes of each image, likeliest first.", min=1)] = 1,
    out: Annotated[Path | None, typer.Option("--out", help="Write a CSV file: image, rank, class, score.")] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Pass over images that cannot be read.")] = False,
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Say which class each image is of, among all that were learned."""
    from ffcil.classifier import Classifier
    from ffcil.data.layouts import image_files

    import_methods(imports)
    files = image_files(images)
    with stoppable():
        guesses = Classifier.load(model, device).predict(files, top, skip_bad)
    rows = [
        {"image": str(file), "rank": rank, "class": guess.name, "score": guess.score}
        for file, of_image in zip(files, guesses, strict=True)
        for rank, guess in enumerate(of_image, 1)
    ]
    if out is not None:
        with out.open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, ["image", "rank", "class", "score"])
            writer.writeheader()
            writer.writerows(rows)
    if as_json:
        print_json(rows)
    elif out is None:
        for row in rows:
            print(f"{row['image']}\t{row['class']}\t{row['score']:.3f}")


def measure(
    model: Model,
    images: Annotated[Path, typer.Argument(metavar="IMAGES", help="Labelled images of known classes, as for `learn`.")],
    device: Device = None,
    imports: Imports = None,
    as_json: AsJson = False,
) -> None:
    """Measure a classifier on labelled images: in all, and by the step in which a class came."""
    from rich.table import Table

    from ffcil.classifier import Classifier

    import_methods(imports)
    with stoppable():
        classifier = Classifier.load(model, device)
        tested = classifier.test(images)
    if as_json:
        print_json(tested)
        return
    table = Table("step", "classes", "accuracy, %", title=f"{tested['accuracy']:.1f} % of {tested['images']:,} images")
    for number, (names, accuracy) in enumerate(zip(classifier.steps, tested["by_step"], strict=True), 1):
        table.add_row(str(number), str(len(names)), "" if accuracy is None else f"{accuracy:.1f}")
    print_table(table)
    worst = sorted(tested["by_class"].items(), key=lambda item: item[1])[:WORST]
    print("lowest: " + ", ".join(f"{name} {accuracy:.1f}" for name, accuracy in worst))
