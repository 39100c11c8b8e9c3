"""The frozen ViT of all pre-trained methods, from timm or embedded; each block has two sites for tuners."""

import hashlib
import logging
import zipfile
from collections.abc import Sequence
from importlib.resources import files
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
from ffcil.models.tuners import Tuning

GLYPH_VIT = "glyph_vit"
"""Name of the embedded backbone, which `scripts/pretrain_glyph_vit.py` pre-trains for images of 32 x 32 pixels."""
UNTUNED: Sequence[Tuning] = ()


class ViT(nn.Module):
    """Frozen ViT, images [B, 3, H, W] to features [B, feature_dim]. New tuners leave the output of timm bit-equal.

    `forward` is `read(through(embed(images)))`. A method that shares the lower blocks calls these three itself, but
    only `forward` is compiled.
    """

    def __init__(self, net: VisionTransformer) -> None:
        super().__init__()
        self.net = net.requires_grad_(False).eval()
        self.feature_dim = int(net.num_features)
        self.width, self.depth = int(net.embed_dim), len(net.blocks)

    def forward(self, images: Tensor, tunings: Sequence[Tuning] = UNTUNED, blocks: int | None = None) -> Tensor:
        """Features after all blocks, or after the first `blocks`, with the given `tunings` of these blocks."""
        return self.read(self.through(self.embed(images), tunings, 0, blocks))

    def deep_dim(self, blocks: int) -> int:
        """Number of features that `deep` returns."""
        if not 0 <= blocks <= self.depth:
            raise InputError(f"The ViT has {self.depth} blocks, so that {blocks} of them cannot be read: lower it.")
        return self.feature_dim + blocks * self.width

    def deep(self, images: Tensor, blocks: int, tunings: Sequence[Tuning] = UNTUNED) -> Tensor:
        """The features of `forward`, then of each of the last `blocks` blocks, in their order, the mean of its patch
        tokens, standardised by a layer norm without weights: [B, 3, H, W] -> [B, deep_dim(blocks)]"""
        self.deep_dim(blocks)  # checks the number
        lower = self.depth - blocks
        tokens = self.through(self.embed(images), tunings[:lower], 0, lower)
        means = []
        for k in range(lower, self.depth):
            tokens = self.through(tokens, tunings[k : k + 1], k, k + 1)
            means.append(tokens[:, self.net.num_prefix_tokens :].mean(dim=1))
        return torch.cat([self.read(tokens), *(F.layer_norm(mean, (self.width,)) for mean in means)], dim=1)

    def fingerprint(self) -> str:
        """Hash of all weights."""
        digest = hashlib.sha256()
        for name, value in sorted(self.net.state_dict().items()):
            digest.update(name.encode() + value.contiguous().cpu().view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

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
            tokens = _tuned(cast(Block, block), tokens, tuning)
        return tokens

    def read(self, tokens: Tensor) -> Tensor:
        """Apply the last norm and the pooling of this ViT, usually the class token: [B, feature_dim]."""
        return self.net.forward_head(self.net.norm(tokens), pre_logits=True)


def published_normalisation(name: str) -> tuple[tuple[float, float, float], tuple[float, float, float]]:
    """Mean and standard deviation of pixels in the training of published weights."""
    if name == GLYPH_VIT:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    published = timm.get_pretrained_cfg(name)
    if published is None:
        raise InputError(f"timm publishes no weights under {name!r}: set normalise to unit or data.")
    mean, std = (tuple(map(float, values)) for values in (published.mean, published.std))
    return mean, std  # type: ignore[return-value]  # three channels


def _tuned(block: Block, tokens: Tensor, tuning: Tuning) -> Tensor:
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


def glyph_vit() -> VisionTransformer:
    """The network with random weights, without classifier: 1.2 million parameters, 128 features, images in [0, 1]."""
    # Patches of 8 pixels; with 4 pixels, an image would take four times as long on a CPU.
    return VisionTransformer(
        img_size=32, patch_size=8, embed_dim=128, depth=6, num_heads=4, num_classes=0, dynamic_img_size=True
    )


def glyph_vit_weights() -> Path:
    """Path of the embedded weights: safetensors in half precision."""
    return Path(str(files("ffcil"))) / "models" / "weights" / "glyph_vit.safetensors"


def build_vit(name: str, weights: str | None) -> ViT:
    """Build a frozen ViT. Its position embeddings are resampled to any image size that the patches divide.

    Args:
        name: Name and tag of a timm model, for example `vit_base_patch16_224.augreg_in21k`, or `glyph_vit`.
        weights: A .safetensors, .pth or .bin file with the keys of timm, or an .npz file as published by Google; "hub"
            for the weights that timm publishes under this name; "embedded" for those of `glyph_vit`; None for random
            weights, for speed tests.
    """
    logging.getLogger("timm").setLevel(logging.WARNING)  # it reports every resampled embedding
    if name == GLYPH_VIT and weights == "hub":
        raise InputError(f"{GLYPH_VIT!r} is not on the hub: set weights=embedded.")
    net = glyph_vit() if name == GLYPH_VIT else _build_timm(name, hub=weights == "hub")
    if weights == "embedded":
        if name != GLYPH_VIT:
            raise InputError(f"Only {GLYPH_VIT!r} has embedded weights, not {name!r}: set weights=hub or give a file.")
        _load(net, glyph_vit_weights(), name)
    elif weights is not None and weights != "hub":
        _load(net, Path(weights).expanduser(), name)
    return ViT(net)


def _build_timm(name: str, hub: bool) -> VisionTransformer:
    """Build a plain ViT of timm with the weights of the hub or random ones."""
    if not timm.is_model(name):
        plain = timm.list_models("vit_*", pretrained=True) + timm.list_models("vit_*")
        raise unknown("backbone", name, [GLYPH_VIT, *plain])
    try:
        net = timm.create_model(name, pretrained=hub, num_classes=0, dynamic_img_size=True)
    except TypeError as error:  # the network does not support `dynamic_img_size`
        raise InputError(f"Backbone {name!r} is not a plain ViT: choose a vit_* of timm.") from error
    except (OSError, RuntimeError) as error:
        if not hub:
            raise
        raise InputError(
            f"The weights of {name!r} cannot be downloaded from the hub ({error}): give a file with --set weights=FILE."
        ) from error
    if not isinstance(net, VisionTransformer) or not all(isinstance(block, Block) for block in net.blocks):
        built = type(net).__name__
        raise InputError(f"Backbone {name!r} is not a plain ViT (timm builds it as {built}): choose another vit_*.")
    if any(type(block.attn) is not Attention or getattr(block.attn, "gate", None) is not None for block in net.blocks):
        raise InputError(f"Backbone {name!r} has an attention that LoRA does not support: choose another vit_*.")
    return net


def _load_npz(net: VisionTransformer, path: Path, name: str) -> None:
    """Load an .npz file with timm, which knows its format."""
    try:
        with np.load(path) as arrays:
            blocks = {key.split("/")[-3] for key in arrays if "LayerNorm_0/scale" in key and "encoderblock_" in key}
        net.load_pretrained(str(path))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"The weights file {str(path)!r} cannot be read ({error}): download it again.") from error
    except (LookupError, RuntimeError, AttributeError) as error:
        raise InputError(f"The weights in {str(path)!r} do not fit {name!r}: {error}.") from error
    if blocks and len(blocks) != len(net.blocks):  # timm would ignore additional blocks
        blocks_differ = f"they have {len(blocks)} blocks, not {len(net.blocks)}"
        raise InputError(f"The weights in {str(path)!r} do not fit {name!r}: {blocks_differ}.")


def _load(net: VisionTransformer, path: Path, name: str) -> None:
    """Load weights of any precision from a file, without those of a classifier."""
    if not path.is_file():
        raise InputError(f"There is no weights file {str(path)!r}: give an existing file with --set weights=FILE.")
    if path.suffix == ".npz":
        _load_npz(net, path, name)
        return
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # the exceptions depend on the format
        raise InputError(f"The weights file {str(path)!r} cannot be read ({error}): download it again.") from error
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
