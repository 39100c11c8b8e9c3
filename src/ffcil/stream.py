"""`Stream`: images, a class order and arrivals, iterated as `Increment`s.

Labels are mapped once to their position in the class order. In a learner, the classes of a step are therefore always
the range `[seen_before, seen_now)`, and no other code computes an offset.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ffcil.arrivals import Arrivals
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError


@dataclass(frozen=True)
class Increment:
    """The data of one step."""

    step: int
    """Number of the step, from 1."""
    seen_before: int
    """Number of classes in earlier steps."""
    seen_now: int
    """Number of classes in this and earlier steps."""
    train: ImageSet
    """All training images. Only `rows`, and rows kept from earlier steps, may be used."""
    rows: Tensor
    """Rows of the training images of the new classes, int64."""
    test: ImageSet
    """All test images."""
    test_rows: Tensor
    """Rows of the test images of all classes seen so far, int64."""

    @property
    def classes(self) -> range:
        """The new classes."""
        return range(self.seen_before, self.seen_now)

    @property
    def new_labels(self) -> tuple[str, ...]:
        """Names of the new classes."""
        return self.train.class_names[self.seen_before : self.seen_now]

    def rows_by_class(self) -> list[Tensor]:
        """Training rows of each new class."""
        labels = self.train.labels[self.rows]
        return [self.rows[labels == c] for c in self.classes]


def class_order(classes: int, seed: int | None) -> tuple[int, ...]:
    """The permutation of classes that PyCIL and others use: that of numpy's legacy generator, usually with seed 1993.
    None keeps the order of the data set."""
    if seed is None:
        return tuple(range(classes))
    return tuple(np.random.RandomState(seed).permutation(classes).tolist())


def _order_of(names: tuple[str, ...], arrivals: Arrivals, seed: int | None) -> tuple[int, ...]:
    """The class order: that of a trace, or a permutation by seed."""
    if arrivals.labels is None:
        return class_order(len(names), seed)
    position = {name: k for k, name in enumerate(names)}
    missing = [label for label in arrivals.labels if label not in position]
    if missing:
        raise InputError(f"The trace contains class {missing[0]!r}, which is not in the data set: correct the trace.")
    return tuple(position[label] for label in arrivals.labels)


class Stream:
    """`for increment in Stream(train, test, arrivals, class_seed=1993): ...`"""

    def __init__(self, train: ImageSet, test: ImageSet, arrivals: Arrivals, class_seed: int | None = 0) -> None:
        if arrivals.classes > train.classes:
            raise InputError(
                f"{arrivals.classes} classes arrive, but the data set has {train.classes}: lower the sizes."
            )
        if train.class_names != test.class_names:
            raise InputError("Training and test images have different class names: use the same names and order.")
        self.arrivals = arrivals
        self.order = _order_of(train.class_names, arrivals, class_seed)[: arrivals.classes]
        self.train, self.test = self._remapped(train), self._remapped(test)
        if empty := (self.train.counts() == 0).nonzero().flatten().tolist():
            name = self.train.class_names[empty[0]]
            raise InputError(f"Class {name!r} has no training images: add some, or remove the class.")

    def _remapped(self, images: ImageSet) -> ImageSet:
        """The same images, labelled by positions in the class order; -1 for classes that do not arrive."""
        position = torch.full((images.classes,), -1, device=images.labels.device)
        position[list(self.order)] = torch.arange(len(self.order), device=position.device)
        labels = torch.where(images.labels >= 0, position[images.labels.clamp_min(0)], -1)
        names = tuple(images.class_names[c] for c in self.order)
        return replace(images, labels=labels, class_names=names)

    def __len__(self) -> int:
        return self.arrivals.steps

    def __getitem__(self, position: int) -> Increment:
        if not 0 <= position < len(self):
            raise IndexError(position)
        now = self.arrivals.boundaries[position]
        before = now - self.arrivals.sizes[position]
        train_labels, test_labels = self.train.labels, self.test.labels
        return Increment(
            step=position + 1,
            seen_before=before,
            seen_now=now,
            train=self.train,
            rows=((train_labels >= before) & (train_labels < now)).nonzero().flatten(),
            test=self.test,
            test_rows=((test_labels >= 0) & (test_labels < now)).nonzero().flatten(),
        )

    def __iter__(self) -> Iterator[Increment]:
        return (self[position] for position in range(len(self)))

    def to(self, device: torch.device) -> Self:
        """The same stream with its images on `device`."""
        moved = copy.copy(self)
        moved.train, moved.test = self.train.to(device), self.test.to(device)
        return moved
