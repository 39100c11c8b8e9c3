"""A run's folder as a value: read, checked, never written. Every accuracy is counted again from the count tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffcil.errors import InputError
from ffcil.metrics import Confusion, CountTable
from ffcil.report.read.parts import Parts
from ffcil.runs.counts import unpack_counts

SETTINGS = ("Equ.T", "FF.org", "FF.ours", "Equ.ours")
"""The settings that the paper compares, in the order in which tables and figures show them."""

OWN_IMAGES = {"folder", "parquet", "csv"}
"""Data sets that are a form of files, not a certain set of images."""
CLASSIFIER_NAMES = {
    "linear": "linear head",
    "nearest-mean": "nearest mean",
    "prototype": "prototypes",
    "analytic": "analytic head",
    "ensemble": "ensemble",
}

PHASES = ("train", "memory", "evaluate")
"""Of a step, as its record times them; `memory` holds what follows training: alignment, HA, exemplars."""

Seeds = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class RunRecord:
    """One run, as its folder tells it."""

    folder: Path
    config: dict[str, Any]
    arrivals: dict[str, Any]
    records: list[dict[str, Any]]
    """One record a finished step, the first being step 1."""
    summary: dict[str, Any] | None
    environment: dict[str, Any]
    tables: dict[str, CountTable]
    """The count table of each classifier, over the finished steps. Empty before the first step is finished."""
    finished: bool
    data: dict[str, Any]
    """What tells its images from others, its classes in their order; empty where the folder does not say."""

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"])

    @property
    def data_name(self) -> str:
        """As in tables: own images go by the name of their file or folder."""
        own = self.environment.get("data") if self.dataset in OWN_IMAGES else None
        return str(own or self.dataset)

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def method_name(self) -> str:
        """As in tables; a run that is not finished is called by its method's short name."""
        return str((self.summary or {}).get("title", self.method))

    @property
    def seeds(self) -> Seeds:
        """(class_seed, arrival_seed, train_seed): runs that share all three are compared pair by pair.

        A class_seed of -1 stands for null, the data set's own order."""
        of_classes = self.config["class_seed"]
        return (-1 if of_classes is None else of_classes, self.config["arrival_seed"], self.config["train_seed"])

    @property
    def seed_label(self) -> str:
        classes, arrival, train = self.seeds
        if classes == arrival == train:
            return f"seed {classes}"
        return f"seeds {'none' if classes < 0 else classes}/{arrival}/{train}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """The whole schedule, finished or not."""
        return tuple(int(size) for size in self.arrivals["sizes"])

    @property
    def parts(self) -> Parts:
        """The parts of the paper's framework that were on."""
        return Parts.of(self.config, self.records, (self.summary or {}).get("own_alignment"))

    @property
    def schedule(self) -> str:
        """`Equ`, `FF`, or the kind of schedule where the paper has none like it."""
        kind = str(self.arrivals["kind"])
        return {"equal": "Equ", "free-flow": "FF", "given": "FF", "trace": "FF"}.get(kind, kind)

    @property
    def setting(self) -> str:
        """The paper's name for (schedule, with or without its components); `FF with CWM` where only some are on."""
        parts = self.parts.name
        if self.schedule not in ("Equ", "FF"):  # outside the paper's comparison: called what it is
            return {"org": self.schedule, "ours": f"{self.schedule}, robust"}.get(
                parts, f"{self.schedule} with {parts}"
            )
        if parts in ("org", "ours"):
            return {"Equ.org": "Equ.T"}.get(f"{self.schedule}.{parts}", f"{self.schedule}.{parts}")
        return f"{self.schedule} with {parts}"

    @property
    def scored(self) -> str | None:
        """The classifier whose accuracy is the run's result; None before the first step is finished."""
        if self.summary is not None:
            return str(self.summary["scored"])
        return next(iter(self.records[0]["accuracy"])) if self.records else None

    @property
    def device(self) -> str:
        return str(self.environment.get("device", "an unknown device"))

    def seconds(self, phase: str) -> float:
        """Of one of `PHASES`, over the finished steps."""
        return float(sum(record.get("seconds", {}).get(phase, 0.0) for record in self.records))

    @property
    def classifiers(self) -> list[str]:
        """All classifiers, the scored one first."""
        return sorted(self.tables, key=lambda name: (name != self.scored, name))


