"""`Run`: one configuration becomes a folder of records. It can be killed at any moment and resumed without loss."""

import errno
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ffcil import metrics
from ffcil.arrivals import Arrivals
from ffcil.atomic import remove_drafts
from ffcil.config.settings import RunConfig
from ffcil.data.augment import Augmentation
from ffcil.data.sources import DataSet, check_drawn, load_dataset
from ffcil.errors import InputError
from ffcil.methods import METHODS, build_learner, complete, find_method, load_methods
from ffcil.methods.learner import Learner
from ffcil.methods.parts.exemplars import exemplars_per_class
from ffcil.models.pretrained import normalisation_of_weights
from ffcil.models.resnet import BACKBONES
from ffcil.runs.checkpoint import copied
from ffcil.runs.counts import Counts
from ffcil.runs.environment import Session, describe_environment, describe_method
from ffcil.runs.folder import RunFolder, locked
from ffcil.runs.identity import RunIdentity, fingerprint, identity, images_may_differ
from ffcil.runs.own_checkpoints import REMEDY, OwnCheckpoints, ResumePoint
from ffcil.runs.processes import in_processes
from ffcil.runs.step import learn_step
from ffcil.runs.stopping import Stop
from ffcil.stream import Increment, Stream
from ffcil.training.engine import Engine
from ffcil.training.parallel import ALONE, Parallel
from ffcil.training.progress import FitProgress, Listener, reporting_to


def build_arrivals(config: RunConfig, available: int) -> Arrivals:
    """The schedule of a configuration, for a data set of `available` classes."""
    return config.arrivals.build(available, config.arrival_seed)


def evaluate(learner: Learner, increment: Increment) -> Counts:
    """Confusion counts of every classifier over the test images of all classes seen."""
    true = increment.test.labels[increment.test_rows].numpy(force=True)
    return {
        name: metrics.Confusion.count(true, predicted.numpy(force=True), increment.seen_now)
        for name, predicted in learner.predictions(increment).items()
    }


