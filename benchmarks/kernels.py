"""Where the time of iCaRL's training step goes (ResNet-32, batch 128, with teacher): its kernels, by kind.

python benchmarks/kernels.py --device cuda --out results/kernels.json

One epoch of the captured, compiled training is profiled after two others. `busy` is the share of the epoch in which the
kernels, added up, would fill one stream: the rest is waiting between kernels, and above 1 streams run in parallel. On a
CPU the operators of torch are listed instead.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from ffcil.config.resolve import resolve
from ffcil.data.sources import CIFAR100_AUGMENTATION
from ffcil.methods.registry import build_learner
from ffcil.training import compilation
from ffcil.training.engine import Engine
from ffcil.training.progress import FitProgress, Listener
from result_file import write_result
from training_step import random_stream

KINDS = {
    "gradient of weights": r"wgrad",
    "gradient of inputs": r"dgrad",
    "convolution": r"fprop|conv|implicit_gemm|xmma|cudnn",
    "compiled reduction": r"triton_(red|per)",
    "compiled element-wise": r"triton",
    "matrix product": r"gemm|gemv|cublas|cutlass",
    "optimiser": r"multi_tensor|sgd",
    "copy": r"memcpy|memset|copy",
}
"""Kinds of kernels, by the first expression that a name contains."""


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS.items() if re.search(pattern, name.lower())), "other")


class OneEpoch(Listener):
    """Profiles the third epoch."""

    def __init__(self, profiler: profile) -> None:
        self.profiler, self.seconds, self.images = profiler, 0.0, 0

    def epoch_done(self, progress: FitProgress) -> None:
        if progress.epoch == 2:
            self.seconds, self.images = progress.seconds, progress.images
            self.profiler.start()
        elif progress.epoch == 3:
            self.profiler.stop()
            self.seconds, self.images = progress.seconds - self.seconds, progress.images - self.images


def measure(device: str, images: int, batch: int) -> dict[str, Any]:
    phase = {"epochs": 3, "learning_rate": 0.01, "milestones": []}
    train = {"batch": batch, "first": phase, "later": phase}
    config = resolve("cifar100", {"train": train, "arrivals": {"sizes": [50, 10]}})
    engine = Engine.create(device, config.train)
    learner = build_learner(config, CIFAR100_AUGMENTATION, engine)
    stream = random_stream(images).to(engine.device)
    learner.begin(stream[0])
    on_gpu = engine.device.type == "cuda"
    epoch = OneEpoch(profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]))
    learner.learn(stream[1], epoch)
    steps = epoch.images / batch
    microseconds, calls, names = Counter[str](), Counter[str](), Counter[str]()
    for event in epoch.profiler.key_averages():
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        microseconds[kind_of(event.key)] += spent
        calls[kind_of(event.key)] += event.count
        names[event.key] += spent
    return {
        "batch": batch,
        "images_per_second": epoch.images / epoch.seconds,
        "busy": sum(microseconds.values()) / 1e6 / epoch.seconds,
        "kinds": [
            {"kind": kind, "microseconds_per_step": spent / steps, "calls_per_step": calls[kind] / steps}
            for kind, spent in microseconds.most_common()
        ],
        "longest": [
            {"kernel": name[:120], "microseconds_per_step": spent / steps} for name, spent in names.most_common(20)
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--images", type=int, default=42_240)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    compilation.FEW_STEPS = 0  # a short training is measured as the beginning of a long one
    measured = []
    for batch in options.batch:
        measured.append(measure(options.device, options.images, batch))
        print(json.dumps(measured[-1], indent=1), flush=True)
    if options.out:
        write_result(options.out, options.device, {"batches": measured})


if __name__ == "__main__":
    main()
