"""Batch norm over the samples of all processes that share a training."""

from typing import cast

import torch
from torch import Tensor, nn

from ffcil.training.parallel import Parallel


class SynchronisedBatchNorm(nn.BatchNorm2d):
    """Batch norm with the statistics of the whole batch, of which every process has an equal part.

    `SyncBatchNorm` of torch needs a GPU; this class is the same code on every device. It has the state of
    `BatchNorm2d`.
    """

    parallel: Parallel

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, H, W] -> [B, C, H, W]"""
        if not self.training:
            return super().forward(input)
        values = input.float()
        own = torch.stack(torch.var_mean(values, dim=(0, 2, 3), correction=0))  # of this process's part, [2, C]
        variances, means = self.parallel.gather(own.unsqueeze(0)).unbind(1)  # [processes, C] each
        mean = means.mean(dim=0)
        variance = variances.mean(dim=0) + (means - mean).square().mean(dim=0)
        self._remember(mean.detach(), variance.detach(), values.numel() // len(mean) * self.parallel.size)
        scale = self.weight * (variance + self.eps).rsqrt()
        scaled = (values - _per_channel(mean)) * _per_channel(scale) + _per_channel(self.bias)
        return scaled.to(input.dtype)

    def _remember(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """Update the running statistics as `BatchNorm2d` does, with the unbiased variance."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(variance * (count / max(count - 1, 1)), self.momentum)
        self.num_batches_tracked += 1


def _per_channel(values: Tensor) -> Tensor:
    """[C] -> [C, 1, 1]"""
    return values[:, None, None]


def synchronise_batch_norm(network: nn.Module, parallel: Parallel) -> None:
    """Let every batch norm of a network use the statistics of the whole batch."""
    for module in network.modules():
        if type(module) is nn.BatchNorm2d:
            module.__class__ = SynchronisedBatchNorm  # only `forward` differs
            cast(SynchronisedBatchNorm, module).parallel = parallel
