"""Pre-trained networks by name: any of timm, or the embedded ViT, with weights from the hub or from a file.

Functions import timm when they need it, because that takes longer than all other imports of a command without networks.
"""

import logging
import socket
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from ffcil.errors import InputError, unknown
from ffcil.models.network import FeatureNetwork
from ffcil.models.vit import ViT, why_not_plain

if TYPE_CHECKING:
    from timm.models.vision_transformer import VisionTransformer

GLYPH_VIT = "glyph_vit"
"""Name of the embedded backbone, which `scripts/pretrain_glyph_vit.py` pre-trains for images of 32 x 32 pixels."""
Channels = tuple[float, float, float]


def normalisation_of_weights(name: str) -> tuple[Channels, Channels]:
    """Mean and standard deviation by which pixels were normalised in the training of a network, as timm publishes them.

    A name without a tag stands for the weights that timm downloads for it.
    """
    import timm

    if name == GLYPH_VIT:
        return (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    _check_name(name)
    published = timm.get_pretrained_cfg(name)
    if published is None:
        raise InputError(f"timm has renamed {name!r}: give its present name and tag, or set normalise.")
    mean, std = (tuple(map(float, values)) for values in (published.mean, published.std))
    return mean, std  # type: ignore[return-value]  # three channels


def glyph_vit() -> "VisionTransformer":
    """The embedded network with random weights, without classifier: 1.2 million parameters, 128 features, images in
    [0, 1]."""
    from timm.models.vision_transformer import VisionTransformer

    # Patches of 8 pixels; with 4 pixels, an image would take four times as long on a CPU.
    net = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=128, depth=6, num_heads=4, num_classes=0, dynamic_img_size=True
    )
    net.pretrained_cfg = {"input_size": (3, 32, 32), "classifier": "head"}  # type: ignore[assignment]  # as timm does
    return net


def glyph_vit_weights() -> Path:
    """Path of the embedded weights: safetensors in half precision."""
    return Path(str(files("ffcil"))) / "models" / "weights" / "glyph_vit.safetensors"


def build_network(name: str, weights: str | None) -> FeatureNetwork:
    """Build a frozen network: a `ViT` if tuners can be attached to it, else a `FeatureNetwork`.

    The position embeddings of most transformers are resampled to any image size that the patches divide.

    Args:
        name: Name and tag of a timm model, for example `vit_base_patch16_224.augreg_in21k`, or `glyph_vit`.
        weights: A .safetensors, .pth or .bin file with the keys of timm, or for a ViT an .npz file as published by
            Google; "hub" for the weights that timm publishes under this name; "embedded" for those of `glyph_vit`; None
            for random weights, for speed tests.
    """
    logging.getLogger("timm").setLevel(logging.WARNING)  # timm logs every resampled embedding
    if name == GLYPH_VIT and weights == "hub":
        raise InputError(f"{GLYPH_VIT!r} is not on the hub: set weights=embedded.")
    net = glyph_vit() if name == GLYPH_VIT else _build_timm(name, hub=weights == "hub")
    if weights == "embedded":
        if name != GLYPH_VIT:
            raise InputError(f"Only {GLYPH_VIT!r} has embedded weights, not {name!r}: set weights=hub or give a file.")
        _load(net, glyph_vit_weights(), name)
    elif weights is not None and weights != "hub":
        _load(net, Path(weights).expanduser(), name)
    return ViT(net) if why_not_plain(net) is None else FeatureNetwork(net)


def build_vit(name: str, weights: str | None) -> ViT:
    """Build a frozen ViT that tuners can be attached to, with the arguments of `build_network`."""
    network = build_network(name, weights)
    if not isinstance(network, ViT):
        raise InputError(
            f"Backbone {name!r} {why_not_plain(network.net)}: choose a plain ViT, such as vit_base_patch16_224."
        )
    return network


@contextmanager
def refusing_sizes(network: FeatureNetwork, name: str, images: Tensor) -> Iterator[None]:
    """Turn timm's errors for images [B, 3, H, W] of a size that the network does not take into an `InputError`."""
    try:
        yield
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (AssertionError, RuntimeError) as error:  # timm asserts a fixed size; convolutions need enough pixels
        if isinstance(network, ViT) and isinstance(error, RuntimeError):
            raise  # only an AssertionError of a ViT means the size: that the patches do not divide it
        height, width = images.shape[2:]
        raise InputError(
            f"Backbone {name!r} does not take images of {height} x {width} pixels ({_reason(error)}): "
            f"set image_size, for example to {network.usual_size}."
        ) from error


