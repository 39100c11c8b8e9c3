"""Images per second of several iCaRL trainings that share a GPU under MPS, compared with one alone, without start-up.

python benchmarks/sharing.py --device cuda --runs 1 8 4 --out results/sharing.json

The images are noise in the shape of CIFAR-100; ResNet-32, the fifth of ten steps, with teacher and augmentation. Every
training is a separate process. Its speed is measured in a window in which all of them train, compiled and captured.
`percent` is the share of the GPU's multiprocessors that each may use: all of them, and what a study gives it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ffcil.studies.executors.mps import mps, mps_available, portion
from ffcil.training.arithmetic import PORTION
from ffcil.training.progress import FitProgress, Listener
from methods import configuration, grown, noise
from result_file import write_result

FOREVER = 1_000_000
"""Number of epochs that never ends."""


def train_until_stopped(options: argparse.Namespace, environment: dict[str, str], log: Path) -> None:
    """Train in a worker and log one line per epoch (time and images so far) until the file `.stop` exists."""
    os.environ.update(environment)
    torch.set_num_threads(1)
    config = configuration("icarl", "mean", FOREVER, options.backbone)
    learner, increment = grown(config, noise(options.images), options.device, 5)
    with log.open("w", buffering=1) as lines:

        class Log(Listener):
            def epoch_done(self, progress: FitProgress) -> None:
                lines.write(f"{time.time()} {progress.images}\n")
                if log.with_suffix(".stop").exists():
                    raise KeyboardInterrupt  # a killed process may leave MPS without an answer

        try:
            learner.learn(increment, Log())
        except KeyboardInterrupt:
            return


def epochs_of(log: Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Time and images at the end of each epoch so far, [epochs, 2]."""
    whole = log.read_text().split("\n")[:-1] if log.exists() else []
    return np.array([[float(word) for word in line.split()] for line in whole]).reshape(-1, 2)


def measure(options: argparse.Namespace, runs: int, environment: dict[str, str]) -> dict[str, Any]:
    """Images per second of each of `runs` trainings in a window in which all of them train."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"{k}.log" for k in range(runs)]
        workers = [context.Process(target=train_until_stopped, args=(options, environment, log)) for log in logs]
        for worker in workers:
            worker.start()

        def reached(when: float, epochs: int) -> bool:
            if not all(worker.is_alive() for worker in workers):
                raise SystemExit("a training ended before its time: its error stands above")
            return all(len(done) >= epochs and done[-1, 0] >= when for done in map(epochs_of, logs))

        while not reached(0, 2):  # the first epoch compiles and captures
            time.sleep(0.05)
        start = max(epochs_of(log)[1, 0] for log in logs)
        while not reached(start + options.seconds, 2):
            time.sleep(0.05)
        speeds = []
        for log in logs:
            times, images = epochs_of(log).T
            first, last = np.interp([start, start + options.seconds], times, images)
            speeds.append((last - first) / options.seconds)
            log.with_suffix(".stop").touch()
        for worker in workers:
            worker.join()
    return {"runs": runs, "images_per_second": sum(speeds), "of_each": speeds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--percent", nargs="*", type=int, default=[], help="Further percentages for several runs.")
    parser.add_argument("--seconds", type=float, default=5.0, help="Seconds of the window.")
    parser.add_argument("--images", type=int, default=6_400, help="Images per epoch.")
    parser.add_argument("--backbone", default="resnet32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = []
    with ExitStack() as stack:
        shared = stack.enter_context(mps()) if options.device != "cpu" and mps_available() else {}
        for runs in options.runs:
            for percent in dict.fromkeys([100, portion(runs), *options.percent] if runs > 1 else [100]):
                environment = {**shared, PORTION: str(percent)} if runs > 1 else {}
                rows.append({"percent": percent, **measure(options, runs, environment)})
                print(json.dumps(rows[-1]), flush=True)
    if options.out:
        write_result(options.out, options.device, {"rows": rows})


if __name__ == "__main__":
    main()
