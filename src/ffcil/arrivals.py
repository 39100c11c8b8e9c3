"""How many new classes arrive at each step: equal, half, free-flow, given, or from a trace of real arrivals."""

from __future__ import annotations

import csv
import math
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ffcil.errors import InputError, unknown

KINDS = ("equal", "half", "free-flow", "given", "trace")
ORDERS = ("jumbled", "ascending", "descending", "given")
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
MIN_WIDTH = 40  # of the text picture: numbers of any likely length and two short bars
Array = NDArray[Any]


@dataclass(frozen=True)
class Arrivals:
    """The number of new classes of every step, and how that schedule was made."""

    sizes: tuple[int, ...]
    kind: str = "given"
    alpha: float | None = None
    """Spectrum intensity of a free-flow schedule: near 0 all steps are equal, very large all are at a bound."""
    smallest: int | None = None
    largest: int | None = None
    """Bounds asked of a step (the sizes need not reach them)."""
    order: str = "given"
    seed: int | None = None
    labels: tuple[str, ...] | None = None
    """Class names in order of arrival: a trace has them, nothing else does."""

    def __post_init__(self) -> None:
        if not isinstance(self.sizes, Iterable):
            raise InputError(f"The step sizes {self.sizes!r} are not a list: give one whole number for each step.")
        self._set("sizes", tuple(_whole("step size", size, 1) for size in self.sizes))
        if not self.sizes:
            raise InputError("A schedule needs at least one step: give one size or more.")
        _check_name("kind of arrivals", self.kind, KINDS)
        _check_name("order of arrivals", self.order, ORDERS)
        if self.alpha is not None:
            self._set("alpha", _intensity(self.alpha))
        for name, least in (("seed", 0), ("smallest", 1), ("largest", 1)):
            if getattr(self, name) is not None:
                self._set(name, _whole(name, getattr(self, name), least))
        low, high = self.smallest or 1, self.largest or max(self.sizes)
        if not low <= min(self.sizes) <= max(self.sizes) <= high:
            raise InputError(f"The step sizes are not all within {_span(low, high)}: change them or the bounds.")
        if self.order in ("ascending", "descending") and self.sizes != _in_order(self.sizes, self.order, 0):
            raise InputError(f"The sizes are not {self.order}: sort them, or call the order 'given'.")
        self._check_labels()

    def _set(self, name: str, value: object) -> None:
        """Puts a plain hashable value (tuple, int, float) where a list or a numpy number was given."""
        object.__setattr__(self, name, value)

    def _check_labels(self) -> None:
        if (self.labels is not None) != (self.kind == "trace"):
            raise InputError(f"Arrivals of kind {self.kind!r}: labels belong to a trace, and a trace needs them.")
        if self.labels is None:
            return
        if not isinstance(self.labels, list | tuple) or not all(isinstance(label, str) for label in self.labels):
            raise InputError("The labels of a trace must be a list of class names.")
        self._set("labels", tuple(self.labels))
        if len(self.labels) != self.classes:
            raise InputError(f"{len(self.labels)} labels for {self.classes} classes: give one name for each class.")
        twice = next((label for label, times in Counter(self.labels).items() if times > 1), None)
        if twice is not None:
            raise InputError(f"Class {twice!r} arrives twice: name each class once.")

    @property
    def classes(self) -> int:
        """The number of classes in all."""
        return sum(self.sizes)

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.sizes)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The number of classes seen after each step."""
        return tuple(accumulate(self.sizes))

    def to_json(self) -> dict[str, Any]:
        """Every field in JSON types, the sizes first; fields that do not apply are null."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Arrivals:
        """The schedule that `to_json` wrote; only "sizes" has to be there."""
        if not isinstance(data, Mapping):
            raise InputError('Arrivals are a JSON object such as {"sizes": [3, 1, 7]}.')
        names = [field.name for field in fields(cls)]
        for name in data:
            _check_name("field of arrivals", name, names)
        if "sizes" not in data:
            raise InputError('Arrivals without "sizes": give the number of new classes of each step.')
        return cls(**data)

    def draw(self, width: int = 80, ascii: bool = False) -> str:
        """The schedule as text: a line a step with its new classes and, beside them, all classes seen so far.

        `ascii` draws without block characters, for terminals that cannot show them.
        """
        if _whole("width", width, 1) < MIN_WIDTH:
            raise InputError(f"A width of {width} is too narrow for the picture: give {MIN_WIDTH} or more.")
        most = {"step": self.steps, "new": max(self.sizes), "seen": self.classes}
        step, new, seen = (max(len(name), len(str(number))) for name, number in most.items())
        bars = max(2, width - step - new - seen - 6)  # 6: the gaps between three numbers and two bars
        left, right = bars - bars // 2, bars // 2
        lines = textwrap.wrap(self._headline(), width, subsequent_indent="  ")
        lines.append(f"{'step':>{step}}  {'new':>{new}} {'':{left}}  {'seen':>{seen}}")
        for number, (size, after) in enumerate(zip(self.sizes, self.boundaries, strict=True), start=1):
            bar = _bar(size, most["new"], left, ascii)
            gauge = _gauge(after - size, after, self.classes, right, ascii)
            lines.append(f"{number:>{step}}  {size:>{new}} {bar:{left}}  {after:>{seen}} {gauge}")
        return "\n".join(line.rstrip() for line in lines)

    def _headline(self) -> str:
        parts = [self.kind]
        parts += [] if self.alpha is None else [f"alpha {self.alpha:g}"]
        parts += [] if self.order == "given" else [self.order]
        parts += [] if self.seed is None else [f"seed {self.seed}"]
        parts += [_count("distinct size", len(set(self.sizes)))]
        return f"{_count('class', self.classes)}, {_count('step', self.steps)}: {', '.join(parts)}"


