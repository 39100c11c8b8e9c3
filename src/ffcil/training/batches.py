"""Sources of training batches: augmented images of a store, and stored or drawn features.

All random choices of an epoch (order, crops, flips) are made before it, by a generator whose seed depends only on the
seed of the fit and the epoch. So a run can resume at any epoch without saved generator states, and the choices are the
same with and without a captured graph, on a CPU and on a GPU.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ffcil.data.augment import Augmentation, Draws
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import image_sizes
from ffcil.training.parallel import ALONE, Parallel


class Batches(Protocol):
    """The batches of one epoch after another."""

    count: int
    """Number of batches in an epoch."""
    samples: int
    """Number of samples in an epoch, over all processes."""
    same_shape: bool
    """Whether all batches have the same shape, which a captured graph needs."""

    def start_epoch(self, seed: int) -> None:
        """Make the random choices of the next epoch."""

    def next(self) -> tuple[Tensor, Tensor]:
        """Inputs and targets of this process's part of the next batch. It never synchronises with the device."""


class Source(Protocol):
    """Training data, from which batches can be made."""

    def __len__(self) -> int: ...
    def batches(self, device: torch.device, parallel: Parallel = ALONE) -> Batches: ...


@dataclass(frozen=True)
class ImageSource:
    """Augmented images of a store."""

    images: ImageSet
    rows: Tensor
    """Rows of the training images in the store, int64."""
    augmentation: Augmentation
    batch: int
    """Images per batch."""
    views: int = 1
    """Independent augmentations of every image of a batch; a batch is then [view 1; view 2; ...]."""

    def __len__(self) -> int:
        return len(self.rows)

    def batches(self, device: torch.device, parallel: Parallel = ALONE) -> Batches:
        return _ImageBatches(self, device, parallel)


class _ImageBatches:
    """Random choices as tensors on the device, [batches, views * batch, ...], made before each epoch.

    All processes make the same choices, and each of them keeps those of its own part of every batch.
    """

    same_shape = True

    def __init__(self, source: ImageSource, device: torch.device, parallel: Parallel) -> None:
        self.source = source
        self.part = parallel.part(source.views * source.batch)
        self.rows, self.sizes = source.rows.cpu(), image_sizes(source.images.images).cpu()
        self.count = math.ceil(len(source.rows) / source.batch)
        self.samples = self.count * source.batch
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        order, draws = self._choices(torch.Generator())
        self.order, self.draws = order.to(device), Draws(*(values.to(device) for values in draws))

    def _choices(self, generator: torch.Generator) -> tuple[Tensor, Draws]:
        """Rows and augmentations of this process's part of every batch."""
        order = self._order(generator).repeat(1, self.source.views)
        draws = self._augmentations(order, generator)
        return order[:, self.part], Draws(*(values[:, self.part] for values in draws))

    def _order(self, generator: torch.Generator) -> Tensor:
        """Shuffled rows, [batches, batch]. The last batch is filled with rows of another shuffle."""
        available = len(self.rows)
        shuffles = [torch.randperm(available, generator=generator) for _ in range(math.ceil(self.samples / available))]
        return self.rows[torch.cat(shuffles)[: self.samples]].view(self.count, -1)

    def _augmentations(self, order: Tensor, generator: torch.Generator) -> Draws:
        """Draw the augmentation of every view of every image of an epoch."""
        drawn = self.source.augmentation.draw(order.numel(), generator, self.sizes[order.view(-1)])
        return Draws(*(values.view(*order.shape, *values.shape[1:]) for values in drawn))

    def start_epoch(self, seed: int) -> None:
        order, draws = self._choices(torch.Generator().manual_seed(seed))
        self.order.copy_(order)
        for buffer, values in zip(self.draws, draws, strict=True):
            buffer.copy_(values)
        self.position.zero_()

    def next(self) -> tuple[Tensor, Tensor]:
        # the position is a tensor, so that a replayed graph advances it
        rows = self.order.index_select(0, self.position)[0]
        draws = Draws(*(values.index_select(0, self.position)[0] for values in self.draws))
        self.position += 1
        store = self.source.images
        return self.source.augmentation.train(store.images, rows, draws), store.labels[rows]


@dataclass(frozen=True)
class FeatureSource:
    """Features that are drawn again before every epoch."""

    draw: Callable[[], tuple[Tensor, Tensor]]
    """Function that returns the features [N, D] and the targets [N] of an epoch. N is the same in every epoch."""
    size: int
    """N, the number of features of an epoch."""
    batch: int
    """Features per batch. The last batch is shorter if N is not a multiple of it."""
    generator: torch.Generator
    """Generator that shuffles the features, on their device. `draw` may use it, too."""

    def __len__(self) -> int:
        return self.size

    def batches(self, device: torch.device, parallel: Parallel = ALONE) -> Batches:
        """Every process takes whole batches, because a step on features takes little time."""
        return _FeatureBatches(self, device)


class _FeatureBatches:
    def __init__(self, source: FeatureSource, device: torch.device) -> None:
        self.source, self.device = source, device
        self.samples, self.count = source.size, math.ceil(source.size / source.batch)
        self.same_shape = source.size % source.batch == 0
        self.position = torch.zeros(1, dtype=torch.int64, device=device)
        self.number = 0
        self.order = torch.empty(source.size, dtype=torch.int64, device=device)
        self.features = self.targets = torch.empty(0)

    def start_epoch(self, seed: int) -> None:
        features, targets = self.source.draw()
        if len(self.features):  # in place: a captured graph reads them where they are
            self.features.copy_(features)
            self.targets.copy_(targets)
        else:
            self.features, self.targets = features.clone(), targets.clone()
        self.order.copy_(torch.randperm(self.samples, generator=self.source.generator, device=self.device))
        self.position.zero_()
        self.number = 0

    def next(self) -> tuple[Tensor, Tensor]:
        if self.same_shape:
            rows = self.order.view(self.count, -1).index_select(0, self.position)[0]
            self.position += 1
        else:
            rows = self.order[self.number * self.source.batch : (self.number + 1) * self.source.batch]
            self.number += 1
        return self.features[rows], self.targets[rows]
