"""`Classifier`: a learner on somebody's own images, to which new classes can be taught at any time.

Of the images that were learned it keeps those that its method asks for, the exemplars, and no others. Taught step by
step, saved and loaded in between, it becomes what a `Run` over the same classes in the same steps becomes.
"""

from __future__ import annotations

import copy
import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from ffcil.checkpoint import load_state, save_state, write_whole
from ffcil.config import RunConfig, validate
from ffcil.data.decoding import UnreadableImages, upright
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import DEFAULT_SIZE, own_augmentation
from ffcil.data.ragged import RaggedImages
from ffcil.data.sources import SOURCES, kind_of
from ffcil.data.store import BadImage
from ffcil.data.torch_datasets import frame_of, image_set_of, stored
from ffcil.errors import InputError
from ffcil.memory import ExemplarMemory
from ffcil.methods import find_method
from ffcil.methods.learner import build_learner, complete
from ffcil.metrics import group_accuracy
from ffcil.progress import Listener
from ffcil.recipe import read_yaml
from ffcil.run import augmentation_of, count
from ffcil.run_folder import locked
from ffcil.stopping import Stop
from ffcil.stream import Increment
from ffcil.training import Engine, Progress, evaluating

Picture = str | Path | Image.Image | Tensor
"""a file, a PIL image, or a tensor [1 or 3, H, W] that is uint8 or, in [0, 1], floating"""
Labelled = str | Path | ImageSet | Dataset[Any]
"""a folder of class folders, a Parquet or CSV file, or a map-style data set of (image, label)"""
MODEL, LEARNING, CONFIG = "model.safetensors", "learning.safetensors", "config.json"


@dataclass(frozen=True)
class Guess:
    """A class that an image may be of."""

    name: str
    score: float
    """in 0 .. 1, all classes' together 1: a softmax of the method's own scores, not calibrated"""


