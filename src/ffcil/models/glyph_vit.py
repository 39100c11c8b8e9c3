"""The embedded pre-trained model: a small ViT for 32 x 32 images, with weights in the package.

`scripts/pretrain_glyph_vit.py` pre-trains it on images of characters that the data set `glyphs` does not use.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from timm.models.vision_transformer import VisionTransformer

GLYPH_VIT = "glyph_vit"
"""Name of the backbone."""


def glyph_vit() -> VisionTransformer:
    """The network with random weights, without classifier: 1.2 million parameters, 128 features, images in [0, 1]."""
    # Patches of 8 pixels; with 4 pixels, an image would take four times as long on a CPU.
    net = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=128, depth=6, num_heads=4, num_classes=0, dynamic_img_size=True
    )
    cast(Any, net).pretrained_cfg = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
    return net


def glyph_vit_weights() -> Path:
    """Path of the embedded weights: safetensors in half precision."""
    return Path(str(files("ffcil"))) / "models" / "weights" / "glyph_vit.safetensors"
