"""Images per second of iCaRL's training step (ResNet-32, batch 128, with teacher) with several settings of the engine.

python benchmarks/training_step.py --device cuda --out results/training-step.json

All variants run one after another in one process. The result is the best epoch of each; the first epoch (warm-up,
capture, compilation) is reported separately.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from epoch_ends import EpochEnds
from ffcil.arrivals import given_arrivals
from ffcil.config.resolve import resolve
from ffcil.data.image_set import ImageSet
from ffcil.data.sources import CIFAR100_AUGMENTATION
from ffcil.methods.registry import build_learner
from ffcil.stream import Stream
from ffcil.training import compilation
from ffcil.training.engine import Engine
from result_file import write_result

VARIANTS: list[dict[str, Any]] = [
    {"graph": False, "compile": False, "precision": "float32"},
    {"graph": False, "compile": False, "precision": "bfloat16"},
    {"graph": True, "compile": False, "precision": "float32"},
    {"graph": True, "compile": False, "precision": "bfloat16"},
    {"graph": True, "compile": True, "precision": "bfloat16"},
    {"graph": True, "compile": True, "precision": "bfloat16", "reduction": "class_wise_mean"},
]


def random_stream(images: int) -> Stream:
    """Images of noise: fifty old classes and ten new ones."""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (images, 3, 32, 32), generator=generator, dtype=torch.uint8)
    split = ImageSet(pixels, torch.arange(images) % 60, tuple(map(str, range(60))))
    return Stream(split, split, given_arrivals([50, 10]), class_seed=None)


def measure(variant: dict[str, Any], stream: Stream, device: str, epochs: int) -> dict[str, Any]:
    phase = {"epochs": epochs, "learning_rate": 0.01, "milestones": []}
    train = {key: value for key, value in variant.items() if key != "reduction"} | {"first": phase, "later": phase}
    reduction = variant.get("reduction", "mean")
    config = resolve("cifar100", {"train": train, "arrivals": {"sizes": [50, 10]}, "reduction": reduction})
    engine = Engine.create(device, config.train)
    learner = build_learner(config, CIFAR100_AUGMENTATION, engine)
    on_device = stream.to(engine.device)
    learner.begin(on_device[0])
    timed = EpochEnds()
    learner.learn(on_device[1], timed)
    speeds = timed.speeds()
    return {
        **variant,
        "images_per_second": max(speeds),
        "slowest_epoch": min(speeds),
        "first_epoch_seconds": timed.ends[0][0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--images", type=int, default=42_240)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    compilation.FEW_STEPS = 0  # a short training is measured as the beginning of a long one
    stream = random_stream(options.images)
    results = []
    for variant in VARIANTS if options.device != "cpu" else VARIANTS[:1]:
        results.append(measure(variant, stream, options.device, options.epochs))
        print(json.dumps(results[-1]), flush=True)
    if options.out:
        write_result(options.out, options.device, {"n": options.epochs - 1, "variants": results})


if __name__ == "__main__":
    main()
