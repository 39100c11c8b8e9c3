"""Runs as reports read them. Every accuracy is computed again from the confusion counts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ffcil.errors import InputError
from ffcil.report.read.parts import Parts
from ffcil.runs.folder import RunFolder, find_folders
from ffcil.runs.published import SUFFIX, find_published, load_published
from ffcil.runs.stored import StoredRun

SETTINGS = ("Equ.T", "FF.org", "FF.ours", "FF.flow", "Equ.flow", "Equ.ours")
"""Settings that have a name, in the order of tables and figures: the paper's three, then ours."""
WHOLE = ("org", "ours", "flow")
"""Names of the original method and of the complete frameworks: the paper's, and flow."""

OWN_IMAGES = {"folder", "parquet", "csv"}
"""Names of data sets that stand for a form of files, and not for certain images."""

CLASSIFIER_NAMES = {
    "linear": "linear head",
    "nearest-mean": "nearest mean",
    "prototype": "prototypes",
    "analytic": "analytic head",
    "ensemble": "ensemble",
}
"""Names of classifiers in tables, for runs of earlier versions, which did not store them."""
BOUNDS = {"finetune": "lower", "joint": "upper"}
"""Methods that serve as bounds, for runs of earlier versions, which did not store this."""

PHASES = ("train", "start_up", "memory", "evaluate")
"""Phases of a step whose time is recorded. `start_up` is the time before a GPU trains at full speed, which runs of
earlier versions have in `train`. `memory` is the time after the training, for alignment, HA and exemplars."""

Seeds = tuple[int, int, int]
"""class_seed, arrival_seed and train_seed."""
Pairing = tuple[tuple[str | int, ...], int, int]
"""Class order, arrival_seed and train_seed."""


