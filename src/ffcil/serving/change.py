"""Changes of a classifier while it is being served: learning in a process of its own, and undoing."""

import asyncio
import csv
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from PIL import Image

from ffcil.errors import InputError
from ffcil.locks import is_held, lock
from ffcil.runs.folder import LOCK, is_busy

UPLOADS = "uploads-"
"""Prefix of the names of folders with images that are being learned."""
STOPPING = 10.0
"""Seconds that a process has to end after a request to stop."""
NICE = 5
"""Niceness of the process that learns, so that the process that answers has priority."""


@dataclass
class Change:
    """A requested change and its progress."""

    kind: Literal["learn", "undo"]
    images: dict[str, int] = field(default_factory=dict)
    """Number of images of each class."""
    state: Literal["running", "done", "failed"] = "running"
    note: str = ""
    """Latest message about the progress, or the reason of a failure."""
    version: int | None = None
    """The version that the change made or returned to."""
    started: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    """Time that the change took."""

    def end(self, state: Literal["done", "failed"], note: str, version: int | None = None) -> None:
        self.state, self.note, self.version, self.seconds = state, note, version, time.monotonic() - self.started

    def elapsed(self) -> float:
        return time.monotonic() - self.started if self.state == "running" else self.seconds


@dataclass(frozen=True)
class LabelledImage:
    """An image to learn, decoded and scaled."""

    label: str
    image: Image.Image


class LearningProcess:
    """`ffcil learn` in its own process, so that answers are not delayed, its memory is freed at its end, and a crash
    does not affect the service."""

    def __init__(
        self, folder: Path, device: str | None, imports: Sequence[str] = (), assignments: Sequence[str] = ()
    ) -> None:
        self.folder = folder
        self._options = ["--device", device] if device else []
        self._options += [f"--import={file}" for file in imports]
        self._options += [f"--set={assignment}" for assignment in assignments]
        self._process: asyncio.subprocess.Process | None = None

    async def learn(self, images: Sequence[LabelledImage], change: Change) -> None:
        """Learn images, and write the progress to the note of `change`. A failure is an `InputError`."""
        await asyncio.to_thread(self.remove_leftovers)
        # in the folder of the classifier, where the next service finds the images if this one is killed
        with tempfile.TemporaryDirectory(prefix=UPLOADS, dir=self.folder) as name, lock(Path(name) / LOCK):
            temporary = Path(name)
            table = await asyncio.to_thread(write_table, images, temporary)
            await self._run(table, {"FFCIL_CACHE": str(temporary / "cache")}, change)

    def remove_leftovers(self) -> None:
        """Remove images that services left because they were killed while they learned."""
        for left in self.folder.glob(f"{UPLOADS}*"):
            # a process of a killed service may still read them
            if not is_held(left / LOCK) and not is_busy(self.folder):
                with suppress(FileNotFoundError):  # another service may remove them, too
                    shutil.rmtree(left)

    async def _run(self, table: Path, settings: dict[str, str], change: Change) -> None:
        threads = max(1, (os.cpu_count() or 1) // 2)
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ffcil", "learn", str(self.folder), str(table), *self._options),
            env={"OMP_NUM_THREADS": str(threads), **os.environ, **settings},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        with suppress(ProcessLookupError):  # it may have ended already
            os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
        assert process.stderr is not None
        last = ""
        async for line in process.stderr:
            if text := line.decode(errors="replace").strip():
                # clients must not see the names of folders of this machine
                text = text.removeprefix("ffcil: ").replace(str(table), "The request")
                last = change.note = text.replace(str(self.folder), self.folder.name)
        if status := await process.wait():
            raise InputError(last or f"The process that learns ended with status {status}: see the log of the service.")

    async def stop(self) -> None:
        """Stop a running process. The classifier is then unchanged."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), STOPPING)
        except TimeoutError:
            process.kill()


def write_table(images: Sequence[LabelledImage], folder: Path) -> Path:
    """Write images and a table of their labels. Names that clients sent never become names of files."""
    with (folder / "images.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "label"])
        for number, labelled in enumerate(images):
            labelled.image.save(folder / f"{number:06d}.png", compress_level=1)
            writer.writerow([f"{number:06d}.png", labelled.label])
    return folder / "images.csv"


def counted(images: Sequence[LabelledImage]) -> dict[str, int]:
    """Number of images by label."""
    return dict(Counter(labelled.label for labelled in images))
