"""What the store of features saves, and whether it holds ImageNet-1k in little memory.

python benchmarks/stored_features.py --data cars-train.parquet --weights vit_tiny.safetensors --out results/stored-features.json

1. `ffcil run cars-vit-tiny` with `features=stored`, twice for each method, each method with an empty cache: the first run
   decodes the images and computes their features, the second finds both.
2. As many made-up images as ImageNet-1k has, with 768 features each, through AnyArrival in 100 arrivals, twice: the
   first pass fills the store, the second reads it. Every pass is a process of its own, and every arrival is followed
   by a test of all classes seen. An image has 16 x 16 pixels, and its 768 values are its features.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ffcil.arrivals import given_arrivals
from ffcil.data.image_set import ImageSet
from ffcil.stream import Stream
from many_arrivals import SIDE, learner_of_pixels
from result_file import write_result

IMAGES, CLASSES, ARRIVALS, TESTED = 1_281_167, 1000, 100, 50
METHODS = {
    "simplecil": [],
    "anyarrival": [],
    "ranpac": ["--set", "options.rank=0"],
    "ranpac, 2,000 random features": ["--set", "options.rank=0", "--set", "options.hidden=2000"],
}


def again(data: Path, weights: Path, methods: list[str]) -> list[dict[str, Any]]:
    """Seconds of the first and the second run of each method."""
    rows = []
    for name in methods:
        options = METHODS[name]
        with tempfile.TemporaryDirectory() as place:
            seconds = [run(Path(place), number, name.partition(",")[0], options, data, weights) for number in (1, 2)]
        row = {"method": name, "first_seconds": seconds[0], "second_seconds": seconds[1]}
        rows.append(row | {"ratio": seconds[0] / seconds[1]})
        print(json.dumps(rows[-1]), flush=True)
    return rows


def run(place: Path, number: int, method: str, options: list[str], data: Path, weights: Path) -> float:
    command = [sys.executable, "-m", "ffcil", "run", "cars-vit-tiny", "--device", "cpu", "--data", str(data)]
    command += ["--out", str(place / str(number)), "--set", "features=stored", "--set", f"method={method}"]
    command += ["--set", f"weights={weights}", *options]
    start = time.perf_counter()
    subprocess.run(command, check=True, env={**os.environ, "FFCIL_CACHE": str(place)}, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def draw_images(folder: Path, images: int) -> None:
    """Write the pixels of training and test images, around a mean of each class."""
    means = torch.rand(CLASSES, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) * 255
    noise = torch.Generator().manual_seed(1)
    for part, count in enumerate((images, CLASSES * TESTED)):
        pixels = np.memmap(folder / f"{part}.pixels", np.uint8, "w+", shape=(count, 3, SIDE, SIDE))
        for rows in torch.arange(count).split(10_000):
            spread = torch.randn(len(rows), 3, SIDE, SIDE, generator=noise) * 200
            pixels[rows.numpy()] = (means[rows % CLASSES] + spread).clamp(0, 255).to(torch.uint8).numpy()


def mapped(folder: Path, part: int, count: int) -> ImageSet:
    pixels = np.memmap(folder / f"{part}.pixels", np.uint8, "c", shape=(count, 3, SIDE, SIDE))
    names = tuple(f"class {k}" for k in range(CLASSES))
    digests = folder / f"{part}.digests.npy"
    return ImageSet(torch.from_numpy(pixels), torch.arange(count) % CLASSES, names, digests)


def one_pass(folder: Path, images: int, keep: str) -> dict[str, Any]:
    """Learn all arrivals, and test after each of them."""
    train, test = mapped(folder, 0, images), mapped(folder, 1, CLASSES * TESTED)
    stream = Stream(train, test, given_arrivals([CLASSES // ARRIVALS] * ARRIVALS), class_seed=None)
    learner, steps = learner_of_pixels(keep, stored=True), []
    for increment in stream:
        start = time.perf_counter()
        learner.learn(increment)
        predicted = learner.predictions(increment)[learner.scored]
        steps.append(time.perf_counter() - start)
    right = float((predicted == test.labels[increment.test_rows]).float().mean())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"seconds": sum(steps), "slowest_step_seconds": max(steps), "peak_gib": peak, "accuracy": 100 * right}


def many(images: int, keep: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        draw_images(Path(place), images)
        command = [sys.executable, __file__, "--one-pass", place, "--images", str(images), "--keep", keep]
        environment = {**os.environ, "FFCIL_CACHE": place}
        found = [subprocess.run(command, check=True, env=environment, capture_output=True) for _ in (1, 2)]
        stored = sum(file.stat().st_size for file in Path(place).glob("features-*/*")) / 2**30
    passes = [json.loads(result.stdout.splitlines()[-1]) for result in found]
    print(json.dumps(passes), flush=True)
    about = {"images": images, "features": 3 * SIDE * SIDE, "classes": CLASSES, "arrivals": ARRIVALS, "keep": keep}
    return {**about, "stored_gib": stored, "first": passes[0], "second": passes[1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--keep", default="statistics", help="What AnyArrival keeps of an image: statistics, features.")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="Methods that run twice.")
    parser.add_argument("--one-pass", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.one_pass:
        print(json.dumps(one_pass(options.one_pass, options.images, options.keep)))
        return
    if not (options.data and options.weights and options.out):
        parser.error("--data, --weights and --out are required")
    measured = {"threads": torch.get_num_threads(), "many": many(options.images, options.keep)}
    measured["again"] = again(options.data.resolve(), options.weights.resolve(), options.methods)
    write_result(options.out, "cpu", measured, recipe="cars-vit-tiny")


if __name__ == "__main__":
    main()
