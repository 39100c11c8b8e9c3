"""Exceptions for errors that a user can correct. Messages are one sentence with the culprit and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Wrong input. The command line prints only the message and exits with status 2."""


class BusyError(InputError):
    """The folder of the run is in use by another process; it may be free later."""


def unknown(what: str, name: str, options: Iterable[str]) -> InputError:
    """An `InputError` for an unknown name that suggests the nearest known one."""
    known = sorted(options)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(known)}."
    return InputError(f"Unknown {what} {name!r}: {hint}")
