"""Classifier heads that grow."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class GrowingLinear(nn.Module):
    """A linear head over all classes seen so far. It starts with no class."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, features: int, deviation: float | None = None) -> None:
        """With a `deviation`, new weights are normal with this standard deviation and truncated at twice its value."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, features))
        self.bias = nn.Parameter(torch.empty(0))
        self.deviation = deviation

    @property
    def classes(self) -> int:
        return len(self.weight)

    @torch.no_grad()
    def grow(self, classes: int, features: int | None = None, blind: bool = False) -> None:
        """Add rows up to `classes` and columns up to `features`: weights uniform in +-sqrt(3 / fan_in), biases 0.

        The weights of old classes on old features stay bit-equal.

        Args:
            blind: Whether the weights of old classes on new features are 0, so that the logits of old classes do not
                change.
        """
        old_classes, old_features = self.weight.shape
        features = features or old_features
        # drawn on the CPU, so that weights are the same on every device
        rows = self._fresh(classes - old_classes, features, features)
        columns = self._fresh(old_classes, features - old_features, features).to(self.weight.device)
        old = torch.cat([self.weight, torch.zeros_like(columns) if blind else columns], dim=1)
        self.weight = nn.Parameter(torch.cat([old, rows.to(old.device)]))
        self.bias = nn.Parameter(torch.cat([self.bias, self.bias.new_zeros(len(rows))]))

    def _fresh(self, rows: int, columns: int, fan_in: int) -> Tensor:
        weights = torch.empty(rows, columns)
        if self.deviation is not None:
            return nn.init.trunc_normal_(weights, std=self.deviation, a=-2 * self.deviation, b=2 * self.deviation)
        bound = (3 / fan_in) ** 0.5
        return weights.uniform_(-bound, bound)

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        return F.linear(features, self.weight, self.bias)


def cosine(features: Tensor, rows: Tensor) -> Tensor:
    """Cosine of every feature [..., D] with every row [C, D]: [..., C]. It is 0 for a row of zeros."""
    return F.normalize(features, dim=-1) @ F.normalize(rows, dim=1).mT


class GrowingCosine(nn.Module):
    """Scaled cosine of a feature with the row of every class seen so far, without bias. It starts with no class."""

    weight: nn.Parameter

    def __init__(self, features: int, scale: float = 1.0, learn_scale: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(0, features))
        self.scale = nn.Parameter(torch.tensor(scale), requires_grad=learn_scale)

    @property
    def classes(self) -> int:
        return len(self.weight)

    @torch.no_grad()
    def grow(self, classes: int, zeros: bool = False) -> None:
        """Add rows up to `classes`, uniform in +-1 / sqrt(D), or zeros. The rows of earlier classes stay bit-equal.

        The first gradient of a row of zeros is about 1e12, so the first batch determines its direction for good."""
        bound = 0.0 if zeros else self.weight.shape[1] ** -0.5
        rows = torch.empty(classes - self.classes, self.weight.shape[1]).uniform_(-bound, bound)
        self.weight = nn.Parameter(torch.cat([self.weight, rows.to(self.weight.device)]))

    def forward(self, features: Tensor) -> Tensor:
        """[B, D] -> [B, classes]"""
        return self.scale * cosine(features, self.weight)
