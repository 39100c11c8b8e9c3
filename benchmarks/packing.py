"""Runs of one study that share a GPU under MPS, against the same runs one after another.

python benchmarks/packing.py --device cuda --runs 8 --out results/packing.json

iCaRL with ResNet-32 and 2,000 exemplars on the embedded data set: images of the size of CIFAR-100's, 200 per class. A
first run fills the caches of the compiler and is not counted. Then one run alone and several at once are timed by the
wall clock, with start-up, compilation and evaluation. `ratio` is `runs` times the seconds of the one divided by those
of all; `training_ratio` is the images per second of all runs together divided by those of the one. Both include the
compilation and capture of each step, which cost the single run relatively more when runs are short: use many epochs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from ffcil.data.sources import load_dataset
from ffcil.studies.executors.job import Job
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.loop import run_jobs
from ffcil.studies.study import Group, Study, jobs_of
from result_file import write_result


class Silent:
    """Prints only messages."""

    def update(self, running: Collection[Job]) -> None: ...

    def message(self, text: str) -> None:
        print(text, flush=True)


def study(seeds: Collection[int], options: argparse.Namespace, epochs: int) -> Study:
    phase = {"epochs": epochs, "learning_rate": 0.1}
    fields = {
        "backbone": options.backbone,
        "memory": {"budget": 2000},
        "arrivals": {"sizes": [10] * options.steps},
        "train": {"batch": 128, "first": phase, "later": phase},
    }
    group = Group(recipes=("glyphs",), methods=("icarl",), settings={"equal": fields})
    return Study(title="packing", seeds=tuple(seeds), groups=(group,))


def measure(seeds: Collection[int], options: argparse.Namespace, epochs: int) -> tuple[float, float]:
    """Seconds of one run per seed, all at once, and the sum of their training images per second."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = jobs_of(study(seeds, options, epochs), Path(folder), device=options.device)
        start = time.perf_counter()
        if failed := run_jobs(jobs, LocalExecutor(options.device, len(jobs)), Silent()):
            raise SystemExit(f"a run failed: {next(iter(failed.values()))}")
        seconds = time.perf_counter() - start
        return seconds, sum(training_speed(job.folder / "records.jsonl") for job in jobs)


def training_speed(records: Path) -> float:
    """Training images per second over all steps of a run."""
    steps = [json.loads(line) for line in records.read_text().splitlines()]
    seconds = [step["seconds"]["train"] for step in steps]
    return sum(step["images_per_second"] * taken for step, taken in zip(steps, seconds, strict=True)) / sum(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="Number of steps of ten classes.")
    parser.add_argument("--epochs", type=int, default=100, help="Epochs of each step.")
    parser.add_argument("--backbone", default="resnet32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_dataset("glyphs", None, None)  # drawn once
    measure([0], options, options.epochs)
    alone, speed_alone = measure([1], options, options.epochs)
    at_once, speed_at_once = measure(range(2, 2 + options.runs), options, options.epochs)
    measured = {
        "runs": options.runs,
        "alone_seconds": alone,
        "at_once_seconds": at_once,
        "ratio": options.runs * alone / at_once,
        "alone_images_per_second": speed_alone,
        "at_once_images_per_second": speed_at_once,
        "training_ratio": speed_at_once / speed_alone,
    }
    print(json.dumps(measured, indent=2))
    if options.out:
        write_result(options.out, options.device, measured, "glyphs")


if __name__ == "__main__":
    main()
