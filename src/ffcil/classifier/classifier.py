"""`Classifier`: a learner on somebody's own images, to which new classes can be taught at any time.

Of the images that were learned it keeps those that its method asks for, the exemplars, and no others. Taught step by
step, saved and loaded in between, it becomes what a `Run` over the same classes in the same steps becomes.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from ffcil.config.resolve import build_config, merge_overrides
from ffcil.config.settings import RunConfig
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import DEFAULT_SIZE, own_augmentation
from ffcil.data.pictures import Picture, frames
from ffcil.data.placement import place
from ffcil.data.ragged import Images, RaggedImages
from ffcil.data.sources import list_own
from ffcil.data.torch_datasets import image_set_of, store_frames
from ffcil.errors import InputError
from ffcil.methods import METHODS, build_learner, complete, find_method
from ffcil.methods.learner import Learner
from ffcil.methods.parts.exemplars import exemplars_per_class
from ffcil.metrics import Confusion
from ffcil.runs.checkpoint import copied, load_state, save_state
from ffcil.runs.run import augmentation_of
from ffcil.runs.step import learn_step
from ffcil.runs.stopping import Stop
from ffcil.stream import Increment
from ffcil.training.engine import Engine, evaluating
from ffcil.training.progress import FitProgress, Listener

Labelled = str | Path | ImageSet | Dataset[Any]
"""a folder of class folders, a Parquet or CSV file, an `ImageSet`, or any map-style data set of (image, label)"""
MODEL, LEARNING = "model.safetensors", "learning.safetensors"
CHANGEABLE = ("weights", "memory", "train", "evaluate_batch", "checkpoint_seconds")
"""fields of a configuration that may change between two steps: nothing that was learned depends on them"""

MEANINGLESS = ("dataset", "arrivals", "class_seed", "arrival_seed")
"""fields that a classifier does not look at: what comes, comes"""


@dataclass(frozen=True)
class Guess:
    """A class that an image may be of."""

    name: str
    score: float
    """in 0 .. 1, all classes' together 1: a softmax of the method's own scores, not calibrated"""


@dataclass(frozen=True)
class Step:
    """What came at once."""

    names: tuple[str, ...]
    """of the classes"""
    digest: str
    """of the images"""


class Classifier:
    """`classifier.learn("monday/"); classifier.learn("tuesday/"); classifier.predict(["what.jpg"])`

    Of a configuration the fields in `MEANINGLESS` have none here.
    """

    def __init__(self, config: RunConfig, device: str | None = None) -> None:
        self.config = complete(_absolute(config))
        self.size = config.image_size or DEFAULT_SIZE
        self.engine = Engine.create(device or ("cuda" if torch.cuda.is_available() else "cpu"), config.train)
        self.steps: list[Step] = []
        self._identity = ""
        """drawn anew at every step: no two classifiers that learned anything have the same"""
        self._home: Path | None = None
        """the folder that it was saved to or loaded from"""
        self._kept = ImageSet(store_frames([], self.size), torch.empty(0, dtype=torch.int64), ())
        """the images that later steps train on again, in the host's memory"""
        self._build()

    def _build(self) -> None:
        augmentation = augmentation_of(self.config, own_augmentation(self.size))
        self.learner = build_learner(self.config, augmentation, self.engine)
        kind = type(self.learner)
        if kind.training_rows is not Learner.training_rows and kind.kept_rows is Learner.kept_rows:
            raise InputError(
                f"Method {self.config.method!r} trains on rows of earlier steps and does not say which it keeps: give "
                "it kept_rows and renumber (CONTRIBUTING.md)."
            )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of all classes learned, in the order in which they came."""
        return tuple(name for step in self.steps for name in step.names)

    # --- learning -------------------------------------------------------------------------------------------------

    def learn(
        self,
        images: Labelled,
        folder: str | Path | None = None,
        listener: Listener | None = None,
        stop: Stop | None = None,
    ) -> dict[str, Any]:
        """Learn new classes, as many as there are. What fails, or is broken off, leaves the classifier as it was.

        Where the images have a split, those for testing are left out.

        Args:
            folder: for what a learning that is broken off has got to; the same call goes on from there
            stop: of a caller that wants to do something of its own before it stops

        Returns:
            what the method notes: seconds by phase, images per second, loss, ...; and `new_images`
        """
        if stop is None:
            with Stop() as own:
                notes = self.learn(images, folder, listener, own)
                own.raise_if_requested()
            return notes
        new, listener = self.read(images), listener or Listener()
        increment, step = self._increment(new), _step(new)
        request = f"{self.config.identity()} {self._identity} {step.digest}"
        file = _ProgressFile(Path(folder) / LEARNING, request) if folder else None
        before = copied(self.learner.state())

        def save(progress: FitProgress) -> None:
            assert file is not None
            file.write(self.learner, progress)

        try:
            resume = file.restore(self.learner, increment) if file else None
            interval = self.config.checkpoint_seconds
            notes = learn_step(self.learner, increment, listener, stop, save if file else None, interval, resume)
            kept = self._keep(increment.train)
        except BaseException:
            self._restore(before)
            raise
        self._kept, self._identity = kept, uuid.uuid4().hex
        self.steps.append(step)
        return {**notes, "new_images": len(new)}

    def read(self, images: Labelled) -> ImageSet:
        """New images as `learn` takes them."""
        new = self._read(images)[0]
        if not len(new):
            raise InputError("There are no images to learn: add some, of a class each.")
        if len(set(new.class_names)) < new.classes:
            raise InputError(f"Two classes of {', '.join(new.class_names)} have one name: give every class its own.")
        return new

    def learned(self, images: ImageSet) -> bool:
        """Whether the same images came at an earlier step."""
        return _step(images) in self.steps

    def _read(self, images: Labelled) -> tuple[ImageSet, ImageSet]:
        """Images to learn and images to test on: the same where there is no split."""
        if isinstance(images, str | Path):
            listing = list_own(Path(images).expanduser())
            train, test = listing.undivided().load(self.size)
            return train, train if listing.random_split else test
        read = images if isinstance(images, ImageSet) else image_set_of(images, self.size)
        self._check_form(read.images)
        used = read.counts().nonzero().flatten().tolist()
        if len(used) == read.classes and not (read.labels < 0).any():
            return read, read
        # part of a larger set: only its own classes count
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
        """The next step: new images behind those that were kept."""
        known = self.class_names
        if again := set(known).intersection(new.class_names):
            raise InputError(
                f"Class {sorted(again)[0]!r} is known already: leave its images out, or give the class another name."
            )
        classes = len(known) + new.classes
        if find_method(self.config.method).uses_memory:
            exemplars_per_class(self.config.memory, classes)
        behind = replace(new, labels=new.labels.cpu() + len(known), class_names=known + new.class_names)
        train = self._kept.followed_by(behind).to(self.engine.device)
        rows = torch.arange(len(self._kept), len(train), device=train.labels.device)
        return _untested(len(self.steps) + 1, len(known), classes, train, rows)

    def _keep(self, train: ImageSet) -> ImageSet:
        """The images that the next step will need, and the learner told of their new places."""
        rows = self.learner.kept_rows().cpu()
        position = torch.full((len(train),), -1)
        position[rows] = torch.arange(len(rows))
        self.learner.renumber(position)
        return train.subset(rows.to(train.labels.device)).to(torch.device("cpu"))

    # --- predicting -----------------------------------------------------------------------------------------------

    def predict(self, images: Iterable[Picture], top: int = 1, skip_bad: bool = False) -> list[list[Guess]]:
        """The `top` likeliest classes of each image, likeliest first; none of one that `skip_bad` passes over."""
        names = self.class_names
        if not names:
            raise InputError("The classifier knows no classes yet: let it learn some first.")
        if top < 1:
            raise InputError(f"top is {top}: ask for one class at least.")
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

    def test(self, images: Labelled) -> dict[str, Any]:
        """Accuracy in percent on labelled images of known classes: of all, by the step in which a class came, and by
        class. Where the images have a split, those for testing are taken."""
        labelled = self._read(images)[1]
        names = self.class_names
        position = {name: k for k, name in enumerate(names)}
        if unknown := [name for name in labelled.class_names if name not in position]:
            raise InputError(f"Class {unknown[0]!r} is not known: let the classifier learn it, or leave it out.")
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
        """Of the untouched images of a store, by the method's first classifier, [N, classes] on the CPU."""
        learner, device = self.learner, self.engine.device
        images = place(store, device) if isinstance(store, Tensor) else store.to(device)
        with self.engine.settled(), evaluating(learner):
            rows = torch.arange(len(store))
            batches = [scores[learner.scored].cpu() for scores in learner.over(images, rows, learner.logits)]
        return torch.cat([torch.empty(0, len(self.class_names)), *batches])

    # --- keeping --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Everything but a pre-trained network, in one file of a folder: whole at every moment."""
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
    def load(
        cls, folder: str | Path, device: str | None = None, changes: Mapping[str, Any] | None = None
    ) -> Classifier:
        """What `save` wrote, its configuration with `changes` (nested): of the fields in `CHANGEABLE` alone."""
        folder = Path(folder)
        if not (folder / MODEL).is_file():
            raise InputError(f"There is no classifier in {folder}: make one with `ffcil learn {folder} IMAGES`.")
        state = load_state(folder / MODEL, "bring back a copy of it, or make a new one elsewhere")
        config = state["config"]
        if config["method"] not in METHODS:
            raise InputError(
                f"The classifier in {folder} is of method {config['method']!r}, which is not known here: add --import "
                "FILE."
            )
        changed = build_config(merge_overrides(config, changes or {}))
        differing = [key for key, value in changed.model_dump(mode="json").items() if value != config.get(key, value)]
        if fixed := sorted(set(differing) - {*CHANGEABLE, *MEANINGLESS}):
            raise InputError(
                f"The classifier in {folder} has its {fixed[0]} since it was made: leave it out, or make a new one; "
                f"{', '.join(CHANGEABLE)} may change."
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
        """The learner as it was after the steps so far."""
        del self.learner  # the memory for two of them may not be there
        self._build()
        nothing = self._kept.subset(torch.empty(0, dtype=torch.int64)).to(self.engine.device)
        ends = itertools.accumulate(len(step.names) for step in self.steps)
        for number, (end, step) in enumerate(zip(ends, self.steps, strict=True), 1):
            self.learner.begin(_untested(number, end - len(step.names), end, nothing, nothing.labels))
        self.learner.restore(state)


def _absolute(config: RunConfig) -> RunConfig:
    """A file of weights by its full path: the next call may come from another folder."""
    if not config.weights or not Path(config.weights).is_file():
        return config
    return config.model_copy(update={"weights": str(Path(config.weights).resolve())})


def _untested(step: int, before: int, now: int, train: ImageSet, rows: Tensor) -> Increment:
    """A step on which nothing is tested."""
    return Increment(step, before, now, train, rows, test=train, test_rows=rows[:0])


def _step(images: ImageSet) -> Step:
    content = hashlib.sha256(repr(images.class_names).encode())
    content.update(images.sample())
    return Step(images.class_names, content.hexdigest())


class _ProgressFile:
    """What a learning has got to; of use only to the same learning of the same classifier."""

    def __init__(self, path: Path, request: str) -> None:
        self.path, self.request = path, request

    def restore(self, learner: Learner, increment: Increment) -> FitProgress | None:
        """Bring the learner to where the file says that it was; None where there is nothing to take up."""
        if not self.path.is_file():
            return None
        state = load_state(self.path, "remove this file, and the step begins anew")
        if state["request"] != self.request:
            return None
        learner.begin(increment)
        learner.restore(state["learner"])
        return FitProgress(**state["progress"])

    def write(self, learner: Learner, progress: FitProgress) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        save_state(self.path, {"request": self.request, "progress": vars(progress), "learner": learner.state()})
