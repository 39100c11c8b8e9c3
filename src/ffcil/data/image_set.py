"""`ImageSet`: uint8 images with labels, on the device or memory-mapped."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSet:
    """Images and labels of one split. It knows nothing of increments or methods."""

    images: Tensor
    """uint8, [N, 3, H, W]: on the device, or on the CPU and possibly memory-mapped"""
    labels: Tensor
    """int64, [N], on the device of the images; position in `class_names`, or -1 for an image of no class in use"""
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.images.dtype != torch.uint8 or self.images.ndim != 4 or self.images.shape[1] != 3:
            raise ValueError(f"images must be uint8 [N, 3, H, W], not {self.images.dtype} {list(self.images.shape)}")
        if self.labels.dtype != torch.int64 or self.labels.shape != self.images.shape[:1]:
            raise ValueError(
                f"labels must be int64 [{len(self.images)}], not {self.labels.dtype} {list(self.labels.shape)}"
            )

        object.__setattr__(self, "images", self.images.contiguous())  # a batch is gathered from the flat store

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def image_size(self) -> tuple[int, int]:
        height, width = self.images.shape[2:]
        return height, width

    def to(self, device: torch.device) -> ImageSet:
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def counts(self) -> Tensor:
        """Images per class, int64 [classes]."""
        return torch.bincount(self.labels[self.labels >= 0], minlength=self.classes)
