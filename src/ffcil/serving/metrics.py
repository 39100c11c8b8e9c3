"""`Metrics`: counters of a service, in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends of the buckets of latencies, in seconds."""


class Metrics:
    """Requests by path and status, their latencies, and the number of images that were answered."""

    def __init__(self) -> None:
        self.images = 0
        self._requests: Counter[tuple[str, int]] = Counter()
        self._buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(BUCKETS) + 1))
        self._seconds: Counter[str] = Counter()
        self._lock = threading.Lock()

    def request(self, path: str, status: int, seconds: float) -> None:
        """Count a request. `path` must be one of few values, not any text that a client sent."""
        with self._lock:
            self._requests[path, status] += 1
            self._buckets[path][bisect_left(BUCKETS, seconds)] += 1
            self._seconds[path] += seconds  # type: ignore[assignment]

    def answered(self, images: int) -> None:
        with self._lock:
            self.images += images

    def text(self, gauges: Mapping[str, tuple[float, str]]) -> str:
        """All counters, and the given gauges: name -> (value, help)."""
        with self._lock:
            return "\n".join([*self._counters(), *_gauges(gauges), ""])

    def _counters(self) -> Iterator[str]:
        yield "# HELP ffcil_requests_total Number of requests by path and status."
        yield "# TYPE ffcil_requests_total counter"
        for (path, status), count in sorted(self._requests.items()):
            yield f'ffcil_requests_total{{path="{path}",status="{status}"}} {count}'
        yield "# HELP ffcil_images_total Number of images that were answered."
        yield "# TYPE ffcil_images_total counter"
        yield f"ffcil_images_total {self.images}"
        yield "# HELP ffcil_request_seconds Time from the header of a request to the end of its answer."
        yield "# TYPE ffcil_request_seconds histogram"
        for path, counts in sorted(self._buckets.items()):
            total = 0
            for end, count in zip((*BUCKETS, "+Inf"), counts, strict=True):
                total += count
                yield f'ffcil_request_seconds_bucket{{path="{path}",le="{end}"}} {total}'
            yield f'ffcil_request_seconds_sum{{path="{path}"}} {self._seconds[path]:.6f}'
            yield f'ffcil_request_seconds_count{{path="{path}"}} {total}'


def _gauges(gauges: Mapping[str, tuple[float, str]]) -> Iterator[str]:
    for name, (value, about) in gauges.items():
        yield f"# HELP ffcil_{name} {about}"
        yield f"# TYPE ffcil_{name} gauge"
        yield f"ffcil_{name} {value:g}"
