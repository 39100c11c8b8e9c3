"""Confusion counts as bytes: a compressed npz archive with sparse arrays for each classifier."""

import io
import tokenize
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
from numpy.lib.npyio import NpzFile

from ffcil.errors import InputError
from ffcil.metrics import Confusion

Counts = Mapping[str, Confusion]
"""Confusion counts after one step by classifier; the scored classifier is the first."""

_FIELDS = ("classes", "rows", "columns", "values")
_DAMAGED = (
    *(ValueError, TypeError, KeyError, EOFError, RuntimeError, SyntaxError, MemoryError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError, OverflowError),
)
"""Exceptions that numpy raises for a damaged archive, depending on where the damage is."""


def pack_counts(counts: Counts) -> bytes:
    """The archive of one step; the arrays of classifier NAME are NAME/classes, NAME/rows, NAME/columns, NAME/values."""
    content = io.BytesIO()
    arrays = {f"{name}/{field}": np.asarray(getattr(c, field)) for name, c in counts.items() for field in _FIELDS}
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    return content.getvalue()


def unpack_counts(content: bytes) -> dict[str, Confusion]:
    """Read the archive of one step. Archives of earlier versions have one dense square table per classifier."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            names = dict.fromkeys(name.rpartition("/")[0] if _is_field(name) else name for name in archive.files)
            return {name: _unpack(archive, name) for name in names}
    except _DAMAGED as error:
        raise InputError("The confusion counts are damaged.") from error


def _is_field(name: str) -> bool:
    return name.rpartition("/")[2] in _FIELDS


def _unpack(archive: NpzFile, name: str) -> Confusion:
    if name in archive:
        return Confusion.from_dense(archive[name])
    classes, *cells = (archive[f"{name}/{field}"] for field in _FIELDS)
    return Confusion(int(classes), *cells)
