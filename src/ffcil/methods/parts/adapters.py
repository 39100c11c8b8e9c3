"""Parts of methods that tune the ViT by adapters."""

import copy
from collections.abc import Iterator
from typing import cast

from pydantic import NonNegativeInt, PositiveInt
from torch import nn

from ffcil.methods.learner import MethodConfig
from ffcil.models.tuners import Adapters


class AdapterConfig(MethodConfig):
    """Fields of a method that tunes the ViT by adapters."""

    rank: PositiveInt = 64
    """Rank of the adapters."""


class OptionalAdapterConfig(AdapterConfig):
    """Fields of a method that can also leave the network untuned."""

    rank: NonNegativeInt = 64
    """Rank of the adapters; 0 leaves the network untuned and takes any network of timm."""


class StepAdapters(nn.Module):
    """One set of adapters per step. Those of earlier steps are frozen."""

    def __init__(self, newest: Adapters) -> None:
        super().__init__()
        self.newest = newest
        """Adapters of the newest step. Only this object is ever trained, so that the network is compiled once."""
        self.kept = nn.ModuleList()
        """Frozen copies of the adapters of every earlier step."""

    def keep_newest(self) -> None:
        """Store a frozen copy of the newest adapters. Call it before a new step changes them."""
        self.kept.append(copy.deepcopy(self.newest).requires_grad_(False).eval())

    def __iter__(self) -> Iterator[Adapters]:
        """The adapters of every step, the newest last."""
        return iter([*cast(list[Adapters], list(self.kept)), self.newest])
