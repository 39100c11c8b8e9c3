"""Small trainable modules for the blocks of a frozen ViT: parallel adapters and LoRA. Fresh ones change nothing."""

import math
from collections.abc import Callable
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn


class Adapter(nn.Module):
    """An adapter parallel to the MLP of a block, with the input h of the MLP before its norm:
    scale * (U drop(ReLU(D h + b)) + c)

    Chen et al., AdaptFormer, NeurIPS 2022, in the form that the published class-incremental methods use.
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
    """Low-rank changes of a block's queries and values: x B_q A_q and x B_v A_v, multiplied by the two block weights.

    `down` (B) starts with orthonormal columns, `up` (A) at zero. Index 0 belongs to the queries, 1 to the values.
    """

    def __init__(self, width: int, rank: int, weighted: bool = False) -> None:
        super().__init__()
        columns = torch.linalg.qr(torch.rand(2, width, rank)).Q  # orthonormal, [2, D, r]
        self.down = nn.Parameter(columns.contiguous())
        self.up = nn.Parameter(torch.zeros(2, rank, width))
        self.weight = nn.Parameter(torch.empty(2).uniform_(0.5, 1.5)) if weighted else None

    def forward(self, tokens: Tensor, up: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """[B, N, D] -> the changes of queries and values, [B, N, D] each; `up` replaces the module's own `up`."""
        ups = self.up if up is None else up
        queries, values = ((tokens @ down) @ up for down, up in zip(self.down, ups, strict=True))
        if self.weight is None:
            return queries, values
        return queries * self.weight[0], values * self.weight[1]

    @torch.no_grad()
    def folded(self) -> Tensor:
        """The change as a matrix to add to the weight of the frozen projection: [3 D, D] (queries, keys, values)"""
        queries, values = (self.down @ self.up).mT  # [D, D] each
        if self.weight is not None:
            queries, values = queries * self.weight[0], values * self.weight[1]
        return torch.cat([queries, torch.zeros_like(queries), values])


class Tuning(NamedTuple):
    """The modules that are attached to one block."""

    adapter: Adapter | None = None
    lora: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    """A `LoRA`, or a function that calls one."""
    folded: Tensor | None = None
    """The change by a LoRA that is not trained, as a matrix to add to the weight of the projection: [3 D, D]"""


class Adapters(nn.ModuleList):
    """A fresh set of adapters, one per block."""

    def __init__(self, depth: int, width: int, rank: int) -> None:
        super().__init__(Adapter(width, rank) for _ in range(depth))

    def tunings(self) -> list[Tuning]:
        return [Tuning(cast(Adapter, adapter)) for adapter in self]
