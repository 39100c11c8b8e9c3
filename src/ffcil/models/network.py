"""`FeatureNetwork`: any frozen network of timm, for methods that only read features."""

import hashlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.errors import InputError


class FeatureNetwork(nn.Module):
    """A frozen network of timm without its classifier: images [B, 3, H, W] -> features [B, feature_dim]

    Only `forward` is compiled.
    """

    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net: Any = net.requires_grad_(False).eval()
        self.feature_dim = int(net.head_hidden_size)

    @property
    def usual_size(self) -> int:
        """Side in pixels of the images that the weights were trained with."""
        return int(self.net.pretrained_cfg["input_size"][-1])

    def forward(self, images: Tensor) -> Tensor:
        """Features that the network passes to its classifier, usually pooled: [B, feature_dim]"""
        features: Tensor = self.net.forward_head(self.net.forward_features(images), pre_logits=True)
        return features

    def deep_dim(self, blocks: int) -> int:
        """Number of features that `deep` returns."""
        return self.feature_dim + sum(self._widths(blocks))

    def deep(self, images: Tensor, blocks: int) -> Tensor:
        """The features of `forward`, followed by those of each of the last `blocks` blocks or stages, in their order:
        the mean of its output over all positions, standardised by a layer norm without weights.

        [B, 3, H, W] -> [B, deep_dim(blocks)]
        """
        if not self._widths(blocks):
            features: Tensor = self(images)
            return features
        last, maps = self.net.forward_intermediates(images, indices=blocks)
        means = [standardised(values.mean(dim=(2, 3))) for values in maps]
        return torch.cat([self.net.forward_head(last, pre_logits=True), *means], dim=1)

    @property
    def blocks(self) -> int:
        """Number of blocks or stages that `deep` can read."""
        return len(self._stages())

    def _stages(self) -> list[dict[str, Any]]:
        """Timm's facts of each block or stage."""
        return list(self.net.feature_info) if hasattr(self.net, "forward_intermediates") else []

    def _widths(self, blocks: int) -> list[int]:
        """Number of features of each of the last `blocks` blocks or stages. Too large a number is an error."""
        stages = self._stages()
        if not 0 <= blocks <= len(stages):
            name = type(self.net).__name__
            raise InputError(f"{name} of timm has {len(stages)} blocks or stages that can be read, not {blocks}.")
        return [int(stage["num_chs"]) for stage in stages[len(stages) - blocks :]]

    def fingerprint(self) -> str:
        """Hash of all weights."""
        digest = hashlib.sha256()
        for name, value in sorted(self.net.state_dict().items()):
            digest.update(name.encode() + value.cpu().flatten().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()


def standardised(values: Tensor) -> Tensor:
    """Layer norm without weights, [B, D]."""
    return F.layer_norm(values, values.shape[1:])