@dataclass(frozen=True, eq=False)
class RunRecord(StoredRun):
    """One run as reports read it."""

    @property
    def dataset(self) -> str:
        return str(self.config["dataset"])

    @property
    def data_name(self) -> str:
        """Name of the data in tables; the user's own images have the name of their file or folder."""
        own = self.environment.get("data") if self.dataset in OWN_IMAGES else None
        return str(own or self.dataset)

    @property
    def method(self) -> str:
        return str(self.config["method"])

    @property
    def method_name(self) -> str:
        """Name of the method in tables; for an unfinished run, its short name."""
        return str((self.summary or {}).get("title", self.method))

    @property
    def seeds(self) -> Seeds:
        """(class_seed, arrival_seed, train_seed). A class_seed of -1 stands for null: the order of the data set."""
        class_seed = self.config["class_seed"]
        return (-1 if class_seed is None else class_seed, self.config["arrival_seed"], self.config["train_seed"])

    @property
    def pairing(self) -> Pairing:
        """Class order, arrival_seed and train_seed. Runs with the same three are compared in pairs.

        The class order is the class_seed or, for a trace, the names of the classes."""
        class_seed, arrival_seed, train_seed = self.seeds
        return (tuple(self.arrivals.get("labels") or (class_seed,)), arrival_seed, train_seed)

    @property
    def seed_label(self) -> str:
        classes, arrival, train = self.seeds
        if classes == arrival == train:
            return f"seed {classes}"
        return f"seeds {'none' if classes < 0 else classes}/{arrival}/{train}"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Sizes of all steps of the schedule, finished or not."""
        return tuple(int(size) for size in self.arrivals["sizes"])

    @property
    def parts(self) -> Parts:
        """Parts of the frameworks that were on."""
        return Parts.of(self.config, self.method_facts)

    @property
    def schedule(self) -> str:
        """`Equ`, `FF`, or the kind of schedule if the paper has no name for it."""
        kind, sizes = str(self.arrivals["kind"]), self.sizes
        if kind == "given" and len(sizes) > 1 and sizes[0] - sizes[-1] <= 1 and sizes == tuple(sorted(sizes)[::-1]):
            return "Equ"  # sizes as of the kind `equal`: files of PyCIL and PILOT give them so
        return {"equal": "Equ", "free-flow": "FF", "trickle": "FF", "given": "FF", "trace": "FF"}.get(kind, kind)

    @property
    def setting(self) -> str:
        """Name of schedule and framework: `FF.org`, `FF.flow`; `FF with CWM` if only some parts are on."""
        schedule, parts = self.schedule, self.parts.name
        if parts == "org":
            return {"Equ": "Equ.T", "FF": "FF.org"}.get(schedule, schedule)
        return f"{schedule}.{parts}" if parts in WHOLE else f"{schedule} with {parts}"

    @property
    def scored(self) -> str | None:
        """Classifier whose accuracy is the result of the run; None before the first step is finished."""
        if self.summary is not None:
            return str(self.summary["scored"])
        return next(iter(self.records[0]["accuracy"])) if self.records else None

    @property
    def device(self) -> str:
        return str(self.environment.get("device", "an unknown device"))

    @property
    def bound(self) -> str | None:
        """`lower` or `upper` if the method serves as a bound in comparisons."""
        bound: str | None = self.method_facts.get("bound", BOUNDS.get(self.method))
        return bound

    def display_name(self, classifier: str) -> str:
        """Name of a classifier in tables: the name that the run stored, or else that of `CLASSIFIER_NAMES`."""
        names = self.method_facts.get("display_names", {})
        return str(names.get(classifier) or CLASSIFIER_NAMES.get(classifier, classifier))

    def seconds(self, phase: str) -> float:
        """Seconds of one of `PHASES`, summed over the finished steps."""
        return float(sum(record.get("seconds", {}).get(phase, 0.0) for record in self.records))

    @property
    def classifiers(self) -> list[str]:
        """All classifiers, the scored one first."""
        return sorted(self.tables, key=lambda name: (name != self.scored, name))


def load_run(folder: Path | str) -> RunRecord:
    """Read a run from its folder or its published file. An unfinished run has no summary."""
    path = Path(folder)
    return RunRecord(**vars(load_published(path) if path.name.endswith(SUFFIX) else RunFolder(path).load()))


def load_runs(folder: Path | str) -> list[RunRecord]:
    """Read every run at or below a folder, ordered by dataset, method, setting and seeds. A damaged run is an error."""
    runs, damaged = read_runs(folder)
    if damaged:
        raise InputError(damaged[0])
    return runs


def read_runs(folder: Path | str) -> tuple[list[RunRecord], list[str]]:
    """Every readable run at or below a folder, and one sentence for each run that is damaged."""
    folder = Path(folder)
    if not folder.is_dir() and not folder.name.endswith(SUFFIX):
        raise InputError(f"There is no folder {folder}: give the folder that holds the runs.")
    runs: list[RunRecord] = []
    damaged: list[str] = []
    places = [*find_folders(folder), *find_published(folder)] if folder.is_dir() else [folder]
    for place in places:
        try:
            runs.append(load_run(place))
        except InputError as error:
            damaged.append(str(error))
        except OSError as error:
            damaged.append(f"{place} cannot be read ({error.strerror}): correct its permissions, or remove it.")
    if not runs:
        raise InputError(damaged[0] if damaged else f"No runs in {folder}: give a folder at or above those of runs.")
    runs.sort(key=lambda r: (r.dataset, r.method, setting_rank(r.setting), r.seeds, str(r.folder)))
    return runs, damaged


def setting_rank(setting: str) -> tuple[int, str]:
    """Sort key: the paper's settings in its order, then the others by name."""
    return (SETTINGS.index(setting) if setting in SETTINGS else len(SETTINGS), setting)


def settings_of(runs: Iterable[RunRecord]) -> list[str]:
    """Settings of these runs, in the order of tables and figures."""
    return sorted({run.setting for run in runs}, key=setting_rank)


def classifiers_of(runs: Sequence[RunRecord]) -> list[str]:
    """Classifiers of these runs, the scored one first."""
    return list(dict.fromkeys(name for run in runs for name in run.classifiers))
