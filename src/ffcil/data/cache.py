"""The cache folder: decoded or drawn images are stored once and memory-mapped afterwards."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock
from platformdirs import user_cache_path

from ffcil.errors import InputError


def cache_folder() -> Path:
    """`$FFCIL_CACHE`, or else the user's cache folder (on Linux `$XDG_CACHE_HOME/ffcil` or `~/.cache/ffcil`)."""
    variable = os.environ.get("FFCIL_CACHE")
    return Path(variable).expanduser() if variable else user_cache_path("ffcil", appauthor=False)


def cached_folder(key: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` fills, at most once per `key`.

    The folder gets its name only when it is complete. Until then it is a draft, and other processes that need the same
    key wait. If a process is killed, its draft stays, and `make` may continue it; if `make` fails, the draft is
    removed.
    """
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock_file = folder.with_name(f".{key}.lock")
    try:
        lock = FileLock(lock_file).acquire()
    except OSError:  # no locks on this file system: the first process to finish provides the folder
        _fill(Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent)), folder, make)
        return folder
    with lock:
        if not folder.is_dir():
            draft = folder.with_name(f".{key}")
            draft.mkdir(exist_ok=True)
            _fill(draft, folder, make)
        lock_file.unlink(missing_ok=True)  # no longer needed: whoever waits for it finds the folder
    return folder


def _fill(draft: Path, folder: Path, make: Callable[[Path], None]) -> None:
    try:
        make(draft)
        draft.rename(folder)
    except Exception as error:  # not for Ctrl-C, after which the draft can be continued
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) and folder.is_dir():  # another process finished first
            return
        if isinstance(error, OSError) and error.filename is None:  # a failed write, which does not name the file
            raise InputError(
                f"{folder.parent} could not be written ({error.strerror or error}): free some space, or set another "
                "folder with $FFCIL_CACHE."
            ) from error
        raise
