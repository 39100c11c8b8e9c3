"""Runs of one study that share a GPU under MPS, against the same runs one after another.

python benchmarks/packing.py --device cuda --runs 8 --out results/packing.json

iCaRL with ResNet-32 and 2,000 exemplars on the embedded data set, which has CIFAR-100's shape. One run warms the caches
of the compiler and is not counted; then one run alone and several at once are timed by the wall clock, start-up,
compilation and evaluation included. The ratio is `runs` times the one over the other.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

from ffcil.data.sources import load_dataset
from ffcil.environment import describe_environment
from ffcil.executors.job import Job
from ffcil.executors.local import LocalExecutor
from ffcil.executors.loop import run_jobs
from ffcil.recipe import resolve
from ffcil.study import Group, Study, jobs_of
from ffcil.training import Engine


class Silent:
    """Nobody watches."""

    def look(self, running: Collection[Job]) -> None: ...

    def say(self, text: str) -> None:
        print(text, flush=True)


def study(seeds: Collection[int], options: argparse.Namespace) -> Study:
    phase = {"epochs": options.epochs, "learning_rate": 0.1}
    fields = {
        "backbone": options.backbone,
        "memory": {"budget": 2000},
        "arrivals": {"sizes": [10] * options.steps},
        "train": {"batch": 128, "first": phase, "later": phase},
    }
    group = Group(recipes=("glyphs",), methods=("icarl",), settings={"equal": fields})
    return Study(title="packing", seeds=tuple(seeds), groups=(group,))


def seconds(seeds: Collection[int], options: argparse.Namespace) -> float:
    """Of carrying out a run for each seed, all at once."""
    with tempfile.TemporaryDirectory() as folder:
        jobs = jobs_of(study(seeds, options), Path(folder), device=options.device)
        start = time.perf_counter()
        if failed := run_jobs(jobs, LocalExecutor(options.device, len(jobs)), Silent()):
            raise SystemExit(f"a run failed: {next(iter(failed.values()))}")
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--runs", type=int, default=8)
    parser.add_argument("--steps", type=int, default=3, help="of ten classes each")
    parser.add_argument("--epochs", type=int, default=100, help="of each step")
    parser.add_argument("--backbone", default="resnet32")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_dataset("glyphs", None, None)  # drawn once
    seconds([0], options)
    alone = seconds([1], options)
    at_once = seconds(range(2, 2 + options.runs), options)
    document = {
        "environment": {
            **describe_environment(Engine.create(options.device, resolve("glyphs").train)),
            "command": f"python benchmarks/packing.py --device {options.device} --runs {options.runs} "
            f"--steps {options.steps} --epochs {options.epochs}",
        },
        "runs": options.runs,
        "alone_seconds": alone,
        "at_once_seconds": at_once,
        "ratio": options.runs * alone / at_once,
    }
    print(json.dumps({key: value for key, value in document.items() if key != "environment"}, indent=2))
    if options.out:
        options.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
