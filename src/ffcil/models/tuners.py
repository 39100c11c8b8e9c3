"""Small trained parts at the sites of a frozen ViT: parallel adapters and LoRA. Fresh ones change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Adapter(nn.Module):
    """Beside a block's MLP, on the same input before its layer norm: scale * (U drop(ReLU(D h + b)) + c).

    Chen et al., AdaptFormer, NeurIPS 2022, in the form of the published class-incremental methods.
    """

    def __init__(self, width: int, rank: int, scale: float = 0.1, dropout: float = 0.1) -> None:
        super().__init__()
        self.down, self.up = nn.Linear(width, rank), nn.Linear(rank, width)
        nn.init.kaiming_uniform_(self.down.weight, a=math.sqrt(5))
        for zero in (self.down.bias, self.up.weight, self.up.bias):
            nn.init.zeros_(zero)
        self.dropout, self.scale = nn.Dropout(dropout), scale

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]"""
        out: Tensor = self.up(self.dropout(torch.relu(self.down(tokens))))
        return out * self.scale


class LoRA(nn.Module):
    """Low-rank changes of a block's queries and values: x B_q A_q and x B_v A_v, times the block's two weights.

    `down` (B) starts with orthonormal columns, `up` (A) at zero. Index 0 is of the queries, 1 of the values.
    """

    def __init__(self, width: int, rank: int, weighted: bool = False) -> None:
        super().__init__()
        columns = torch.linalg.qr(torch.rand(2, width, rank)).Q  # of random matrices: orthonormal, [2, D, r]
        self.down = nn.Parameter(columns.contiguous())
        self.up = nn.Parameter(torch.zeros(2, rank, width))
        self.weight = nn.Parameter(torch.empty(2).uniform_(0.5, 1.5)) if weighted else None

    def forward(self, tokens: Tensor, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, N, D] -> the changes of queries and values, [B, N, D] each; `up` may take the place of its own"""
        ups = self.up if up is None else up
        queries, values = ((tokens @ down) @ up for down, up in zip(self.down, ups, strict=True))
        if self.weight is None:
            return queries, values
        return queries * self.weight[0], values * self.weight[1]

    @torch.no_grad()
    def folded(self) -> Tensor:
        """The same change as one matrix on top of the frozen projection's weight, [3 D, D] (queries, keys, values)."""
        queries, values = (self.down @ self.up).mT  # [D, D] each
        if self.weight is not None:
            queries, values = queries * self.weight[0], values * self.weight[1]
        return torch.cat([queries, torch.zeros_like(queries), values])


class Tuning(NamedTuple):
    """What is attached to one block."""

    adapter: Adapter | None = None
    lora: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """a `LoRA`, or one with something bound"""
    folded: Tensor | None = None
    """what a LoRA that is trained no more adds to the projection's weight, [3 D, D]"""


def adapters(depth: int, width: int, rank: int) -> nn.ModuleList:
    """A fresh set: one adapter a block."""
    return nn.ModuleList(Adapter(width, rank) for _ in range(depth))
