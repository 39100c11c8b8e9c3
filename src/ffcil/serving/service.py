"""`Service`: a classifier in a folder that answers many clients and changes in the background."""

import asyncio
import gc
import os
import sys
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ffcil.classifier.answers import FALSE_ALARMS, Answer
from ffcil.classifier.changing import undo
from ffcil.classifier.versions import Versions
from ffcil.config.resolve import parse_assignments
from ffcil.errors import InputError
from ffcil.serving.batcher import Batcher
from ffcil.serving.change import Change, LabelledImage, LearningProcess, counted
from ffcil.serving.limits import Limits
from ffcil.serving.refusal import Refusal
from ffcil.serving.snapshot import Snapshot, stamp_of
from ffcil.serving.uploads import Upload, class_name, decode

MOST_GUESSES = 10
"""Largest number of classes in an answer."""
POLL = 1.0
"""Seconds between two checks for a version that another process has made."""


@dataclass(frozen=True)
class Told:
    """An answer, and the version that gave it."""

    answer: Answer
    unknown: bool | None
    version: int


class Service:
    """One version answers until the next one is loaded. Only one change is made at a time."""

    def __init__(
        self,
        folder: Path,
        device: str | None = None,
        false_alarms: float = FALSE_ALARMS,
        limits: Limits | None = None,
        imports: Sequence[str] = (),
        assignments: Sequence[str] = (),
    ) -> None:
        """`assignments` are those of --set, such as `weights=FILE`."""
        self.folder, self.limits = folder, limits or Limits()
        self.change: Change | None = None
        """The running change or else the latest one."""
        self.problem: str | None = None
        """Why the current version in the folder cannot be loaded. The one before it then continues to answer."""
        self._device, self._false_alarms = device, false_alarms
        self._changes = parse_assignments(assignments)
        self.snapshot = self._load()
        self._process = LearningProcess(folder, device, imports, assignments)
        self._batcher = Batcher(self._answer, self.limits.waiting)
        self._decoders = ThreadPoolExecutor(max(2, os.cpu_count() or 1), "decoding")
        self._loader = ThreadPoolExecutor(1, "loading")  # always the same thread, so that its memory is reused
        self._tasks: set[asyncio.Task[None]] = set()
        self._loading = asyncio.Lock()

    def _load(self) -> Snapshot:
        return Snapshot.load(self.folder, self._device, self._false_alarms, self._changes)

    # --- answers --------------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Number of images that wait for answers."""
        return len(self._batcher)

    async def answer(self, uploads: Sequence[Upload]) -> Sequence[Told]:
        """Answers with up to `MOST_GUESSES` classes for each image."""
        return await self._batcher.submit(await self._decoded(uploads))

    async def _decoded(self, uploads: Sequence[Upload]) -> list[Image.Image]:
        loop, size = asyncio.get_running_loop(), self.snapshot.classifier.size
        decoding = [loop.run_in_executor(self._decoders, decode, upload, size, self.limits) for upload in uploads]
        try:
            return await asyncio.gather(*decoding)
        finally:
            for future in decoding:
                future.cancel()

    def _answer(self, images: Sequence[Image.Image]) -> Sequence[Told]:
        snapshot = self.snapshot
        answers = snapshot.answer(images, MOST_GUESSES)
        return [Told(answer, snapshot.is_unknown(answer), snapshot.version) for answer in answers]

    # --- changes --------------------------------------------------------------------------------------------------

    @property
    def changing(self) -> bool:
        return self.change is not None and self.change.state == "running"

    def check_idle(self) -> None:
        """Refuse a change while another one is running."""
        if self.changing:
            raise Refusal(409, "The classifier is being changed: wait until that is done.")

    async def learn(self, uploads: Sequence[Upload]) -> Change:
        """Begin to learn images. The name of an upload's field is its class."""
        labels = [class_name(upload.field) for upload in uploads]
        frames = await self._decoded(uploads)
        self.check_idle()
        images = [LabelledImage(label, frame) for label, frame in zip(labels, frames, strict=True)]
        change = Change("learn", counted(images))
        self._begin(change, self._process.learn(images, change))
        return change

    def undo(self, to: int | None) -> Change:
        """Begin to return to an earlier version."""
        self.check_idle()
        versions, now = Versions(self.folder), self.snapshot
        try:
            number = versions.before(now.version, [change["version"] for change in now.history]) if to is None else to
            versions.find(number)
        except InputError as error:
            raise Refusal(409, self._without_folder(error)) from error
        change = Change("undo")
        self._begin(change, asyncio.to_thread(undo, self.folder, number))
        return change

    def versions(self) -> list[int]:
        """Numbers of the versions that are kept."""
        return Versions(self.folder).numbers()

    def _begin(self, change: Change, work: Coroutine[Any, Any, object]) -> None:
        self.change = change
        task = asyncio.create_task(self._make(change, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, change: Change, work: Coroutine[Any, Any, object]) -> None:
        before, failure = self.snapshot.version, ""
        try:
            await work
        except InputError as error:
            failure = str(error)
        except Exception as error:
            change.end("failed", str(error))
            raise
        await self._follow()
        if self.problem:
            change.end("failed", self.problem)
        elif self.snapshot.version != before:  # also if the process was killed after it had saved the new version
            change.end("done", "", self.snapshot.version)
        elif failure:
            change.end("failed", failure)
        else:
            change.end("done", "These images were learned before." if change.kind == "learn" else "", before)

    async def _follow(self) -> None:
        """Load the current version in the folder if another version answers."""
        async with self._loading:
            try:
                if stamp_of(self.folder) != self.snapshot.stamp:
                    self.snapshot = await asyncio.get_running_loop().run_in_executor(self._loader, self._load)
                    gc.collect()  # the version before has circular references to large tensors
                self.problem = None
            except (InputError, OSError) as error:
                problem = self._without_folder(error)
                if self.problem != problem:
                    print(f"ffcil: {error}", file=sys.stderr)
                self.problem = problem

    def _without_folder(self, error: Exception) -> str:
        """A message for clients, without the path of the folder on this machine."""
        return str(error).replace(str(self.folder), self.folder.name)

    # --- start and stop -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to follow the folder."""
        await asyncio.to_thread(self._process.remove_leftovers)
        task = asyncio.create_task(self._watch())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(POLL)
            await self._follow()

    async def stop(self) -> None:
        """Stop learning and answering."""
        await self._process.stop()
        for task in list(self._tasks):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task
        self._batcher.close()
        for pool in (self._decoders, self._loader):
            pool.shutdown(wait=False, cancel_futures=True)