class Run:
    """One configuration in one folder.

    `Run(config, folder).execute()` starts the run, resumes it if it was interrupted, or returns the summary if it is
    finished.

    Args:
        folder: Folder of the run; None for `runs/NAME`.
        data: File or folder of the configuration's data set, or a `DataSet`, as `dataset_of` returns it. The
            configuration's `dataset` is then only its name.
        device: `cpu` or `cuda`; None for cuda if it is available.
        devices: Number of GPUs, starting with `device`, or of processes on a CPU, that share every batch.
        threads: Number of CPU threads.
        listener: Receives the progress.
    """

    def __init__(
        self,
        config: RunConfig,
        folder: str | Path | None = None,
        *,
        data: str | Path | DataSet | None = None,
        device: str | None = None,
        devices: int = 1,
        threads: int | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.config = complete(config)  # a wrong name is an error before anything is created
        check_devices(self.config, devices)
        self.devices = devices
        self.data = Path(data) if isinstance(data, str) else data
        if not isinstance(self.data, DataSet):
            check_drawn(self.config.dataset, self.data)  # also before a finished run answers
        named = f"{self.config.dataset}-{self.config.method}-{identity(self.config, self.data)}"
        self.folder = Path(folder) if folder else Path("runs") / named
        self.files = RunFolder(self.folder)
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        self.threads = threads
        self.listener = listener or Listener()

    def _environment(self, learner: Learner) -> dict[str, Any]:
        """Versions and machine, and the name of the data's file or folder."""
        environment = describe_environment(learner.engine)
        if isinstance(self.data, Path):
            place = self.data.resolve()
            environment["data"] = place.stem if place.is_file() else place.name
        return environment

    def execute(self) -> dict[str, Any]:
        """Run to the end and return the summary. A finished run only returns its summary."""
        self.files.check_place()
        if not self.files.done:
            if self.devices == 1:
                self.work()
            else:
                files = tuple(map(file_of, (find_method(self.config.method), BACKBONES[self.config.backbone])))
                part = _Part(self.config, self.folder, self.data, self.device, self.threads, files)
                in_processes(self.devices, part, self.listener)
        elif stored := self.files.read("data.json"):
            self._check_images(stored)
        self.files.check_config(self.config, complete)
        return {**self.files.summary(), "folder": str(self.folder)}

    def _check_images(self, stored: Mapping[str, Any]) -> None:
        """Raise an error if the data are not the images of a finished run, whose name does not depend on its images."""
        config, data = self.config, self.data
        if isinstance(data, Path):
            if not images_may_differ(config.dataset, data, stored):
                return
            data = load_dataset(config.dataset, data, config.image_size)
        if data is not None:
            arrivals = build_arrivals(config, data.train.classes)
            stream = Stream(data.train, data.test, arrivals, config.class_seed)
            self.files.check_same("data.json", fingerprint(stream), "images")

    def work(self, parallel: Parallel = ALONE) -> None:
        """Do the work of one of the run's processes. Only process 0 writes files."""
        started = time.monotonic()
        with exhaustion_explained(self.folder):
            self._fix_threads(parallel)
            stream, learner = self._prepare(parallel)
            if parallel.rank > 0:
                self._assist(stream, learner)
                return
            for part in ("checkpoints", "counts"):
                (self.folder / part).mkdir(parents=True, exist_ok=True)
            with locked(self.folder):
                if not self.files.done:  # another process may have finished it meanwhile
                    remove_drafts(self.folder)
                    self._claim(stream, learner)
                    self._session = Session(self.files, learner.engine.device, started)
                    self._run(stream, learner)

    def _claim(self, stream: Stream, learner: Learner) -> None:
        """Write the facts that are known before the first step, or check them if the run is resumed."""
        self.files.check_config(self.config, complete)
        arrivals, data = stream.arrivals.to_json(), fingerprint(stream)
        self._checkpoints = OwnCheckpoints(self.folder / "checkpoints", RunIdentity.of(self.config, arrivals, data))
        self.files.claim(
            self.config,
            arrivals=arrivals,
            data=data,
            method=describe_method(learner),
            environment=self._environment(learner),
        )

    def _fix_threads(self, parallel: Parallel) -> None:
        """Set the number of threads. A resumed run on a CPU keeps that of its start, because sums depend on it. Several
        processes share the cores, and their sums have another order anyway."""
        threads = self.threads
        if parallel.size > 1:
            threads = threads or max(1, torch.get_num_threads() // parallel.size)
        elif self.device == "cpu":
            threads = self.files.threads(threads)
        if threads:
            torch.set_num_threads(threads)

    def _prepare(self, parallel: Parallel) -> tuple[Stream, Learner]:
        """Prepare data and learner. Bad input is an error here, before anything is written to the folder."""
        config = self.config
        engine = Engine.create(self.device, config.train, parallel)
        data = self.data
        if not isinstance(data, DataSet):
            data = load_dataset(config.dataset, data, config.image_size)
        arrivals = build_arrivals(config, data.train.classes)
        stream = Stream(data.train, data.test, arrivals, config.class_seed)
        if find_method(config.method).uses_memory:
            exemplars_per_class(config.memory, arrivals.classes)
        learner = build_learner(config, augmentation_of(config, data.augmentation), engine)
        return stream.to(engine.device), learner

    def _run(self, stream: Stream, learner: Learner) -> None:
        """Start or resume the run, and write the results."""
        start = self._checkpoints.newest(self.listener.warned)
        finished, progress = start.finished, start.progress
        self.files.keep_records(finished, repeated=1 + start.skipped)
        parallel = learner.engine.parallel
        self._restore(stream, learner, parallel.broadcast(start))
        self.listener.started(str(self.folder), len(stream), finished, progress.epoch if progress else 0)
        try:
            with Stop(quiet=parallel.size > 1) as stop:
                for position in range(finished, len(stream)):
                    stop.raise_if_requested()
                    self._step(learner, stream[position], progress, stop)
                    progress = None
                self._conclude(stream, learner)
                self._checkpoints.conclude()
                stop.raise_if_requested()  # this run is done, but nothing after it may start
        finally:
            self.listener.finished()
            self._session.save()

    def _assist(self, stream: Stream, learner: Learner) -> None:
        """Train together with process 0, and take over its state after every step."""
        parallel = learner.engine.parallel
        start = parallel.broadcast(ResumePoint())
        progress = start.progress
        self._restore(stream, learner, start)
        for position in range(start.finished, len(stream)):
            learner.learn(stream[position], resume=progress)
            learner.restore(parallel.broadcast({}))
            progress = None

    def _restore(self, stream: Stream, learner: Learner, start: ResumePoint) -> None:
        """Bring the learner to the point at which the run continues."""
        if start.learner is None:
            return
        for position in range(start.finished + (start.progress is not None)):
            learner.begin(stream[position])
        try:
            learner.restore(start.learner)
        except (RuntimeError, KeyError, TypeError) as error:
            if start.identified or isinstance(error, torch.OutOfMemoryError):
                raise
            raise InputError(f"The newest checkpoint in {self.folder} does not fit this run: {REMEDY}.") from error

    def _step(self, learner: Learner, increment: Increment, progress: FitProgress | None, stop: Stop) -> None:
        """Learn a step from `progress` on, evaluate, and write record, counts and checkpoint."""

        def save(now: FitProgress) -> None:
            self._checkpoints.save(learner.state(), increment.step - 1, now)

        notes = learn_step(learner, increment, self.listener, stop, save, self.config.checkpoint_seconds, progress)
        parallel = learner.engine.parallel
        if parallel.size > 1:  # the same exemplars, class means and batch-norm statistics everywhere
            parallel.broadcast(copied(learner.state()))
        start = time.perf_counter()
        with reporting_to(self.listener):
            counts = evaluate(learner, increment)
        notes["seconds"]["evaluate"] = time.perf_counter() - start
        record = make_record(increment, counts, {**notes, "devices": parallel.size})
        self.files.write_counts(increment.step, counts)
        self.files.append_record(record)
        self._checkpoints.save(learner.state(), increment.step, None)
        self._session.save()
        self.listener.step_done(record)

    def _conclude(self, stream: Stream, learner: Learner) -> None:
        """Compute and write the results."""
        records = self.files.records()
        classifiers = {name: metrics.summarise(t) for name, t in self.files.tables(stream.arrivals.sizes).items()}
        scored = learner.scored
        phases = dict.fromkeys(phase for r in records for phase in r["seconds"])
        seconds = {phase: sum(r["seconds"].get(phase, 0.0) for r in records) for phase in phases}
        images = sum(r["images_per_second"] * _training_seconds(r["seconds"]) for r in records)
        training = _training_seconds(seconds)
        summary = {
            "dataset": self.config.dataset,
            "method": self.config.method,
            **describe_method(learner),
            "sizes": list(stream.arrivals.sizes),
            "scored": scored,
            **{key: classifiers[scored][key] for key in ("average", "last", "forgetting")},
            "classifiers": classifiers,
            "seconds": sum(seconds.values()),
            "seconds_by_phase": seconds,
            "images_per_second": images / training if training else 0.0,
            "parameters": records[-1]["parameters"],
        }
        self._session.save(check_gpu=True)
        self.files.finish(summary)


def _training_seconds(seconds: Mapping[str, float]) -> float:
    """Seconds of training including start-up, which only records of GPUs have, and not those of earlier versions."""
    return seconds["train"] + seconds.get("start_up", 0.0)


@dataclass(frozen=True)
class _Part:
    """The work of one process of a run on several devices, as a function that can be pickled."""

    config: RunConfig
    folder: Path
    data: Path | DataSet | None
    device: str
    threads: int | None
    files: tuple[str, ...]
    """Python files of the method and of the backbone."""

    def __call__(self, parallel: Parallel, listener: Listener) -> None:
        method_file, backbone_file = self.files
        if self.config.method not in METHODS:
            load_methods(method_file)
        if self.config.backbone not in BACKBONES:
            load_methods(backbone_file)
        run = Run(self.config, self.folder, data=self.data, device=self.device, threads=self.threads, listener=listener)
        run.work(parallel)


def check_devices(config: RunConfig, devices: int) -> None:
    """Raise an error if a run cannot use this number of devices."""
    if devices == 1:
        return
    batch = config.train.batch
    if devices < 1:
        raise InputError(f"devices={devices} is not possible: use one device or more.")
    if find_method(config.method).pretrained:
        raise InputError(
            f"devices={devices} is not supported by {config.method!r}, a pre-trained method: run it on one device."
        )
    if batch % devices:
        fitting = devices * max(1, round(batch / devices))
        raise InputError(
            f"train.batch={batch} cannot be divided equally among {devices} devices: set train.batch={fitting}, or use "
            "another number of devices."
        )


def file_of(registered: Any) -> str:
    """The Python file of a method or backbone, from which other processes can import it."""
    file: str | None = getattr(sys.modules[registered.__module__], "__file__", None)
    if file is None:
        raise InputError(
            f"{registered.__name__} is not in a Python file that other processes can import: write it into one, or run "
            "on one device."
        )
    return file


@contextmanager
def exhaustion_explained(folder: Path) -> Iterator[None]:
    """Turn a full GPU, a full disk or a limit on the size of files into a sentence with the remedy."""
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
        if error.errno == errno.EFBIG:
            raise InputError(
                f"{error.filename or folder} is larger than the system allows: raise the limit with `ulimit -f`, then "
                "the same command continues."
            ) from error
        raise


def augmentation_of(config: RunConfig, augmentation: Augmentation) -> Augmentation:
    """The augmentation of a data set with the changes of a configuration."""
    if config.train.augment == "none":
        augmentation = augmentation.without_randomness()
    elif config.train.augment == "auto":
        augmentation = replace(augmentation, auto=True)
    normalise = complete(config).normalise
    if normalise == "published":
        normalise = "unit" if find_method(config.method).pretrained else "data"
    if normalise == "unit":
        return replace(augmentation, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    if normalise == "weights":
        mean, std = normalisation_of_weights(config.backbone)
        return replace(augmentation, mean=mean, std=std)
    return augmentation


def make_record(increment: Increment, counts: Counts, notes: dict[str, Any]) -> dict[str, Any]:
    """One line of records.jsonl. Accuracies are in percent, by classifier, the scored classifier first."""
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
