"""Listeners that log a run to TensorBoard or Weights & Biases, in addition to the run's folder."""

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ffcil.config.settings import RunConfig
from ffcil.errors import InputError, unknown
from ffcil.training.progress import FitProgress, Listener

LOGS = ("tensorboard", "wandb")
GROUPS = ("accuracy", "old_accuracy", "new_accuracy")
"""Fields of a record that have one value per classifier."""


def listeners(names: Iterable[str], config: RunConfig) -> list[Listener]:
    """Return one listener per name; a missing package is an error."""
    check_logs(names)
    return [RunLogger(name, config) for name in names]


def check_logs(names: Iterable[str]) -> None:
    for name in names:
        if name not in LOGS:
            raise unknown("log", name, LOGS)
        if importlib.util.find_spec(name) is None:
            raise InputError(f"--log {name} needs the package {name}: pip install 'ffcil[{name}]'.")


class TensorBoardLogger:
    """TensorBoard, in the folder `tensorboard` of a run."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder / "tensorboard"))

    def log(self, numbers: Mapping[str, float], time: int) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, time)

    def finish(self) -> None:
        self.writer.close()


class WandbLogger:
    """Weights & Biases. A resumed run keeps its id."""

    def __init__(self, folder: Path, config: RunConfig) -> None:
        import wandb

        self.run: Any = wandb.init(
            project="ffcil",
            id=hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16],
            name=folder.name,
            dir=folder,
            resume="allow",
            config=config.model_dump(mode="json"),
        )

    def log(self, numbers: Mapping[str, float], time: int) -> None:
        self.run.log(dict(numbers), step=time)

    def finish(self) -> None:
        self.run.finish()


class RunLogger(Listener):
    """Logs the records of a run, and its loss after every epoch.

    Every step has 1,000 units on the time axis, so that steps of different lengths can be compared. Epoch 5 of 10 in
    step 3 is at 2,500, also in a resumed run.
    """

    def __init__(self, name: str, config: RunConfig) -> None:
        self.name, self.config = name, config
        self.step = self.epochs = 0

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        place = Path(folder)
        self.logger = WandbLogger(place, self.config) if self.name == "wandb" else TensorBoardLogger(place)

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.step, self.epochs = step, epochs

    def epoch_done(self, progress: FitProgress) -> None:
        time = 1000 * (self.step - 1) + 1000 * progress.epoch // max(self.epochs, progress.epoch)
        speed = progress.images_per_second
        self.logger.log({"train/loss": progress.loss, "train/images_per_second": speed}, time)

    def step_done(self, record: Mapping[str, Any]) -> None:
        by_group = {f"{group}/{name}": value for group in GROUPS for name, value in record[group].items()}
        seconds = {f"seconds/{phase}": value for phase, value in record["seconds"].items()}
        numbers = {**by_group, **seconds, "classes/new": record["new_classes"], "classes/seen": record["seen_classes"]}
        known = {name: value for name, value in numbers.items() if value is not None}
        self.logger.log(known, 1000 * record["step"])

    def finished(self) -> None:
        self.logger.finish()
