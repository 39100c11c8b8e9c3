"""Classifier heads that grow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GrowingLinear(nn.Module):
    """A linear head over all classes seen so far. It starts with none."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))

    @property
    def classes(self) -> int:
        return len(self.weight)

    @torch.no_grad()
    def grow(self, classes: int) -> None:
        """Add rows up to `classes`, U(+-sqrt(3 / fan_in)); the rows of the classes before stay bit-equal."""
        added = classes - self.classes
        weight = torch.empty(added, self.weight.shape[1])  # drawn on the CPU: the same on every device
        nn.init.kaiming_uniform_(weight, nonlinearity="linear")
        self.weight = nn.Parameter(torch.cat([self.weight, weight.to(self.weight.device)]))
        self.bias = nn.Parameter(torch.cat([self.bias, self.bias.new_zeros(added)]))

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        return F.linear(features, self.weight, self.bias)
