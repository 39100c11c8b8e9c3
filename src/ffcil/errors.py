"""The one exception for what a user can put right: a sentence that names the thing and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Bad input. The command line prints its message alone, with exit status 2 and no traceback."""


class BusyError(InputError):
    """The run's folder is in another process's hands: nothing is wrong, and later it may be free."""


def unknown(what: str, name: str, options: Iterable[str]) -> InputError:
    """An `InputError` for a name that does not exist, with the nearest one that does."""
    known = sorted(options)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(known)}."
    return InputError(f"Unknown {what} {name!r}: {hint}")
