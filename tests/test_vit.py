"""The ViT compared with timm; fresh tunings change nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor

from conftest import forked, seeded, small_stream, status_of
from ffcil.errors import InputError
from ffcil.methods.learner import Learner
from ffcil.models.pretrained import build_vit
from ffcil.models.tuners import Adapter, Adapters, LoRA, Tuning
from ffcil.models.vit import ViT

TINY = "vit_tiny_patch16_224"
# Families with layer scale, register tokens, no class token, average pooling, a norm before the blocks
FAMILIES = [TINY, "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_base_patch16_clip_224"]


def images(size: int = 224, count: int = 2) -> Tensor:
    return torch.rand(count, 3, size, size, generator=seeded())


@pytest.fixture(scope="module")
def tiny() -> ViT:
    torch.manual_seed(0)
    return build_vit(TINY, None)


def test_the_untuned_output_equals_that_of_timm(tiny: ViT) -> None:
    x = images(64)
    with torch.no_grad():
        assert torch.equal(tiny(x), tiny.net.forward_head(tiny.net.forward_features(x), pre_logits=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_fresh_tunings_do_not_change_the_output_in_any_family(name: str) -> None:
    vit = build_vit(name, None)
    x = images(56 if "14" in name else 64)
    with torch.no_grad():
        plain = vit.net(x)
        tuned = vit(x, [Tuning(Adapter(vit.width, 4).eval(), LoRA(vit.width, 4)) for _ in range(vit.depth)])
    assert torch.equal(vit(x), plain)
    assert torch.equal(tuned, plain)
    assert plain.shape == (2, vit.feature_dim)


@pytest.mark.parametrize("name", FAMILIES)
def test_deep_features_add_the_means_of_patch_tokens(name: str) -> None:
    """Compared with the maps that timm returns."""
    vit = build_vit(name, None)
    x = images(56 if "14" in name else 64)
    with torch.no_grad():
        last, maps = vit.net.forward_intermediates(x, indices=3)
        expected = [vit.net.forward_head(last, pre_logits=True)]
        for values in maps:
            mean = values.mean(dim=(2, 3))
            deviation = mean.var(dim=1, correction=0, keepdim=True).add(1e-5).sqrt()
            expected.append((mean - mean.mean(dim=1, keepdim=True)) / deviation)
        deep = vit.deep(x, 3)
        assert deep.shape == (2, vit.deep_dim(3)) == (2, vit.feature_dim + 3 * vit.width)
        torch.testing.assert_close(deep, torch.cat(expected, dim=1), rtol=1e-4, atol=1e-4)
        assert torch.equal(vit.deep(x, 0), vit(x))


def test_deep_features_with_tunings(tiny: ViT) -> None:
    tunings = Adapters(tiny.depth, tiny.width, 4).eval().tunings()
    for tuning in tunings:
        assert tuning.adapter is not None
        torch.nn.init.normal_(tuning.adapter.up.weight)
    x = images(64)
    with torch.no_grad():
        deep = tiny.deep(x, tiny.depth, tunings)
        assert torch.equal(deep[:, : tiny.feature_dim], tiny(x, tunings))
        first = tiny.through(tiny.embed(x), tunings[:1], 0, 1)[:, 1:].mean(dim=1)
    of_first = deep[:, tiny.feature_dim : tiny.feature_dim + tiny.width]
    torch.testing.assert_close(of_first, torch.nn.functional.layer_norm(first, (tiny.width,)))
    with pytest.raises(InputError, match="VisionTransformer of timm has 12 blocks or stages that can be read, not 13"):
        tiny.deep_dim(13)


def test_only_adapters_are_trained(tiny: ViT) -> None:
    assert not any(parameter.requires_grad for parameter in tiny.parameters())
    tunings = Adapters(tiny.depth, tiny.width, 4).tunings()
    tiny(images(64), tunings).square().sum().backward()
    for tuning in tunings:
        assert tuning.adapter is not None
        assert tuning.adapter.up.weight.grad is not None
        assert tuning.adapter.up.weight.grad.ne(0).any()


def test_output_of_an_adapter() -> None:
    adapter, x = Adapter(6, 3).eval(), torch.randn(2, 5, 6)
    torch.nn.init.normal_(adapter.up.weight)
    torch.nn.init.normal_(adapter.up.bias)
    for b in range(2):
        for n in range(5):
            hidden = (adapter.down.weight @ x[b, n] + adapter.down.bias).clamp_min(0)
            expected = 0.1 * (adapter.up.weight @ hidden + adapter.up.bias)
            torch.testing.assert_close(adapter(x)[b, n], expected)


def test_an_adapter_is_parallel_to_the_mlp(tiny: ViT) -> None:
    """h + MLP(LN(h)) + adapter(h), where h is the output of the attention, before the norm."""
    adapter = Adapter(tiny.width, 4).eval()
    torch.nn.init.normal_(adapter.up.weight)
    tokens = torch.randn(1, 5, tiny.width)
    block = tiny.net.blocks[0]
    with torch.no_grad():
        h = tokens + block.attn(block.norm1(tokens))
        expected = h + block.mlp(block.norm2(h)) + adapter(h)
        torch.testing.assert_close(tiny.through(tokens, [Tuning(adapter)], 0, 1), expected)


@pytest.mark.parametrize("weighted", [False, True])
def test_folded_lora_equals_unfolded_lora(tiny: ViT, weighted: bool) -> None:
    lora = LoRA(tiny.width, 4, weighted)
    torch.nn.init.normal_(lora.up, std=0.1)
    tokens = torch.randn(2, 5, tiny.width)
    block = tiny.net.blocks[0]
    with torch.no_grad():
        unfolded = tiny.through(tokens, [Tuning(lora=lora)], 0, 1)
        weight = block.attn.qkv.weight.clone()
        block.attn.qkv.weight += lora.folded()
        folded = tiny.through(tokens, [Tuning()], 0, 1)
        block.attn.qkv.weight.copy_(weight)
        assert (tiny.through(tokens, [Tuning()], 0, 1) - folded).abs().max() > 1e-3
    torch.testing.assert_close(folded, unfolded, rtol=1e-4, atol=1e-5)


def test_lora_starts_with_orthonormal_columns() -> None:
    lora = LoRA(32, 5)
    torch.testing.assert_close(lora.down.mT @ lora.down, torch.eye(5).expand(2, 5, 5), rtol=0, atol=1e-5)
    assert lora.up.eq(0).all()


def test_the_parts_equal_the_whole(tiny: ViT) -> None:
    x = images(64)
    tunings = Adapters(tiny.depth, tiny.width, 4).eval().tunings()
    with torch.no_grad():
        trunk = tiny.through(tiny.embed(x), tunings[:5], 0, 5)
        assert torch.equal(tiny.read(tiny.through(trunk, tunings[5:], 5)), tiny(x, tunings))


@pytest.mark.parametrize("precision", [torch.float32, torch.float16])
def test_weights_from_a_file(tmp_path: Path, precision: torch.dtype) -> None:
    """Also with a classifier in the file, in half precision, and for another image size."""
    theirs = timm.create_model(TINY, num_classes=10)
    save_file({k: v.to(precision) for k, v in theirs.state_dict().items()}, tmp_path / "w.safetensors")
    vit = build_vit(TINY, str(tmp_path / "w.safetensors"))
    expected = timm.create_model(TINY, num_classes=0)
    expected.load_state_dict({k: v.to(precision).float() for k, v in theirs.state_dict().items() if "head." not in k})
    with torch.no_grad():
        assert torch.equal(vit(images()), expected.eval()(images()))
    smaller = timm.create_model(TINY, num_classes=0, img_size=96).eval()  # timm resamples when it loads
    smaller.load_state_dict(checkpoint_filter_fn(expected.state_dict(), smaller))
    with torch.no_grad():
        torch.testing.assert_close(vit(images(96)), smaller(images(96)), rtol=1e-4, atol=1e-4)


def as_google_has_it(state: dict[str, Tensor], heads: int) -> dict[str, Any]:
    """The arrays of a ViT under the names and in the layout of the original .npz files."""
    width = state["cls_token"].shape[-1]
    arrays = {
        "cls": state["cls_token"],
        "embedding/kernel": state["patch_embed.proj.weight"].permute(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "Transformer/posembed_input/pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
    }
    for k in range(sum(name.endswith("norm1.weight") for name in state)):
        ours, theirs = f"blocks.{k}.", f"Transformer/encoderblock_{k}/"
        attention = f"{theirs}MultiHeadDotProductAttention_1/"
        for norm, layer in (("norm1", "LayerNorm_0"), ("norm2", "LayerNorm_2")):
            arrays[f"{theirs}{layer}/scale"] = state[f"{ours}{norm}.weight"]
            arrays[f"{theirs}{layer}/bias"] = state[f"{ours}{norm}.bias"]
        weights, biases = state[f"{ours}attn.qkv.weight"].chunk(3), state[f"{ours}attn.qkv.bias"].chunk(3)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            arrays[f"{attention}{name}/kernel"] = weight.T.reshape(width, heads, width // heads)
            arrays[f"{attention}{name}/bias"] = bias.reshape(heads, width // heads)
        arrays[f"{attention}out/kernel"] = state[f"{ours}attn.proj.weight"].T.reshape(heads, width // heads, width)
        arrays[f"{attention}out/bias"] = state[f"{ours}attn.proj.bias"]
        for number in (0, 1):
            arrays[f"{theirs}MlpBlock_3/Dense_{number}/kernel"] = state[f"{ours}mlp.fc{number + 1}.weight"].T
            arrays[f"{theirs}MlpBlock_3/Dense_{number}/bias"] = state[f"{ours}mlp.fc{number + 1}.bias"]
    return {name: array.numpy() for name, array in arrays.items()}


def test_weights_as_google_published_them(tmp_path: Path) -> None:
    theirs = timm.create_model(TINY, num_classes=0).eval()
    arrays = as_google_has_it(theirs.state_dict(), heads=3)
    np.savez(tmp_path / "w.npz", **arrays)
    with torch.no_grad():
        assert torch.equal(build_vit(TINY, str(tmp_path / "w.npz"))(images()), theirs(images()))
    with pytest.raises(InputError, match="do not fit 'vit_small"):
        build_vit("vit_small_patch16_224", str(tmp_path / "w.npz"))
    np.savez(tmp_path / "short.npz", **{key: a for key, a in arrays.items() if "encoderblock_11" not in key})
    with pytest.raises(InputError, match="do not fit"):
        build_vit(TINY, str(tmp_path / "short.npz"))
    more = {key.replace("_11/", "_12/"): array for key, array in arrays.items() if "encoderblock_11" in key}
    np.savez(tmp_path / "deep.npz", **arrays, **more)
    with pytest.raises(InputError, match="they have 13 blocks, not 12"):
        build_vit(TINY, str(tmp_path / "deep.npz"))
    (tmp_path / "bad.npz").write_bytes(b"not weights")
    with pytest.raises(InputError, match="cannot be read"):
        build_vit(TINY, str(tmp_path / "bad.npz"))


def test_weights_that_do_not_fit_name_the_keys(tmp_path: Path) -> None:
    state = timm.create_model("vit_small_patch16_224", num_classes=0).state_dict()
    save_file(state, tmp_path / "small.safetensors")
    with pytest.raises(InputError, match=r"do not fit 'vit_tiny.*cls_token has shape \[1, 1, 384\], not \[1, 1, 192\]"):
        build_vit(TINY, str(tmp_path / "small.safetensors"))
    state = timm.create_model(TINY, num_classes=0).state_dict()
    state["extra"] = state.pop("norm.weight")
    save_file(state, tmp_path / "odd.safetensors")
    with pytest.raises(InputError, match=r"norm\.weight is missing; extra is unknown"):
        build_vit(TINY, str(tmp_path / "odd.safetensors"))
    (tmp_path / "bad.safetensors").write_bytes(b"not weights")
    with pytest.raises(InputError, match="cannot be read"):
        build_vit(TINY, str(tmp_path / "bad.safetensors"))
    with pytest.raises(InputError, match="no weights file"):
        build_vit(TINY, str(tmp_path / "none.safetensors"))


def test_weights_that_may_not_be_read_are_not_called_damaged() -> None:
    with TemporaryDirectory() as folder:  # that of pytest is closed to other users
        Path(folder).chmod(0o755)
        (file := Path(folder) / "closed.safetensors").touch(0o000)

        def load() -> None:
            if os.geteuid() == 0:
                os.seteuid(65534)  # root may read every file
            with pytest.raises(PermissionError, match="closed"):
                build_vit(TINY, str(file))

        assert status_of(forked(load)) == 0


def test_invalid_names_are_an_error() -> None:
    with pytest.raises(InputError, match="did you mean 'vit_tiny_patch16_224"):
        build_vit("vit_tiny_patch_224", None)
    with pytest.raises(InputError, match="not a plain ViT"):
        build_vit("resnet18", None)
    with pytest.raises(InputError, match="an attention that LoRA does not support"):
        build_vit("vit_dlittle_patch16_reg1_gap_256", None)


def test_the_state_of_a_learner_excludes_the_frozen_network(make_learner: Callable[..., Learner]) -> None:
    learner = make_learner(method="simplecil")
    (increment,) = small_stream([2])
    learner.learn(increment)
    state = learner.state()
    assert not [name for name in state["modules"] if "vit" in name]
    same, other = make_learner(method="simplecil"), make_learner(method="simplecil", weights=None)
    for begun in (same, other):
        begun.begin(increment)
    same.restore(state)
    images = torch.rand(3, 3, 16, 16)
    with torch.no_grad():
        assert torch.equal(same.logits(images)["prototype"], learner.logits(images)["prototype"])
    with pytest.raises(InputError, match="saved with other weights of 'glyph_vit'"):
        other.restore(state)


@pytest.mark.parametrize("method", ["simplecil", "fecam", "ease", "mos", "tuna"])
def test_a_state_of_an_earlier_version_is_restored(make_learner: Callable[..., Learner], method: str) -> None:
    """Earlier versions kept adapters and prototypes in the learner itself and had three stores of class statistics."""
    former = {"steps.newest.": "adapters.", "steps.kept.": "kept.", "prototypes.means": "prototypes"}
    former |= {"statistics.spreads": "statistics.deviations", "gaussians.spreads": "gaussians.factors"}
    former |= {"metrics.spreads": "metrics.metrics", "metrics.varied": "metrics.spread"}

    def former_key(key: str) -> str:
        return next((old + key.removeprefix(new) for new, old in former.items() if key.startswith(new)), key)

    learner, restored = make_learner(method=method), make_learner(method=method)
    increments = list(small_stream([2, 2]))
    for increment in increments:
        learner.learn(increment)
        restored.begin(increment)
    state = learner.state()
    old = {former_key(key): value for key, value in state["modules"].items()}
    assert len(old) == len(state["modules"])
    assert old.keys() != state["modules"].keys()
    restored.restore({**state, "modules": old})
    assert restored.state_dict().keys() == learner.state_dict().keys()
    for key, value in restored.state_dict().items():
        assert torch.equal(value, learner.state_dict()[key]), key
