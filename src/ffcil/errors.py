"""Exceptions for errors that a user can correct. Messages are one sentence with the culprit and the remedy."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable


class InputError(ValueError):
    """Wrong input. The command line prints only the message and exits with status 2."""


class BusyError(InputError):
    """Another process uses the folder of the run. It may be free later."""


class DamagedError(InputError):
    """Files that ffcil wrote are damaged. `what` names them and the damage, without the remedy."""

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(f"{what}: {remedy}.")
        self.what = what


def unknown(what: str, name: str, options: Iterable[str], own: bool = False) -> InputError:
    """An `InputError` for an unknown name that suggests the nearest known one. With `own`, users can register more
    names."""
    known = sorted(options)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else f"choose one of: {', '.join(known)}."
    remedy = f" A {what} of your own needs --import FILE." if own else ""
    return InputError(f"Unknown {what} {name!r}: {hint}{remedy}")


_REORDERING = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
"""Characters that change the order in which others are shown."""


def printable(text: str) -> str:
    """Text for a terminal, in which control characters are escaped, so that they have no effect."""
    return "".join(_escaped(character) if _controls(character) else character for character in text)


def _controls(character: str) -> bool:
    if character in "\n\t":
        return False
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in _REORDERING


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
