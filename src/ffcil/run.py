"""One run: a configuration becomes a folder of records, checkpointed so that a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ffcil import arrivals as schedules
from ffcil import metrics
from ffcil.arrivals import Arrivals
from ffcil.checkpoint import checkpoints, load_state, remove_drafts, save_checkpoint, write_whole
from ffcil.config import EqualArrivals, GivenArrivals, HalfArrivals, RunConfig, TraceArrivals, validate
from ffcil.data.augment import Augmentation
from ffcil.data.sources import SOURCES, DataSet, load_dataset
from ffcil.environment import describe_environment
from ffcil.errors import BusyError, InputError
from ffcil.memory import ExemplarMemory
from ffcil.methods import find_method
from ffcil.methods.learner import Learner, build_learner, complete
from ffcil.models.vit import published_normalisation
from ffcil.progress import Listener
from ffcil.stream import Increment, Stream
from ffcil.training import Engine, Progress

Counts = dict[str, NDArray[np.int64]]


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


def default_folder(config: RunConfig, data: Path | DataSet | None) -> Path:
    """Named by the configuration, and by where the images are where they are the user's own."""
    place, source = "", SOURCES.get(config.dataset)
    if isinstance(data, Path) and source is not None and source.classes is None:
        place = "-" + hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:6]
    return Path("runs") / f"{config.dataset}-{config.method}-{config.identity()}{place}"


def count(true: torch.Tensor, predicted: torch.Tensor, classes: int) -> NDArray[np.int64]:
    """How often each true class was predicted as each, [classes, classes]."""
    cells = torch.bincount(true.cpu() * classes + predicted.cpu(), minlength=classes * classes)
    return cells.view(classes, classes).numpy()


def evaluate(learner: Learner, increment: Increment) -> Counts:
    """Count table of every classifier over the test images of all classes seen."""
    true = increment.test.labels[increment.test_rows]
    return {
        name: count(true, predicted, increment.seen_now) for name, predicted in learner.predictions(increment).items()
    }


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process at a time in a folder; the lock goes with the process, however that ends."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BusyError(f"Another process is running in {folder}: wait for it, or choose another --out.") from error
        yield


