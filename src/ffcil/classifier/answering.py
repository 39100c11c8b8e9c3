"""`Answering`: what a learner says about images. It changes nothing."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from ffcil.calibration import expected_calibration_error
from ffcil.classifier.answers import Answer, Description, Guess
from ffcil.classifier.unknown import check_rate, measure_detection
from ffcil.data.pictures import Frame, Picture, frames, store_frames
from ffcil.data.placement import place
from ffcil.data.ragged import Images
from ffcil.errors import InputError
from ffcil.methods.learner import Learner
from ffcil.metrics import Confusion
from ffcil.training.engine import Engine, evaluating

Value = TypeVar("Value")


@dataclass(frozen=True)
class Answering:
    """Answers of a learner whose classes have these names, for images that are read at one size in batches."""

    learner: Learner
    engine: Engine
    names: tuple[str, ...]
    size: int
    batch: int

    def answer(
        self, images: Iterable[Picture], top: int, false_alarms: float | None, skip_bad: bool
    ) -> list[Answer | None]:
        """The most likely classes of each image, and whether it is of none of them; None if `skip_bad` skips it."""
        if top < 1:
            raise InputError(f"top is {top}: it must be at least 1.")
        limit = math.inf if false_alarms is None else self.learner.novelty_limit(check_rate(false_alarms))
        answers: list[Answer | None] = []
        for batch, store in self._stores(images, skip_bad):
            scores, novelty = self.open_scores(store)
            best = scores.softmax(dim=1).topk(min(top, len(self.names)), dim=1)
            strange = [None] * len(scores) if novelty is None else novelty.tolist()
            found = (
                Answer(
                    tuple(Guess(self.names[label], score) for label, score in zip(labels, values, strict=True)),
                    value,
                    value is not None and value > limit,
                )
                for labels, values, value in zip(best.indices.tolist(), best.values.tolist(), strange, strict=True)
            )
            answers += [next(found) if isinstance(frame, Tensor) else None for frame in batch]
        return answers

    def describe(self, images: Iterable[Picture], skip_bad: bool = False) -> Description:
        """Scores, novelty and features of images, if the method can compare images."""
        parts: list[tuple[Tensor, Tensor | None, Tensor]] = []
        read: list[int] = []
        number = 0
        for batch, store in self._stores(images, skip_bad):
            read += [number + k for k, frame in enumerate(batch) if isinstance(frame, Tensor)]
            number += len(batch)
            parts += self._over(store, self.learner.describe)
        if not parts:
            raise InputError("There is no image that can be read: give some.")
        novelty = [value for _, value, _ in parts if value is not None]
        return Description(
            tuple(read),
            torch.cat([scores for scores, _, _ in parts]).cpu(),
            torch.cat(novelty).cpu() if novelty else None,
            torch.cat([features for _, _, features in parts]).cpu(),
        )

    def measure(
        self,
        store: Images,
        true: Tensor,
        steps: Sequence[int],
        unknown: Iterable[Picture] | None,
        false_alarms: float,
    ) -> dict[str, Any]:
        """Accuracy overall, by step and by class, and calibration error, in percent; with `unknown`, also how well
        those images are recognised as unknown.

        Args:
            true: Class of each image of the store, [N].
            steps: Number of classes that each step introduced.
        """
        scores, novelty = self.open_scores(store)
        table = Confusion.count(true.numpy(), scores.argmax(dim=1).numpy(), len(self.names))
        by_class = {name: table.accuracy(slice(k, k + 1)) for k, name in enumerate(self.names)}
        ends = itertools.accumulate(steps)
        measured: dict[str, Any] = {
            "images": len(true),
            "accuracy": table.accuracy(),
            "calibration_error": 100 * expected_calibration_error(scores.softmax(dim=1), true),
            "by_step": [table.accuracy(slice(end - size, end)) for end, size in zip(ends, steps, strict=True)],
            "by_class": {name: accuracy for name, accuracy in by_class.items() if accuracy is not None},
        }
        if unknown is not None:
            limit = self.learner.novelty_limit(check_rate(false_alarms))
            others = self.describe(unknown)
            if novelty is None or others.novelty is None:
                raise InputError("There are too few learned images to tell unknown ones: learn more.")
            detection = measure_detection((scores, novelty), (others.scores, others.novelty), limit)
            measured["unknown"] = asdict(detection)
        return measured

    def open_scores(self, store: Images) -> tuple[Tensor, Tensor | None]:
        """Scores of the images of a store by the scored classifier [N, classes], and their novelty [N] if the method
        knows it, on the CPU."""
        batches = self._over(store, self.learner.open_scores)
        scores = torch.cat([torch.empty(0, len(self.names)), *(scores.cpu() for scores, _ in batches)])
        novelty = [value.cpu() for _, value in batches if value is not None]
        return scores, torch.cat(novelty) if novelty else None

    def _stores(self, images: Iterable[Picture], skip_bad: bool) -> Iterator[tuple[list[Frame], Images]]:
        """Batches of images, and a store of those of each batch that can be read."""
        if not self.names:
            raise InputError("The classifier knows no classes yet: teach it some first.")
        for batch in frames(images, self.size, self.batch, skip_bad):
            yield batch, store_frames([frame for frame in batch if isinstance(frame, Tensor)], self.size)

    def _over(self, store: Images, compute: Callable[[Tensor], Value]) -> list[Value]:
        """Apply `compute` to the images of a store, batch by batch."""
        learner, device = self.learner, self.engine.device
        images = place(store, device) if isinstance(store, Tensor) else store.to(device)
        with self.engine.settled(), evaluating(learner):
            return list(learner.over(images, torch.arange(len(store)), compute))
