"""A run's folder: its name, its lock, and the files in it, each of which is whole or not there."""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ffcil.config.settings import RunConfig, validate
from ffcil.data.sources import SOURCES
from ffcil.errors import BusyError, InputError
from ffcil.methods import complete
from ffcil.metrics import CountTable
from ffcil.runs.checkpoint import checkpoints, write_whole
from ffcil.stream import Stream

Counts = dict[str, NDArray[np.int64]]
LOCK_SECONDS = 0.5
"""for a lock to come free that is only being asked about"""


def identity(config: RunConfig, data: object) -> str:
    """What tells a run from others: its configuration, and where the images are where they are the user's own."""
    source = SOURCES.get(config.dataset)
    if not isinstance(data, Path) or source is None or source.classes is not None:
        return config.identity()
    return f"{config.identity()}-{hashlib.sha256(str(data.resolve()).encode()).hexdigest()[:6]}"


@contextmanager
def locked(folder: Path, remedy: str = "wait for it, or choose another --out") -> Iterator[None]:
    """One process at a time in a folder; the lock goes with the process, however that ends."""
    with (folder / ".lock").open("w") as file:
        last = time.monotonic() + LOCK_SECONDS
        while not _taken(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > last:
                raise BusyError(f"Another process is running in {folder}: {remedy}.")
            time.sleep(0.02)
        yield


def is_busy(folder: Path) -> bool:
    """Whether another process is running in a folder at this moment."""
    try:
        with (folder / ".lock").open() as file:
            return not _taken(file.fileno(), fcntl.LOCK_SH)
    except FileNotFoundError:
        return False


def _taken(file: int, kind: int) -> bool:
    """Take a lock if that needs no waiting."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class RunFolder:
    """What a run reads and writes."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def done(self) -> bool:
        return (self.path / "done").exists()

    @property
    def begun(self) -> bool:
        """Whether there is anything to take up."""
        return bool(self.records() or checkpoints(self.path / "checkpoints"))

    def read(self, name: str) -> Any:
        """A JSON file of the folder; None where it is not there."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            return json.loads(path.read_bytes())
        except ValueError as error:
            raise InputError(f"{path} is damaged ({error}): remove the run's folder and start again.") from error

    def write(self, name: str, value: Any) -> None:
        write_whole(self.path / name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    # --- what the run is ------------------------------------------------------------------------------------------

    def check_config(self, config: RunConfig) -> None:
        """A folder holds one run: another configuration is an error."""
        theirs, mine = self.read("config.json"), config.content()
        if theirs is None or not (self.begun or self.done):
            return
        theirs = complete(
            validate(RunConfig, theirs)
        ).content()  # fields that came with a later version: their defaults
        if differing := sorted(key for key in mine.keys() | theirs.keys() if mine.get(key) != theirs.get(key)):
            raise InputError(
                f"{self.path} holds a run with another configuration (it differs in {', '.join(differing)}): "
                "choose another --out, or remove that folder."
            )

    def claim(self, config: RunConfig, stream: Stream, environment: Mapping[str, Any]) -> None:
        """Write what the run is, or see that the folder holds the same run on the same data."""
        self.check_config(config)
        now = {"arrivals.json": stream.arrivals.to_json(), "data.json": fingerprint(stream)}
        for name, value in now.items():
            before = self.read(name)
            if self.begun and before != json.loads(json.dumps(value)):
                what = "schedule (its trace has changed)" if name == "arrivals.json" else "images"
                raise InputError(
                    f"The run in {self.path} was begun with other {what}: bring them back, or choose another --out."
                )
            self.write(name, value)
        self.write("config.json", config.model_dump(mode="json"))
        self._write_environment(environment)

    def _write_environment(self, now: Mapping[str, Any]) -> None:
        """Of the first start; what is different at a later one is noted beside it."""
        first = self.read("environment.json")
        if first is None or not self.begun:
            self.write("environment.json", now)
            return
        lasting = ("ffcil", "commit", "python", "torch", "device", "precision", "graph", "compile")
        changed = {key: now[key] for key in lasting if now[key] != first.get(key)}
        if changed and changed not in first.setdefault("taken_up_with", []):
            first["taken_up_with"].append(changed)
            self.write("environment.json", first)

    def threads(self, asked: int | None) -> int | None:
        """A CPU's sums depend on the number of threads: a run taken up again uses as many as when it began."""
        begun_with: int | None = (self.read("environment.json") or {}).get("threads") if self.begun else None
        if begun_with and asked and begun_with != asked:
            raise InputError(f"The run in {self.path} was begun with {begun_with} thread(s): leave --threads out.")
        return begun_with or asked

    # --- what it found out ----------------------------------------------------------------------------------------

    def records(self) -> list[bytes]:
        """Whole lines of records.jsonl."""
        path = self.path / "records.jsonl"
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        return [line + b"\n" for line in lines[:-1]]

    def keep_records(self, finished: int) -> None:
        """Drop the record of a step that the checkpoint does not know yet: it will be made again."""
        records = self.records()
        if len(records) < finished:
            raise InputError(f"{self.path} is damaged (records are missing): remove it and start again.")
        if len(records) > finished + 1:  # a kill costs one at the most: checkpoints were taken away
            raise InputError(
                f"{self.path} has records of {len(records)} steps and checkpoints of {finished}: bring the newest "
                "checkpoint back, or remove the folder to start again."
            )
        write_whole(self.path / "records.jsonl", b"".join(records[:finished]))

    def append_record(self, record: Mapping[str, Any]) -> None:
        with (self.path / "records.jsonl").open("ab") as file:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def write_counts(self, step: int, counts: Counts) -> None:
        content = io.BytesIO()
        np.savez_compressed(content, **counts)  # type: ignore[arg-type]
        write_whole(self.path / "counts" / f"step-{step:03d}.npz", content.getvalue())

    def tables(self, sizes: tuple[int, ...]) -> dict[str, CountTable]:
        by_step = [np.load(self.path / "counts" / f"step-{k + 1:03d}.npz") for k in range(len(sizes))]
        return {name: CountTable(sizes, tuple(step[name] for step in by_step)) for name in by_step[0]}


def fingerprint(stream: Stream) -> dict[str, Any]:
    """What tells one set of images from another: classes, counts, labels, and a sample of the pixels."""
    sample = hashlib.sha256()
    for split in (stream.train, stream.test):
        sample.update(split.sample())
    return {
        "classes": list(stream.train.class_names),
        "train_images": stream.train.counts().tolist(),
        "test_images": stream.test.counts().tolist(),
        "image_size": list(stream.train.image_size),
        "sample": sample.hexdigest(),
    }
