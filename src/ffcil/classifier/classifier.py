"""`Classifier`: a classifier of users' own images that can learn new classes at any time.

It keeps the exemplars that its method needs and no other images. Trained step by step, saved and loaded in between, it
is bit-equal (on a CPU) to the learner of a `Run` over the same classes in the same steps.
"""

import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffcil.classifier.steps import LearningFile, Step
from ffcil.config.earlier import renewed
from ffcil.config.resolve import build_config, merge_overrides
from ffcil.config.settings import RunConfig
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import DEFAULT_SIZE, own_augmentation
from ffcil.data.pictures import Picture, frames, image_set_of, store_frames
from ffcil.data.placement import place
from ffcil.data.ragged import Images, RaggedImages
from ffcil.data.sources import list_own
from ffcil.errors import InputError
from ffcil.methods import METHODS, build_learner, complete, find_method
from ffcil.methods.conventional import Conventional
from ffcil.methods.learner import Learner
from ffcil.methods.parts.exemplars import exemplars_per_class
from ffcil.metrics import Confusion
from ffcil.runs.checkpoint import copied, load_state, save_state
from ffcil.runs.run import augmentation_of
from ffcil.runs.step import learn_step
from ffcil.runs.stopping import Stop
from ffcil.stream import Increment
from ffcil.training.engine import Engine, evaluating
from ffcil.training.progress import Listener

Labelled = str | Path | ImageSet | Dataset[Any]
"""A folder of class folders, a Parquet or CSV file, an `ImageSet`, or any map-style data set of (image, label)."""
MODEL, LEARNING = "model.safetensors", "learning.safetensors"
CHANGEABLE = ("weights", "memory", "train", "evaluate_batch", "checkpoint_seconds")
"""Fields of a configuration that may change between two steps, because nothing that was learned depends on them."""
UNUSED = ("dataset", "arrivals", "class_seed", "arrival_seed")
"""Fields of a configuration that a classifier does not use."""


@dataclass(frozen=True)
class Guess:
    """A possible class of an image."""

    name: str
    score: float
    """Softmax of the method's own scores over all classes, between 0 and 1. It is not calibrated."""


