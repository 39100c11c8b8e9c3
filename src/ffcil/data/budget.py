"""`Budget`: a limit on what all threads together have in memory at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Budget:
    """A thread that takes an amount waits until the sum is within the limit. A larger amount is taken alone."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0
        self._changed = Condition()

    @contextmanager
    def take(self, amount: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self.used == 0 or self.used + amount <= self.limit)
            self.used += amount
        try:
            yield
        finally:
            with self._changed:
                self.used -= amount
                self._changed.notify_all()
