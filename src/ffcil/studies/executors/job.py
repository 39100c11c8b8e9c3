"""`Job`: one run of a study, and how a worker executes it in any process on any machine."""

import os
import sys
import textwrap
import traceback
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rich.console import Console

from ffcil.config.settings import RunConfig
from ffcil.errors import BusyError, InputError
from ffcil.methods import is_registered, load_methods
from ffcil.runs.loggers import listeners
from ffcil.runs.progress import CompositeListener, ConsoleProgress, ProgressFile
from ffcil.runs.run import Run

LOG = "run.log"
_TAIL = 4096  # bytes at the end of a log in which its last line is searched
_LONGEST_REASON = 300  # characters of an error in the output of a study


@dataclass(frozen=True, eq=False)
class Job:
    """A run with everything that a worker needs to execute it."""

    label: str
    """Short name of the run, unique within the study."""
    config: RunConfig
    folder: Path
    recipe: str = ""
    """Recipe of the run's configuration."""
    data: Path | None = None
    device: str | None = None
    imports: tuple[str, ...] = ()
    """Python files that register methods."""
    logs: tuple[str, ...] = ()
    """Names of loggers: tensorboard, wandb."""

    @property
    def done(self) -> bool:
        return (self.folder / "done").exists()

    def command(self) -> list[str]:
        """The command that executes this run alone; it is recorded in environment.json."""
        options = [
            *(["--data", str(self.data)] if self.data else []),
            *(["--device", self.device] if self.device else []),
            *("--threads", "1"),
            *(part for file in self.imports for part in ("--import", file)),
        ]
        return ["ffcil", "run", str(self.folder / "config.json"), "--out", str(self.folder), *options]


class Ending(Enum):
    """How an attempt at a job can end."""

    DONE = "done"
    BUSY = "executed by another process"
    INVALID = "invalid input, which another attempt would not change"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Outcome:
    """How an attempt at a job ended, and why."""

    ending: Ending
    reason: str = ""


def last_line(log: Path) -> str:
    """The last line of a log that is not blank; empty if there is none."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        lines = file.read().decode("utf-8", errors="replace").split("\n")
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def attempt(job: Job) -> Outcome:
    """Start or resume a job in this process. Its output goes to its log."""
    job.folder.mkdir(parents=True, exist_ok=True)
    with (job.folder / LOG).open("a", buffering=1, encoding="utf-8") as log, redirect_stdout(log), redirect_stderr(log):
        sys.argv = job.command()
        try:
            if not is_registered(job.config):
                for file in job.imports:
                    load_methods(file)
            console = ConsoleProgress(Console(file=log, width=200))
            listener = CompositeListener(console, ProgressFile(), *listeners(job.logs, job.config))
            # one thread per run: runs do not compete for cores, and results do not depend on the number of cores
            Run(job.config, job.folder, data=job.data, device=job.device, threads=1, listener=listener).execute()
        except BusyError as error:
            return Outcome(Ending.BUSY, str(error))
        except InputError as error:
            print(f"ffcil: {error}", file=log)
            return Outcome(Ending.INVALID, str(error))
        except Exception as error:  # the study continues with other runs and reports the error in one line
            traceback.print_exc(file=log)
            text = "".join(traceback.format_exception_only(error))
            return Outcome(Ending.CRASHED, textwrap.shorten(text, _LONGEST_REASON, placeholder=" ..."))
    return Outcome(Ending.DONE)