def is_busy(folder: Path) -> bool:
    """Whether another process is running in a folder at this moment."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


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
        self.folder = Path(folder) if folder else default_folder(self.config, self.data)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.threads = threads
        self.listener = listener or Listener()

    # --- the folder -----------------------------------------------------------------------------------------------

    def _read(self, name: str) -> Any:
        """A JSON file of the folder; None where it is not there."""
        path = self.folder / name
        if not path.exists():
            return None
        try:
            return json.loads(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}): remove the run's folder and start again.") from error

    def _write(self, name: str, value: Any) -> None:
        write_whole(self.folder / name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def _begun(self) -> bool:
        """Whether there is anything to take up."""
        return bool(self._records() or checkpoints(self.folder / "checkpoints"))

    def _check_config(self) -> None:
        theirs, mine = self._read("config.json"), self.config.content()
        if theirs is None or not (self._begun() or (self.folder / "done").exists()):
            return
        theirs = complete(
            validate(RunConfig, theirs)
        ).content()  # fields that came with a later version: their defaults
        if differing := sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)):
            raise InputError(
                f"{self.folder} holds a run with another configuration (it differs in {', '.join(differing)}): "
                "choose another --out, or remove that folder."
            )

    def _claim(self, stream: Stream, engine: Engine) -> None:
        """Write what the run is, or see that the folder holds the same run on the same data."""
        self._check_config()
        now = {"arrivals.json": stream.arrivals.to_json(), "data.json": fingerprint(stream)}
        for name, value in now.items():
            before = self._read(name)
            if self._begun() and before != json.loads(json.dumps(value)):
                what = "schedule (its trace has changed)" if name == "arrivals.json" else "images"
                raise InputError(
                    f"The run in {self.folder} was begun with other {what}: bring them back, or choose another --out."
                )
            self._write(name, value)
        self._write("config.json", self.config.model_dump(mode="json"))
        self._write_environment(engine)

    def _write_environment(self, engine: Engine) -> None:
        """Of the first start; what is different at a later one is noted beside it."""
        now, first = describe_environment(engine), self._read("environment.json")
        if first is None or not self._begun():
            self._write("environment.json", now)
            return
        lasting = ("ffcil", "commit", "python", "torch", "device", "precision", "graph", "compile")
        changed = {key: now[key] for key in lasting if now[key] != first.get(key)}
        if changed and changed not in first.setdefault("taken_up_with", []):
            first["taken_up_with"].append(changed)
            self._write("environment.json", first)

    def _fix_threads(self) -> None:
        """A CPU's sums depend on the number of threads: a run taken up again uses as many as when it began. On a GPU
        they do not, and the next machine may have fewer cores."""
        on_cpu = self.device == "cpu"
        begun_with = (self._read("environment.json") or {}).get("threads") if on_cpu and self._begun() else None
        if begun_with and self.threads and begun_with != self.threads:
            raise InputError(f"The run in {self.folder} was begun with {begun_with} thread(s): leave --threads out.")
        if threads := begun_with or self.threads:
            torch.set_num_threads(threads)

    def _records(self) -> list[bytes]:
        """Whole lines of records.jsonl."""
        path = self.folder / "records.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        return [line + b"\n" for line in lines[:-1]]

    def _keep_records(self, finished: int) -> None:
        """Drop records of steps that the checkpoint does not know: they will be made again."""
        records = self._records()
        if len(records) < finished:
            raise InputError(f"{self.folder} is damaged (records are missing): remove it and start again.")
        write_whole(self.folder / "records.jsonl", b"".join(records[:finished]))

    def _append_record(self, record: dict[str, Any]) -> None:
        with (self.folder / "records.jsonl").open("ab") as file:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def _write_counts(self, step: int, counts: Counts) -> None:
        content = io.BytesIO()
        np.savez_compressed(content, **counts)  # type: ignore[arg-type]
        write_whole(self.folder / "counts" / f"step-{step:03d}.npz", content.getvalue())

    def _tables(self, sizes: tuple[int, ...]) -> dict[str, metrics.CountTable]:
        by_step = [np.load(self.folder / "counts" / f"step-{k + 1:03d}.npz") for k in range(len(sizes))]
        return {name: metrics.CountTable(sizes, tuple(step[name] for step in by_step)) for name in by_step[0]}

    # --- the run --------------------------------------------------------------------------------------------------

    def execute(self) -> dict[str, Any]:
        """Run to the end and return the summary. A finished run does nothing."""
        try:
            if not (self.folder / "done").exists():
                self._fix_threads()
                stream, learner = self._prepare()
                for part in ("checkpoints", "counts"):
                    (self.folder / part).mkdir(parents=True, exist_ok=True)
                with _locked(self.folder):
                    if not (self.folder / "done").exists():  # another process may have finished it meanwhile
                        remove_drafts(self.folder)
                        self._claim(stream, learner.engine)
                        self._run(stream, learner)
        except torch.OutOfMemoryError as error:
            raise InputError(
                "The GPU's memory is not enough: lower train.batch, evaluate_batch or image_size, or use --device cpu."
            ) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                place = error.filename or self.folder
                raise InputError(
                    f"The disk is full ({place}): free some space, then the same command continues."
                ) from error
            raise
        self._check_config()
        summary = self._read("summary.json")
        if summary is None:
            raise InputError(f"{self.folder} is damaged (done, but no summary.json): remove it and start again.")
        return {**summary, "folder": str(self.folder)}

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
        learner = build_learner(config, _augmentation(config, data), engine)
        return stream.to(engine.device), learner

    def _run(self, stream: Stream, learner: Learner) -> None:
        finished, progress = self._resume(stream, learner)
        self._keep_records(finished)
        self.listener.started(str(self.folder), len(stream), finished, progress.epoch if progress else 0)
        try:
            for position in range(finished, len(stream)):
                self._step(learner, stream[position], progress)
                progress = None
        finally:
            self.listener.finished()
        self._conclude(stream, learner)

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

    def _step(self, learner: Learner, increment: Increment, progress: Progress | None) -> None:
        new, epochs = len(increment.classes), learner.phase(increment).epochs if learner.trains(increment) else 0
        self.listener.step_started(increment.step, new, increment.seen_now, epochs)
        saved = time.monotonic()

        def after_epoch(now: Progress) -> None:
            nonlocal saved
            self.listener.epoch_done(now.epoch, now.loss, now.images / now.seconds)
            if time.monotonic() - saved >= self.config.checkpoint_seconds:
                self._save(learner, increment.step - 1, now)
                saved = time.monotonic()

        notes = learner.learn(increment, progress, after_epoch)
        start = time.perf_counter()
        counts = evaluate(learner, increment)
        notes["seconds"]["evaluate"] = time.perf_counter() - start
        record = make_record(increment, counts, notes)
        self._write_counts(increment.step, counts)
        self._append_record(record)
        self._save(learner, increment.step, None)
        self.listener.step_done(record)

    def _conclude(self, stream: Stream, learner: Learner) -> None:
        records = [json.loads(line) for line in self._records()]
        classifiers = {name: metrics.summarise(t) for name, t in self._tables(stream.arrivals.sizes).items()}
        scored = learner.classifiers[0]
        seconds = {phase: sum(r["seconds"][phase] for r in records) for phase in records[0]["seconds"]}
        images = sum(r["images_per_second"] * r["seconds"]["train"] for r in records)
        summary = {
            "dataset": self.config.dataset,
            "method": self.config.method,
            "title": learner.title,
            "robust": self.config.robust,
            "sizes": list(stream.arrivals.sizes),
            "scored": scored,
            **{key: classifiers[scored][key] for key in ("average", "last", "forgetting")},
            "classifiers": classifiers,
            "seconds": sum(seconds.values()),
            "seconds_by_phase": seconds,
            "images_per_second": images / seconds["train"] if seconds["train"] else 0.0,
            "parameters": records[-1]["parameters"],
        }
        self._write("summary.json", summary)
        write_whole(self.folder / "done", b"")


def fingerprint(stream: Stream) -> dict[str, Any]:
    """What tells one set of images from another: classes, counts, labels, and a sample of the pixels."""
    sample = hashlib.sha256()
    for split in (stream.train, stream.test):
        sample.update(split.labels.cpu().numpy().tobytes())
        if len(split):
            rows = torch.linspace(0, len(split) - 1, min(64, len(split))).long().to(split.images.device)
            sample.update(split.content(rows))
    return {
        "classes": list(stream.train.class_names),
        "train_images": stream.train.counts().tolist(),
        "test_images": stream.test.counts().tolist(),
        "image_size": list(stream.train.image_size),
        "sample": sample.hexdigest(),
    }


def _augmentation(config: RunConfig, data: DataSet) -> Augmentation:
    """The data set's own, as the configuration changes it."""
    augmentation = data.augmentation
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
        **{
            key: {name: metrics.group_accuracy(table, group) for name, table in counts.items()}
            for key, group in groups.items()
        },
        **notes,
    }
