"""The cache folder: decoded or drawn images are stored once and memory-mapped afterwards."""

import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from platformdirs import user_cache_path

from ffcil.atomic import sync
from ffcil.errors import DamagedError, InputError
from ffcil.locks import lock

T = TypeVar("T")


def cache_folder() -> Path:
    """`$FFCIL_CACHE`, or else the user's cache folder (on Linux `$XDG_CACHE_HOME/ffcil` or `~/.cache/ffcil`)."""
    variable = os.environ.get("FFCIL_CACHE")
    return Path(variable).expanduser() if variable else user_cache_path("ffcil", appauthor=False)


def cached(key: str, make: Callable[[Path], None], read: Callable[[Path], T]) -> T:
    """Read a folder of the cache, which `make` fills at most once per `key`. Returns the result of `read`.

    If `read` raises a `DamagedError`, the folder is filled again.
    """
    folder = cached_folder(key, make)
    try:
        return read(folder)
    except DamagedError as error:
        print(f"ffcil: {error.what}, so it is created again.", file=sys.stderr)
    aside = Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent))
    folder.replace(aside)  # processes that use its files keep them
    shutil.rmtree(aside, ignore_errors=True)
    return read(cached_folder(key, make))


def cached_folder(key: str, make: Callable[[Path], None]) -> Path:
    """A folder of the cache, which `make` fills at most once per `key`.

    The folder gets its name when it is complete and on the disk. Until then it is a draft, and other processes that
    need the same key wait. If a process is killed, its draft stays, and `make` may continue it. If `make` fails, the
    draft is removed.
    """
    folder = cache_folder() / key
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock_file = folder.with_name(f".{key}.lock")
    failed = True

    def report(holder: str) -> None:
        print(f"ffcil: waiting for {holder}, which prepares {folder}", file=sys.stderr, flush=True)

    try:
        with lock(lock_file, report=report):
            failed = False
            if not folder.is_dir():
                draft = folder.with_name(f".{key}")
                draft.mkdir(exist_ok=True)
                _fill(draft, folder, make)
            lock_file.unlink(missing_ok=True)  # processes that wait for the lock find the folder
    except OSError:
        if not failed:
            raise
        # there are no locks on this file system, so the first process to finish provides the folder
        _fill(Path(tempfile.mkdtemp(prefix=f".{key}-", dir=folder.parent)), folder, make)
    return folder


def _fill(draft: Path, folder: Path, make: Callable[[Path], None]) -> None:
    """Fill a draft and rename it to `folder`, which marks it as complete."""
    try:
        make(draft)
        for path in (*draft.rglob("*"), draft):
            sync(path)
        draft.rename(folder)
        sync(folder.parent)
    except Exception as error:  # not KeyboardInterrupt, after which the draft can be continued
        shutil.rmtree(draft, ignore_errors=True)
        if isinstance(error, OSError) and folder.is_dir():  # another process finished first
            return
        if isinstance(error, OSError) and error.filename is None:  # a failed write, which does not name the file
            remedy = "free some space, or set another folder with $FFCIL_CACHE"
            if error.errno == errno.EFBIG:
                remedy = "raise the limit on the size of files with `ulimit -f`"
            raise InputError(f"{folder} could not be written ({error.strerror or error}): {remedy}.") from error
        raise
