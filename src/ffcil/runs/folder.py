"""`RunFolder`: the folder of a run, its lock, and the only reader and writer of its files.

Reading is strict: a damaged file is an `InputError` that names it. Only `peek` and `peek_records` are lenient, because
they watch a run while it writes.
"""

import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, overload

from ffcil.atomic import named_errors, write_whole
from ffcil.config.base import validate
from ffcil.config.settings import RunConfig
from ffcil.errors import BusyError, InputError
from ffcil.locks import Held, holder, is_held, lock, named
from ffcil.metrics import Confusion, CountTable
from ffcil.runs import stored
from ffcil.runs.counts import Counts, pack_counts, unpack_counts
from ffcil.runs.stored import Fields, StoredRun

LOCK = ".lock"
LOCK_SECONDS = 0.5
"""Seconds to wait for a lock, which `is_busy` in another process may hold for a moment."""
_LASTING = ("ffcil", "commit", "python", "torch", "device", "precision", "graph", "compile")
"""Fields of the environment whose changes are noted when a run is resumed."""
NEW_START = "remove the folder and start the run again"
"""Remedy in error messages for a folder that cannot be repaired."""
_OWN = {
    *("config.json", "arrivals.json", "data.json", "method.json", "environment.json", "records.jsonl", "summary.json"),
    *("progress.json", "run.log", "done", "counts", "checkpoints", "report", "tensorboard", "wandb"),
}
"""Names of files and folders that belong into the folder of a run."""
_CHECKPOINT = re.compile(r"step-(\d+)-epoch-(\d+)\.safetensors")


@contextmanager
def locked(folder: Path, remedy: str = "wait for it, or choose another --out") -> Iterator[None]:
    """Allow one process at a time in a folder. The lock ends with its process, even if the process is killed."""
    try:
        with lock(folder / LOCK, LOCK_SECONDS):
            yield
    except Held as error:
        raise BusyError(f"Another process is running in {folder} ({error}): {remedy}.") from None


def is_busy(folder: Path) -> bool:
    """Whether another process is running in a folder now."""
    return is_held(folder / LOCK)


def running_in(folder: Path) -> str:
    """The process that runs in a folder in words, with its machine and the time of its start."""
    return named(holder(folder / LOCK))


