"""`teach`: a classifier in a folder learns step by step and is saved after each step."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ffcil.classifier.classifier import LEARNING, Classifier
from ffcil.classifier.reading import Labelled
from ffcil.classifier.versions import FOLDER, MODEL
from ffcil.config.settings import RunConfig
from ffcil.data.sources import list_own
from ffcil.errors import InputError
from ffcil.methods import complete
from ffcil.runs.folder import locked
from ffcil.runs.run import exhaustion_explained
from ffcil.runs.stopping import Stop
from ffcil.training.progress import Listener

Notes = dict[str, Any]


def teach(
    folder: Path,
    images: Sequence[Labelled],
    config: RunConfig | None = None,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    listener: Listener | None = None,
    allow_outside: bool = False,
    versions: int | None = None,
    days: float | None = None,
    skip_bad: bool = False,
) -> tuple[Classifier, list[Notes | None]]:
    """Load the classifier in `folder`, with `changes` to its configuration, or create it from `config`; then let it
    learn step by step, and save it after each step. With `allow_outside`, a table of images may name files outside its
    own folder.

    Args:
        versions: Number of versions that are kept, now and from now on.
        days: Age at which versions are removed, too, now and from now on.
        skip_bad: Whether files that cannot be read are skipped, now and whenever these files are read again.

    Returns:
        The classifier, and the notes of `learn` for each step, None for a step that was learned before.
    """
    if config is not None:
        config = complete(config)
        changes = config.model_dump(mode="json")  # used if another process has created it meanwhile
    _check(folder, images, config)
    made = None
    if config is not None and not folder.exists():
        with exhaustion_explained(folder):
            made = _first(config, device, images, allow_outside, skip_bad)
    folder.mkdir(parents=True, exist_ok=True)
    with exhaustion_explained(folder), locked(folder, "wait for it"), Stop() as stop:
        if config is None or (folder / MODEL).is_file():
            classifier = Classifier.load(folder, device, changes)
        else:
            classifier = made or Classifier(config, device)
        notes: list[Notes | None] = []
        for place in images:
            new = classifier.read(place, allow_outside, skip_bad)
            if classifier.learned(new):
                notes.append(None)
                continue
            notes.append(classifier.learn(new, folder, listener, stop))
            classifier.save(folder, versions, days)
            stop.raise_if_requested()
        if classifier.version:  # also if there was nothing to learn: settings may have changed
            classifier.save(folder, versions, days)
    return classifier, notes


def _first(
    config: RunConfig, device: str | None, images: Sequence[Labelled], allow_outside: bool, skip_bad: bool
) -> Classifier:
    """A new classifier, made before its folder: weights or first files that cannot be read then leave no folder behind.
    Files are decoded only once."""
    classifier = Classifier(config, device)
    for place in images[:1]:
        if isinstance(place, str | Path):
            classifier.read(place, allow_outside, skip_bad)
    return classifier


def _check(folder: Path, images: Sequence[Labelled], config: RunConfig | None) -> None:
    """Check the arguments before a folder is created."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: name a folder for the classifier.")
    there = (folder / MODEL).is_file()
    if not there and config is None:
        raise InputError(f"There is no classifier in {folder}: pass the configuration of a new one.")
    if not there and folder.is_dir() and {path.name for path in folder.iterdir()} - {LEARNING, ".lock", FOLDER}:
        raise InputError(f"{folder} contains other files: choose a folder for the classifier alone.")
    for place in images:
        if isinstance(place, str | Path):
            path = Path(place).expanduser()
            if folder.resolve().is_relative_to(path.resolve()):
                raise InputError(f"{folder} is inside the image folder {path}: choose a folder outside it.")
            list_own(path)
