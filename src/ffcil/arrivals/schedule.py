"""Schedules of class arrivals: equal, half, trickle, free-flow, given, or from a trace of real arrivals."""

import math
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ffcil.arrivals.trace import steps_of_trace
from ffcil.errors import InputError, unknown

KINDS = ("equal", "half", "trickle", "free-flow", "given", "trace")
ORDERS = ("jumbled", "ascending", "descending", "given")
MIN_WIDTH = 40  # columns for the numbers and two short bars
Array = NDArray[Any]


@dataclass(frozen=True)
class Arrivals:
    """The number of new classes of every step, and how these numbers were made."""

    sizes: tuple[int, ...]
    kind: str = "given"
    alpha: float | None = None
    """Spectrum intensity of a free-flow schedule: steps are equal near 0, and at one of the bounds for large values."""
    smallest: int | None = None
    """Lower bound of the step sizes."""
    largest: int | None = None
    """Upper bound of the step sizes."""
    order: str = "given"
    seed: int | None = None
    labels: tuple[str, ...] | None = None
    """Class names in order of arrival, for a trace only."""

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
            raise InputError(f"The step sizes are not all within {_span(low, high)}: change the sizes or the bounds.")
        if self.order in ("ascending", "descending") and self.sizes != _in_order(self.sizes, self.order, 0):
            raise InputError(f"The sizes are not {self.order}: sort them, or set the order to 'given'.")
        self._check_labels()

    def _set(self, name: str, value: object) -> None:
        """Replace a list or a numpy number with a plain, hashable value."""
        object.__setattr__(self, name, value)

    def _check_labels(self) -> None:
        if (self.labels is not None) != (self.kind == "trace"):
            raise InputError(f"Arrivals of kind {self.kind!r}: a trace needs labels, other kinds must not have any.")
        if self.labels is None:
            return
        if not isinstance(self.labels, list | tuple) or not all(isinstance(label, str) for label in self.labels):
            raise InputError("The labels of a trace must be a list of class names.")
        self._set("labels", tuple(self.labels))
        if len(self.labels) != self.classes:
            raise InputError(f"{len(self.labels)} labels for {self.classes} classes: give one name for each class.")
        label, times = Counter(self.labels).most_common(1)[0]
        if times > 1:
            raise InputError(f"Class {label!r} arrives twice: name each class once.")

    @property
    def classes(self) -> int:
        """Total number of classes."""
        return sum(self.sizes)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return len(self.sizes)

    @property
    def boundaries(self) -> tuple[int, ...]:
        """Number of classes seen after each step."""
        return tuple(accumulate(self.sizes))

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values, from which `Arrivals(**values)` builds the schedule again."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}

    def draw(self, width: int = 80, ascii: bool = False) -> str:
        """Draw the schedule as text, one line per step: new classes on the left, all classes seen on the right.

        `ascii` avoids block characters, for terminals that cannot show them.
        """
        if _whole("width", width, 1) < MIN_WIDTH:
            raise InputError(f"A width of {width} is too narrow: give {MIN_WIDTH} or more.")
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


def equal_arrivals(classes: int, steps: int) -> Arrivals:
    """Equal steps: sizes differ by at most one, larger ones first."""
    classes, steps = _whole("classes", classes, 1), _whole("steps", steps, 1)
    if steps > classes:
        raise InputError(f"{steps} steps are too many for {_count('class', classes)}: use at most {classes}.")
    return Arrivals(_split(classes, steps), kind="equal")


def half_arrivals(classes: int, steps: int) -> Arrivals:
    """Half of the classes in the first step (the larger half if odd), the others in equal steps."""
    classes, steps = _whole("classes", classes, 2), _whole("steps", steps, 2)
    rest = classes // 2
    if steps - 1 > rest:
        raise InputError(f"{steps} steps are too many for half of {classes} classes: use at most {rest + 1}.")
    return Arrivals((classes - rest, *_split(rest, steps - 1)), kind="half")


