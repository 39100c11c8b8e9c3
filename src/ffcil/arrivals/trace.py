"""Traces: CSV files of classes and the time at which each was first seen."""

import csv
import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import groupby
from pathlib import Path

from ffcil.errors import InputError

_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def steps_of_trace(path: Path, window: str | float) -> list[list[str]]:
    """Names of the classes of each window of time in order of arrival, without empty windows."""
    rows, timestamps = _read_trace(path)
    length = _window_length(window, timestamps)
    rows.sort(key=lambda row: row[0])  # stable: classes of the same time stay in file order
    start = rows[0][0]
    return [[label for _, label in group] for _, group in groupby(rows, lambda row: (row[0] - start) // length)]


def _read_trace(path: Path) -> tuple[list[tuple[Fraction, str]], bool]:
    """(time, class) of each row in file order, and whether the times are timestamps (then in seconds)."""
    (_, header), *body = _read_rows(path)
    label_column = _column(path, header, ("class", "label"))
    time_column = _column(path, header, ("time", "first_seen", "timestamp"))
    times: list[Fraction] = []
    line_of_class: dict[str, int] = {}
    line_of_format: dict[str, int] = {}  # the first line with a time of this format
    for line, row in body:
        if len(row) != len(header):
            raise InputError(f"Line {line} of {path} has {len(row)} fields, not {len(header)}: correct the line.")
        label = row[label_column]
        if not label:
            raise InputError(f"Line {line} of {path} has no class name: add the name or delete the line.")
        if label in line_of_class:
            raise InputError(f"Class {label!r} is in {path} on lines {line_of_class[label]} and {line}: keep one.")
        time, time_format = _parse_time(row[time_column], f"line {line} of {path}")
        times.append(time)
        line_of_class[label] = line
        line_of_format.setdefault(time_format, line)
    if len(line_of_format) > 1:
        mixture = " and ".join(f"{name} (line {line})" for name, line in line_of_format.items())
        raise InputError(f"{path} mixes {mixture}: use one format for all times.")
    return list(zip(times, line_of_class, strict=True)), "plain numbers" not in line_of_format


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    if path.exists() and not path.is_file():  # a pipe may never end
        raise InputError(f"The trace {path} is not a regular file: give the path of a CSV file.")
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except OSError as error:
        raise InputError(f"The trace {path} cannot be read ({error.strerror}): give the path of a CSV file.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The trace {path} is not a CSV file in UTF-8 ({error}): save it as one.") from None
    if len(rows) < 2:
        raise InputError(f"The trace {path} has no classes: write a header, then one line per class.")
    return rows


def _column(path: Path, header: list[str], accepted: tuple[str, ...]) -> int:
    found = [index for index, name in enumerate(header) if name.lower() in accepted]
    if len(found) != 1:
        wanted = " or ".join(accepted)
        raise InputError(f"The trace {path} needs one column named {wanted}, but has: {', '.join(header)}.")
    return found[0]


def _parse_time(text: str, where: str) -> tuple[Fraction, str]:
    """The time as a number, and the name of its format; only times of the same format can be compared."""
    if re.fullmatch(_NUMBER, text):
        return Fraction(text), "plain numbers"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"The time {text!r} on {where} is neither a number nor like 2024-05-31T14:00:00.") from None
    zoned = time.utcoffset() is not None
    epoch = datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
    seconds = Fraction((time - epoch) // timedelta(microseconds=1), 1_000_000)
    return seconds, f"timestamps {'with' if zoned else 'without'} a time zone"


def _window_length(window: str | float, timestamps: bool) -> Fraction:
    """The length of a window, in seconds for timestamps, else in the unit of the numbers."""
    match = re.fullmatch(rf"({_NUMBER})\s*([smhdw]?)", str(window).strip())
    if match is None or (length := Fraction(match[1])) <= 0:
        raise InputError(f"The window {window!r} is not valid: give one such as 12h or 7d, or a plain number above 0.")
    if bool(match[2]) != timestamps:
        remedy = "timestamps: give one such as 12h" if timestamps else "plain numbers: give a number in their unit"
        raise InputError(f"The window {window!r} does not fit times that are {remedy}.")
    return length * _SECONDS[match[2]]
