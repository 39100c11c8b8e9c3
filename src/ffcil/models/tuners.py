"""Tuners of a frozen ViT: parallel adapters and LoRA. New tuners do not change the output."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Adapter(nn.Module):
    """Adapter parallel to the MLP of a block, with the same input before its layer norm: scale * (U drop(ReLU(D h + b))
    + c).

    Chen et al., AdaptFormer, NeurIPS 2022, as in published class-incremental methods.
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
    """Low-rank changes of the queries and values of a block: x B_q A_q and x B_v A_v, times two optional weights.

    `down` (B) starts with orthonormal columns, `up` (A) with zeros. Index 0 is for queries, 1 for values.
    """

    def __init__(self, width: int, rank: int, weighted: bool = False) -> None:
        super().__init__()
        columns = torch.linalg.qr(torch.rand(2, width, rank)).Q  # orthonormal columns from random matrices, [2, D, r]
        self.down = nn.Parameter(columns.contiguous())
        self.up = nn.Parameter(torch.zeros(2, rank, width))
        self.weight = nn.Parameter(torch.empty(2).uniform_(0.5, 1.5)) if weighted else None

    def forward(self, tokens: Tensor, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Changes of queries and values, [B, N, D] -> [B, N, D] each; `up` replaces its own matrix."""
        ups = self.up if up is None else up
        queries, values = ((tokens @ down) @ up for down, up in zip(self.down, ups, strict=True))
        if self.weight is None:
            return queries, values
        return queries * self.weight[0], values * self.weight[1]

    @torch.no_grad()
    def folded(self) -> Tensor:
        """The same change as a matrix to add to the frozen projection, [3 D, D] (queries, keys, values)."""
        queries, values = (self.down @ self.up).mT  # [D, D] each
        if self.weight is not None:
            queries, values = queries * self.weight[0], values * self.weight[1]
        return torch.cat([queries, torch.zeros_like(queries), values])


class Tuning(NamedTuple):
    """Tuners attached to one block."""

    adapter: Adapter | None = None
    lora: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """A `LoRA`, possibly with bound arguments."""
    folded: Tensor | None = None
    """Matrix that a LoRA after its training adds to the weight of the projection, [3 D, D]."""


def adapters(depth: int, width: int, rank: int) -> nn.ModuleList:
    """New adapters, one per block."""
    return nn.ModuleList(Adapter(width, rank) for _ in range(depth))
