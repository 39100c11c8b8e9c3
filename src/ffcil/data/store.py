"""A store on disk: pixels and sizes of training and test images, images that were left out, and checksums."""

import hashlib
import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ffcil.errors import DamagedError, InputError

PARTS = (0, 1)
"""Training and test."""
_PIXELS, _SIZES = ("0.pixels", "1.pixels"), ("0.sizes.npy", "1.sizes.npy")
_TOGETHER = 256  # images per entry of the journal
_JOURNAL, _ABOUT = "journal.jsonl", "store.json"


class BadImage(NamedTuple):
    """An unreadable image."""

    position: int
    """Position among the used images of the data set."""
    name: str
    reason: str


class Store(NamedTuple):
    """A memory-mapped store."""

    parts: tuple[tuple[Tensor, Tensor], ...]
    """Flat uint8 pixels, and height and width of each image (int64 [N, 2]), of training and test images."""
    left_out: tuple[BadImage, ...]
    folder: Path

    def digest_file(self, part: int) -> Path:
        """File for the digests of the images of a part, which the store itself does not need."""
        return self.folder / f"{part}.digests.npy"


def open_store(folder: Path) -> Store:
    """Map a store. Missing, truncated and unreadable files are an error. Only `verify_store` finds changed pixels."""
    with _reporting_damage(folder):
        about = _about(folder)
        for name in _SIZES:
            _verify(folder / name, about["sha256"][name])
        left_out = tuple(BadImage(*image) for image in about["left_out"])
        return Store(tuple(_mapped(folder, part) for part in PARTS), left_out, folder)


def verify_store(folder: Path) -> None:
    """Raise an error if a file does not match its checksum."""
    with _reporting_damage(folder):
        for name, written in _about(folder)["sha256"].items():
            _verify(folder / name, written)
        open_store(folder)


def _verify(path: Path, written: str) -> None:
    if _digest(path).hexdigest() != written:
        raise ValueError(f"the checksum of {path.name} is wrong")


@contextmanager
def _reporting_damage(folder: Path) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, EOFError, ValueError, LookupError, TypeError, AttributeError) as error:
        what = f"The store {folder} is damaged ({error})"
        raise DamagedError(what, "remove it, and it is created again") from error


def _about(folder: Path) -> Any:
    return json.loads((folder / _ABOUT).read_bytes())


def _mapped(folder: Path, part: int) -> tuple[Tensor, Tensor]:
    path = folder / _PIXELS[part]
    # An empty file cannot be mapped. The mode is copy-on-write, because torch has no read-only tensors.
    pixels = np.memmap(path, np.uint8, "c") if path.stat().st_size else np.empty(0, np.uint8)
    sizes = np.load(folder / _SIZES[part])
    if sizes.shape[1:] != (2,) or 3 * int(sizes.prod(1).sum()) != len(pixels):
        raise ValueError(f"{path.name} does not match {_SIZES[part]}")
    return torch.from_numpy(pixels), torch.from_numpy(sizes)


def _digest(path: Path) -> Any:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256")


class StoreDraft:
    """A store that is being written. If its process is killed, it can be continued after the last complete entry of its
    journal."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sizes = tuple(array("q") for _ in PARTS)  # height, width, height, ...
        self.bad: list[BadImage] = []
        self._resume()
        self._digests = [_digest(folder / name) for name in _PIXELS]
        self._files = [(folder / name).open("ab") for name in _PIXELS]
        self._journal = (folder / _JOURNAL).open("a", encoding="utf-8")
        self._entry: list[Any] = []

    def close(self) -> None:
        for file in (*self._files, self._journal):
            file.close()

    def __len__(self) -> int:
        """Number of images so far, including unreadable ones."""
        return sum(len(sizes) for sizes in self.sizes) // 2 + len(self.bad)

    def _resume(self) -> None:
        """Read the journal, and truncate the files to the images that it contains."""
        entries = []
        if (self.folder / _JOURNAL).is_file():
            with suppress(ValueError):  # the last line may be incomplete
                for line in (self.folder / _JOURNAL).read_text(encoding="utf-8").splitlines():
                    entries.append(json.loads(line))
        for image in (image for entry in entries for image in entry):
            self._remember(image)
        wanted = [3 * int(np.prod(self._shapes(part), axis=1).sum()) for part in PARTS]
        paths = [self.folder / name for name in _PIXELS]
        for path in paths:
            path.touch()
        if any(path.stat().st_size < size for path, size in zip(paths, wanted, strict=True)):  # after a power failure
            self.sizes, self.bad, entries, wanted = tuple(array("q") for _ in PARTS), [], [], [0, 0]
        for path, length in zip(paths, wanted, strict=True):
            with path.open("r+b") as file:
                file.truncate(length)
        lines = "".join(json.dumps(entry) + "\n" for entry in entries)
        (self.folder / _JOURNAL).write_text(lines, encoding="utf-8")

    def _remember(self, image: list[Any]) -> None:
        if isinstance(image[0], str):
            self.bad.append(BadImage(len(self), *image))
        else:
            self.sizes[image[0]].extend(image[1:])

    def _shapes(self, part: int) -> NDArray[np.int64]:
        return np.array(self.sizes[part], np.int64).reshape(-1, 2)

    def add(self, part: int, pixels: NDArray[np.uint8], height: int, width: int) -> None:
        """Write the next image."""
        content = np.ascontiguousarray(pixels).data
        self._files[part].write(content)
        self._digests[part].update(content)
        self._record([part, height, width])

    def leave_out(self, name: str, reason: str) -> None:
        """Record that the next image is unreadable."""
        self._record([name, reason])

    def _record(self, image: list[Any]) -> None:
        self._remember(image)
        self._entry.append(image)
        if len(self._entry) == _TOGETHER:
            for file in self._files:
                file.flush()
            self._journal.write(json.dumps(self._entry) + "\n")
            self._journal.flush()
            self._entry = []

    def finish(self) -> None:
        """Close the store and write its index."""
        self.close()
        sums = {name: digest.hexdigest() for name, digest in zip(_PIXELS, self._digests, strict=True)}
        for part in PARTS:
            path = self.folder / _SIZES[part]
            np.save(path, self._shapes(part))
            sums[path.name] = _digest(path).hexdigest()
        about = {"left_out": self.bad, "sha256": sums}
        (self.folder / _ABOUT).write_text(json.dumps(about), encoding="utf-8")
        (self.folder / _JOURNAL).unlink()
