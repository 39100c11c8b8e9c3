"""One run: a configuration becomes a folder of records, checkpointed so that a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ffcil import arrivals as schedules
from ffcil import metrics
from ffcil.arrivals import Arrivals
from ffcil.config.settings import EqualArrivals, GivenArrivals, HalfArrivals, RunConfig, TraceArrivals
from ffcil.data.augment import Augmentation
from ffcil.data.sources import DataSet, load_dataset
from ffcil.errors import InputError
from ffcil.methods import find_method
from ffcil.methods.learner import Learner, build_learner, complete
from ffcil.methods.parts.exemplars import ExemplarMemory
from ffcil.models.vit import published_normalisation
from ffcil.runs.atomic import remove_drafts
from ffcil.runs.checkpoint import load_state, save_checkpoint
from ffcil.runs.counts import Counts
from ffcil.runs.environment import Session, describe_environment, describe_method
from ffcil.runs.folder import RunFolder, checkpoints, locked
from ffcil.runs.identity import fingerprint, identity
from ffcil.runs.progress import Listener
from ffcil.runs.stopping import Stop
from ffcil.stream import Increment, Stream
from ffcil.training.fit import Engine, Progress


def build_arrivals(config: RunConfig, available: int) -> Arrivals:
    """The schedule that a configuration describes, over `available` classes or as many as it names."""
    settings, seed = config.arrivals, config.arrival_seed
    if isinstance(settings, GivenArrivals):
        return schedules.given(settings.sizes, settings.order, seed)
    if isinstance(settings, TraceArrivals):
        return schedules.from_trace(settings.trace, settings.window)
    classes = settings.classes or available
    if classes > available:
        raise InputError(
            f"arrivals.classes is {classes}, but the data set has {available}: lower it, or set it to null."
        )
    if isinstance(settings, EqualArrivals):
        return schedules.equal(classes, settings.steps)
    if isinstance(settings, HalfArrivals):
        return schedules.half(classes, settings.steps)
    s = settings
    return schedules.free_flow(classes, s.steps, s.smallest, s.largest, s.alpha, s.order, seed)


def evaluate(learner: Learner, increment: Increment) -> Counts:
    """Confusion counts of every classifier over the test images of all classes seen."""
    true = increment.test.labels[increment.test_rows].numpy(force=True)
    return {
        name: metrics.Confusion.count(true, predicted.numpy(force=True), increment.seen_now)
        for name, predicted in learner.predictions(increment).items()
    }


class Run:
    """One configuration in one folder.

    `Run(config, folder).execute()` starts it, takes it up where it was broken off, or, when done, gives its summary.
    `data` is the file or folder of the configuration's data set, or a `DataSet` in its place, such as `dataset_of`
    makes; the configuration's `dataset` is then a name for it.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path | None = None,
        *,
        data: str | Path | DataSet | None = None,
        device: str | None = None,
        threads: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.config = complete(config)  # a wrong name is answered before anything is made
        self.data = Path(data) if isinstance(data, str) else data
        named = f"{self.config.dataset}-{self.config.method}-{identity(self.config, self.data)}"
        self.folder = Path(folder) if folder else Path("runs") / named
        self.files = RunFolder(self.folder)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.threads = threads
        self.listener = listener or Listener()

    def _environment(self, learner: Learner) -> dict[str, Any]:
        """Where the run is made, and what its data are called there."""
        environment = describe_environment(learner.engine)
        if isinstance(self.data, Path):
            place = self.data.resolve()
            environment["data"] = place.stem if place.is_file() else place.name
        return environment

    def execute(self) -> dict[str, Any]:
        """Run to the end and return the summary. A finished run does nothing."""
        started = time.monotonic()
        with exhaustion_told(self.folder):
            if not self.files.done:
                self._fix_threads()
                stream, learner = self._prepare()
                for part in ("checkpoints", "counts"):
                    (self.folder / part).mkdir(parents=True, exist_ok=True)
                with locked(self.folder):
                    if not self.files.done:  # another process may have finished it meanwhile
                        remove_drafts(self.folder)
                        self._claim(stream, learner)
                        self._session = Session(self.files, learner.engine.device, started)
                        self._run(stream, learner)
        self.files.check_config(self.config, complete)
        return {**self.files.summary(), "folder": str(self.folder)}

    def _claim(self, stream: Stream, learner: Learner) -> None:
        """Write what is known before the first step."""
        self.files.check_config(self.config, complete)
        self.files.claim(
            self.config,
            arrivals=stream.arrivals.to_json(),
            data=fingerprint(stream),
            method=describe_method(learner),
            environment=self._environment(learner),
        )

    def _fix_threads(self) -> None:
        """On a GPU sums do not depend on them, and the next machine may have fewer cores."""
        threads = self.files.threads(self.threads) if self.device == "cpu" else self.threads
        if threads:
            torch.set_num_threads(threads)

    def _prepare(self) -> tuple[Stream, Learner]:
        """Everything that can be wrong is found here, before the folder is touched."""
        config = self.config
        engine = Engine.create(self.device, config.train)
        data = self.data
        if not isinstance(data, DataSet):
            data = load_dataset(config.dataset, data, config.image_size)
        arrivals = build_arrivals(config, data.train.classes)
        stream = Stream(data.train, data.test, arrivals, config.class_seed)
        if find_method(config.method).uses_memory:
            ExemplarMemory(config.memory.budget, config.memory.per_class).quota(arrivals.classes)
        learner = build_learner(config, augmentation_of(config, data.augmentation), engine)
        return stream.to(engine.device), learner

    def _run(self, stream: Stream, learner: Learner) -> None:
        finished, progress = self._resume(stream, learner)
        self.files.keep_records(finished)
        self.listener.started(str(self.folder), len(stream), finished, progress.epoch if progress else 0)
        try:
            with Stop() as stop:
                for position in range(finished, len(stream)):
                    stop.raise_if_told()
                    self._step(learner, stream[position], progress, stop)
                    progress = None
                self._conclude(stream, learner)
                stop.raise_if_told()  # done as it is: what comes after it is not to be begun
        finally:
            self.listener.finished()
            self._session.save()

    def _resume(self, stream: Stream, learner: Learner) -> tuple[int, Progress | None]:
        """Load the newest checkpoint: steps finished, and the progress within the next one where there was any."""
        found = checkpoints(self.folder / "checkpoints")
        if not found:
            return 0, None
        state = load_state(found[-1])
        finished: int = state["finished"]
        progress = Progress(**state["progress"]) if state["progress"] else None
        for position in range(finished + (progress is not None)):
            learner.begin(stream[position])
        learner.restore(state["learner"])
        return finished, progress

    def _save(self, learner: Learner, finished: int, progress: Progress | None) -> None:
        state = {"finished": finished, "progress": vars(progress) if progress else None, "learner": learner.state()}
        save_checkpoint(self.folder / "checkpoints", finished + 1, progress.epoch if progress else 0, state)

    def _step(self, learner: Learner, increment: Increment, progress: Progress | None, stop: Stop) -> None:
        new, epochs = len(increment.classes), learner.phase(increment).epochs if learner.trains(increment) else 0
        self.listener.step_started(increment.step, new, increment.seen_now, epochs)
        learner.looked_at = self.listener.looked_at
        saved = time.monotonic()

        def after_epoch(now: Progress) -> None:
            nonlocal saved
            self.listener.epoch_done(now.epoch, now.loss, now.images / now.seconds)
            if stop.told() or time.monotonic() - saved >= self.config.checkpoint_seconds:
                self._save(learner, increment.step - 1, now)
                saved = time.monotonic()
            stop.raise_if_told()

        notes = learner.learn(increment, progress, after_epoch)
        start = time.perf_counter()
        counts = evaluate(learner, increment)
        notes["seconds"]["evaluate"] = time.perf_counter() - start
        record = make_record(increment, counts, notes)
        self.files.write_counts(increment.step, counts)
        self.files.append_record(record)
        self._save(learner, increment.step, None)
        self._session.save()
        self.listener.step_done(record)

    def _conclude(self, stream: Stream, learner: Learner) -> None:
        records = self.files.records()
        classifiers = {name: metrics.summarise(t) for name, t in self.files.tables(stream.arrivals.sizes).items()}
        scored = learner.classifiers[0]
        seconds = {phase: sum(r["seconds"][phase] for r in records) for phase in records[0]["seconds"]}
        images = sum(r["images_per_second"] * r["seconds"]["train"] for r in records)
        summary = {
            "dataset": self.config.dataset,
            "method": self.config.method,
            "robust": self.config.robust,
            **describe_method(learner),
            "sizes": list(stream.arrivals.sizes),
            "scored": scored,
            **{key: classifiers[scored][key] for key in ("average", "last", "forgetting")},
            "classifiers": classifiers,
            "seconds": sum(seconds.values()),
            "seconds_by_phase": seconds,
            "images_per_second": images / seconds["train"] if seconds["train"] else 0.0,
            "parameters": records[-1]["parameters"],
        }
        self._session.save(check_gpu=True)
        self.files.finish(summary)