def trickle_arrivals(classes: int, steps: int) -> Arrivals:
    """Half of the classes (the larger half if odd) as in equal steps, then the others one at a time.

    `steps` is the number of equal steps for all classes, of which the first half of the classes takes half.
    """
    equal = equal_arrivals(classes, steps)
    single = equal.classes // 2
    return Arrivals((*_split(equal.classes - single, -(-equal.steps // 2)), *(1,) * single), kind="trickle")


def free_flow(
    classes: int, steps: int, smallest: int, largest: int, alpha: float, order: str = "jumbled", seed: int = 0
) -> Arrivals:
    """Irregular steps of `smallest` to `largest` classes that sum to `classes`.

    `alpha` controls the irregularity: values near 0 give equal steps, 0.5 to 1 the most varied sizes, and very large
    values only sizes at the two bounds. For a given seed, every order (jumbled, ascending, descending) has the same
    sizes.
    """
    classes, steps = _whole("classes", classes, 1), _whole("steps", steps, 1)
    smallest, largest = _whole("smallest", smallest, 1), _whole("largest", largest, 1)
    alpha, seed = _intensity(alpha), _whole("seed", seed, 0)
    _check_feasible(classes, steps, smallest, largest)
    _check_name("order of free-flow arrivals", order, ORDERS[:3])
    sizes = _in_order(_spectrum(classes, steps, smallest, largest, alpha, seed), order, seed)
    return Arrivals(sizes, "free-flow", alpha, smallest, largest, order, seed)


def given_arrivals(sizes: Iterable[int], order: str = "given", seed: int = 0) -> Arrivals:
    """The given sizes, in the given order or sorted; only the jumbled order uses the seed."""
    _check_name("order of arrivals", order, ORDERS)
    seed = _whole("seed", seed, 0)
    in_order = _in_order(Arrivals(sizes).sizes, order, seed)  # type: ignore[arg-type]
    return Arrivals(in_order, order=order, seed=seed if order == "jumbled" else None)


def from_trace(path: str | Path, window: str | float) -> Arrivals:
    """The schedule of a trace: a CSV file of classes and the time at which each was first seen.

    The file has a column `class` (or `label`) and a column `time` (or `first_seen`, `timestamp`) of ISO 8601 timestamps
    or plain numbers. All classes within one `window`, counted from the earliest arrival, form one step; a window
    without arrivals forms none. Use a window such as "90s", "30m", "12h", "7d" or "2w" for timestamps, a plain number
    for numbers.
    """
    steps = steps_of_trace(Path(path), window)
    labels = tuple(label for step in steps for label in step)
    return Arrivals(tuple(map(len, steps)), kind="trace", labels=labels)


def _streams(seed: int) -> tuple[np.random.Generator, np.random.Generator]:
    """Separate generators for the sizes and for their order, so that all orders of one seed have the same sizes.

    Use only `Generator.random`: its numbers are the same in all releases of numpy.
    """
    spectrum, order = np.random.SeedSequence(seed).spawn(2)
    return np.random.Generator(np.random.PCG64(spectrum)), np.random.Generator(np.random.PCG64(order))


def _spectrum(classes: int, steps: int, smallest: int, largest: int, alpha: float, seed: int) -> tuple[int, ...]:
    """Sorted sizes: stratified quantiles of a Beta distribution, rounded at random, then corrected to sum to `classes`.

    The correction makes as few moves of one class as possible. Rounding errors are corrected by rounding some targets
    the other way, each with the probability of that rounding, so small alphas give equal steps. Sampling errors are
    corrected within the strata, in proportion to their width, so all but one step stay at the bounds for large alphas.
    This always succeeds: the Beta mean is the mean of the schedule, so the lower edges of the strata sum to at most
    `classes`, and the upper edges to at least `classes`.
    """
    rng = _streams(seed)[0]
    spread = largest - smallest
    above = classes - steps * smallest  # classes to distribute above the smallest size
    if above in (0, steps * spread):  # every step is at a bound, where the Beta distribution is a point
        return _split(classes, steps)
    # Each stratum k/T..(k+1)/T has its own random offset. With a common offset, all sizes would err in one direction.
    mean = above / (steps * spread)
    targets = smallest + spread * _quantile((np.arange(steps) + rng.random(steps)) / steps, mean, alpha)
    edges = smallest + spread * _quantile(np.arange(steps + 1) / steps, mean, alpha)
    targets, edges = targets.round(9), edges.round(9)  # so that 14.9999999999 counts as 15
    sizes = np.floor(targets).astype(np.int64) + (rng.random(steps) < targets - np.floor(targets))

    missing = classes - int(sizes.sum())
    sign = 1 if missing > 0 else -1
    by_rounding = math.ceil(sign * round(float(targets.sum()) - int(sizes.sum()), 6))
    by_rounding = min(max(by_rounding, 0), abs(missing))
    odds = sign * targets - np.floor(sign * targets)
    sizes += sign * _shares(np.ceil(sign * targets) - sign * sizes, by_rounding, odds, rng)
    edge = edges[1:] if sign == 1 else edges[:-1]
    sizes += sign * _shares(np.ceil(sign * edge) - sign * sizes, abs(missing) - by_rounding, np.diff(edges) + 1e-6, rng)
    return tuple(sorted(sizes.tolist()))


def _quantile(position: Array, mean: float, alpha: float) -> Array:
    """Quantiles of Beta(mean/alpha, (1-mean)/alpha), whose mean does not depend on alpha."""
    from scipy.special import betaincinv  # slow to import, and no other schedule needs it

    if alpha < 1e-12:  # the limit, which float64 cannot compute more precisely
        return np.full_like(position, mean)
    alpha = min(alpha, 1e12)  # also the limit; larger values would underflow
    return np.asarray(betaincinv(mean / alpha, (1 - mean) / alpha, position))


def _shares(room: Array, moves: int, odds: Array, rng: np.random.Generator) -> Array:
    """Distribute `moves` over the steps at random, in proportion to `odds`, with at most `room` moves per step."""
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


def _check_name(what: str, name: Any, options: Collection[str]) -> None:
    if name not in options:
        raise unknown(what, str(name), options)


def _whole(what: str, value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InputError(f"{what.capitalize()} {value!r} is not valid: give a whole number of {least} or more.")
    return int(value)


def _intensity(alpha: Any) -> float:
    number = isinstance(alpha, int | float | np.integer | np.floating) and not isinstance(alpha, bool)
    if not number or not 0 < alpha < math.inf:
        raise InputError(f"Alpha {alpha!r} is not valid: give a finite number above 0, such as 1.0.")
    return float(alpha)


def _check_feasible(classes: int, steps: int, smallest: int, largest: int) -> None:
    if smallest > largest:
        raise InputError(f"The smallest step {smallest} is above the largest step {largest}: swap them.")
    if steps * smallest <= classes <= steps * largest:
        return
    message = (
        f"{_count('class', classes)} do{'es' if classes == 1 else ''} not fit in {_count('step', steps)} of "
        f"{_span(smallest, largest)}: use {_count('class', steps * smallest, steps * largest)}"
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
    """A bar of old classes (light) and new classes (solid); the full width stands for all classes."""
    end = max(1, round(after * width / classes))
    start = min(round(before * width / classes), end - 1)
    old, new = ".#" if ascii else "░█"
    return old * start + new * (end - start)
