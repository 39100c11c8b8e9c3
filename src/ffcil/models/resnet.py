"""Residual networks: the CIFAR family (ResNet-32 and a small one) and ResNet-18 with both stems.

A backbone maps images [B, 3, H, W] to pooled features [B, feature_dim] and has no classifier.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import resnet18 as torchvision_resnet18

from ffcil.errors import unknown


class Backbone(nn.Module):
    """Anything from images [B, 3, H, W] to features [B, feature_dim]."""

    feature_dim: int


class _Block(nn.Module):
    """conv3-BN-ReLU-conv3-BN, add, ReLU. A shortcut that shrinks has no parameters (option A of He et al.)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.stride, self.added = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        if self.stride > 1 or self.added:  # every second pixel; zeros for the channels that are new
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(x + y)


class CifarResNet(Backbone):
    """Three stages of `blocks` basic blocks with 16, 32 and 64 channels; depth is 6 * blocks + 2."""

    def __init__(self, blocks: int, stem_stride: int = 1, widths: tuple[int, int, int] = (16, 32, 64)) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, widths[0], 3, stem_stride, 1, bias=False)
        self.bn = nn.BatchNorm2d(widths[0])
        stages, inputs = [], widths[0]
        for number, width in enumerate(widths):
            strides = [1 if number == 0 else 2] + [1] * (blocks - 1)
            stages.append(
                nn.Sequential(*(_Block(inputs if k == 0 else width, width, s) for k, s in enumerate(strides)))
            )
            inputs = width
        self.stages = nn.Sequential(*stages)
        self.feature_dim = inputs
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # N(0, 2 / (k^2 * out))
                nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / (9 * module.out_channels)))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stages(F.relu(self.bn(self.stem(x))))
        return x.mean(dim=(2, 3))


class ResNet18(Backbone):
    """torchvision's ResNet-18 without its classifier; for small images with a 3x3 stem and no pooling after it."""

    def __init__(self, small_images: bool) -> None:
        super().__init__()
        self.net = torchvision_resnet18(weights=None)
        self.net.fc = nn.Identity()
        if small_images:
            self.net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            nn.init.kaiming_normal_(self.net.conv1.weight, mode="fan_out", nonlinearity="relu")
            self.net.maxpool = nn.Identity()
        self.feature_dim = 512

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.net(x)
        return features


BACKBONES: dict[str, Callable[[], Backbone]] = {
    "resnet8": lambda: CifarResNet(1, stem_stride=2),
    "resnet32": lambda: CifarResNet(5),
    "resnet18": lambda: ResNet18(small_images=True),
    "resnet18-imagenet": lambda: ResNet18(small_images=False),
}
"""By name. `resnet8` halves the image in its stem: for small images on a CPU."""


def build_backbone(name: str) -> Backbone:
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES)
    return BACKBONES[name]()
