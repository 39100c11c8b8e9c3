"""MobileNetV3-Small of torchvision as the backbone of methods that train from scratch.

    ffcil run glyphs --import examples/my_backbone.py --set backbone=mobilenet --set method=memo

Howard et al., "Searching for MobileNetV3", ICCV 2019.
"""

from torchvision.models import mobilenet_v3_small

from ffcil import Backbone, register_backbone


@register_backbone("mobilenet")
class MobileNet(Backbone):
    """MEMO shares `lower` between all steps, and adds an `upper` at each of them. Other methods apply one after the
    other."""

    def __init__(self) -> None:
        super().__init__()
        layers = mobilenet_v3_small(weights=None).features
        self.lower, self.upper = layers[:9], layers[9:]
        self.feature_dim = 576
