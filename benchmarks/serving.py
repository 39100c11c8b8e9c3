"""`ffcil serve` under load: latency, failures and memory with many clients, while it learns.

python benchmarks/serving.py --clients 50 --seconds 300 --out results/serving.json

A classifier (`anyarrival` on the embedded network) is served on a free port of this machine. Every client keeps one
connection and sends one photo after another. After a quarter of the time, the service gets a new class to learn, and
the clients go on. An answer counts as failed if it is not of status 200 with the classes of a known version.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from ffcil.classifier.classifier import Classifier
from ffcil.config.resolve import resolve
from ffcil.data.glyphs import CHARACTERS, draw_glyphs
from ffcil.data.image_set import ImageSet
from result_file import write_result

CLASSES, IMAGES = 20, 50
"""Classes of the classifier, and images of each of them."""
SIDE = 480
"""Shorter side of a photo in pixels."""
PAUSE = 0.5
"""Seconds between two looks at the memory."""
PARTS = 20
"""Medians of the memory that are recorded, one after another."""
TOKEN = "token-of-the-benchmark"


@dataclass
class Client(threading.Thread):
    """Sends photos, one after another, until it is stopped."""

    port: int
    photos: list[bytes]
    until: float
    first: int
    seconds: list[tuple[float, float]] = field(default_factory=list)
    """End and duration of every request."""
    versions: set[int] = field(default_factory=set)
    failures: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    __hash__ = threading.Thread.__hash__

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        number = self.first
        while time.monotonic() < self.until:
            photo = self.photos[number % len(self.photos)]
            number += 1
            start = time.monotonic()
            try:
                connection.request("POST", "/predict", photo, {"content-type": "image/jpeg"})
                response = connection.getresponse()
                body = json.loads(response.read())
                if response.status != 200 or not body["answers"][0]["guesses"]:
                    self.failures.append(f"{response.status} {body}")
                else:
                    self.versions.add(body["version"])
            except (OSError, http.client.HTTPException, ValueError) as error:
                self.failures.append(repr(error))
                connection.close()
            end = time.monotonic()
            self.seconds.append((end, end - start))
        connection.close()


def glyph_images(first: int, names: list[str], images: int, seed: int) -> ImageSet:
    drawn = torch.from_numpy(draw_glyphs(CHARACTERS[first : first + len(names)], images, seed))
    return ImageSet(drawn, torch.arange(len(names)).repeat_interleave(images), tuple(names))


def photos_of(first: int, classes: int, images: int) -> list[bytes]:
    """JPEG files of some hundred pixels, as a camera or a browser sends them."""
    encoded = []
    for pixels in glyph_images(first, [str(k) for k in range(classes)], images, seed=1).images:
        photo = Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((SIDE * 4 // 3, SIDE), Image.Resampling.BICUBIC)
        photo.save(content := BytesIO(), "JPEG", quality=90)
        encoded.append(content.getvalue())
    return encoded


def call(port: int, method: str, path: str, body: bytes | None = None, **headers: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    answer: dict[str, Any] = json.loads(response.read())
    connection.close()
    if response.status >= 400:
        raise RuntimeError(f"{path}: {answer}")
    return answer


def form_of(name: str, photos: list[bytes]) -> tuple[bytes, str]:
    """A form whose field `name` has these files, and its type."""
    part = f'--frontier\r\nContent-Disposition: form-data; name="{name}"; filename="photo.jpg"\r\n\r\n'.encode()
    body = b"".join(part + photo + b"\r\n" for photo in photos) + b"--frontier--\r\n"
    return body, "multipart/form-data; boundary=frontier"


def memory(pid: int) -> float:
    """Resident memory of a process in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024  # type: ignore[index]


def measure(clients: int, seconds: float, folder: Path) -> dict[str, Any]:
    classifier = Classifier(resolve("glyphs", {"method": "anyarrival", "image_size": 32}), "cpu")
    classifier.learn(glyph_images(0, [f"class {k}" for k in range(CLASSES)], IMAGES, seed=0))
    classifier.save(folder / "model")
    (folder / "token").write_text(TOKEN)
    command = ("-m", "ffcil", "serve", str(folder / "model"), "--port", "0", "--token-file", str(folder / "token"))
    server = subprocess.Popen([sys.executable, *command, "--device", "cpu"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        port = int(re.search(r"http://127.0.0.1:(\d+)", server.stdout.readline())[1])  # type: ignore[index]
        return _under_load(port, server.pid, clients, seconds)
    finally:
        server.terminate()
        server.wait()


def _under_load(port: int, pid: int, clients: int, seconds: float) -> dict[str, Any]:
    photos, new = photos_of(0, CLASSES, 2), photos_of(CLASSES, 1, IMAGES)
    start = time.monotonic()
    load = [Client(port, photos, start + seconds, k) for k in range(clients)]
    for client in load:
        client.start()
    resident: list[float] = []
    times: list[float] = []
    begun = ended = None
    while (now := time.monotonic()) < start + seconds:
        time.sleep(PAUSE)
        resident.append(memory(pid))
        times.append((now - start) / 60)
        if begun is None and now > start + seconds / 4:
            body, kind = form_of("a new class", new)
            call(port, "POST", "/learn", body, Authorization=f"Bearer {TOKEN}", **{"content-type": kind})
            begun = time.monotonic()
        elif begun is not None and ended is None:
            change = call(port, "GET", "/health")["change"]
            if change["state"] == "failed":
                raise RuntimeError(change["note"])
            ended = time.monotonic() if change["state"] == "done" else None
    for client in load:
        client.join()
    if begun is None or ended is None:
        raise RuntimeError("The step was not learned in time: choose more --seconds.")
    took = [pair for client in load for pair in client.seconds]
    failures = [failure for client in load for failure in client.failures]
    print("\n".join(failures[:5]), file=sys.stderr)
    while_learning = [duration for end, duration in took if begun <= end <= ended]
    quarter = max(1, len(resident) // 4)
    after = min(int(np.searchsorted(times, (ended - start) / 60)), len(times) - 2)
    return {
        "clients": clients,
        "seconds": seconds,
        "cores": len(os.sched_getaffinity(0)),
        "load_average": [round(value, 1) for value in os.getloadavg()],
        "photo": f"{SIDE * 4 // 3} x {SIDE} JPEG",
        "requests": len(took),
        "failed": len(failures),
        "requests_per_second": round(len(took) / seconds, 1),
        "milliseconds": _percentiles([duration for _, duration in took]),
        "milliseconds_while_learning": _percentiles(while_learning),
        "learning_seconds": round(ended - begun, 1),
        "versions": sorted(set().union(*(client.versions for client in load))),
        "memory_mib": {
            "first_quarter": round(float(np.median(resident[:quarter])), 1),
            "last_quarter": round(float(np.median(resident[-quarter:])), 1),
            "peak": round(max(resident), 1),
            "over_time": [round(float(np.median(part)), 1) for part in np.array_split(resident, PARTS)],
            "growth_per_minute_after_learning": round(float(np.polyfit(times[after:], resident[after:], 1)[0]), 2),
        },
    }


def _percentiles(seconds: list[float]) -> dict[str, float]:
    return {f"p{share}": round(1000 * float(np.percentile(seconds, share)), 1) for share in (50, 99)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(options.clients, options.seconds, Path(folder))
    print(json.dumps(measured, indent=2))
    if options.out:
        write_result(options.out, "cpu", measured, "glyphs")


if __name__ == "__main__":
    main()
