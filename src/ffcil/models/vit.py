"""The one ViT: timm's or the embedded one, frozen, with two sites in every block at which methods attach their own."""

from __future__ import annotations

import hashlib
import logging
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from timm.layers.attention import Attention
from timm.models.vision_transformer import Block, VisionTransformer, checkpoint_filter_fn
from torch import Tensor, nn

from ffcil.errors import InputError, unknown
from ffcil.models.glyph_vit import GLYPH_VIT, glyph_vit, glyph_vit_weights
from ffcil.models.tuners import Tuning

UNTUNED: Sequence[Tuning] = ()


class ViT(nn.Module):
    """Images [B, 3, H, W] to features [B, feature_dim]; attached tunings that are fresh leave timm's output bit-equal.

    `forward` is `read(through(embed(images)))`; a method that shares the lower blocks calls the three parts itself,
    but only `forward` is ever compiled.
    """

    def __init__(self, net: VisionTransformer) -> None:
        super().__init__()
        self.net = net.requires_grad_(False).eval()
        self.feature_dim = int(net.num_features)
        self.width, self.depth = int(net.embed_dim), len(net.blocks)

    def forward(self, images: Tensor, tunings: Sequence[Tuning] = UNTUNED, blocks: int | None = None) -> Tensor:
        """What all blocks, or the first `blocks` alone, make of the images; `tunings` are of these blocks."""
        return self.read(self.through(self.embed(images), tunings, 0, blocks))

    def fingerprint(self) -> str:
        """Of all weights, to the bit."""
        digest = hashlib.sha256()
        for name, value in sorted(self.net.state_dict().items()):
            digest.update(name.encode() + value.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    def embed(self, images: Tensor) -> Tensor:
        """Patches, class token and positions: [B, N, width]"""
        tokens: Tensor = self.net._pos_embed(self.net.patch_embed(images))
        return cast(Tensor, self.net.norm_pre(self.net.patch_drop(tokens)))

    def through(
        self, tokens: Tensor, tunings: Sequence[Tuning] = UNTUNED, first: int = 0, last: int | None = None
    ) -> Tensor:
        """The blocks from `first` up to `last`, which is not among them; `tunings` are of these blocks."""
        blocks = list(self.net.blocks)[first:last]
        for block, tuning in zip(blocks, tunings or [Tuning()] * len(blocks), strict=True):
            tokens = _tuned(cast(Block, block), tokens, tuning)
        return tokens

    def read(self, tokens: Tensor) -> Tensor:
        """The last norm and the class token, or what this ViT pools: [B, feature_dim]"""
        return self.net.forward_head(self.net.norm(tokens), pre_logits=True)


def published_normalisation(name: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and deviation of the pixels that a ViT's published weights were trained on."""
    if name == GLYPH_VIT:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    published = timm.get_pretrained_cfg(name)
    if published is None:
        raise InputError(f"timm publishes no weights under {name!r}: set normalise to unit or data.")
    mean, std = (tuple(map(float, values)) for values in (published.mean, published.std))
    return mean, std  # type: ignore[return-value]  # three channels


def _tuned(block: Block, tokens: Tensor, tuning: Tuning) -> Tensor:
    """timm's block with what is attached; its stochastic depth is idle, since the network is frozen."""
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


def build_vit(name: str, weights: str | None) -> ViT:
    """A frozen ViT by timm's name, with its tag where there are several: `vit_base_patch16_224.augreg_in21k`.

    Or `glyph_vit`, the small one whose weights are in the package.

    Args:
        weights: a local .safetensors, .pth or .bin file with timm's keys, or an .npz file as Google published them;
            "hub": what timm publishes under the name; "embedded": those of `glyph_vit`; None: random, for tests of
            speed

    Images may have any size that the patches divide: the position embeddings are resampled to it.
    """
    logging.getLogger("timm").setLevel(logging.WARNING)  # it tells of every resampled embedding
    if name == GLYPH_VIT and weights == "hub":
        raise InputError(f"{GLYPH_VIT!r} is not on the hub: set weights=embedded.")
    net = glyph_vit() if name == GLYPH_VIT else _of_timm(name, hub=weights == "hub")
    if weights == "embedded":
        if name != GLYPH_VIT:
            raise InputError(f"Only {GLYPH_VIT!r} has embedded weights, not {name!r}: set weights=hub or name a file.")
        _load(net, glyph_vit_weights(), name)
    elif weights is not None and weights != "hub":
        _load(net, Path(weights).expanduser(), name)
    return ViT(net)


def _of_timm(name: str, hub: bool) -> VisionTransformer:
    """A network of timm's that is a plain ViT, with the weights of the hub or random ones."""
    if not timm.is_model(name):
        plain = timm.list_models("vit_*", pretrained=True) + timm.list_models("vit_*")
        raise unknown("backbone", name, [GLYPH_VIT, *plain])
    try:
        net = timm.create_model(name, pretrained=hub, num_classes=0, dynamic_img_size=True)
    except TypeError as error:  # the network knows no `dynamic_img_size`
        raise InputError(f"Backbone {name!r} is not a plain ViT: choose a vit_* of timm's.") from error
    except (OSError, RuntimeError) as error:
        if not hub:
            raise
        raise InputError(
            f"The weights of {name!r} cannot be had from the hub ({error}): name a file with --set weights=FILE."
        ) from error
    if not isinstance(net, VisionTransformer) or not all(isinstance(block, Block) for block in net.blocks):
        built = type(net).__name__
        raise InputError(f"Backbone {name!r} is not a plain ViT (timm builds it as {built}): choose another vit_*.")
    if any(type(block.attn) is not Attention or getattr(block.attn, "gate", None) is not None for block in net.blocks):
        raise InputError(f"Backbone {name!r} has attention of a kind that LoRA does not know: choose another vit_*.")
    return net


def _load_npz(net: VisionTransformer, path: Path, name: str) -> None:
    """By timm, which knows how the original arrays lie, and copies them one by one."""
    try:
        with np.load(path) as arrays:
            blocks = {key.split("/")[-3] for key in arrays if "LayerNorm_0/scale" in key and "encoderblock_" in key}
        net.load_pretrained(str(path))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"The weights file {str(path)!r} cannot be read ({error}): get it again.") from error
    except (LookupError, RuntimeError, AttributeError) as error:
        raise InputError(f"The weights in {str(path)!r} do not fit {name!r}: {error}.") from error
    if blocks and len(blocks) != len(net.blocks):  # timm would leave those out that are too many
        raise InputError(
            f"The weights in {str(path)!r} do not fit {name!r}: they have {len(blocks)} blocks, not {len(net.blocks)}."
        )


def _load(net: VisionTransformer, path: Path, name: str) -> None:
    """Weights of any precision from a file into the network; those of a classifier are left out."""
    if not path.is_file():
        raise InputError(f"There is no weights file {str(path)!r}: name an existing one with --set weights=FILE.")
    if path.suffix == ".npz":
        _load_npz(net, path, name)
        return
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # every format has errors of its own
        raise InputError(f"The weights file {str(path)!r} cannot be read ({error}): get it again.") from error
    state = {key: value for key, value in checkpoint_filter_fn(state, net).items() if not key.startswith("head.")}
    own = net.state_dict()
    wrong = [f"{key} is missing" for key in own if key not in state]
    wrong += [f"{key} is unknown" for key in state if key not in own]
    wrong += [
        f"{key} has shape {list(state[key].shape)}, not {list(value.shape)}"
        for key, value in own.items()
        if key in state and state[key].shape != value.shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise InputError(f"The weights in {str(path)!r} do not fit {name!r}: {'; '.join(wrong[:3])}{more}.")
    net.load_state_dict(state)
