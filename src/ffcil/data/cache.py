"""Decode or draw once, then memory-map: arrays kept under a key in the cache folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
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
    """The arrays of `make()`, made at most once for a `key` and memory-mapped (copy on write) from then on.

    The folder appears under its name only when it is whole, so that a killed process leaves nothing half made and
    two processes that make the same key do not collide: the second one's copy is dropped.
    """
    folder = cache_folder() / key
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, array in make().items():
                np.save(draft / f"{name}.npy", array)
            try:
                draft.rename(folder)
            except OSError:
                if not folder.is_dir():  # not the race that we expected
                    raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    return {path.stem: np.load(path, mmap_mode="c") for path in sorted(folder.glob("*.npy"))}