def load_run(folder: Path | str) -> RunRecord:
    """Read one run's folder. A run without `done` is unfinished: its finished steps are there, its result is not."""
    folder = Path(folder)
    if not _is_run(folder):
        raise InputError(f"{folder} is not a run's folder: config.json and arrivals.json must both be there.")
    config = _fields(
        folder / "config.json", ("dataset", "method", "robust", "class_seed", "arrival_seed", "train_seed")
    )
    arrivals = _fields(folder / "arrivals.json", ("sizes", "kind"))
    if not isinstance(arrivals["sizes"], list) or not all(isinstance(size, int) for size in arrivals["sizes"]):
        raise InputError(
            f"{folder / 'arrivals.json'} has no list of sizes; start the run again to have it written anew."
        )
    finished = (folder / "done").exists()
    records = _read_records(folder / "records.jsonl")
    if finished and len(records) != len(arrivals["sizes"]):
        raise InputError(
            f"{folder} is marked done with {len(records)} of {len(arrivals['sizes'])} steps in records.jsonl; "
            "remove its file 'done' and start the run again."
        )
    summary, environment, data = (folder / f"{name}.json" for name in ("summary", "environment", "data"))
    return RunRecord(
        folder=folder,
        config=config,
        arrivals=arrivals,
        records=records,
        summary=_fields(summary, ("scored",)) if finished else None,
        environment=_fields(environment) if environment.exists() else {},
        tables=_read_tables(folder / "counts", [int(size) for size in arrivals["sizes"][: len(records)]]),
        finished=finished,
        data=_fields(data) if data.exists() else {},
    )


def load_runs(folder: Path | str) -> list[RunRecord]:
    """Every run at or below a folder, by dataset, method, setting and seeds; one that is damaged is an error."""
    runs, damaged = read_runs(folder)
    if damaged:
        raise InputError(damaged[0])
    return runs


def read_runs(folder: Path | str) -> tuple[list[RunRecord], list[str]]:
    """Every run at or below a folder that can be read, and a sentence on each that cannot."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"There is no folder {folder}; give the folder that holds the runs.")
    runs: list[RunRecord] = []
    damaged: list[str] = []
    for config in sorted(folder.rglob("config.json")):
        if _is_run(config.parent):
            try:
                runs.append(load_run(config.parent))
            except InputError as error:
                damaged.append(str(error))
    if not runs:
        raise InputError(
            damaged[0] if damaged else f"No runs in {folder}; give a folder at or above those that hold config.json."
        )
    runs.sort(key=lambda r: (r.dataset, r.method, setting_rank(r.setting), r.seeds, str(r.folder)))
    return runs, damaged


def setting_rank(setting: str) -> tuple[int, str]:
    """Sort key: the paper's settings in its order, then others by name."""
    return (SETTINGS.index(setting) if setting in SETTINGS else len(SETTINGS), setting)


def settings_of(runs: Iterable[RunRecord]) -> list[str]:
    """The settings that occur, in the order in which to show them."""
    return sorted({run.setting for run in runs}, key=setting_rank)


def classifiers_of(runs: Sequence[RunRecord]) -> list[str]:
    """Every classifier that any of these runs has, the scored one first."""
    return list(dict.fromkeys(name for run in runs for name in run.classifiers))


def _is_run(folder: Path) -> bool:
    return (folder / "config.json").is_file() and (folder / "arrivals.json").is_file()


def _fields(path: Path, needed: tuple[str, ...] = ()) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path} is missing; start the run again to have it written.") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); start the run again to have it written anew.") from None
    if not isinstance(value, dict):
        raise InputError(f"{path} must hold a JSON object; start the run again to have it written anew.")
    for name in needed:
        if name not in value:
            raise InputError(f"{path} has no field {name!r}; start the run again to have it written anew.")
    return value


def _read_records(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")
    lines.pop()  # "" after the last newline, or the half of a line that a killed run was writing
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except ValueError as error:
            raise InputError(
                f"Line {number} of {path} is not JSON ({error}); remove the run and start again."
            ) from None
        if not isinstance(record, dict) or record.get("step") != number or not record.get("accuracy"):
            raise InputError(
                f"Line {number} of {path} is not the record of step {number}; remove the run, start again."
            )
        records.append(record)
    return records


def _read_tables(folder: Path, sizes: list[int]) -> dict[str, CountTable]:
    steps = [_read_counts(folder / f"step-{t:03d}.npz") for t in range(1, len(sizes) + 1)]
    names = list(steps[0]) if steps else []
    for t, step in enumerate(steps, start=1):
        if set(step) != set(names):
            raise InputError(f"{folder}/step-{t:03d}.npz counts {sorted(step)}, step 1 counted {sorted(names)}.")
    try:
        return {name: CountTable(tuple(sizes), tuple(step[name] for step in steps)) for name in names}
    except InputError as error:
        raise InputError(f"{folder}: {error}") from None


def _read_counts(path: Path) -> dict[str, Confusion]:
    try:
        return unpack_counts(path.read_bytes())
    except FileNotFoundError:
        raise InputError(f"{path} is missing though its step is recorded; remove the run and start it again.") from None
    except InputError:
        raise InputError(f"{path} is damaged; remove the run and start it again.") from None
