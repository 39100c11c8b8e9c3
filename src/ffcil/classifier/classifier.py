"""`Classifier`: a classifier of users' own images that can learn new classes at any time.

It keeps the exemplars that its method needs and no other images. Trained step by step, saved and loaded in between, it
is bit-equal (on a CPU) to the learner of a `Run` over the same classes in the same steps.
"""

import itertools
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from ffcil.classifier.answering import Answering
from ffcil.classifier.answers import FALSE_ALARMS, Answer, Description, Guess
from ffcil.classifier.history import Change, names_today
from ffcil.classifier.reading import Labelled, never_learned, read_labelled
from ffcil.classifier.saved_config import changed_config, with_absolute_weights
from ffcil.classifier.steps import LearningFile, Step
from ffcil.classifier.versions import MODEL, Retention, Versions, check_model
from ffcil.config.settings import RunConfig
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import DEFAULT_SIZE, own_augmentation
from ffcil.data.pictures import Picture, store_frames
from ffcil.data.ragged import Images, RaggedImages
from ffcil.errors import InputError, unknown
from ffcil.methods import build_learner, complete, find_method
from ffcil.methods.conventional import Conventional
from ffcil.methods.learner import Learner
from ffcil.methods.parts.exemplars import exemplars_per_class
from ffcil.runs.checkpoint import copied
from ffcil.runs.run import augmentation_of
from ffcil.runs.step import learn_step
from ffcil.runs.stopping import Stop
from ffcil.stream import Increment
from ffcil.training.engine import Engine, evaluating
from ffcil.training.progress import Listener

LEARNING = "learning.safetensors"


