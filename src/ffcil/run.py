"""One run: a configuration becomes a folder of records, checkpointed so that a kill at any moment loses nothing."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import ffcil
from ffcil import arrivals as schedules
from ffcil import metrics
from ffcil.arrivals import Arrivals
from ffcil.checkpoint import checkpoints, load_state, save_checkpoint, write_whole
from ffcil.config import EqualArrivals, GivenArrivals, HalfArrivals, RunConfig, TraceArrivals
from ffcil.data.augment import Augmentation
from ffcil.data.sources import DataSet, load_dataset
from ffcil.errors import InputError
from ffcil.methods import find_method
from ffcil.methods.learner import Learner, build_learner
from ffcil.progress import Listener, Silent
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


def default_folder(config: RunConfig) -> Path:
    return Path("runs") / f"{config.dataset}-{config.method}-{config.identity()}"


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


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
            raise InputError(
                f"Another process is running in {folder}: wait for it, or choose another --out."
            ) from error
        yield


class Run:
    """One configuration in one folder.

    `Run(config, folder).execute()` starts it, takes it up where it was broken off, or, when done, gives its summary.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: Path | None = None,
        *,
        data: Path | None = None,
        device: str | None = None,
        threads: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.config = config
        self.folder = folder or default_folder(config)
        self.data = data
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.threads = threads
        self.listener: Listener = listener or Silent()
        find_method(config.method)  # a wrong name is answered before anything is made

    # --- the folder -----------------------------------------------------------------------------------------------

    def _claim(self) -> None:
        """Write the configuration, or see that the folder holds the same one."""
        path = self.folder / "config.json"
        mine = self.config.model_dump(mode="json")
        if not path.exists():
            write_whole(path, _json(mine))
            return
        theirs = json.loads(path.read_text(encoding="utf-8"))
        differing = sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key))
        if differing:
            raise InputError(
                f"{self.folder} holds a run with another configuration (it differs in {', '.join(differing)}): "
                "choose another --out, or remove that folder."
            )

    def _environment(self, engine: Engine) -> None:
        path = self.folder / "environment.json"
        if not path.exists():
            write_whole(path, _json(describe_environment(engine)))

    def _fix_threads(self) -> None:
        """A CPU's sums depend on the number of threads: a run taken up again uses as many as when it began."""
        path = self.folder / "environment.json"
        threads = json.loads(path.read_text())["threads"] if path.exists() else self.threads
        if threads is not None:
            torch.set_num_threads(threads)

    def _keep_records(self, finished: int) -> None:
        """Drop records of steps that the checkpoint does not know: they will be made again."""
        path = self.folder / "records.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        if len(lines) != finished:
            write_whole(path, b"".join(lines[:finished]))

    def _append_record(self, record: dict[str, Any]) -> None:
        with (self.folder / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def _write_counts(self, step: int, counts: Counts) -> None:
        folder = self.folder / "counts"
        folder.mkdir(exist_ok=True)
        draft = folder / f".step-{step:03d}.npz"
        with draft.open("wb") as file:
            np.savez_compressed(file, **counts)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        draft.replace(folder / f"step-{step:03d}.npz")

    def _tables(self, sizes: tuple[int, ...]) -> dict[str, metrics.CountTable]:
        by_step = [np.load(self.folder / "counts" / f"step-{k + 1:03d}.npz") for k in range(len(sizes))]
        return {name: metrics.CountTable(sizes, tuple(step[name] for step in by_step)) for name in by_step[0]}

    # --- the run --------------------------------------------------------------------------------------------------

    def execute(self) -> dict[str, Any]:
        """Run to the end and return the summary. A finished run does nothing."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with _locked(self.folder):
                self._claim()
                if not (self.folder / "done").exists():
                    self._fix_threads()
                    self._run()
            summary = json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))
            return {**summary, "folder": str(self.folder)}
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise InputError(
                    f"The disk that holds {self.folder} is full: free some space and run the same command again; "
                    "it continues where it was."
                ) from error
            raise

    def _prepare(self) -> tuple[Stream, Learner, Engine]:
        config = self.config
        engine = Engine.create(self.device, config.train)
        data = load_dataset(config.dataset, self.data, config.image_size)
        arrivals = build_arrivals(config, data.train.classes)
        method = find_method(config.method)
        budget = config.memory.budget
        if method.uses_memory and budget is not None and budget < arrivals.classes:
            raise InputError(
                f"memory.budget={budget} is less than one exemplar for each of {arrivals.classes} classes: raise it."
            )
        stream = Stream(data.train, data.test, arrivals, config.class_seed).to(engine.device)
        learner = build_learner(config, _augmentation(config, data), engine)
        self._environment(engine)
        write_whole(self.folder / "arrivals.json", _json(arrivals.to_json()))
        return stream, learner, engine

    def _run(self) -> None:
        stream, learner, _ = self._prepare()
        (self.folder / "checkpoints").mkdir(exist_ok=True)
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
        state = {
            "finished": finished,
            "progress": vars(progress) if progress else None,
            "learner": learner.state(),
        }
        step, epoch = (finished + 1, progress.epoch) if progress else (finished + 1, 0)
        save_checkpoint(self.folder / "checkpoints", step, epoch, state)

    def _step(self, learner: Learner, increment: Increment, progress: Progress | None) -> None:
        new, epochs = len(increment.classes), learner.phase(increment).scaled(self.config.train.epochs_scale).epochs
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
        lines = (self.folder / "records.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        classifiers = {name: metrics.summarise(t) for name, t in self._tables(stream.arrivals.sizes).items()}
        scored = learner.classifiers[0]
        seconds = {phase: sum(r["seconds"][phase] for r in records) for phase in records[0]["seconds"]}
        images = sum(r["images_per_second"] * r["seconds"]["train"] for r in records)
        summary = {
            "dataset": self.config.dataset,
            "method": self.config.method,
            "robust": self.config.robust,
            "sizes": list(stream.arrivals.sizes),
            "scored": scored,
            **{key: classifiers[scored][key] for key in ("average", "last", "forgetting")},
            "classifiers": classifiers,
            "seconds": sum(seconds.values()),
            "seconds_by_phase": seconds,
            "images_per_second": images / seconds["train"],
        }
        write_whole(self.folder / "summary.json", _json(summary))
        write_whole(self.folder / "done", b"")


def _augmentation(config: RunConfig, data: DataSet) -> Augmentation:
    if config.train.augment == "none":
        return replace(data.augmentation, padding=0, flip=False, brightness=0.0)
    return data.augmentation


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


def describe_environment(engine: Engine) -> dict[str, Any]:
    """What a reader needs to judge or repeat a run."""
    device = engine.device
    return {
        "ffcil": ffcil.__version__,
        "commit": _commit(),
        "command": shlex.join(["ffcil", *sys.argv[1:]]),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "platform": platform.platform(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU ({platform.machine()})",
        "threads": torch.get_num_threads(),
        "precision": engine.precision,
        "graph": engine.graph,
        "compile": engine.compile,
    }


def _commit() -> str | None:
    """Of the checkout that ffcil runs from; None where it was installed from a package."""
    source = Path(__file__).resolve().parents[2]
    if not (source / ".git").exists():
        return None
    done = subprocess.run(
        ["git", "-C", str(source), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or None