@contextmanager
def exhaustion_told(folder: Path) -> Iterator[None]:
    """A GPU or a disk that is full, in a sentence."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise InputError(
            "The GPU's memory is not enough: lower train.batch, evaluate_batch or image_size, or use --device cpu."
        ) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = error.filename or folder
            raise InputError(
                f"The disk is full ({place}): free some space, then the same command continues."
            ) from error
        raise


def augmentation_of(config: RunConfig, augmentation: Augmentation) -> Augmentation:
    """A data set's own, as the configuration changes it."""
    if config.train.augment == "none":
        augmentation = augmentation.still()
    elif config.train.augment == "auto":
        augmentation = replace(augmentation, auto=True)
    normalise = config.normalise
    if normalise == "auto":
        normalise = "unit" if find_method(config.method).pretrained else "data"
    if normalise == "unit":
        return replace(augmentation, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if normalise == "weights":
        mean, std = published_normalisation(config.backbone)
        return replace(augmentation, mean=mean, std=std)
    return augmentation


def make_record(increment: Increment, counts: Counts, notes: dict[str, Any]) -> dict[str, Any]:
    """One line of records.jsonl; accuracies in percent, by classifier, the scored one first."""
    groups = {
        "accuracy": slice(None),
        "old_accuracy": slice(0, increment.seen_before),
        "new_accuracy": slice(increment.seen_before, increment.seen_now),
    }
    return {
        "step": increment.step,
        "new_classes": len(increment.classes),
        "seen_classes": increment.seen_now,
        "new_labels": list(increment.new_labels),
        **{key: {name: table.accuracy(group) for name, table in counts.items()} for key, group in groups.items()},
        **notes,
    }
