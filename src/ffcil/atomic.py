"""Writing of files that are complete or absent, whatever happens meanwhile."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name, flush to the disk, then rename: `path` is never a partial file."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with named_errors(path), open(draft, "wb", opener=_without_links) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _without_links(path: str, flags: int) -> int:
    """Open a file. A link is an error, because it may lead to a file of another user."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Add the name of the file to errors of writing, which do not have it."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def sync(path: Path) -> None:
    """Write a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_drafts(folder: Path) -> None:
    """Remove the temporary files of processes that were killed while writing."""
    for draft in folder.rglob(".*.draft"):
        draft.unlink()
