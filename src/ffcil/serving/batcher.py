"""`Batcher`: one thread answers the images of many clients together."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

from PIL import Image

from ffcil.serving.refusal import Refusal

Result = TypeVar("Result")
AT_ONCE = 64
"""Largest number of images that are answered together, unless one client sends more."""


@dataclass(frozen=True)
class _Waiting(Generic[Result]):
    images: Sequence[Image.Image]
    results: "asyncio.Future[Sequence[Result]]"


class Batcher(Generic[Result]):
    """Calls `answer` with the images of all waiting clients: a network is faster on many images together than on one
    after another, and only one thread at a time may use a learner."""

    def __init__(self, answer: Callable[[Sequence[Image.Image]], Sequence[Result]], most_waiting: int) -> None:
        self._answer, self._most = answer, most_waiting
        self._queue: deque[_Waiting[Result]] = deque()
        self._thread = ThreadPoolExecutor(1, "answers")
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """Number of images that wait."""
        return sum(len(waiting.images) for waiting in self._queue)

    async def submit(self, images: Sequence[Image.Image]) -> Sequence[Result]:
        """The results of these images."""
        if len(self) + len(images) > self._most:
            raise Refusal(503, "Too many images wait for answers: try again later.")
        waiting = _Waiting[Result](images, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._work())
        return await waiting.results

    async def _work(self) -> None:
        """Answer until no image waits."""
        while batch := self._take():
            images = [image for waiting in batch for image in waiting.images]
            try:
                results = await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, images)
            except Exception as error:
                for waiting in batch:
                    if not waiting.results.done():
                        waiting.results.set_exception(error)
                continue
            done = 0
            for waiting in batch:
                own = results[done : done + len(waiting.images)]
                done += len(waiting.images)
                if not waiting.results.done():
                    waiting.results.set_result(own)

    def _take(self) -> list[_Waiting[Result]]:
        """The next images to answer, without those of clients that have disconnected."""
        batch: list[_Waiting[Result]] = []
        images = 0
        while self._queue and (not batch or images + len(self._queue[0].images) <= AT_ONCE):
            waiting = self._queue.popleft()
            if not waiting.results.done():
                batch.append(waiting)
                images += len(waiting.images)
        return batch

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
