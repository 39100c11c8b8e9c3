"""Residual networks: the CIFAR family (ResNet-8 and ResNet-32) and ResNet-18 with three stems.

A backbone maps images [B, 3, H, W] to pooled features [B, feature_dim] and has no classifier.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.errors import InputError, unknown


class Backbone(nn.Module):
    """`lower` and `upper` map images [B, 3, H, W] to maps [B, feature_dim, h, w], which are pooled to [B, feature_dim].

    A subclass sets `lower`, `upper` and `feature_dim` in its `__init__`. `@register_backbone` gives it a name."""

    feature_dim: int
    lower: nn.Module
    """Stem and all stages except the last."""
    upper: nn.Module
    """Last stage."""

    def forward(self, images: Tensor) -> Tensor:
        return pool(self.upper(self.lower(images)))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As in torch, but block by block, and also for methods that call `lower` and `upper` separately."""
        self.lower.compile(*args, **kwargs)
        self.upper.compile(*args, **kwargs)


class Stage(nn.Sequential):
    """Blocks that are compiled one by one. Equal blocks of all networks share their code, so most of them take no time
    to compile."""

    def compile(self, *args: Any, **kwargs: Any) -> None:
        for block in self:
            block.compile(*args, **kwargs)


class StemAndStages(nn.Sequential):
    """The layers of a stem, which are compiled as one, followed by stages."""

    def __init__(self, stem: Sequence[nn.Module], *stages: Stage) -> None:
        super().__init__(*stem, *stages)
        self._layers = len(stem)
        self._through_stem = _in_turn
        """Function of the layers of the stem. It is not a bound method, with which a copy of this module would call the
        original."""

    def forward(self, images: Tensor) -> Tensor:
        parts = list(self)
        return _in_turn(parts[self._layers :], self._through_stem(parts[: self._layers], images))

    def compile(self, *args: Any, **kwargs: Any) -> None:
        self._through_stem = torch.compile(_in_turn, *args, **kwargs)
        for stage in list(self)[self._layers :]:
            stage.compile(*args, **kwargs)


def _in_turn(modules: Sequence[nn.Module], values: Tensor) -> Tensor:
    """Apply modules one after another."""
    for module in modules:
        values = module(values)
    return values


def pool(maps: Tensor) -> Tensor:
    """Average pooling, [B, D, h, w] -> [B, D], in float32."""
    return maps.mean(dim=(2, 3), dtype=torch.float32)


class _Block(nn.Module):
    """Basic block: conv3-BN-ReLU-conv3-BN, add, ReLU. Shortcuts have no parameters (option A of He et al.)."""

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
        if self.stride > 1 or self.added:  # subsample pixels; zeros for additional channels
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))
        return F.relu(x + y)


class CifarResNet(Backbone):
    """Three stages of `blocks` basic blocks with 16, 32 and 64 channels; depth is 6 * blocks + 2."""

    def __init__(self, blocks: int, stem_stride: int = 1) -> None:
        super().__init__()

        def stage(inputs: int, width: int, stride: int) -> Stage:
            others = (_Block(width, width, stride=1) for _ in range(blocks - 1))
            return Stage(_Block(inputs, width, stride), *others)

        stem = [nn.Conv2d(3, 16, 3, stem_stride, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        self.lower = StemAndStages(stem, stage(16, 16, stride=1), stage(16, 32, stride=2))
        self.upper = stage(32, 64, stride=2)
        self.feature_dim = 64
        for module in self.modules():
            if isinstance(module, nn.Conv2d):  # N(0, 2 / (k^2 * out))
                nn.init.normal_(module.weight, 0.0, math.sqrt(2.0 / (9 * module.out_channels)))


class ResNet18(Backbone):
    """torchvision's ResNet-18 without its classifier.

    `stem` is "3x3" without pooling for small images, "7x7" with pooling for large images, or "3x3-pool" as in published
    ImageNet runs that start with half of the classes, which takes 3.8 times as long as "7x7".
    """

    def __init__(self, stem: str) -> None:
        from torchvision.models import resnet18  # It imports torch's compiler, which takes long.

        super().__init__()
        net = resnet18(weights=None)
        if stem != "7x7":
            net.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
            nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
        pooled = [] if stem == "3x3" else [net.maxpool]
        stages = [Stage(*layer) for layer in (net.layer1, net.layer2, net.layer3, net.layer4)]
        self.lower = StemAndStages([net.conv1, net.bn1, net.relu, *pooled], *stages[:3])
        self.upper = stages[3]
        self.feature_dim = 512


BACKBONES: dict[str, Callable[[], Backbone]] = {
    "resnet8": lambda: CifarResNet(1, stem_stride=2),
    "resnet32": lambda: CifarResNet(5),
    "resnet18": lambda: ResNet18("3x3"),
    "resnet18-imagenet": lambda: ResNet18("7x7"),
    "resnet18-imagenet-3x3": lambda: ResNet18("3x3-pool"),
}
"""Backbones by name. `resnet8` halves the image in its stem; it is for small images on a CPU."""
BUILT_IN = frozenset(BACKBONES)
"""Backbones whose frozen copies can be folded: a batch norm that is registered after a convolution also follows it in
the computation. Of other backbones, this is not known."""
Factory = TypeVar("Factory", bound=Callable[[], Backbone])


def register_backbone(name: str) -> Callable[[Factory], Factory]:
    """`@register_backbone("mine")` makes a subclass of `Backbone`, or a function that builds one, available to methods
    that train from scratch: `--import FILE --set backbone=mine`."""

    def add(factory: Factory) -> Factory:
        if name in BACKBONES:
            raise InputError(f"Two backbones are called {name!r}: register one under another name.")
        BACKBONES[name] = factory
        return factory

    return add


def build_backbone(name: str) -> Backbone:
    if name not in BACKBONES:
        raise unknown("backbone", name, BACKBONES, own=True)
    return BACKBONES[name]()
