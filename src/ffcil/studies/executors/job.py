"""One run of a study, and how a worker carries it out, whatever process or machine that is."""

from __future__ import annotations

import sys
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch
from rich.console import Console

from ffcil.config.settings import RunConfig
from ffcil.errors import BusyError, InputError
from ffcil.methods import METHODS, load_methods
from ffcil.runs.loggers import listeners
from ffcil.runs.progress import CompositeListener, ConsoleProgress, ProgressFile
from ffcil.runs.run import Run

LOG = "run.log"


@dataclass(frozen=True, eq=False)
class Job:
    """A run to be carried out: all that a worker needs to know of it."""

    label: str
    """what tells it from the study's other runs"""
    config: RunConfig
    folder: Path
    recipe: str = ""
    """that its configuration was made from"""
    data: Path | None = None
    device: str | None = None
    imports: tuple[str, ...] = ()
    """Python files that register methods"""
    logs: tuple[str, ...] = ()
    """tensorboard, wandb"""

    @property
    def done(self) -> bool:
        return (self.folder / "done").exists()

    def command(self) -> list[str]:
        """What a person would type to make this run alone; it is kept in environment.json."""
        named = {"--data": self.data, "--device": self.device}
        options = [str(part) for option, value in named.items() if value is not None for part in (option, value)]
        options += ["--threads", "1", *(part for file in self.imports for part in ("--import", file))]
        return ["ffcil", "run", str(self.folder / "config.json"), "--out", str(self.folder), *options]


class Ending(Enum):
    DONE = "done"
    BUSY = "in another process's hands"
    WRONG = "bad input: trying again is of no use"
    DIED = "died"


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a job ended."""

    ending: Ending
    why: str = ""


def attempt(job: Job) -> Outcome:
    """Carry out a job in this process, or take it up where it was broken off; what it says goes to its log."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / LOG).open("a", buffering=1, encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
        sys.argv = job.command()
        try:
            if job.config.method not in METHODS:
                for file in job.imports:
                    load_methods(file)
            device = job.device or ("cuda" if torch.cuda.is_available() else "cpu")
            listener = CompositeListener(
                ConsoleProgress(Console(file=log, width=200)), ProgressFile(), *listeners(job.logs, job.config)
            )
            # a thread each: runs that share a machine do not fight for cores, and a run is the same wherever it is made
            Run(job.config, job.folder, data=job.data, device=device, threads=1, listener=listener).execute()
        except BusyError as error:
            return Outcome(Ending.BUSY, str(error))
        except InputError as error:
            print(f"ffcil: {error}", file=log)
            return Outcome(Ending.WRONG, str(error))
        except Exception:
            # whatever it was: the study goes on, tries this run once more, and tells the last line at the end
            traceback.print_exc(file=log)
            return Outcome(Ending.DIED, traceback.format_exc().strip().splitlines()[-1])
    return Outcome(Ending.DONE)