class Classifier:
    """`classifier.learn("monday/"); classifier.learn("tuesday/"); classifier.predict(["what.jpg"])`

    It does not use the fields of a configuration that are in `UNUSED`.
    """

    def __init__(self, config: RunConfig, device: str | None = None) -> None:
        self.config = complete(_absolute(config))
        self.size = config.image_size or DEFAULT_SIZE
        self.engine = Engine.create(device or ("cuda" if torch.cuda.is_available() else "cpu"), config.train)
        self.steps: list[Step] = []
        self._identity = ""
        """Random, and new after every step: two classifiers with different histories have different ones."""
        self._home: Path | None = None
        """Folder that it was saved to or loaded from."""
        self._kept = ImageSet(store_frames([], self.size), torch.empty(0, dtype=torch.int64), ())
        """Images that later steps train on again, in host memory."""
        self._build()

    def _build(self) -> None:
        augmentation = augmentation_of(self.config, own_augmentation(self.size))
        self.learner = build_learner(self.config, augmentation, self.engine)
        kind, bases = type(self.learner), (Learner, Conventional)
        own_rows = kind.training_rows not in [base.training_rows for base in bases]
        if own_rows and not kind.uses_memory and kind.kept_rows in [base.kept_rows for base in bases]:
            raise InputError(
                f"Method {self.config.method!r} trains on images of earlier steps without kept_rows and renumber: "
                "implement them (CONTRIBUTING.md)."
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of all learned classes, in the order in which they arrived."""
        return tuple(name for step in self.steps for name in step.names)

    # --- learning -------------------------------------------------------------------------------------------------

    def learn(
        self,
        images: Labelled,
        folder: str | Path | None = None,
        listener: Listener | None = None,
        stop: Stop | None = None,
    ) -> dict[str, Any]:
        """Learn new classes. If this fails or is interrupted, the classifier is unchanged.

        If the images have a split, the test images are left out.

        Args:
            folder: Folder for the progress of an interrupted call; the same call resumes from it.
            stop: Collects requests to stop, for a caller with work to do before it stops.

        Returns:
            The notes of the method (seconds by phase, images per second, loss, ...) and `new_images`.
        """
        if stop is None:
            with Stop() as own:
                notes = self.learn(images, folder, listener, own)
                own.raise_if_requested()
            return notes
        new, listener = self.read(images), listener or Listener()
        increment, step = self._increment(new), Step.of(new)
        request = f"{self.config.identity()} {self._identity} {step.digest}"
        file = LearningFile(Path(folder) / LEARNING, request) if folder else None
        before = copied(self.learner.state())

        try:
            resume = file.restore(self.learner, increment) if file else None
            interval = self.config.checkpoint_seconds
            save = partial(file.write, self.learner) if file else None
            notes = learn_step(self.learner, increment, listener, stop, save, interval, resume)
            kept = self._keep(increment.train)
        except BaseException:
            self._restore(before)
            raise
        self._kept, self._identity = kept, uuid.uuid4().hex
        self.steps.append(step)
        return {**notes, "new_images": len(new)}

    def read(self, images: Labelled, allow_outside: bool = False) -> ImageSet:
        """Read new images as `learn` does. With `allow_outside`, a table may name files outside its own folder."""
        new = self._read(images, allow_outside)[0]
        if not len(new):
            raise InputError("There are no images to learn: add some.")
        if len(set(new.class_names)) < new.classes:
            raise InputError(f"Two classes of {', '.join(new.class_names)} have the same name: rename one of them.")
        return new

    def learned(self, images: ImageSet) -> bool:
        """Whether the same images were learned at an earlier step."""
        return Step.of(images) in self.steps

    def _read(self, images: Labelled, allow_outside: bool) -> tuple[ImageSet, ImageSet]:
        """Read the training images and the test images: the same images if there is no split."""
        if isinstance(images, str | Path):
            listing = list_own(Path(images).expanduser())
            train, test = listing.undivided().load(self.size, allow_outside=allow_outside)
            return train, train if listing.random_split else test
        read = images if isinstance(images, ImageSet) else image_set_of(images, self.size)
        self._check_form(read.images)
        used = read.counts().nonzero().flatten().tolist()
        if len(used) == read.classes and not (read.labels < 0).any():
            return read, read
        # a part of a larger set: only the classes that occur count
        position = torch.full((read.classes + 1,), -1)
        position[used] = torch.arange(len(used))
        own = replace(read, labels=position.to(read.labels.device)[read.labels])
        rows = (own.labels >= 0).nonzero().flatten()
        part = replace(own.subset(rows), class_names=tuple(read.class_names[k] for k in used))
        return part, part

    def _check_form(self, images: Images) -> None:
        expected = store_frames([], self.size)
        if isinstance(images, Tensor) and isinstance(expected, Tensor) and images.shape[2:] == expected.shape[2:]:
            return
        if isinstance(images, RaggedImages) and isinstance(expected, RaggedImages):
            return
        raise InputError(
            f"The ImageSet is not stored for an input of {self.size} pixels: make it with `image_set_of` for that size."
        )

    def _increment(self, new: ImageSet) -> Increment:
        """The next step: the new images follow the exemplars."""
        known = self.class_names
        if again := set(known).intersection(new.class_names):
            raise InputError(
                f"Class {sorted(again)[0]!r} is already known: leave its images out, or give the class another name."
            )
        classes = len(known) + new.classes
        if find_method(self.config.method).uses_memory:
            exemplars_per_class(self.config.memory, classes)
        behind = replace(new, labels=new.labels.cpu() + len(known), class_names=known + new.class_names)
        train = self._kept.followed_by(behind).to(self.engine.device)
        rows = torch.arange(len(self._kept), len(train), device=train.labels.device)
        return _untested(len(self.steps) + 1, len(known), classes, train, rows)

    def _keep(self, train: ImageSet) -> ImageSet:
        """Return the images that later steps need, and renumber the learner's rows."""
        rows = self.learner.kept_rows().cpu()
        position = torch.full((len(train),), -1)
        position[rows] = torch.arange(len(rows))
        self.learner.renumber(position)
        return train.subset(rows.to(train.labels.device)).to(torch.device("cpu"))

    # --- predicting -----------------------------------------------------------------------------------------------

    def predict(self, images: Iterable[Picture], top: int = 1, skip_bad: bool = False) -> list[list[Guess]]:
        """The `top` most likely classes of each image, best first; an empty list for an image that `skip_bad` skips."""
        names = self.class_names
        if not names:
            raise InputError("The classifier knows no classes yet: teach it some first.")
        if top < 1:
            raise InputError(f"top is {top}: it must be at least 1.")
        guesses: list[list[Guess]] = []
        for batch in frames(images, self.size, self.config.evaluate_batch, skip_bad):
            scores = self._scores(store_frames([frame for frame in batch if isinstance(frame, Tensor)], self.size))
            best = scores.softmax(dim=1).topk(min(top, len(names)), dim=1)
            found = (
                [Guess(names[label], score) for label, score in zip(labels, values, strict=True)]
                for labels, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            )
            guesses += [next(found) if isinstance(frame, Tensor) else [] for frame in batch]
        return guesses

    def test(self, images: Labelled, allow_outside: bool = False) -> dict[str, Any]:
        """Accuracy in percent on labelled images of known classes: overall, by step, and by class. If the images have
        a split, the test images are used. With `allow_outside`, a table may name files outside its own folder."""
        labelled = self._read(images, allow_outside)[1]
        names = self.class_names
        position = {name: k for k, name in enumerate(names)}
        if unknown := [name for name in labelled.class_names if name not in position]:
            raise InputError(f"Class {unknown[0]!r} is not known: teach it to the classifier, or leave it out.")
        if not len(labelled):
            raise InputError("There are no images to test on: add some.")
        true = torch.tensor([position[name] for name in labelled.class_names])[labelled.labels.cpu()]
        table = Confusion.count(true.numpy(), self._scores(labelled.images).argmax(dim=1).numpy(), len(names))
        ends = itertools.accumulate(len(step.names) for step in self.steps)
        by_class = {name: table.accuracy(slice(k, k + 1)) for name, k in position.items()}
        return {
            "images": len(labelled),
            "accuracy": table.accuracy(),
            "by_step": [
                table.accuracy(slice(end - len(step.names), end)) for end, step in zip(ends, self.steps, strict=True)
            ],
            "by_class": {name: accuracy for name, accuracy in by_class.items() if accuracy is not None},
        }

    def _scores(self, store: Images) -> Tensor:
        """Scores of the images of a store by the scored classifier, [N, classes] on the CPU."""
        learner, device = self.learner, self.engine.device
        images = place(store, device) if isinstance(store, Tensor) else store.to(device)
        with self.engine.settled(), evaluating(learner):
            rows = torch.arange(len(store))
            batches = [scores[learner.scored].cpu() for scores in learner.over(images, rows, learner.logits)]
        return torch.cat([torch.empty(0, len(self.class_names)), *batches])

    # --- keeping --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Save everything but the pre-trained network to one file in a folder. The file is complete at every moment."""
        folder = Path(folder).resolve()
        if (folder / MODEL).is_file() and folder != self._home:
            raise InputError(f"There is another classifier in {folder}: choose another folder, or remove it first.")
        folder.mkdir(parents=True, exist_ok=True)
        self._home = folder
        images = self._kept.images
        kept = {"images": images} if isinstance(images, Tensor) else {"pixels": images.pixels, "sizes": images.sizes}
        state = {
            "config": self.config.model_dump(mode="json"),
            "steps": [{**asdict(step), "names": list(step.names)} for step in self.steps],
            "identity": self._identity,
            "learner": self.learner.state(),
            "kept": {**kept, "labels": self._kept.labels},
        }
        save_state(folder / MODEL, state)
        (folder / LEARNING).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None, changes: Mapping[str, Any] | None = None) -> Self:
        """Load what `save` wrote, with nested `changes` to the fields of its configuration that are in `CHANGEABLE`."""
        folder = Path(folder)
        if not (folder / MODEL).is_file():
            raise InputError(f"There is no classifier in {folder}: make one with `ffcil learn {folder} IMAGES`.")
        state = load_state(folder / MODEL, "restore a copy of it, or create a new classifier in another folder")
        config = renewed(state["config"])
        if config["method"] not in METHODS:
            raise InputError(
                f"The classifier in {folder} uses method {config['method']!r}, which is not registered: add "
                "--import FILE."
            )
        # both are built, because a classifier of an earlier version lacks fields or has them in another form
        saved, changed = (build_config(merge_overrides(config, new)) for new in ({}, changes or {}))
        before, after = (settings.model_dump(mode="json") for settings in (saved, changed))
        differing = [key for key, value in after.items() if value != before[key]]
        if fixed := sorted(set(differing) - {*CHANGEABLE, *UNUSED}):
            raise InputError(
                f"The {fixed[0]} of the classifier in {folder} cannot change: leave it out, or create a new one; "
                f"{', '.join(CHANGEABLE)} can change."
            )
        classifier = cls(changed, device)
        classifier.steps = [Step(tuple(step["names"]), step["digest"]) for step in state["steps"]]
        kept = state["kept"]
        images = kept["images"] if "images" in kept else RaggedImages.packed(kept["pixels"], kept["sizes"])
        classifier._kept = ImageSet(images, kept["labels"], classifier.class_names)
        classifier._identity, classifier._home = state["identity"], folder.resolve()
        classifier._restore(state["learner"])
        return classifier

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Restore the learner as it was after the steps so far."""
        del self.learner  # there may not be enough memory for two of them
        self._build()
        nothing = self._kept.subset(torch.empty(0, dtype=torch.int64)).to(self.engine.device)
        ends = itertools.accumulate(len(step.names) for step in self.steps)
        for number, (end, step) in enumerate(zip(ends, self.steps, strict=True), 1):
            self.learner.begin(_untested(number, end - len(step.names), end, nothing, nothing.labels))
        self.learner.restore(state)


def _absolute(config: RunConfig) -> RunConfig:
    """Replace the path of a weights file by its absolute path, because the next call may come from another folder."""
    if not config.weights or not Path(config.weights).is_file():
        return config
    return config.model_copy(update={"weights": str(Path(config.weights).resolve())})


def _untested(step: int, before: int, now: int, train: ImageSet, rows: Tensor) -> Increment:
    """A step without test images."""
    return Increment(step, before, now, train, rows, test=train, test_rows=rows[:0])
