"""`ImageSet`: uint8 images and labels, on the device or memory-mapped."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ffcil.atomic import write_whole
from ffcil.data.placement import place
from ffcil.data.ragged import Images, RaggedImages, join, select

_SHOWN = 5  # number of classes that are named in a notebook
_SAMPLED = 64  # number of images in a sample
_HASHED = 100  # number of images that a thread moves to the host at a time


@dataclass(frozen=True, repr=False)
class ImageSet:
    """Images and labels, for example of one split."""

    images: Images
    """uint8 [N, 3, H, W], or images of different sizes; on the device, or on the CPU and possibly memory-mapped."""
    labels: Tensor
    """int64 [N], on the device of the images: position in `class_names`, or -1 for images of unused classes."""
    class_names: tuple[str, ...]
    digest_file: Path | None = None
    """File for the digests of all images, if these are in a store on disk. It is written when digests are first
    needed."""

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

    def __repr__(self) -> str:
        some = ", ".join(self.class_names[:_SHOWN]) + (", ..." if self.classes > _SHOWN else "")
        return f"ImageSet({len(self):,} images of {self.classes:,} classes: {some})"

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
        """The same images on `device`. If they do not fit into GPU memory, the GPU reads them from pinned memory."""
        images = place(self.images, device) if isinstance(self.images, Tensor) else self.images.to(device)
        return replace(self, images=images, labels=self.labels.to(device))

    def content(self, rows: Tensor) -> bytes:
        """The pixels of some images, and their sizes if these differ, for a fingerprint."""
        if isinstance(self.images, RaggedImages):
            images = [self.images.image(row).cpu().numpy() for row in rows.tolist()]
            return repr([image.shape for image in images]).encode() + b"".join(map(np.ndarray.tobytes, images))
        return self.images[rows].cpu().numpy().tobytes()

    def digests(self, rows: Tensor) -> Tensor:
        """A digest of the size and the pixels of each of the images `rows`, int64 [N], on the device of the images."""
        if self.digest_file is None:
            return self._computed_digests(rows)
        return self._all_digests(self.digest_file).to(self.images.device)[rows]

    def _all_digests(self, file: Path) -> Tensor:
        """Digests of all images, from the file if it is there and complete."""
        with suppress(OSError, EOFError, ValueError):
            stored = np.load(file)  # the last value is a digest of the others
            if len(stored) == len(self) + 1 and stored[-1] == _digest(stored[:-1].tobytes()):
                return torch.from_numpy(stored[:-1])
        digests = self._computed_digests(torch.arange(len(self), device=self.images.device)).cpu()
        content = BytesIO()
        np.save(content, np.append(digests.numpy(), _digest(digests.numpy().tobytes())))
        with suppress(OSError):  # without the file, for example in a read-only cache, every run computes them
            write_whole(file, content.getvalue())
        return digests

    def _computed_digests(self, rows: Tensor) -> Tensor:
        with ThreadPoolExecutor() as pool:  # hashing and copying release Python's lock
            found = [digest for some in pool.map(self._hashed, rows.split(_HASHED)) for digest in some]
        return torch.tensor(found, dtype=torch.int64, device=self.images.device)

    def _hashed(self, rows: Tensor) -> list[int]:
        if isinstance(self.images, Tensor):
            pictures = iter(self.images[rows].cpu())
        else:
            pictures = map(Tensor.contiguous, map(Tensor.cpu, map(self.images.image, rows.tolist())))
        return [_digest(repr(tuple(picture.shape)).encode() + picture.numpy().tobytes()) for picture in pictures]

    def sample(self) -> bytes:
        """All labels and a few images, for a fingerprint that takes little time."""
        labels = self.labels.cpu().numpy().tobytes()
        if not len(self):
            return labels
        rows = torch.linspace(0, len(self) - 1, min(_SAMPLED, len(self))).long()
        return labels + self.content(rows.to(self.images.device))

    def subset(self, rows: Tensor) -> Self:
        """The images `rows` (int64 [M]) in a new store."""
        return replace(self, images=select(self.images, rows), labels=self.labels[rows], digest_file=None)

    def followed_by(self, other: Self) -> Self:
        """Append the images of `other`, which has at least as many class names."""
        labels = torch.cat([self.labels, other.labels])
        return replace(other, images=join(self.images, other.images), labels=labels, digest_file=None)

    def counts(self) -> Tensor:
        """Number of images per class, int64 [classes]."""
        return torch.bincount(self.labels[self.labels >= 0], minlength=self.classes)


def _digest(content: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True)
