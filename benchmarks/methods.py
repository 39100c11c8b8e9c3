"""Speed and memory of the training step of every method at several steps, and the cost of CWM and of `flow`.

python benchmarks/methods.py --device cuda --out results/methods.json

The images are noise in the shape of CIFAR-100, in ten steps of ten classes; each method has its published backbone and
batch size. The speed of a step is that of its best epoch; the first epoch (warm-up, capture, compilation) is not
counted. At the middle step, one learner is trained with the mean, with the class-wise mean and with the count-aware
loss of `flow` in turn, several times.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from epoch_ends import EpochEnds
from ffcil.arrivals import given_arrivals
from ffcil.config.flow import FLOW_PARTS
from ffcil.config.resolve import resolve
from ffcil.config.settings import RunConfig
from ffcil.data.image_set import ImageSet
from ffcil.data.sources import CIFAR100_AUGMENTATION
from ffcil.losses import REDUCTIONS
from ffcil.methods.learner import Learner
from ffcil.methods.registry import build_learner
from ffcil.stream import Increment, Stream
from ffcil.training import compilation
from ffcil.training.engine import Engine
from ffcil.training.progress import FitProgress
from result_file import write_result

SIZES = [10] * 10
METHODS = ["icarl", "wa", "bic", "der", "memo", "tagfex"]


def noise(images: int) -> Stream:
    """`images` training images at every step."""
    generator = torch.Generator().manual_seed(0)
    total = images * len(SIZES)
    pixels = torch.randint(0, 256, (total, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = ImageSet(pixels, torch.arange(total) % sum(SIZES), tuple(map(str, range(sum(SIZES)))))
    return Stream(split, split, given_arrivals(SIZES), class_seed=None)


def configuration(method: str, reduction: str, epochs: int, backbone: str | None) -> RunConfig:
    phase = {"epochs": epochs, "learning_rate": 0.01, "milestones": []}
    fields: dict[str, Any] = {"method": method, "reduction": reduction, "arrivals": {"sizes": SIZES}}
    if backbone:
        fields["backbone"] = backbone
    return resolve("cifar100", {**fields, "train": {"first": phase, "later": phase}})


def grown(config: RunConfig, stream: Stream, device: str, step: int) -> tuple[Learner, Increment]:
    """A learner that is ready to train at `step`; it has grown through the earlier steps without training."""
    engine = Engine.create(device, config.train)
    learner = build_learner(config, CIFAR100_AUGMENTATION, engine)
    on_device = stream.to(engine.device)
    for position in range(step - 1):
        learner.begin(on_device[position])
    return learner, on_device[step - 1]


def train(
    learner: Learner, increment: Increment, progress: FitProgress | None
) -> tuple[dict[str, Any], dict[str, float]]:
    """Notes of training at a step, and its speed."""
    timed = EpochEnds()
    notes = learner.learn(increment, timed, resume=progress)
    speed = max(timed.speeds())
    batch = learner.settings.train.batch
    return notes, {
        "images_per_second": speed,
        "milliseconds": 1000 * batch / speed,
        "first_epoch_seconds": timed.ends[0][0],
    }


def train_step(config: RunConfig, stream: Stream, device: str, step: int) -> dict[str, Any]:
    """Speed and memory at one step."""
    notes, speed = train(*grown(config, stream, device, step), None)
    noted = {key: notes[key] for key in ("parameters", "trained_parameters", "peak_memory_bytes")}
    return {"step": step, **speed, **noted}


def overhead(method: str, stream: Stream, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a training step with each loss, measured in turn with one learner."""
    config = configuration(method, "mean", options.epochs, options.backbone)
    learner, increment = grown(config, stream, options.device, 5)
    learner.begin(increment)
    plain = learner.settings
    aware = replace(plain, framework=replace(plain.framework, adjust=FLOW_PARTS["adjust"].on))
    kinds = {"mean": ("mean", plain), "class_wise_mean": ("class_wise_mean", plain), "flow": ("mean", aware)}
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(options.repeats):
        for kind, (reduction, settings) in kinds.items():
            learner.reduce, learner.settings = REDUCTIONS[reduction], settings
            times[kind].append(train(learner, increment, FitProgress())[1]["milliseconds"])
    best = {kind: min(of_kind) for kind, of_kind in times.items()}
    ratios = {"ratio": best["class_wise_mean"] / best["mean"], "flow_ratio": best["flow"] / best["mean"]}
    return {"milliseconds": times, **ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--steps", nargs="*", type=int, default=[1, 5, 10])
    parser.add_argument("--epochs", type=int, default=4, help="Epochs of each measurement; the first is not counted.")
    parser.add_argument("--repeats", type=int, default=3, help="Turns of the three losses; 0 skips this.")
    parser.add_argument("--images", type=int, default=12_800, help="Training images per step.")
    parser.add_argument("--backbone", help="Backbone (default: the published one).")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    compilation.FEW_STEPS = 0  # a short training is measured as the beginning of a long one
    stream = noise(options.images)
    rows = []
    for method in options.methods:
        config = configuration(method, "mean", options.epochs, options.backbone)
        row: dict[str, Any] = {"method": method, "backbone": config.backbone, "batch": config.train.batch}
        row["steps"] = [train_step(config, stream, options.device, step) for step in options.steps]
        row["class_wise_mean"] = overhead(method, stream, options) if options.repeats else None
        rows.append(row)
        print(json.dumps(row), flush=True)
    if options.out:
        write_result(options.out, options.device, {"methods": rows})


if __name__ == "__main__":
    main()
