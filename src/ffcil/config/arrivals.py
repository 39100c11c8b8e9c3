"""The kinds of arrival schedules in a configuration."""

from typing import Literal, get_args

from pydantic import Field, PositiveInt

from ffcil.arrivals import (
    Arrivals,
    equal_arrivals,
    free_flow,
    from_trace,
    given_arrivals,
    half_arrivals,
    trickle_arrivals,
)
from ffcil.config.base import Settings
from ffcil.errors import InputError

Order = Literal["jumbled", "ascending", "descending"]


class DrawnArrivals(Settings):
    """Common fields of the schedules that are computed rather than given."""

    classes: PositiveInt | None = None
    """Number of classes of the data set to use; null for all."""
    steps: PositiveInt
    """Number of steps."""

    def _classes(self, available: int) -> int:
        classes = self.classes or available
        if classes > available:
            raise InputError(
                f"arrivals.classes is {classes}, but the data set has {available}: lower it, or use all with "
                "arrivals.classes=null."
            )
        return classes


class EqualArrivals(DrawnArrivals):
    """Every step brings the same number of classes (sizes differ by at most one)."""

    kind: Literal["equal"] = "equal"

    def build(self, available: int, seed: int) -> Arrivals:
        return equal_arrivals(self._classes(available), self.steps)


class HalfArrivals(DrawnArrivals):
    """The first step brings half of the classes; equal steps bring the others."""

    kind: Literal["half"] = "half"

    def build(self, available: int, seed: int) -> Arrivals:
        return half_arrivals(self._classes(available), self.steps)


class TrickleArrivals(DrawnArrivals):
    """Half of the classes arrive as in equal steps, the others one at a time."""

    kind: Literal["trickle"] = "trickle"
    steps: PositiveInt
    """Number of equal steps for all classes; the first half of the classes takes half of them."""

    def build(self, available: int, seed: int) -> Arrivals:
        return trickle_arrivals(self._classes(available), self.steps)


class FreeFlowArrivals(DrawnArrivals):
    """Irregular steps: a class-arrival spectrum of intensity alpha between two bounds, in some order."""

    kind: Literal["free-flow"] = "free-flow"
    smallest: PositiveInt = 1
    """Smallest number of new classes in a step."""
    largest: PositiveInt
    """Largest number of new classes in a step."""
    alpha: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Intensity of the spectrum: near 0, steps are equal; for large values, all sizes are at one of the bounds."""
    order: Order = "jumbled"
    """Order of the step sizes: jumbled, ascending or descending."""

    def build(self, available: int, seed: int) -> Arrivals:
        bounds = (self.smallest, self.largest)
        return free_flow(self._classes(available), self.steps, *bounds, self.alpha, self.order, seed)


class GivenArrivals(Settings):
    """Step sizes given by the user."""

    kind: Literal["given"] = "given"
    sizes: tuple[PositiveInt, ...] = Field(min_length=1)
    """Number of new classes in each step, for example [1,4,2]."""
    order: Order | Literal["given"] = "given"
    """Order of the step sizes: given, jumbled, ascending or descending."""

    def build(self, available: int, seed: int) -> Arrivals:
        return given_arrivals(self.sizes, self.order, seed)


class TraceArrivals(Settings):
    """Steps read from a trace: a CSV file of classes and the time at which each was first seen."""

    kind: Literal["trace"] = "trace"
    trace: str
    """CSV file of classes and the time at which each was first seen."""
    window: str = Field("1d", coerce_numbers_to_str=True)
    """Length of time that forms one step: 12h, 7d, or a number in the units of the trace."""

    def build(self, available: int, seed: int) -> Arrivals:
        return from_trace(self.trace, self.window)


AnyArrivals = EqualArrivals | HalfArrivals | TrickleArrivals | FreeFlowArrivals | GivenArrivals | TraceArrivals
ARRIVALS: dict[str, type[Settings]] = {kind.model_fields["kind"].default: kind for kind in get_args(AnyArrivals)}