def _check_name(name: str) -> None:
    """Raise an error if timm has no network of this name, or no weights of its tag."""
    import timm

    if not timm.is_model(name):
        raise unknown("backbone", name, [GLYPH_VIT, *timm.list_pretrained(), *timm.list_models()])
    try:
        timm.get_pretrained_cfg(name)
    except RuntimeError:  # the tag is unknown
        plain = name.partition(".")[0]
        raise unknown("backbone", name, [plain, *timm.list_pretrained(f"{plain}.*")]) from None


def _build_timm(name: str, hub: bool) -> Any:
    """Build a network of timm without classifier, with the weights of the hub or random ones."""
    import timm

    _check_name(name)
    try:
        if hub:
            _check_reachable(name)
        try:
            net = timm.create_model(name, pretrained=hub, num_classes=0, dynamic_img_size=True)
        except TypeError:  # this network has no position embeddings to resample
            net = timm.create_model(name, pretrained=hub, num_classes=0)
    except (OSError, RuntimeError) as error:
        if not hub:
            raise
        raise InputError(
            f"The weights of {name!r} cannot be downloaded from the hub ({_reason(error)}): connect to the internet "
            "once, give a file with --set weights=FILE, or do without them (--recipe own-images-offline has a small "
            "network inside the package; --recipe imagenet100 trains one from scratch)."
        ) from error
    if not hasattr(net, "head_hidden_size"):
        raise InputError(f"Backbone {name!r} has no classifier to read the features of: choose another network.")
    return net


def _check_reachable(name: str) -> None:
    """Raise an OSError if the weights of a network have to be downloaded and the name of the hub is not known here. Its
    library would ask again and again for a minute."""
    import timm
    from huggingface_hub import constants, try_to_load_from_cache

    published = timm.get_pretrained_cfg(name)
    repository = published and published.hf_hub_id
    if not repository or getproxies():  # a proxy knows names that this machine does not
        return
    files = (constants.SAFETENSORS_SINGLE_FILE, constants.PYTORCH_WEIGHTS_NAME)
    if not any(isinstance(try_to_load_from_cache(repository, file), str) for file in files):
        socket.getaddrinfo(urlsplit(constants.ENDPOINT).hostname, None)


def _load_npz(net: "VisionTransformer", path: Path, name: str) -> None:
    """Load an .npz file of Google with timm, which can read its format."""
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


def _load(net: Any, path: Path, name: str) -> None:
    """Load weights of any precision from a file, without those of a classifier."""
    from timm.models.vision_transformer import VisionTransformer

    if not path.is_file():
        raise InputError(f"There is no weights file {str(path)!r}: give an existing file with --set weights=FILE.")
    if path.suffix == ".npz":
        if not isinstance(net, VisionTransformer):
            raise InputError(f"{name!r} is not a ViT and has no .npz file: give a file with the keys of timm.")
        _load_npz(net, path, name)
        return
    path.open("rb").close()  # safetensors calls a file missing that may not be read
    try:
        state = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # the exceptions depend on the format
        raise InputError(f"The weights file {str(path)!r} cannot be read ({error}): download it again.") from error
    # timm converts other formats with a function in the module of the network
    convert = getattr(import_module(type(net).__module__), "checkpoint_filter_fn", None)
    own, classifier = net.state_dict(), _classifier_keys(net)
    state = convert(state, net) if convert else state
    state = {key: value for key, value in state.items() if key in own or not key.startswith(classifier)}
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


def _classifier_keys(net: Any) -> tuple[str, ...]:
    """Prefixes of the keys of a network's classifier."""
    names = net.pretrained_cfg["classifier"] or ()
    return tuple(f"{name}." for name in ([names] if isinstance(names, str) else names))


def _reason(error: Exception) -> str:
    """The first line of an error without its full stop. Errors of downloads have many lines."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].strip().rstrip(".:")
