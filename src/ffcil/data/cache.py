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

from ffcil.errors import InputError

Arrays = Mapping[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """`$FFCIL_CACHE`, else `$XDG_CACHE_HOME/ffcil`, else `~/.cache/ffcil`."""
    if named := os.environ.get("FFCIL_CACHE"):
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "ffcil"


def cached_arrays(key: str, make: Callable[[], Arrays]) -> dict[str, NDArray[np.generic]]:
    """The arrays of `make()`, made at most once for a `key` and memory-mapped (copy on write) from then on."""

    def write(folder: Path) -> None:
        for name, array in make().items():
            np.save(folder / f"{name}.npy", array)

    folder = cached_folder(key, write)
    return {path.stem: np.load(path, mmap_mode="c") for path in sorted(folder.glob("*.npy"))}


def cached_folder(key: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, at most once for a `key`.

    It appears under its name only when it is whole. Until then it is a draft with a locked file beside it: a process
    that wants the same key waits for that. A killed process leaves its draft, and `make` may go on from what is in it;
    where `make` fails, nothing stays.
    """
    folder = cache_folder() / key
    folder.parent.mkdir(parents=True, exist_ok=True)
    while not folder.is_dir():
        with _locked(folder.with_name(f".{key}.lock")) as held:
            if held is None:  # on a file system that cannot lock: the first to finish gives the folder
                _fill(Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent)), folder, make)
            elif held and not folder.is_dir():  # else it was finished a moment ago
                draft = folder.with_name(f".{key}")
                draft.mkdir(exist_ok=True)
                _fill(draft, folder, make)
    return folder


def _fill(draft: Path, folder: Path, make: Callable[[Path], None]) -> None:
    try:
        make(draft)
        draft.rename(folder)
    except Exception as error:  # not for Ctrl-C: what there is can be taken up
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) and folder.is_dir():  # another process was faster
            return
        if isinstance(error, OSError) and error.filename is None:  # a write, which does not say where
            raise InputError(
                f"{folder.parent} could not be written ({error.strerror or error}): make room there, or name another "
                "folder in $FFCIL_CACHE."
            ) from error
        raise


@contextmanager
def _locked(path: Path) -> Iterator[bool | None]:
    """Whether a file is locked and still the one of that name; None where files cannot be locked.

    The lock goes with the process, however that ends; the file goes with the lock.
    """
    with path.open("w") as file:  # NFS locks only what is open for writing
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            held: bool | None = os.path.samestat(os.fstat(file.fileno()), path.stat())
        except FileNotFoundError:  # its owner is done and has removed it
            held = False
        except OSError:
            held = None
        try:
            yield held
        finally:
            if held is not False:
                path.unlink(missing_ok=True)
