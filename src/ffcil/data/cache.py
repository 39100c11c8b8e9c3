"""Decode or draw once, then memory-map: what was made under a key in the cache folder."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """`$FFCIL_CACHE`, else `$XDG_CACHE_HOME/ffcil`, else `~/.cache/ffcil`."""
    if named := os.environ.get("FFCIL_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "ffcil"


def cached_arrays(key: str, make: Callable[[], Arrays]) -> dict[str, NDArray[np.generic]]:
    """The arrays of `make()`, made at most once for a `key` and memory-mapped (copy on write) from then on."""

    def write(folder: Path) -> None:
        for name, array in make().items():
            np.save(folder / f"{name}.npy", array)

    folder = cached_folder(key, write)
    return {path.stem: np.load(path, mmap_mode="c") for path in sorted(folder.glob("*.npy"))}


def cached_folder(key: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, at most once for a `key`.

    It appears under its name only when it is whole, so that a killed process leaves nothing half made. Its draft is
    locked while it is being made: a process that wants the same key waits for it, and removes what a killed one left.
    """
    folder = cache_folder() / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    while not folder.is_dir():
        for draft in folder.parent.glob(f".{key}-*"):
            with _locked(draft) as held:  # waits for a process at work; there is none where it is free
                if held:
                    shutil.rmtree(draft, ignore_errors=True)
        if not folder.is_dir():
            _make(folder, make)
    return folder


def _make(folder: Path, make: Callable[[Path], None]) -> None:
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        with _locked(draft):
            if not draft.is_dir():
                return  # taken for a left one in the moment before it was locked: once more
            make(draft)
            try:
                draft.rename(folder)
            except OSError:
                if not folder.is_dir():  # not two processes that began at the same moment
                    raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Whether the lock is held. It goes with the process, however that ends.

    It is not where the folder is gone, or on a network file system that cannot lock folders: then each process makes
    its own draft, and the first to finish gives the folder.
    """
    try:
        handle = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            held = True
        except OSError:
            held = False
        yield held
    finally:
        os.close(handle)
