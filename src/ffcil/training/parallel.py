"""`Parallel`: one training in several processes, each of which takes its part of every batch.

Every process computes the loss of the whole batch: it gathers what the reduction needs, such as the losses of all
samples, from the others. Gradients flow back through `gather` to the process that has the sample. So the mean of the
gradients over the processes equals the gradient of a single process, for every reduction.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from math import isclose, isnan
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import FileStore

Value = TypeVar("Value")
PATIENCE = timedelta(days=7)
"""Largest time that a process waits for the others. An evaluation may take long, and a process that has died is noticed
by the process that started it."""


@dataclass(frozen=True)
class Parallel:
    """This process among those that share a training. With one process, nothing is exchanged."""

    rank: int = 0
    """Number of this process, from 0."""
    size: int = 1
    """Number of processes."""

    def part(self, samples: int) -> slice:
        """Positions of this process's samples in a batch, whose size must be a multiple of the number of processes."""
        share = samples // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def gather(self, values: Tensor) -> Tensor:
        """Join the values of all processes, [n, ...] each, in the order of the whole batch: [n * size, ...]"""
        if self.size == 1:
            return values
        gathered: Tensor = _Gather.apply(values)
        return gathered

    def over_whole_batch(self, reduction: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The same reduction of per-sample losses, over the samples of all processes."""
        if self.size == 1:
            return reduction

        def reduce(per_sample: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
            gathered = None if weights is None else self.gather(weights.to(per_sample.dtype))
            return reduction(self.gather(per_sample), self.gather(targets), gathered)

        return reduce

    def average_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Replace all gradients by their means over the processes."""
        if self.size == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        together = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(together)
        together /= self.size
        for gradient, mean in zip(gradients, together.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(mean.view_as(gradient))

    def broadcast(self, value: Value) -> Value:
        """The value of process 0. Its tensors must be on the CPU."""
        if self.size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def agree(self, value: float) -> bool:
        """Whether all processes have the same value, up to rounding errors."""
        if self.size == 1:
            return True
        values = [value] * self.size
        dist.all_gather_object(values, value)
        return all(isclose(other, value, rel_tol=1e-4) or (isnan(other) and isnan(value)) for other in values)


ALONE = Parallel()
"""A training in a single process."""


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        gathered = values.new_empty(len(values) * dist.get_world_size(), *values.shape[1:])
        dist.all_gather_into_tensor(gathered, values.contiguous())
        return gathered

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        """Sum of the gradients by this process's values, over the losses of all processes."""
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


@contextmanager
def connected(parallel: Parallel, meeting: Path) -> Iterator[None]:
    """Connect the processes of a training on this machine, which meet in a file that does not exist yet."""
    loopback = next(name for _, name in socket.if_nameindex() if name.startswith("lo"))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # no other machine can connect
    # gloo exchanges objects and CPU tensors, nccl exchanges tensors on GPUs
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
    store = FileStore(str(meeting), parallel.size)
    dist.init_process_group(backend, store=store, rank=parallel.rank, world_size=parallel.size, timeout=PATIENCE)
    try:
        yield
    finally:
        dist.destroy_process_group()