class Classifier:
    """`classifier.learn("monday/"); classifier.learn("tuesday/"); classifier.predict(["what.jpg"])`

    It does not use the fields of a configuration that are in `saved_config.UNUSED`.
    """

    def __init__(self, config: RunConfig, device: str | None = None) -> None:
        self.config = complete(with_absolute_weights(config))
        self.size = config.image_size or DEFAULT_SIZE
        self.engine = Engine.create(device or ("cuda" if torch.cuda.is_available() else "cpu"), config.train)
        self.steps: list[Step] = []
        self.version = 0
        """Number of the version that was loaded or saved last; 0 if there is none."""
        self.retention = Retention()
        """Versions that `save` keeps."""
        self._changes: list[Change] = []
        """The history; changes that are not saved yet have version 0."""
        self._identity = ""
        """Random, and new after every step: two classifiers with different histories have different ones."""
        self._home: Path | None = None
        """Folder that it was saved to or loaded from."""
        self._kept = ImageSet(store_frames([], self.size), torch.empty(0, dtype=torch.int64), ())
        """Images that later steps train on again, in host memory."""
        self._saved = False
        """Whether the folder `_home` has everything."""
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
        """Learn new classes and, if the method can, more images of known ones. If this fails or is interrupted, the
        classifier is unchanged.

        If the images have a split, the test images are left out.

        Args:
            folder: Folder for the progress of an interrupted call; the same call resumes from it.
            stop: Collects requests to stop, for a caller with work to do before it stops.

        Returns:
            The notes of the method (seconds by phase, images per second, loss, ...) and `new_images`. If the method
            keeps features, also `copies`, the number of new images that are there already with the same label, and
            `in_two_classes`, the number of new images that are in another class, too, with the classes of one of them.
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
        before, known = copied(self.learner.state()), self._known_images()

        try:
            resume = file.restore(self.learner, increment) if file else None
            interval = self.config.checkpoint_seconds
            save = partial(file.write, self.learner) if file else None
            notes = learn_step(self.learner, increment, listener, stop, save, interval, resume)
            kept = self._keep(increment.train)
        except BaseException:
            self._build_again(before)
            raise
        self._kept = kept
        again = tuple(name for name in step.names if name in self.class_names)
        names = tuple(name for name in step.names if name not in again)
        self.steps.append(replace(step, names=names, again=again))
        counts = dict(zip(new.class_names, new.counts().tolist(), strict=True))
        self._changed("learn", counts, new=self.steps[-1].names)
        return {**notes, "new_images": len(new), **self._repeated(new, known)}

    def _known_images(self) -> int:
        images = self.learner.known_images()
        return 0 if images is None else len(images[0])

    def _repeated(self, new: ImageSet, known: int) -> dict[str, Any]:
        """What `learn` notes of new images that were there before, if there were `known` images."""
        if (images := self.learner.known_images()) is None:
            return {}
        digests, classes = images
        here = torch.isin(digests, new.digests(torch.arange(len(new))).to(digests.device))
        found, labels = digests[here].unique(return_counts=True)
        doubled = found[labels > 1]
        example = [self.class_names[k] for k in classes[digests == doubled[0]].tolist()] if len(doubled) else []
        return {
            "copies": len(new) - (self._known_images() - known),
            "in_two_classes": {"images": len(doubled), "such_as": example},
        }

    def forget(self, names: Iterable[str]) -> None:
        """Remove classes, if the method can. The classifier is then as if it had never seen them."""
        if isinstance(names, str):  # its characters may be names, too
            raise InputError(f"Classes must be given as a list: use [{names!r}] for a single class.")
        gone = tuple(dict.fromkeys(names))
        if not gone:
            raise InputError("No class is named: name at least one class to forget.")
        positions = [self._position(name) for name in gone]
        known = self.learner.known_features()
        counts = [] if known is None else known[1].bincount(minlength=len(self.class_names)).tolist()
        self.learner.forget(positions)
        self.steps = [step.without(gone) for step in self.steps]
        self._kept = replace(self._kept, class_names=self.class_names)
        images = {name: -counts[k] for name, k in zip(gone, positions, strict=True)} if counts else {}
        self._changed("forget", images, gone=gone)

    def rename(self, old: str, new: str) -> None:
        """Give a class another name."""
        self._position(old)
        if not new.strip():
            raise InputError(f"Class {old!r} cannot be called {new!r}: choose a name that is not blank.")
        if new in self.class_names:
            raise InputError(f"Class {new!r} is already known: choose another name.")
        self.steps = [step.renamed(old, new) for step in self.steps]
        self._kept = replace(self._kept, class_names=self.class_names)
        self._changed("rename", new=(new,), gone=(old,))

    def correct(
        self,
        images: Labelled,
        listener: Listener | None = None,
        allow_outside: bool = False,
        skip_bad: bool = False,
    ) -> dict[str, Any]:
        """Give images that were learned other labels, if the method can: those that they have now.

        The classifier is then as if it had learned them so from the start. A label may be a new class. `allow_outside`
        and `skip_bad` are those of `read`."""
        right = self.read(images, allow_outside, skip_bad)
        before, steps, changes = copied(self.learner.state()), list(self.steps), list(self._changes)
        try:
            found = self.learner.remove(right.to(self.engine.device), learned_again=True)
            if not found.all():
                raise never_learned(images, found, self.size)
            notes = self.learn(right, listener=listener)
        except BaseException:
            self.steps, self._changes = steps, changes
            self._build_again(before)
            raise
        self._changes[-1] = replace(self._changes[-1], kind="correct")
        return notes

    def history(self) -> list[dict[str, Any]]:
        """The changes in order: what came or went when, and the accuracy on left-out images then and now."""
        today = names_today(self._changes)
        return [
            {**change.state(), "accuracy_now": self._left_out_accuracy(names)}
            for change, names in zip(self._changes, today, strict=True)
        ]

    def kept(self) -> dict[str, dict[str, float]]:
        """What is kept of the learned images: number and megabytes of `exemplars`, and of `features` of images."""
        images = self._kept.images
        pixels = images if isinstance(images, Tensor) else images.pixels
        known = self.learner.known_features()
        return {
            "exemplars": {"images": len(self._kept), "megabytes": pixels.nbytes / 1e6},
            "features": {"images": len(known[0]) if known else 0, "megabytes": known[0].nbytes / 1e6 if known else 0},
        }

    def _left_out_accuracy(self, names: Iterable[str]) -> float | None:
        """Accuracy in percent on left-out images of those of the classes that are known; None if it is not known."""
        counts = self.learner.left_out_counts() if self.class_names else None
        position = {name: k for k, name in enumerate(self.class_names)}
        rows = [position[name] for name in names if name in position]
        if counts is None or not rows or not counts[1][rows].any():
            return None
        return 100 * float(counts[0][rows].sum() / counts[1][rows].sum())

    def _changed(
        self, kind: str, images: Mapping[str, int] | None = None, new: tuple[str, ...] = (), gone: tuple[str, ...] = ()
    ) -> None:
        """Note a change in the history."""
        self._identity, self._saved = uuid.uuid4().hex, False
        change = Change(0, kind, images or {}, new, gone)
        accuracy, of_new = map(self._left_out_accuracy, (self.class_names, change.learned))
        self._changes.append(replace(change, accuracy=accuracy, new_accuracy=of_new))

    def _position(self, name: str) -> int:
        if name not in self.class_names:
            raise unknown("class", name, self.class_names)
        return self.class_names.index(name)

    def read(self, images: Labelled, allow_outside: bool = False, skip_bad: bool = False) -> ImageSet:
        """Read new images as `learn` does. With `allow_outside`, a table may name files outside its own folder. With
        `skip_bad`, files that cannot be read are skipped, now and whenever these files are read again."""
        new = read_labelled(images, self.size, allow_outside, skip_bad)[0]
        if not len(new):
            raise InputError("There are no images to learn: add some.")
        if len(set(new.class_names)) < new.classes:
            raise InputError(f"Two classes of {', '.join(new.class_names)} have the same name: rename one of them.")
        return new

    def learned(self, images: ImageSet) -> bool:
        """Whether the same images were learned at an earlier step."""
        same = {Step.of(images).digest, Step.of_earlier_versions(images).digest}
        return any(step.digest in same for step in self.steps)

    def _increment(self, new: ImageSet) -> Increment:
        """The next step: the new images follow the exemplars."""
        known = self.class_names
        again = sorted(set(known).intersection(new.class_names))
        if again and not self.learner.takes_known_classes:
            raise InputError(
                f"Class {again[0]!r} is already known, and {self.learner.title} learns a class once: leave its images "
                "out, give the class another name, or use a classifier with method=anyarrival."
            )
        names = known + tuple(name for name in new.class_names if name not in again)
        classes = len(names)
        if find_method(self.config.method).uses_memory:
            exemplars_per_class(self.config.memory, classes)
        position = torch.tensor([names.index(name) for name in new.class_names])
        behind = replace(new, labels=position[new.labels.cpu()], class_names=names)
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
        answers = self.answer(images, top, None, skip_bad)
        return [[] if answer is None else list(answer.guesses) for answer in answers]

    def answer(
        self, images: Iterable[Picture], top: int = 1, false_alarms: float | None = FALSE_ALARMS, skip_bad: bool = False
    ) -> list[Answer | None]:
        """The most likely classes of each image, and whether it is of none of them; None if `skip_bad` skips it.

        Args:
            false_alarms: Share of images of known classes that may be called unknown; None: no image is called so, as
                is needed for methods that cannot tell.
        """
        return self._answering.answer(images, top, false_alarms, skip_bad)

    @property
    def usual_false_alarms(self) -> float | None:
        """The default share of false alarms; None if the method cannot tell unknown images."""
        return FALSE_ALARMS if self.learner.tells_unknown else None

    def describe(self, images: Iterable[Picture], skip_bad: bool = False) -> Description:
        """Scores, novelty and features of images, if the method can compare images."""
        return self._answering.describe(images, skip_bad)

    def unlearned_scores(
        self, images: Labelled, allow_outside: bool = False, skip_bad: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Scores [N, classes] of labelled images, not calibrated, as if they had not been learned if the method can do
        that, and their labels [N]. If they have a split, the training images are used. `allow_outside` and `skip_bad`
        are those of `read`."""
        labelled, labels = self._known(self.read(images, allow_outside, skip_bad))
        with self.engine.settled(), evaluating(self.learner):
            return self.learner.unlearned_scores(labelled.to(self.engine.device)).cpu(), labels

    def _known(self, labelled: ImageSet) -> tuple[ImageSet, Tensor]:
        """Images of known classes, with their classes as positions in `class_names` [N]."""
        position = {name: k for k, name in enumerate(self.class_names)}
        if strangers := [name for name in labelled.class_names if name not in position]:
            raise InputError(f"Class {strangers[0]!r} is not known: teach it to the classifier, or leave it out.")
        return labelled, torch.tensor([position[name] for name in labelled.class_names])[labelled.labels.cpu()]

    def test(
        self,
        images: Labelled,
        unknown: Iterable[Picture] | None = None,
        false_alarms: float = FALSE_ALARMS,
        allow_outside: bool = False,
        skip_bad: bool = False,
    ) -> dict[str, Any]:
        """Measure the classifier on labelled images of known classes: accuracy overall, by step and by class, and the
        expected calibration error, all in percent. If the images have a split, the test images are used.

        Args:
            unknown: Images of no known class. With them, `unknown` says how well they are told from the others.
            false_alarms: Share of images of known classes that may be called unknown.
            allow_outside: Whether a table may name files outside its own folder.
            skip_bad: Whether labelled files that cannot be read are skipped, now and whenever they are read again.
        """
        labelled, true = self._known(read_labelled(images, self.size, allow_outside, skip_bad)[1])
        if not len(labelled):
            raise InputError("There are no images to test on: add some.")
        steps = [len(step.names) for step in self.steps]
        return self._answering.measure(labelled.images, true, steps, unknown, false_alarms)

    @property
    def _answering(self) -> Answering:
        return Answering(self.learner, self.engine, self.class_names, self.size, self.config.evaluate_batch)

    def _scores(self, store: Images) -> Tensor:
        """Scores of the images of a store by the scored classifier, [N, classes] on the CPU."""
        return self._answering.open_scores(store)[0]

    # --- keeping --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path, versions: int | None = None, days: float | None = None) -> None:
        """Save everything but the pre-trained network as a new version in a folder, and switch to it at one moment.

        Args:
            versions: Number of versions that are kept, now and from now on.
            days: Age at which versions are removed, too, now and from now on; the current one always stays.
        """
        self.retention = self.retention.changed(versions, days)
        folder = Path(folder).resolve()
        if (folder / MODEL).is_file() and folder != self._home:
            raise InputError(f"There is another classifier in {folder}: choose another folder, or remove it first.")
        folder.mkdir(parents=True, exist_ok=True)
        files = Versions(folder)
        if not (self._saved and folder == self._home and files.current.is_file()):
            self._write(files)
            (folder / LEARNING).unlink(missing_ok=True)
        files.prune(self.version, self.retention.versions, self.retention.days)

    def _write(self, files: Versions) -> None:
        number = files.next_number()
        changes = [change if change.version else replace(change, version=number) for change in self._changes]
        images = self._kept.images
        kept = {"images": images} if isinstance(images, Tensor) else {"pixels": images.pixels, "sizes": images.sizes}
        state = {
            "config": self.config.model_dump(mode="json"),
            "steps": [asdict(step) for step in self.steps],
            "version": number,
            "changes": [change.state() for change in changes],
            "retention": asdict(self.retention),
            "identity": self._identity,
            "learner": self.learner.state(),
            "kept": {**kept, "labels": self._kept.labels},
        }
        files.write(state, number)
        self._home, self._saved, self.version, self._changes = files.folder, True, number, changes

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None, changes: Mapping[str, Any] | None = None) -> Self:
        """Load what `save` wrote, with nested `changes` to the fields of its configuration that are in
        `saved_config.CHANGEABLE`."""
        folder = Path(folder)
        check_model(folder)
        state = Versions(folder).read()
        config, differs = changed_config(folder, state["config"], changes or {})
        classifier = cls(config, device)
        classifier.steps = [
            Step(tuple(step["names"]), step["digest"], tuple(step.get("again", ()))) for step in state["steps"]
        ]
        classifier._changes = [Change.restored(change) for change in state.get("changes", [])]
        # a model of a release without versions is its own first one
        classifier.version, classifier._saved = state.get("version", 1), not differs
        classifier.retention = Retention(**state.get("retention", {}))
        kept = state["kept"]
        images = kept["images"] if "images" in kept else RaggedImages.packed(kept["pixels"], kept["sizes"])
        classifier._kept = ImageSet(images, kept["labels"], classifier.class_names)
        classifier._identity, classifier._home = state["identity"], folder.resolve()
        classifier._restore(state["learner"])
        return classifier

    def _build_again(self, state: Mapping[str, Any]) -> None:
        """Replace the learner by one as it was after the steps so far."""
        del self.learner  # there may not be enough memory for two of them
        self._build()
        self._restore(state)

    def _restore(self, state: Mapping[str, Any]) -> None:
        """Bring a learner that has just been built to the state after the steps so far."""
        nothing = self._kept.subset(torch.empty(0, dtype=torch.int64)).to(self.engine.device)
        ends = itertools.accumulate(len(step.names) for step in self.steps)
        for number, (end, step) in enumerate(zip(ends, self.steps, strict=True), 1):
            self.learner.begin(_untested(number, end - len(step.names), end, nothing, nothing.labels))
        self.learner.restore(state)


def _untested(step: int, before: int, now: int, train: ImageSet, rows: Tensor) -> Increment:
    """A step without test images."""
    return Increment(step, before, now, train, rows, test=train, test_rows=rows[:0])