def checkpoint_name(step: int, epoch: int) -> str:
    return f"step-{step:04d}-epoch-{epoch:05d}.safetensors"


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in a folder, oldest first."""
    matches = ((_CHECKPOINT.fullmatch(path.name), path) for path in folder.glob("step-*.safetensors"))
    by_position = {tuple(map(int, match.groups())): path for match, path in matches if match}
    return [by_position[position] for position in sorted(by_position)]


def differing_fields(before: Fields, config: RunConfig, complete: Callable[[RunConfig], RunConfig]) -> list[str]:
    """Dotted names of the fields in which a stored configuration differs from `config`.

    `complete` adds the defaults of fields that a stored configuration of an earlier version lacks.
    """
    stored_content, content = complete(validate(RunConfig, before)).content(), config.content()
    return sorted(_differing(stored_content, content))


def _differing(before: Fields, now: Fields) -> Iterator[str]:
    for name in before.keys() | now:
        old, new = before.get(name), now.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from (f"{name}.{field}" for field in _differing(old, new))
        elif old != new:
            yield name


class RunFolder:
    """Files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_run(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / "config.json").is_file() and (self.path / "arrivals.json").is_file()

    @property
    def done(self) -> bool:
        """Whether the run is finished."""
        return (self.path / "done").exists()

    @property
    def resumable(self) -> bool:
        """Whether the folder holds a run that can be resumed."""
        return bool(self._record_lines() or checkpoints(self.path / "checkpoints"))

    # --- strict reading -------------------------------------------------------------------------------------------

    def read(self, name: str, needed: tuple[str, ...] = ()) -> Fields | None:
        """A JSON file of the folder; None if it does not exist."""
        path = self.path / name
        if not path.exists():
            return None
        try:
            value = json.loads(_content(path))
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{path} is damaged (it is not JSON: {error}): remove the run's folder and start again."
            ) from None
        return stored.check_fields(value, path, needed)

    def records(self) -> list[Fields]:
        """Records of the finished steps."""
        records = []
        for number, line in enumerate(self._record_lines(), start=1):
            where = f"Line {number} of {self.path / 'records.jsonl'}"
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is not JSON ({error}): remove the run and start it again.") from None
            records.append(stored.check_record(record, number, where))
        return records

    def counts(self, step: int) -> Counts:
        """Confusion counts after a step, by classifier."""
        path = self._counts_path(step)
        if not path.exists():
            raise InputError(f"{path} is missing although its step is recorded: remove the run and start it again.")
        content = _content(path)
        try:
            return unpack_counts(content)
        except InputError:
            raise InputError(f"{path} is damaged: remove the run and start it again.") from None

    def tables(self, sizes: tuple[int, ...]) -> dict[str, CountTable]:
        """Confusion counts after each of the steps with these sizes, by classifier. They are read on access."""
        names = tuple(self.counts(1)) if sizes else ()
        return {name: CountTable(sizes, _StepCounts(self, sizes, names, name)) for name in names}

    def load(self) -> StoredRun:
        """Read and check everything in the folder. An unfinished run has the records of its finished steps."""
        config, arrivals = self.read("config.json"), self.read("arrivals.json", ("sizes", "kind"))
        if config is None or arrivals is None:
            raise InputError(f"{self.path} is not the folder of a run: config.json and arrivals.json must be there.")
        config = stored.check_config(config, self.path / "config.json")
        sizes, records, done = stored.check_sizes(arrivals, self.path / "arrivals.json"), self.records(), self.done
        summary = self.summary() if done else None
        return StoredRun(
            folder=self.path,
            config=config,
            arrivals=arrivals,
            records=records,
            summary=summary,
            environment=self._part("environment") or {},
            tables=self.tables(sizes[: len(records)]),
            finished=done,
            data=self._part("data") or {},
            method_facts=self._part("method") or stored.derive_method(config, records, summary),
        )

    def _part(self, name: str) -> Fields | None:
        """A JSON file whose fields are checked; None if it does not exist."""
        value = self.read(f"{name}.json")
        return None if value is None else stored.check_part(name, value, self.path / f"{name}.json")

    def summary(self) -> Fields:
        """Results of a finished run. A step without a record is an error."""
        summary, arrivals = (
            self._of_finished(*file) for file in (("summary.json", "scored"), ("arrivals.json", "sizes"))
        )
        steps, records = len(stored.check_sizes(arrivals, self.path / "arrivals.json")), len(self.records())
        if records != steps:
            raise InputError(
                f"{self.path} is damaged (done, but records.jsonl has {records} of {steps} steps): {NEW_START}."
            )
        return stored.check_part("summary", summary, self.path / "summary.json")

    def _of_finished(self, name: str, needed: str) -> Fields:
        """A JSON file that a finished run must have, with the field `needed`."""
        value = self.read(name, (needed,))
        if value is None:
            raise InputError(f"{self.path} is damaged (done, but {name} is missing): {NEW_START}.")
        return value

    # --- lenient reading ------------------------------------------------------------------------------------------

    def peek(self, name: str) -> Fields:
        """A JSON file while other processes may write it; empty if it is missing, incomplete or damaged."""
        return _parse(_content(self.path / name)) or {}

    def peek_records(self) -> tuple[Fields, ...]:
        """Records that are complete at the moment."""
        parsed = map(_parse, self._record_lines())
        return tuple(itertools.takewhile(lambda record: record is not None, parsed))  # type: ignore[arg-type]

    # --- writing --------------------------------------------------------------------------------------------------

    def write(self, name: str, value: Any) -> None:
        write_whole(self.path / name, (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode())

    def check_place(self) -> None:
        """Raise an error if a new run would mix its files with others, for example with class folders of images."""
        if self.path.exists() and not self.path.is_dir():
            raise InputError(f"{self.path} is a file: choose a folder for the run with --out.")
        if self.is_run or not self.path.exists():
            return
        if foreign := sorted({p.name for p in self.path.iterdir() if not p.name.startswith(".")} - _OWN):
            raise InputError(
                f"{self.path} contains other files, such as {foreign[0]}: choose a folder for the run alone with --out."
            )

    def check_config(self, config: RunConfig, complete: Callable[[RunConfig], RunConfig]) -> None:
        """Raise an error if the folder holds a run with another configuration. `complete` is that of
        `differing_fields`."""
        before = self.read("config.json")
        if before is None or not (self.resumable or self.done):
            return
        if differing := differing_fields(before, config, complete):
            raise InputError(
                f"{self.path} holds a run with another configuration (it differs in {', '.join(differing)}): "
                "choose another --out, or remove that folder."
            )

    def claim(self, config: RunConfig, arrivals: Fields, data: Fields, method: Fields, environment: Fields) -> None:
        """Write the facts that are known before the first step. If the folder can be resumed, check that it holds this
        run."""
        for name, value, what in (
            ("arrivals.json", arrivals, "schedule (its trace has changed)"),
            ("data.json", data, "images"),
        ):
            if self.resumable:
                self.check_same(name, value, what)
            self.write(name, value)
        self.write("config.json", config.model_dump(mode="json"))
        self.write("method.json", method)
        self._write_environment(environment)

    def check_same(self, name: str, value: Fields, what: str) -> None:
        """Raise an error if a file of the run has another value. `what` names the value in the message."""
        if self.read(name) != json.loads(json.dumps(value)):
            raise InputError(
                f"The run in {self.path} was started with other {what}: restore them, or choose another --out."
            )

    def _write_environment(self, now: Fields) -> None:
        """Write the environment of the first start. When the run is resumed, only add the fields that differ."""
        first = self.read("environment.json")
        if first is None or not self.resumable:
            self.write("environment.json", now)
            return
        changed = {key: now[key] for key in _LASTING if now[key] != first.get(key)}
        if changed and changed not in first.setdefault("resumed_with", []):
            first["resumed_with"].append(changed)
            self.write("environment.json", first)

    def threads(self, asked: int | None) -> int | None:
        """Number of threads of a run on a CPU. A resumed run has that of its start, because sums depend on it."""
        started_with: int | None = (self.read("environment.json") or {}).get("threads") if self.resumable else None
        if started_with and asked and started_with != asked:
            raise InputError(f"The run in {self.path} was started with {started_with} thread(s): leave --threads out.")
        return started_with or asked

    def keep_records(self, finished: int, repeated: int) -> None:
        """Check the records of finished steps and their counts, and remove the records of later steps.

        Args:
            finished: Number of steps that the checkpoint contains.
            repeated: Largest number of later steps that will be repeated. A killed process causes one such step at
                most, and so does every checkpoint that cannot be used.
        """
        lines = self._record_lines()
        if len(lines) < finished:
            raise InputError(f"{self.path} is damaged (records are missing): remove it and start again.")
        if len(lines) > finished + repeated:  # checkpoints were removed
            raise InputError(
                f"{self.path} has records of {len(lines)} steps and checkpoints of {finished}: restore the newest "
                "checkpoint, or remove the folder to start again."
            )
        for step, _ in enumerate(self.records()[:finished], start=1):
            self.counts(step)
        write_whole(self.path / "records.jsonl", b"".join(lines[:finished]))

    def append_record(self, record: Mapping[str, Any]) -> None:
        path = self.path / "records.jsonl"
        with named_errors(path), path.open("ab") as file:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def write_counts(self, step: int, counts: Counts) -> None:
        write_whole(self._counts_path(step), pack_counts(counts))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the results and mark the run as finished."""
        self.write("summary.json", summary)
        write_whole(self.path / "done", b"")

    def _counts_path(self, step: int) -> Path:
        return self.path / "counts" / f"step-{step:03d}.npz"

    def _record_lines(self) -> list[bytes]:
        """Complete lines of records.jsonl; a killed run may have left half a line at the end."""
        return [line + b"\n" for line in _content(self.path / "records.jsonl").split(b"\n")[:-1]]


class _StepCounts(Sequence[Confusion]):
    """Counts of one classifier after each step. Every access reads a file, because all steps together may be large."""

    def __init__(self, folder: RunFolder, sizes: tuple[int, ...], names: tuple[str, ...], name: str) -> None:
        self.folder, self.names, self.name = folder, names, name
        self.seen = tuple(itertools.accumulate(sizes))

    def __len__(self) -> int:
        return len(self.seen)

    @overload
    def __getitem__(self, place: int) -> Confusion: ...
    @overload
    def __getitem__(self, place: slice) -> list[Confusion]: ...
    def __getitem__(self, place: int | slice) -> Confusion | list[Confusion]:
        steps = range(len(self))[place]
        return [self._read(k + 1) for k in steps] if isinstance(steps, range) else self._read(steps + 1)

    def _read(self, step: int) -> Confusion:
        counts, where = self.folder.counts(step), self.folder.path / "counts"
        if set(counts) != set(self.names):
            raise InputError(f"{where}: step {step} counts {sorted(counts)}, step 1 counts {sorted(self.names)}.")
        found, seen = counts[self.name], self.seen[step - 1]
        if found.classes != seen:
            raise InputError(f"{where}: step {step} counts {found.classes} classes; {seen} classes were seen.")
        return found


def find_folders(place: Path) -> list[Path]:
    """Folders of runs at or below a place."""
    return [path.parent for path in sorted(place.rglob("config.json")) if RunFolder(path.parent).is_run]


def _content(path: Path) -> bytes:
    """Content of a file; empty if it is missing."""
    if path.exists() and not path.is_file():  # reading from a pipe, for example, may never end
        raise InputError(f"{path} is not a regular file: {NEW_START}.")
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}): correct its permissions, or remove it.") from error


def _parse(text: bytes) -> Fields | None:
    """A JSON object; None if the text is none."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
