"""`Versions`: the numbered versions of a classifier in its folder.

Every change writes a new file, such as `versions/000007.safetensors`. Then `model.safetensors` becomes another name of
that file by one rename. Whatever happens in between, `model.safetensors` is the old or the new version, and complete.
"""

import os
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from ffcil.atomic import remove_drafts, sync
from ffcil.errors import InputError
from ffcil.runs.checkpoint import load_state, save_state

MODEL = "model.safetensors"
FOLDER = "versions"
REMEDY = "restore a copy of it, return to a version with `ffcil undo MODEL --to VERSION`, or create another classifier"
KEPT = 5
"""Number of versions that are kept by default."""
_NAME = re.compile(r"(\d{6,})\.safetensors")
_DAY = 86400.0


@dataclass(frozen=True)
class Retention:
    """The versions that are kept beside the current one."""

    versions: int = KEPT
    """Number of latest versions that are kept."""
    days: float | None = None
    """Age in days at which versions are also removed; None for no limit."""

    def changed(self, versions: int | None = None, days: float | None = None) -> Self:
        """The same with values that are not None."""
        if versions is not None and versions < 1:
            raise InputError(f"versions is {versions}: it must be at least 1.")
        if days is not None and not days >= 0:
            raise InputError(f"days is {days}: it must be at least 0.")
        return replace(
            self,
            versions=self.versions if versions is None else versions,
            days=self.days if days is None else days,
        )


def check_model(folder: Path) -> None:
    """Raise an error if there is no classifier in a folder."""
    if not (folder / MODEL).is_file():
        raise InputError(f"There is no classifier in {folder}: make one with `ffcil learn {folder} IMAGES`.")


class Versions:
    """Reads and writes the versions in the folder of a classifier. The caller holds the lock of the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def current(self) -> Path:
        return self.folder / MODEL

    def numbers(self) -> list[int]:
        """Numbers of the versions that are there, ascending."""
        found = (_NAME.fullmatch(path.name) for path in (self.folder / FOLDER).glob("*.safetensors"))
        return sorted(int(match[1]) for match in found if match)

    def path(self, number: int) -> Path:
        return self.folder / FOLDER / f"{number:06d}.safetensors"

    def previous(self) -> int:
        """The number of the version that the current one was made from."""
        state = self.read()
        return self.before(state.get("version", 1), [change["version"] for change in state.get("changes", [])])

    def before(self, current: int, changes: Sequence[int]) -> int:
        """The number of the version that version `current` was made from.

        Args:
            changes: Versions of all changes up to it. The model of a release without versions has none.
        """
        for known in (changes, self.numbers()):
            if earlier := [number for number in known if number < current]:
                return max(earlier)
        raise InputError(f"{self.folder} is at its first version: there is nothing to undo.")

    def next_number(self) -> int:
        """The number of the next version. The model of a release without versions becomes the first one."""
        numbers = self.numbers()
        if not numbers and self.current.is_file():
            (self.folder / FOLDER).mkdir(exist_ok=True)
            _another_name(self.current, self.path(1))
            return 2
        return max(numbers, default=0) + 1

    def write(self, state: dict[str, Any], number: int) -> None:
        """Write a version and switch to it."""
        (self.folder / FOLDER).mkdir(parents=True, exist_ok=True)
        remove_drafts(self.folder)
        save_state(self.path(number), state)
        self.switch(number)

    def read(self, number: int | None = None) -> dict[str, Any]:
        """The state of the current version, or of another one."""
        return load_state(self.current if number is None else self.find(number), REMEDY)

    def switch(self, number: int) -> None:
        """Make a version the current one."""
        path = self.find(number)
        draft = self.folder / f".{MODEL}.draft"
        draft.unlink(missing_ok=True)
        _another_name(path, draft)
        draft.replace(self.current)
        sync(self.folder)

    def find(self, number: int) -> Path:
        """The file of a version, which must be kept."""
        path = self.path(number)
        if not path.is_file():
            there = ", ".join(map(str, self.numbers())) or "none"
            raise InputError(f"{self.folder} has no version {number}: choose one of those that are kept ({there}).")
        return path

    def prune(self, current: int, count: int = KEPT, days: float | None = None) -> list[int]:
        """Remove all versions but the current one and the latest `count`, and those older than `days`. Returns the
        numbers of the removed ones."""
        oldest = -float("inf") if days is None else time.time() - days * _DAY
        numbers = self.numbers()
        removed = [
            number
            for number in numbers
            if number != current and (number not in numbers[-count:] or self.path(number).stat().st_mtime < oldest)
        ]
        for number in removed:
            self.path(number).unlink()
        return removed


def _another_name(path: Path, name: Path) -> None:
    """A second name of a file, or a copy where the file system has no hard links."""
    try:
        os.link(path, name)
    except OSError:
        shutil.copyfile(path, name)
        sync(name)
