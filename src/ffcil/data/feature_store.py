"""`FeatureStore`: features of a frozen network on disk, found by the digest of an image's pixels.

All runs over the same images with the same network share them, whatever their classes, steps and seeds. Features are
float16 and memory-mapped. Parts are written as whole files, so several processes can add to a store at the same time.
At worst, an image is then stored twice.
"""

import uuid
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffcil.atomic import write_whole
from ffcil.data.cache import cache_folder

SMALL = 4096
"""Number of images below which a part is small."""
FEW = 16
"""Largest number of small parts. More of them are joined."""


class FeatureStore:
    """Features of one network for images that are prepared in one way; `key` identifies both."""

    def __init__(self, key: str, width: int, folder: Path | None = None) -> None:
        self.folder, self.width = (folder or cache_folder()) / f"features-{key}", width
        self._parts: dict[str, tuple[NDArray[np.int64], NDArray[np.float16]]] = {}
        self._digests = np.empty(0, np.int64)
        self._places = np.empty((0, 2), np.int64)
        """Part and row of each of the sorted digests."""

    def features(self, digests: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Features of images, float32 [N, width], on the device of `digests`.

        Args:
            digests: A digest of each image, int64 [N].
            compute: Computes the features [M, width] of those images, by their positions [M], that are not stored.
        """
        wanted = digests.cpu().numpy()
        self._read_parts()
        missing = torch.from_numpy(np.flatnonzero(~self._stored(wanted))).to(digests.device)
        if len(missing):
            self._add(wanted[missing.cpu().numpy()], compute(missing).half().cpu().numpy())
        found = np.empty((len(wanted), self.width), np.float16)
        parts = list(self._parts.values())
        places = self._places[np.searchsorted(self._digests, wanted)]
        for number in np.unique(places[:, 0]):
            here = places[:, 0] == number
            found[here] = parts[number][1][places[here, 1]]
        return torch.from_numpy(found).to(digests.device).float()

    def _stored(self, wanted: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether each digest is stored, bool [N]. It avoids `np.isin`, which would sort all stored digests."""
        places = np.searchsorted(self._digests, wanted)
        found: NDArray[np.bool_] = places < len(self._digests)
        found[found] = self._digests[places[found]] == wanted[found]
        return found

    def __len__(self) -> int:
        """Number of images."""
        self._read_parts()
        return len(self._digests)

    def _read_parts(self) -> None:
        """Map parts that are new, and drop those that are gone."""
        there = self._listed()
        if there == list(self._parts):
            return
        while True:
            try:
                self._parts = {name: self._parts.get(name) or self._map(name) for name in there}
                break
            except FileNotFoundError:  # another process has joined small parts since they were listed
                there = self._listed()
        digests = [digests for digests, _ in self._parts.values()]
        places = [
            np.stack([np.full(len(part), number), np.arange(len(part))], axis=1) for number, part in enumerate(digests)
        ]
        joined = np.concatenate([np.empty(0, np.int64), *digests])
        self._digests, first = np.unique(joined, return_index=True)
        self._places = np.concatenate([np.empty((0, 2), np.int64), *places])[first]

    def _listed(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.digests.npy"))

    def _map(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.float16]]:
        digests = np.load(self.folder / name)
        return digests, np.load(self.folder / name.replace("digests", "features"), mmap_mode="r")

    def _add(self, digests: NDArray[np.int64], features: NDArray[np.float16]) -> None:
        """Write a part, then join small parts if there are too many."""
        self._write(digests, features)
        self._read_parts()
        small = [name for name, (part, _) in self._parts.items() if len(part) < SMALL]
        if len(small) > FEW:
            parts = [self._parts[name] for name in small]
            self._write(np.concatenate([part for part, _ in parts]), np.concatenate([part for _, part in parts]))
            for name in small:  # files that another process has mapped stay readable there
                (self.folder / name).unlink(missing_ok=True)
                (self.folder / name.replace("digests", "features")).unlink(missing_ok=True)
            self._read_parts()

    def _write(self, digests: NDArray[np.int64], features: NDArray[np.float16]) -> None:
        """Write a part: its features first, because other processes read a part as soon as its digests exist."""
        self.folder.mkdir(parents=True, exist_ok=True)
        name = uuid.uuid4().hex
        for kind, values in (("features", features), ("digests", digests)):
            content = BytesIO()
            np.save(content, values)
            write_whole(self.folder / f"{name}.{kind}.npy", content.getvalue())
