"""Seconds and memory of AnyArrival against the classes seen: 10,000 classes of 20 made-up images in 1,000 arrivals.

python benchmarks/many_arrivals.py --out results/many-arrivals.json

An image has 16 x 16 pixels, and its 768 values are its features, so that no network takes part in the measurement. At
every tenth arrival the classifier is also asked about 1,000 images of all classes seen. `--plot` draws the file.
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ffcil.arrivals import given_arrivals
from ffcil.config.resolve import resolve
from ffcil.data.augment import Augmentation
from ffcil.data.image_set import ImageSet
from ffcil.methods import build_learner
from ffcil.methods.anyarrival import AnyArrival
from ffcil.stream import Stream
from ffcil.training.engine import Engine
from result_file import write_result

SIDE = 16


class Pixels(AnyArrival):
    """AnyArrival whose features are the pixels themselves."""

    @property
    def feature_dim(self) -> int:
        return 3 * SIDE * SIDE

    def features(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def made_up(classes: int, per_class: int, seed: int) -> ImageSet:
    """Images around a mean of each class."""
    means = torch.rand(classes, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0)) * 255
    noise = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes).repeat_interleave(per_class)
    images = torch.empty(len(labels), 3, SIDE, SIDE, dtype=torch.uint8)
    for rows in torch.arange(len(labels)).split(10_000):
        spread = torch.randn(len(rows), 3, SIDE, SIDE, generator=noise) * 200
        images[rows] = (means[labels[rows]] + spread).clamp(0, 255).to(torch.uint8)
    return ImageSet(images, labels, tuple(f"class {k}" for k in range(classes)))


def learner_of_pixels(keep: str = "features", stored: bool = False) -> Pixels:
    fields = {"method": "anyarrival", "options": {"blocks": 0, "keep": keep}}
    config = resolve("glyphs", {**fields, "features": "stored" if stored else "computed"})
    plain = Augmentation(mean=(0, 0, 0), std=(1, 1, 1))
    built = build_learner(config, plain, Engine.create("cpu", config.train))
    return Pixels(built.settings, built.config)


def draw(measured: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    steps = measured["steps"]
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    axes.plot([step["classes"] for step in steps], [step["seconds"] for step in steps], linewidth=0.8)
    axes.set(xlabel="classes seen", ylabel="seconds of a step", ylim=(0, None))
    axes.set_title(f"{measured['images']:,} images of {measured['features']} features on {measured['threads']} cores")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)


def measure(classes: int, per_class: int, arrivals: int) -> dict[str, Any]:
    train, test = made_up(classes, per_class, 1), made_up(classes, 1, 2)
    stream = Stream(train, test, given_arrivals([classes // arrivals] * arrivals), class_seed=None)
    learner, steps = learner_of_pixels(), []
    for increment in stream:
        start = time.perf_counter()
        learner.learn(increment)
        step: dict[str, Any] = {"classes": increment.seen_now, "seconds": time.perf_counter() - start}
        if increment.step % 10 == 0:
            rows = increment.test_rows[torch.linspace(0, increment.seen_now - 1, min(1000, increment.seen_now)).long()]
            start = time.perf_counter()
            scores = torch.cat([found[learner.scored] for found in learner.over(test.images, rows, learner.logits)])
            step["answering_seconds"] = time.perf_counter() - start
            step["accuracy"] = 100 * float((scores.argmax(dim=1) == test.labels[rows]).float().mean())
        step["peak_megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        steps.append(step)
        if increment.step % 50 == 0:
            print(json.dumps(step), flush=True)
    slowest = max(step["seconds"] for step in steps)
    kept = sum(value.numel() * value.element_size() for value in learner.kept.state().values())
    return {
        "images": len(train),
        "features": learner.feature_dim,
        "threads": torch.get_num_threads(),
        "slowest_step_seconds": slowest,
        "all_seconds": sum(step["seconds"] for step in steps),
        "kept_megabytes": kept / 2**20,
        "steps": steps,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--arrivals", type=int, default=1_000)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    measured = measure(options.classes, options.per_class, options.arrivals)
    write_result(options.out, "cpu", measured, recipe="glyphs")
    if options.plot:
        draw(measured, options.plot)


if __name__ == "__main__":
    main()
