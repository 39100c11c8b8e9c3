"""`ViT`: a plain ViT whose blocks have two sites for tuners, beside the MLP and in the attention."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.models.network import FeatureNetwork, standardised
from ffcil.models.tuners import Tuning

if TYPE_CHECKING:
    from timm.models.vision_transformer import Block, VisionTransformer

UNTUNED: Sequence[Tuning] = ()
"""No tuners in any block."""


class ViT(FeatureNetwork):
    """A frozen ViT: images [B, 3, H, W] -> features [B, feature_dim]. With new tuners, its output equals that of timm
    to the bit.

    `forward` is `read(through(embed(images)))`. A method that shares the lower blocks calls these three functions.
    """

    def __init__(self, net: "VisionTransformer") -> None:
        super().__init__(net)
        self.width, self.depth = int(net.embed_dim), len(net.blocks)
        self._tuned = _tuned
        """Function of a block. It is not a bound method, with which a copy of this module would call the original."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in torch, but only for the blocks, which take nearly all of the time and share their code."""
        self._tuned = torch.compile(_tuned, *args, **kwargs)

    def forward(self, images: Tensor, tunings: Sequence[Tuning] = UNTUNED, blocks: int | None = None) -> Tensor:
        """Features after all blocks, or after the first `blocks` of them, with the `tunings` of these blocks."""
        return self.read(self.through(self.embed(images), tunings, 0, blocks))

    def deep(self, images: Tensor, blocks: int, tunings: Sequence[Tuning] = UNTUNED) -> Tensor:
        """The features of `forward`, followed by those of each of the last `blocks` blocks, in their order: the mean of
        its patch tokens, standardised by a layer norm without weights.

        [B, 3, H, W] -> [B, deep_dim(blocks)]
        """
        lower = self.depth - len(self._widths(blocks))
        tokens = self.through(self.embed(images), tunings[:lower], 0, lower)
        means = []
        for k in range(lower, self.depth):
            tokens = self.through(tokens, tunings[k : k + 1], k, k + 1)
            means.append(tokens[:, self.net.num_prefix_tokens :].mean(dim=1))
        return torch.cat([self.read(tokens), *map(standardised, means)], dim=1)

    def embed(self, images: Tensor) -> Tensor:
        """Embed patches, class token and positions: [B, N, width]."""
        tokens: Tensor = self.net._pos_embed(self.net.patch_embed(images))
        return cast(Tensor, self.net.norm_pre(self.net.patch_drop(tokens)))

    def through(
        self, tokens: Tensor, tunings: Sequence[Tuning] = UNTUNED, first: int = 0, last: int | None = None
    ) -> Tensor:
        """Apply the blocks from `first` up to but not including `last`, with the `tunings` of these blocks."""
        blocks = list(self.net.blocks)[first:last]
        for block, tuning in zip(blocks, tunings or [Tuning()] * len(blocks), strict=True):
            tokens = self._tuned(cast("Block", block), tokens, tuning)
        return tokens

    def read(self, tokens: Tensor) -> Tensor:
        """Apply the last norm and the pooling of this ViT, usually the class token: [B, feature_dim]."""
        features: Tensor = self.net.forward_head(self.net.norm(tokens), pre_logits=True)
        return features


def why_not_plain(net: nn.Module) -> str | None:
    """Why tuners cannot be attached to a network of timm; None if they can."""
    from timm.layers.attention import Attention
    from timm.models.vision_transformer import Block, VisionTransformer

    if not isinstance(net, VisionTransformer) or not all(isinstance(block, Block) for block in net.blocks):
        return f"is not a plain ViT (timm builds it as {type(net).__name__})"
    if any(type(block.attn) is not Attention or getattr(block.attn, "gate", None) is not None for block in net.blocks):
        return "has an attention that LoRA does not support"
    return None


def _tuned(block: "Block", tokens: Tensor, tuning: Tuning) -> Tensor:
    """A block of timm with its tuners. Stochastic depth is disabled because the network is frozen."""
    attended = tokens + block.ls1(_attention(block.attn, block.norm1(tokens), tuning))
    out: Tensor = attended + block.ls2(block.mlp(block.norm2(attended)))
    return out if tuning.adapter is None else out + tuning.adapter(attended)


def _attention(attention: Any, tokens: Tensor, tuning: Tuning) -> Tensor:
    if tuning.lora is None and tuning.folded is None:
        return cast(Tensor, attention(tokens))
    weight = attention.qkv.weight if tuning.folded is None else attention.qkv.weight + tuning.folded
    queries, keys, values = F.linear(tokens, weight, attention.qkv.bias).chunk(3, dim=-1)
    if tuning.lora is not None:
        of_queries, of_values = tuning.lora(tokens)
        queries, values = queries + of_queries, values + of_values
    by_head = (*tokens.shape[:2], attention.num_heads, attention.head_dim)
    queries, keys, values = (part.reshape(by_head).transpose(1, 2) for part in (queries, keys, values))
    attended = F.scaled_dot_product_attention(attention.q_norm(queries), attention.k_norm(keys), values)
    return cast(Tensor, attention.proj(attention.norm(attended.transpose(1, 2).flatten(2))))