class Classifier:
    """`classifier.learn("monday/"); classifier.learn("tuesday/"); classifier.predict(["what.jpg"])`

    Of a configuration its data set, arrivals and their seeds have no meaning here: what comes, comes.
    """

    def __init__(self, config: RunConfig, device: str | None = None) -> None:
        self.config = complete(config)
        self.size = config.image_size or DEFAULT_SIZE
        self.engine = Engine.create(device or ("cuda" if torch.cuda.is_available() else "cpu"), config.train)
        self.steps: list[tuple[str, ...]] = []
        """names of the classes that came at each step"""
        self._kept = ImageSet(stored([], self.size), torch.empty(0, dtype=torch.int64), ())
        """the images that later steps train on again, in the host's memory"""
        self._build()

    def _build(self) -> None:
        augmentation = augmentation_of(self.config, own_augmentation(self.size))
        self.learner = build_learner(self.config, augmentation, self.engine)

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of all classes learned, in the order in which they came."""
        return tuple(name for step in self.steps for name in step)

    # --- learning -------------------------------------------------------------------------------------------------

    def learn(
        self, images: Labelled, folder: str | Path | None = None, listener: Listener | None = None
    ) -> dict[str, Any]:
        """Learn new classes, as many as there are. What fails, or is broken off, leaves the classifier as it was.

        Where the images have a split, those for testing are left out.

        Args:
            folder: for what a learning that is broken off has got to; the same call goes on from there

        Returns:
            what the method notes: seconds by phase, images per second, loss, ...
        """
        new = self._read(images)[0]
        increment = self._increment(new)
        progress_file = _Progress(Path(folder), self._request(new)) if folder else None
        listener = listener or Listener()
        epochs = self.learner.phase(increment).epochs if self.learner.trains(increment) else 0
        listener.step_started(increment.step, new.classes, increment.seen_now, epochs)
        before = copy.deepcopy(self.learner.state())
        try:
            progress = progress_file.take_up(self, increment) if progress_file else None

            with Stop() as stop:

                def after_epoch(now: Progress) -> None:
                    listener.epoch_done(now.epoch, now.loss, now.images / now.seconds)
                    if progress_file:
                        progress_file.note(self, now, at_once=stop.asked)
                    stop.raise_if_asked()

                notes = self.learner.learn(increment, progress, after_epoch)
            self._keep(increment.train)
        except BaseException:
            self._restore(before)
            raise
        self.steps.append(new.class_names)
        return notes

    def _read(self, images: Labelled) -> tuple[ImageSet, ImageSet | None]:
        """Images to learn and, where there is a split, images to test on."""
        if isinstance(images, ImageSet):
            return images, None
        if not isinstance(images, str | Path):
            return image_set_of(images, self.size), None
        path = Path(images).expanduser()
        list_images = SOURCES[kind_of(path)].list_images
        assert list_images is not None
        listing = list_images(path)
        train, test = listing.undivided().load(self.size)
        return train, None if listing.drawn else test

    def _increment(self, new: ImageSet) -> Increment:
        """The next step: new images behind those that were kept."""
        known = self.class_names
        if again := set(known).intersection(new.class_names):
            raise InputError(
                f"Class {sorted(again)[0]!r} is known already: leave its images out, or give the class another name."
            )
        if not new.classes or (empty := (new.counts() == 0).nonzero().flatten().tolist()):
            what = f"Class {new.class_names[empty[0]]!r} has no images" if new.classes else "There are no classes"
            raise InputError(f"{what}: add some, or leave it out.")
        classes = len(known) + new.classes
        if find_method(self.config.method).uses_memory:
            ExemplarMemory(self.config.memory.budget, self.config.memory.per_class).quota(classes)
        behind = replace(new, labels=new.labels + len(known), class_names=known + new.class_names)
        train = self._kept.followed_by(behind).to(self.engine.device)
        rows = torch.arange(len(self._kept), len(train), device=train.labels.device)
        return self._step(len(self.steps) + 1, len(known), classes, train, rows)

    def _step(self, step: int, before: int, now: int, train: ImageSet, rows: Tensor) -> Increment:
        """A step on which nothing is tested."""
        return Increment(step, before, now, train, rows, test=train, test_rows=rows[:0])

    def _keep(self, train: ImageSet) -> None:
        """Put aside the images that the next step will need, and let go of all others."""
        rows = self.learner.kept_rows().cpu()
        position = torch.full((len(train),), -1)
        position[rows] = torch.arange(len(rows))
        self.learner.renumber(position)
        self._kept = train.subset(rows.to(train.labels.device)).to(torch.device("cpu"))

    def _request(self, new: ImageSet) -> str:
        """What tells one learning from another: all that was learned before, and the new classes and images."""
        content = hashlib.sha256(repr((self.config.identity(), self.steps, new.class_names)).encode())
        content.update(new.sample())
        return content.hexdigest()

    # --- predicting -----------------------------------------------------------------------------------------------

    def predict(self, images: Iterable[Picture], top: int = 1, skip_bad: bool = False) -> list[list[Guess]]:
        """The `top` likeliest classes of each image, likeliest first; none of one that `skip_bad` passes over."""
        names = self.class_names
        if not names:
            raise InputError("The classifier knows no classes yet: let it learn some first.")
        guesses: list[list[Guess]] = []
        for frames in self._frames(images, skip_bad):
            scores = self._scores(stored([frame for frame in frames if frame is not None], self.size))
            best = scores.softmax(dim=1).topk(min(top, len(names)), dim=1)
            found = (
                [Guess(names[label], score) for label, score in zip(labels, values, strict=True)]
                for labels, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
            )
            guesses += [[] if frame is None else next(found) for frame in frames]
        return guesses

    def test(self, images: Labelled) -> dict[str, Any]:
        """Accuracy in percent on labelled images of known classes: of all, by the step in which a class came, and by
        class. Where the images have a split, those for testing are taken."""
        train, test = self._read(images)
        labelled = train if test is None else test
        names = self.class_names
        position = {name: k for k, name in enumerate(names)}
        if unknown := [name for name in labelled.class_names if name not in position]:
            raise InputError(f"Class {unknown[0]!r} is not known: let the classifier learn it, or leave it out.")
        if not len(labelled):
            raise InputError("There are no images to test on: add some.")
        true = torch.tensor([position[name] for name in labelled.class_names])[labelled.labels.cpu()]
        table = count(true, self._scores(labelled.images).argmax(dim=1), len(names))
        ends = list(itertools.accumulate(map(len, self.steps)))
        by_step = [group_accuracy(table, slice(b - len(s), b)) for b, s in zip(ends, self.steps, strict=True)]
        by_class = {name: group_accuracy(table, slice(k, k + 1)) for name, k in position.items()}
        return {
            "images": len(labelled),
            "accuracy": group_accuracy(table, slice(None)),
            "by_step": by_step,
            "by_class": {name: accuracy for name, accuracy in by_class.items() if accuracy is not None},
        }

    def _scores(self, store: Tensor | RaggedImages) -> Tensor:
        """Of the untouched images of a store, by the method's first classifier, [N, classes] on the CPU."""
        learner, rows = self.learner, torch.arange(len(store))
        scored = learner.classifiers[0]
        images = store.to(self.engine.device)
        with self.engine.settled(), evaluating(learner):
            batches = [scores[scored].cpu() for scores in learner.over(images, rows, learner.logits)]
        return torch.cat([torch.empty(0, len(self.class_names)), *batches])

    def _frames(self, images: Iterable[Picture], skip_bad: bool) -> Iterator[list[Tensor | None]]:
        """As stored, a batch at a time, read side by side; None for one that cannot be read."""

        def frame(item: tuple[int, Picture]) -> Tensor | BadImage:
            number, image = item
            if not isinstance(image, str | Path):
                return frame_of(image, self.size, f"Input {number + 1}")
            try:
                return frame_of(upright(Path(image)), self.size, str(image))
            except Exception as error:  # a damaged file can bring a decoder to any of them
                return BadImage(number, str(image), str(error))

        numbered = enumerate(images)
        with ThreadPoolExecutor() as pool:
            while batch := list(itertools.islice(numbered, self.config.evaluate_batch)):
                frames = list(pool.map(frame, batch))
                if (bad := [each for each in frames if isinstance(each, BadImage)]) and not skip_bad:
                    raise UnreadableImages(bad)
                yield [None if isinstance(each, BadImage) else each for each in frames]

    # --- keeping --------------------------------------------------------------------------------------------------

    def save(self, folder: str | Path) -> None:
        """Everything, in a folder of its own: whole at every moment, and free of what a learning left in it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        images = self._kept.images
        kept = {"images": images} if isinstance(images, Tensor) else {"pixels": images.pixels, "sizes": images.sizes}
        state = {
            "steps": [list(step) for step in self.steps],
            "learner": self.learner.state(),
            "kept": {**kept, "labels": self._kept.labels},
        }
        write_whole(folder / CONFIG, self.config.model_dump_json(indent=2).encode())
        save_state(folder / MODEL, state)
        (folder / LEARNING).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: str | Path, device: str | None = None) -> Classifier:
        """What `save` wrote."""
        folder = Path(folder)
        if not (folder / MODEL).is_file():
            raise InputError(f"There is no classifier in {folder}: make one with `ffcil learn {folder} IMAGES`.")
        text = (folder / CONFIG).read_text(encoding="utf-8")
        classifier = cls(validate(RunConfig, read_yaml(str(folder / CONFIG), text)), device)
        state = load_state(folder / MODEL)
        classifier.steps = [tuple(step) for step in state["steps"]]
        kept = state["kept"]
        images = kept["images"] if "images" in kept else RaggedImages.packed(kept["pixels"], kept["sizes"])
        classifier._kept = ImageSet(images, kept["labels"], classifier.class_names)
        classifier._restore(state["learner"])
        return classifier

    def _restore(self, state: Mapping[str, Any]) -> None:
        """The learner as it was after the steps so far."""
        self._build()
        nothing = self._kept.subset(torch.empty(0, dtype=torch.int64)).to(self.engine.device)
        ends = itertools.accumulate(map(len, self.steps))
        for number, (end, names) in enumerate(zip(ends, self.steps, strict=True), 1):
            self.learner.begin(self._step(number, end - len(names), end, nothing, nothing.labels))
        self.learner.restore(state)


class _Progress:
    """What a learning has got to, in a file; written now and then, and of use only to the same learning."""

    def __init__(self, folder: Path, request: str) -> None:
        self.file, self.request = folder / LEARNING, request
        self.written = time.monotonic()

    def take_up(self, classifier: Classifier, increment: Increment) -> Progress | None:
        """Bring the learner to where the file says that it was; None where there is nothing to take up."""
        if not self.file.is_file():
            return None
        state = load_state(self.file)
        if state["request"] != self.request:
            return None
        classifier.learner.begin(increment)
        classifier.learner.restore(state["learner"])
        return Progress(**state["progress"])

    def note(self, classifier: Classifier, progress: Progress, at_once: bool) -> None:
        if at_once or time.monotonic() - self.written >= classifier.config.checkpoint_seconds:
            state = {"request": self.request, "progress": vars(progress), "learner": classifier.learner.state()}
            self.file.parent.mkdir(parents=True, exist_ok=True)
            save_state(self.file, state)
            self.written = time.monotonic()


def teach(
    folder: Path,
    images: Sequence[Labelled],
    config: RunConfig | None,
    device: str | None = None,
    listener: Listener | None = None,
) -> tuple[Classifier, list[dict[str, Any]]]:
    """Load the classifier in `folder`, or make it of `config`; let it learn step by step, and save it after each."""
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        classifier = Classifier(config, device) if config is not None else Classifier.load(folder, device)
        notes = []
        for step in images:
            notes.append(classifier.learn(step, folder, listener))
            classifier.save(folder)
    return classifier, notes
