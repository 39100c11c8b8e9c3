"""The embedded pre-trained model: its weights, its training data, and the quality of its features."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from conftest import seeded
from ffcil.data.glyphs import CHARACTERS, draw_glyphs
from ffcil.errors import InputError
from ffcil.models.pretrained import GLYPH_VIT, build_vit, glyph_vit, glyph_vit_weights, normalisation_of_weights
from ffcil.models.vit import ViT
from oracles import nearest_mean_accuracy

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "pretrain_glyph_vit.py"


@pytest.fixture(scope="module")
def embedded() -> ViT:
    return build_vit("glyph_vit", "embedded")


@pytest.fixture(scope="module")
def log() -> dict[str, Any]:
    read: dict[str, Any] = json.loads(glyph_vit_weights().with_suffix(".json").read_text(encoding="utf-8"))
    return read


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pretrain_glyph_vit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its worker processes find it by its name
    spec.loader.exec_module(module)
    return module


def test_it_is_timms_network_with_the_embedded_state(embedded: ViT) -> None:
    net = glyph_vit()
    net.load_state_dict({key: value.float() for key, value in load_file(glyph_vit_weights()).items()})
    images = torch.rand(3, 3, 32, 32, generator=seeded())
    with torch.no_grad():
        assert torch.equal(embedded(images), net.eval()(images))
    assert (embedded.feature_dim, embedded.width, embedded.depth) == (128, 128, 6)
    assert normalisation_of_weights(GLYPH_VIT) == ((0, 0, 0), (1, 1, 1))
    assert embedded(torch.rand(2, 3, 48, 40)).shape == (2, 128)  # another size than that of the pre-training


def test_its_file_is_small(log: dict[str, Any]) -> None:
    path = glyph_vit_weights()
    assert path.stat().st_size < 5e6
    state = load_file(path)
    assert all(value.dtype == torch.float16 for value in state.values())
    assert not any(key.startswith("head") for key in state)
    assert sum(value.numel() for value in state.values()) == log["parameters"] < 1.5e6


def test_weights_from_a_file_or_random_weights(tmp_path: Path, embedded: ViT) -> None:
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(glyph_vit_weights().read_bytes())
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(build_vit("glyph_vit", str(copy))(images), embedded(images))
        assert not torch.allclose(build_vit("glyph_vit", None)(images), embedded(images), atol=0.1)


def test_only_glyph_vit_has_embedded_weights() -> None:
    with pytest.raises(InputError, match="Only 'glyph_vit' has embedded weights, not 'vit_tiny_patch16_224'"):
        build_vit("vit_tiny_patch16_224", "embedded")
    with pytest.raises(InputError, match="not on the hub: set weights=embedded"):
        build_vit("glyph_vit", "hub")
    with pytest.raises(InputError, match="did you mean 'glyph_vit'"):
        build_vit("glyphs_vit", "embedded")


def test_no_character_of_the_benchmark_was_trained_on(log: dict[str, Any], script: ModuleType) -> None:
    trained, held_out = set(log["characters"]), set(log["held_out_characters"])
    assert len(trained) > 200
    assert not trained & held_out
    in_any_case = {form for character in CHARACTERS for form in (character, character.lower(), character.upper())}
    assert not (trained | held_out) & in_any_case
    assert not (trained | held_out) & set("OΟОIІΙoοоsѕxхPРXΧ✄☏♡")  # twins in other scripts, and hollow symbols
    for benchmark, twin in ("PР", "HΗ", "SՏ"):
        assert script.likeness(script.drawings(benchmark), script.drawings(twin)) > 0.7


def test_it_distinguishes_characters_that_it_was_not_trained_on(embedded: ViT) -> None:
    some = CHARACTERS[::4]

    def accuracy_of(network: Callable[[Tensor], Tensor]) -> float:
        features = (F.normalize(network(images)) for images in (train, test))
        return nearest_mean_accuracy(*features, len(some))

    train, test = (torch.from_numpy(draw_glyphs(some, n, seed)) / 255 for n, seed in ((30, 0), (20, 1)))
    torch.manual_seed(0)
    random = build_vit("glyph_vit", None)
    with torch.no_grad():
        assert accuracy_of(embedded) > 0.8  # chance is 0.04
        assert max(accuracy_of(random), accuracy_of(nn.Flatten())) < 0.2


def test_the_pretraining_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: ModuleType) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(script, "draw", in_this_process)  # starting processes takes longer than drawing
    options = "--characters 16 --images-per-class 8 --epochs 2 --batch 32 --benchmark-images 4"
    out = tmp_path / "new" / "glyph_vit.safetensors"
    script.main([*options.split(), "--out", str(out)])
    log = json.loads(out.with_suffix(".json").read_text(encoding="utf-8"))
    assert [line["epoch"] for line in log["epochs"]] == [1, 2]
    assert log["epochs"][-1]["images"] == 2 * (14 * 8 // 32) * 32
    assert len(log["characters"] + log["held_out_characters"]) == 16
    assert log["command"].startswith("python scripts/pretrain_glyph_vit.py --characters 16")
    again = tmp_path / "again.safetensors"
    script.main([*options.split(), "--out", str(again)])
    assert again.read_bytes() == out.read_bytes()
    assert build_vit("glyph_vit", str(out))(torch.rand(1, 3, 32, 32)).isfinite().all()


def in_this_process(characters: list[str], per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    images = torch.from_numpy(draw_glyphs(characters, per_class, seed))
    return images, torch.arange(len(characters)).repeat_interleave(per_class)
