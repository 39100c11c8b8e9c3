"""`ImageSet`: uint8 images and labels, on the device or memory-mapped."""

import hashlib
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ffcil.data.placement import place
from ffcil.data.ragged import Images, RaggedImages, join, select

_SAMPLED = 64  # number of images in a sample
_HASHED = 1000  # number of images that are moved to the host at a time


@dataclass(frozen=True)
class ImageSet:
    """Images and labels of one split."""

    images: Images
    """uint8 [N, 3, H, W], or images of different sizes; on the device, or on the CPU and possibly memory-mapped."""
    labels: Tensor
    """int64 [N], on the device of the images: position in `class_names`, or -1 for images of unused classes."""
    class_names: tuple[str, ...]

    def __post_init__(self) -> None:
        images = self.images
        if isinstance(images, Tensor):
            if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
                raise ValueError(f"images must be uint8 [N, 3, H, W], not {images.dtype} {list(images.shape)}")
            object.__setattr__(self, "images", images.contiguous())  # batches are gathered from the flat store
        if self.labels.dtype != torch.int64 or self.labels.shape != (len(images),):
            raise ValueError(f"labels must be int64 [{len(images)}], not {self.labels.dtype} {list(self.labels.shape)}")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def classes(self) -> int:
        return len(self.class_names)

    @property
    def image_size(self) -> tuple[int, int]:
        """Height and width; the minima if sizes differ."""
        sizes = self.images.shape[2:] if isinstance(self.images, Tensor) else self.images.sizes.amin(0).tolist()
        height, width = sizes
        return height, width

    def to(self, device: torch.device) -> Self:
        """Move to `device`. Images that do not fit into GPU memory stay in pinned memory, from which the GPU reads."""
        images = place(self.images, device) if isinstance(self.images, Tensor) else self.images.to(device)
        return replace(self, images=images, labels=self.labels.to(device))

    def content(self, rows: Tensor) -> bytes:
        """The pixels of some images, and their sizes if these differ, for a fingerprint."""
        if isinstance(self.images, RaggedImages):
            images = [self.images.image(row).cpu().numpy() for row in rows.tolist()]
            return repr([image.shape for image in images]).encode() + b"".join(map(np.ndarray.tobytes, images))
        return self.images[rows].cpu().numpy().tobytes()

    def digests(self, rows: Tensor) -> Tensor:
        """A digest of the size and the pixels of each of the images `rows`: int64, on the device of the images."""
        found = []
        for some in rows.split(_HASHED):
            if isinstance(self.images, Tensor):
                pictures = list(self.images[some].cpu())
            else:
                pictures = [self.images.image(row).cpu().contiguous() for row in some.tolist()]
            for picture in pictures:
                content = repr(tuple(picture.shape)).encode() + picture.numpy().tobytes()
                found.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True))
        return torch.tensor(found, dtype=torch.int64, device=self.images.device)

    def sample(self) -> bytes:
        """All labels and a few images, for a cheap fingerprint."""
        labels = self.labels.cpu().numpy().tobytes()
        if not len(self):
            return labels
        rows = torch.linspace(0, len(self) - 1, min(_SAMPLED, len(self))).long()
        return labels + self.content(rows.to(self.images.device))

    def subset(self, rows: Tensor) -> Self:
        """The images `rows` (int64 [M]) in a new store."""
        return replace(self, images=select(self.images, rows), labels=self.labels[rows])

    def followed_by(self, other: Self) -> Self:
        """Append the images of `other`, which has at least as many class names."""
        labels = torch.cat([self.labels, other.labels])
        return replace(other, images=join(self.images, other.images), labels=labels)

    def counts(self) -> Tensor:
        """Number of images per class, int64 [classes]."""
        return torch.bincount(self.labels[self.labels >= 0], minlength=self.classes)