def equal(classes: int, steps: int) -> Arrivals:
    """The equal split: sizes differ by at most one, the larger ones first."""
    classes, steps = _whole("classes", classes, 1), _whole("steps", steps, 1)
    if steps > classes:
        raise InputError(f"{steps} steps are too many for {_count('class', classes)}: at most {classes} would do.")
    return Arrivals(_split(classes, steps), kind="equal")


def half(classes: int, steps: int) -> Arrivals:
    """Learning from half: half of the classes first (the larger half if odd), then the rest in equal steps."""
    classes, steps = _whole("classes", classes, 2), _whole("steps", steps, 2)
    rest = classes // 2
    if steps - 1 > rest:
        raise InputError(f"{steps} steps are too many for half of {classes} classes: at most {rest + 1} would do.")
    return Arrivals((classes - rest, *_split(rest, steps - 1)), kind="half")


def free_flow(
    classes: int, steps: int, smallest: int, largest: int, alpha: float, order: str = "jumbled", seed: int = 0
) -> Arrivals:
    """Irregular steps of `smallest` to `largest` classes that add up to `classes`.

    `alpha` says how irregular: near 0 it is the equal split, 0.5 to 1 gives the most varied sizes, and a very large
    one puts all steps on the two bounds. One seed gives the same sizes in every order (jumbled, ascending, descending).
    """
    classes, steps = _whole("classes", classes, 1), _whole("steps", steps, 1)
    smallest, largest = _whole("smallest", smallest, 1), _whole("largest", largest, 1)
    alpha, seed = _intensity(alpha), _whole("seed", seed, 0)
    _check_feasible(classes, steps, smallest, largest)
    _check_name("order of free-flow arrivals", order, ORDERS[:3])
    sizes = _in_order(_spectrum(classes, steps, smallest, largest, alpha, seed), order, seed)
    return Arrivals(sizes, "free-flow", alpha, smallest, largest, order, seed)


def given(sizes: Iterable[int], order: str = "given", seed: int = 0) -> Arrivals:
    """Sizes of your own, as they are or put in order; the seed matters to the jumbled order alone."""
    _check_name("order of arrivals", order, ORDERS)
    seed = _whole("seed", seed, 0)
    in_order = _in_order(Arrivals(sizes).sizes, order, seed)  # type: ignore[arg-type]  # any iterable will do
    return Arrivals(in_order, order=order, seed=seed if order == "jumbled" else None)


