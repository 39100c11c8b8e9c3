"""Backbones and heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torchvision.models import resnet18

from ffcil.errors import InputError
from ffcil.models.heads import GrowingLinear
from ffcil.models.resnet import BACKBONES, build_backbone


@pytest.mark.parametrize(
    ("name", "parameters", "features"),
    [
        ("resnet32", 463_504, 64),
        ("resnet8", 74_640, 64),
        ("resnet18", 11_168_832, 512),
        ("resnet18-imagenet", 11_176_512, 512),
        ("resnet18-imagenet-3x3", 11_168_832, 512),
    ],
)
def test_parameter_counts(name: str, parameters: int, features: int) -> None:
    backbone = build_backbone(name)
    assert sum(parameter.numel() for parameter in backbone.parameters()) == parameters
    assert backbone.feature_dim == features


@pytest.mark.parametrize("name", sorted(BACKBONES))
@pytest.mark.parametrize("side", [32, 47, 64])
def test_backbones_accept_images_of_any_size(name: str, side: int) -> None:
    backbone = build_backbone(name).eval()
    with torch.no_grad():
        features = backbone(torch.randn(2, 3, side, side))
    assert features.shape == (2, backbone.feature_dim)
    assert features.isfinite().all()


def test_feature_maps_of_resnet32() -> None:
    sizes: list[tuple[int, ...]] = []
    backbone = build_backbone("resnet32").eval()
    for stage in (*list(backbone.lower.children())[-2:], backbone.upper):
        stage.register_forward_hook(lambda module, args, output: sizes.append(tuple(output.shape[1:])))
    backbone(torch.randn(1, 3, 32, 32))
    assert sizes == [(16, 32, 32), (32, 16, 16), (64, 8, 8)]


def test_downsampling_shortcuts_are_of_option_a() -> None:
    """With the residual branch at zero, the first block of stage 2 subsamples and pads channels with zeros."""
    block = build_backbone("resnet32").eval().lower[4][0]  # type: ignore[index]
    torch.nn.init.zeros_(block.bn2.weight)
    x = torch.rand(2, 16, 32, 32)
    pooled = F.avg_pool2d(x, 1, 2)  # the published form: 1 x 1 average pooling of stride 2
    torch.testing.assert_close(block(x), torch.cat([pooled, torch.zeros_like(pooled)], dim=1))


def test_resnet18_for_large_images_equals_torchvision() -> None:
    ours, theirs = build_backbone("resnet18-imagenet").eval(), resnet18().eval()
    theirs.fc = torch.nn.Identity()
    values = theirs.state_dict().values()  # both list their layers in the order of use
    ours.load_state_dict(dict(zip(ours.state_dict(), values, strict=True)))
    x = torch.randn(2, 3, 96, 96)
    torch.testing.assert_close(ours(x), theirs(x))


def test_an_unknown_backbone_is_an_error_with_a_suggestion() -> None:
    with pytest.raises(InputError, match="did you mean 'resnet32'"):
        build_backbone("resnet-32")


def test_growing_keeps_the_weights_of_old_classes() -> None:
    head = GrowingLinear(16)
    head.grow(3)
    x = torch.randn(5, 16)
    before, weight, bias = head(x), head.weight.detach().clone(), torch.rand(3)
    head.bias.data.copy_(bias)
    head.grow(10)
    assert head.classes == 10
    assert torch.equal(head.weight[:3], weight)
    assert torch.equal(head.bias[:3], bias)
    torch.testing.assert_close(head(x)[:, :3], before + bias)
    assert head.weight.requires_grad
    assert head.bias.requires_grad


def test_new_rows_are_uniform_within_the_published_bound() -> None:
    head = GrowingLinear(12)
    head.grow(5000)
    bound = (3 / 12) ** 0.5
    assert head.weight.abs().max().item() <= bound
    assert head.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.02)
    assert head.bias.eq(0).all()


def test_new_rows_with_a_given_deviation() -> None:
    torch.manual_seed(0)
    head = GrowingLinear(768, deviation=0.02)
    head.grow(50)
    assert head.weight.std().item() == pytest.approx(
        0.0176, rel=0.03
    )  # a normal distribution of 0.02, cut at two deviations
    assert head.weight.abs().max() <= 0.04
    assert not head.bias.any()
