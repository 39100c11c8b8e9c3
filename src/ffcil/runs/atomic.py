"""Files that are complete or absent, whatever happens while they are written."""

import os
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write to a temporary name, flush to the disk, then rename: `path` is never a partial file."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        with draft.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def remove_drafts(folder: Path) -> None:
    """Remove the temporary files of processes that were killed while writing."""
    for draft in folder.rglob(".*.draft"):
        draft.unlink()