def from_trace(path: str | Path, window: str | float) -> Arrivals:
    """The schedule in which classes really arrived: a CSV file of classes and the times they were first seen.

    The file has a column `class` (or `label`) and a column `time` (or `first_seen`, `timestamp`) of ISO 8601 timestamps
    or plain numbers. All classes of one `window`, counted from the earliest arrival, make one step; a window without
    arrivals makes none. Timestamps need a window such as "90s", "30m", "12h", "7d" or "2w", numbers a plain number.
    """
    rows, stamped = _read_trace(Path(path))
    length = _window(window, stamped)
    rows.sort(key=lambda row: row[0])  # stable: classes of the same time stay in file order
    start = rows[0][0]
    sizes = tuple(len(list(group)) for _, group in groupby(rows, lambda row: (row[0] - start) // length))
    return Arrivals(sizes, kind="trace", labels=tuple(label for _, label in rows))


def _streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Randomness for the sizes and for their order: apart, so that all orders of one seed share the sizes.

    Only `Generator.random` is drawn from, the one method whose numbers have stayed the same across numpy releases.
    """
    spectrum, order = np.random.SeedSequence(seed).spawn(2)
    return np.random.Generator(np.random.PCG64(spectrum)), np.random.Generator(np.random.PCG64(order))


def _spectrum(classes: int, steps: int, smallest: int, largest: int, alpha: float, seed: int) -> tuple[int, ...]:
    rng = _streams(seed)[0]
    spread = largest - smallest
    above = classes - steps * smallest  # classes to hand out above the smallest size
    if above in (0, steps * spread):  # every step is at a bound, where the Beta distribution is a point
        return _split(classes, steps)
    # Each stratum k/T..(k+1)/T has an offset U_k of its own. One offset common to all would push every size up or down
    # together, so that the sum would be off by up to half the spread; with offsets of their own the errors cancel.
    mean = above / (steps * spread)
    targets = smallest + spread * _quantile((np.arange(steps) + rng.random(steps)) / steps, mean, alpha)
    edges = smallest + spread * _quantile(np.arange(steps + 1) / steps, mean, alpha)
    targets, edges = targets.round(9), edges.round(9)  # 14.9999999999 is a 15 that arithmetic missed
    sizes = np.floor(targets).astype(np.int64) + (rng.random(steps) < targets - np.floor(targets))

    # The sum is repaired by moves of one class, as few as it takes. What rounding got wrong is mended by rounding some
    # targets the other way, each as likely as that rounding was: an unlikely one is undone, not answered by another, so
    # small alphas soon give the equal split. What the draws got wrong is mended inside the strata, by how far each
    # reaches: all but one step stay on the bounds as alpha -> infinity. The strata have the room: the Beta mean is that
    # of the schedule, so the lower edges sum to no more than C and the upper ones to no less.
    missing = classes - int(sizes.sum())
    up = 1 if missing > 0 else -1
    by_rounding = math.ceil(up * round(float(targets.sum()) - int(sizes.sum()), 6))
    by_rounding = min(max(by_rounding, 0), abs(missing))
    odds = up * targets - np.floor(up * targets)
    sizes += up * _shares(np.ceil(up * targets) - up * sizes, by_rounding, odds, rng)
    edge = edges[1:] if up == 1 else edges[:-1]
    sizes += up * _shares(np.ceil(up * edge) - up * sizes, abs(missing) - by_rounding, np.diff(edges) + 1e-6, rng)
    return tuple(sorted(sizes.tolist()))


def _quantile(position: Array, mean: float, alpha: float) -> Array:
    """Quantiles of Beta(mean/alpha, (1-mean)/alpha), which has that mean for every alpha."""
    from scipy.special import betaincinv  # here: no other schedule needs scipy

    if alpha < 1e-12:  # the limit, to a millionth; doubles would do worse
        return np.full_like(position, mean)
    alpha = min(alpha, 1e12)  # the limit as well, before the quotients underflow
    return np.asarray(betaincinv(mean / alpha, (1 - mean) / alpha, position))


def _shares(room: Array, moves: int, odds: Array, rng: np.random.Generator) -> Array:
    """How many of `moves` each step makes: drawn one at a time by the odds of the steps that have room left."""
    room = np.maximum(room, 0).astype(np.int64)
    shares = np.zeros_like(room)
    while (left := moves - int(shares.sum())) > 0:
        cumulative = np.cumsum(odds * (shares < room))
        drawn = np.searchsorted(cumulative, rng.random(left) * cumulative[-1], side="right")
        shares = np.minimum(shares + np.bincount(drawn, minlength=len(room)), room)
    return shares


def _in_order(sizes: tuple[int, ...], order: str, seed: int) -> tuple[int, ...]:
    if order == "jumbled":
        return tuple(sizes[k] for k in np.argsort(_streams(seed)[1].random(len(sizes))))
    return sizes if order == "given" else tuple(sorted(sizes, reverse=order == "descending"))


def _split(classes: int, steps: int) -> tuple[int, ...]:
    size, larger = divmod(classes, steps)
    return (size + 1,) * larger + (size,) * (steps - larger)


def _read_trace(path: Path) -> tuple[list[tuple[Fraction, str]], bool]:
    """(time, class) of each row in file order, and whether the times are timestamps (then in seconds)."""
    (_, header), *body = _read_rows(path)
    label_column = _column(path, header, ("class", "label"))
    time_column = _column(path, header, ("time", "first_seen", "timestamp"))
    times: list[Fraction] = []
    lines: dict[str, int] = {}  # of each class
    sorts: dict[str, int] = {}  # of time, and the first line that has it
    for line, row in body:
        if len(row) != len(header):
            raise InputError(f"Line {line} of {path} has {len(row)} fields, the header {len(header)}: mend the line.")
        label = row[label_column]
        if not label:
            raise InputError(f"Line {line} of {path} names no class: fill in the name or delete the line.")
        if label in lines:
            raise InputError(f"Class {label!r} is in {path} twice, on lines {lines[label]} and {line}: keep one.")
        time, sort = _parse_time(row[time_column], f"line {line} of {path}")
        times.append(time)
        lines[label] = line
        sorts.setdefault(sort, line)
    if len(sorts) > 1:
        mixture = " and ".join(f"{sort} (line {line})" for sort, line in sorts.items())
        raise InputError(f"{path} mixes {mixture}: write all times alike.")
    return list(zip(times, lines, strict=True)), "plain numbers" not in sorts


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, [cell.strip() for cell in row]) for row in reader if any(row)]
    except OSError as error:
        raise InputError(f"The trace {path} cannot be read ({error.strerror}): give the path of a CSV file.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"The trace {path} is not a CSV file in UTF-8 ({error}): save it as one.") from None
    if len(rows) < 2:
        raise InputError(f"The trace {path} holds no classes: give a header, then one line for each class.")
    return rows


def _column(path: Path, header: list[str], accepted: tuple[str, ...]) -> int:
    found = [index for index, name in enumerate(header) if name.lower() in accepted]
    if len(found) != 1:
        wanted = " or ".join(accepted)
        raise InputError(f"The trace {path} needs one column named {wanted}, but has: {', '.join(header)}.")
    return found[0]


def _parse_time(text: str, where: str) -> tuple[Fraction, str]:
    """The time as a number, and what sort of time it is: only times of one sort can be compared."""
    if re.fullmatch(NUMBER, text):
        return Fraction(text), "plain numbers"
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"The time {text!r} on {where} is neither a number nor like 2024-05-31T14:00:00.") from None
    zoned = time.utcoffset() is not None
    epoch = datetime(1970, 1, 1, tzinfo=UTC if zoned else None)
    seconds = Fraction((time - epoch) // timedelta(microseconds=1), 1_000_000)
    return seconds, f"timestamps {'with' if zoned else 'without'} a time zone"


def _window(window: str | float, stamped: bool) -> Fraction:
    """The length of a window: in seconds for timestamps, else in the unit of the numbers."""
    match = re.fullmatch(rf"({NUMBER})\s*([smhdw]?)", str(window).strip())
    if match is None or (length := Fraction(match[1])) <= 0:
        raise InputError(f"A window of {window!r} cannot be: give one such as 12h or 7d, or a plain number above 0.")
    if bool(match[2]) != stamped:
        remedy = "timestamps: give one such as 12h or 7d" if stamped else "plain numbers: give a number in their unit"
        raise InputError(f"A window of {window!r} does not suit times that are {remedy}.")
    return length * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}[match[2]]


def _check_name(what: str, name: Any, options: Collection[str]) -> None:
    if name not in options:
        raise unknown(what, str(name), options)


def _whole(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{what.capitalize()} {value!r} cannot be: give a whole number of {least} or more.")
    return int(value)


def _intensity(alpha: Any) -> float:
    number = isinstance(alpha, int | float | np.integer | np.floating) and not isinstance(alpha, bool)
    if not number or not 0 < alpha < math.inf:
        raise InputError(f"Alpha {alpha!r} cannot be: give a finite number above 0, such as 1.0.")
    return float(alpha)


def _check_feasible(classes: int, steps: int, smallest: int, largest: int) -> None:
    if smallest > largest:
        raise InputError(f"The smallest step {smallest} is above the largest step {largest}: swap the two.")
    if steps * smallest <= classes <= steps * largest:
        return
    message = (
        f"{_count('class', classes)} do{'es' if classes == 1 else ''} not fit in {_count('step', steps)} of "
        f"{_span(smallest, largest)}: {_count('class', steps * smallest, steps * largest)} would"
    )
    fewest, most = -(-classes // largest), classes // smallest
    if fewest <= most:
        message += f", or {_count('step', fewest, most)}"
    raise InputError(f"{message}.")


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _count(noun: str, first: int, last: int = 0) -> str:
    last = max(first, last)
    return f"{_span(first, last)} {noun}{'' if last == 1 else 'es' if noun == 'class' else 's'}"


def _bar(value: int, most: int, width: int, ascii: bool) -> str:
    if ascii:
        return "#" * max(1, round(value * width / most))
    full, eighths = divmod(max(1, round(value * width * 8 / most)), 8)
    return "█" * full + " ▏▎▍▌▋▊▉"[eighths].strip()


def _gauge(before: int, after: int, classes: int, width: int, ascii: bool) -> str:
    """Old classes light, new ones solid, on a scale where the full width is all classes."""
    end = max(1, round(after * width / classes))
    start = min(round(before * width / classes), end - 1)
    old, new = ".#" if ascii else "░█"
    return old * start + new * (end - start)
