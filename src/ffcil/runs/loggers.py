"""Other places that hear of a run: TensorBoard and Weights & Biases. The run's folder stays the truth."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from lightning_fabric.loggers.logger import Logger
from lightning_fabric.loggers.tensorboard import TensorBoardLogger

from ffcil.config.settings import RunConfig
from ffcil.errors import InputError, unknown
from ffcil.runs.progress import Listener

LOGS = ("tensorboard", "wandb")


def listeners(names: Iterable[str], config: RunConfig) -> list[Listener]:
    """One listener for each name; a package that is missing is said at once."""
    check_logs(names)
    return [Logged(name, config) for name in names]


def check_logs(names: Iterable[str]) -> None:
    for name in names:
        if name not in LOGS:
            raise unknown("log", name, LOGS)
        if importlib.util.find_spec(name) is None:
            raise InputError(f"--log {name} needs the package {name}: pip install 'ffcil[{name}]'.")


class WandbLogger(Logger):
    """Weights & Biases as one of Fabric's loggers, which has none: a run keeps its id when it is taken up again."""

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

    @property
    def name(self) -> str:
        return str(self.run.name)

    @property
    def version(self) -> str:
        return str(self.run.id)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.run.log(dict(metrics), step=step)

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.run.config.update(params)

    def finalize(self, status: str) -> None:
        self.run.finish()


class Logged(Listener):
    """Hands a run's records, and its loss after every epoch, to a logger.

    A record counts as 1,000 on the time axis: epoch 5 of 10 of step 3 is at 2,500, also in a run that was taken up
    again, and steps of different lengths stand side by side.
    """

    def __init__(self, name: str, config: RunConfig) -> None:
        self.name, self.config = name, config
        self.step = self.epochs = 0

    def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
        self.logger: Logger
        if self.name == "wandb":
            self.logger = WandbLogger(Path(folder), self.config)
        else:
            self.logger = TensorBoardLogger(folder, name="", version="tensorboard")

    def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
        self.step, self.epochs = step, epochs

    def epoch_done(self, epoch: int, loss: float, images_per_second: float) -> None:
        at = 1000 * (self.step - 1) + 1000 * epoch // max(self.epochs, epoch)
        self.logger.log_metrics({"train/loss": loss, "train/images_per_second": images_per_second}, at)

    def step_done(self, record: Mapping[str, Any]) -> None:
        by_group = {f"{group}/{name}": value for group in GROUPS for name, value in record[group].items()}
        seconds = {f"seconds/{phase}": value for phase, value in record["seconds"].items()}
        numbers = {**by_group, **seconds, "classes/new": record["new_classes"], "classes/seen": record["seen_classes"]}
        at = 1000 * record["step"]
        self.logger.log_metrics({name: value for name, value in numbers.items() if value is not None}, at)

    def finished(self) -> None:
        self.logger.finalize("success")


GROUPS = ("accuracy", "old_accuracy", "new_accuracy")
