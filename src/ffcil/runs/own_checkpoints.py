"""Checkpoints of one run. They are written with its identity, and are read only if they are intact and of this run."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ffcil.errors import InputError
from ffcil.runs.checkpoint import load_state, remove_old_checkpoints, save_checkpoint, set_aside
from ffcil.runs.folder import checkpoint_name, checkpoints
from ffcil.runs.identity import RunIdentity
from ffcil.training.progress import FitProgress

REMEDY = "restore it from a copy, or remove the run's folder and start again"
"""Remedy in error messages for a checkpoint that cannot be used."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a run continues."""

    finished: int = 0
    """Number of finished steps."""
    progress: FitProgress | None = None
    """Progress within the next step."""
    learner: dict[str, Any] | None = None
    """State of the learner; None if the run starts."""
    skipped: int = 0
    """Number of newer checkpoints that could not be used."""
    identified: bool = True
    """Whether the checkpoint has the identity of its run, which those of earlier versions lack."""


class OwnCheckpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, identity: RunIdentity) -> None:
        self.folder, self.identity = folder, identity

    def save(self, learner: dict[str, Any], finished: int, progress: FitProgress | None) -> None:
        """Write a checkpoint after `finished` steps, or within the next one."""
        fields = vars(progress) if progress else None
        state = {"run": self.identity.to_json(), "finished": finished, "progress": fields, "learner": learner}
        save_checkpoint(self.folder, finished + 1, progress.epoch if progress else 0, state)

    def newest(self, warn: Callable[[str], None]) -> ResumePoint:
        """The newest checkpoint that can be used. Newer ones are set aside with a warning."""
        problems: dict[Path, InputError] = {}
        for path in reversed(checkpoints(self.folder)):
            try:
                state = self._read(path)
            except InputError as error:
                problems[path] = error
                continue
            for unusable, problem in problems.items():
                reason = str(problem).removesuffix(f": {REMEDY}.")
                warn(f"{reason}: it is now {set_aside(unusable).name}, and the run continues from {path.name}.")
            progress = FitProgress(**state["progress"]) if state["progress"] else None
            return ResumePoint(state["finished"], progress, state["learner"], len(problems), "run" in state)
        if problems:
            raise next(iter(problems.values()))
        return ResumePoint()

    def conclude(self) -> None:
        """Keep only the last checkpoint of a finished run."""
        remove_old_checkpoints(self.folder, 1)

    def _read(self, path: Path) -> dict[str, Any]:
        state = load_state(path, REMEDY)
        if differing := self.identity.differing(state.get("run")):
            raise InputError(f"Checkpoint {path} is of another run (it differs in {', '.join(differing)}): {REMEDY}.")
        try:
            name = checkpoint_name(state["finished"] + 1, state["progress"]["epoch"] if state["progress"] else 0)
        except (KeyError, TypeError):
            raise InputError(f"Checkpoint {path} is damaged (it does not name its step): {REMEDY}.") from None
        if path.name != name:
            raise InputError(f"Checkpoint {path} is of another moment (its own name is {name}): {REMEDY}.")
        return state
