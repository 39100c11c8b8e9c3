"""Speed of the pre-trained methods: training of adapters, inference, evaluation with cached features, cost of HA.

python benchmarks/pretrained.py --device cuda --out results/pretrained.json

The images are noise of 224 x 224 pixels and the weights are random: speed does not depend on them. All ratios are
within one process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from epoch_ends import EpochEnds
from ffcil.arrivals import given_arrivals
from ffcil.config.resolve import resolve
from ffcil.config.settings import RunConfig
from ffcil.data.augment import Augmentation
from ffcil.data.image_set import ImageSet
from ffcil.methods.learner import Learner
from ffcil.methods.pretrained import Pretrained
from ffcil.methods.registry import build_learner
from ffcil.stream import Stream
from ffcil.training import compilation
from ffcil.training.engine import Engine, evaluating
from result_file import write_result

PLAIN = Augmentation(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), padding=0, flip=True, brightness=0.0)
STEPS = 20


def noise(per_step: int, side: int, steps: int = STEPS) -> Stream:
    """A stream with two classes per step."""
    total = per_step * steps
    pixels = torch.randint(
        0, 256, (total, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0)
    )
    split = ImageSet(pixels, torch.arange(total) * 2 * steps // total, tuple(map(str, range(2 * steps))))
    return Stream(split, split, given_arrivals([2] * steps), class_seed=None)


def configuration(options: argparse.Namespace, method: str, **fields: Any) -> RunConfig:
    phase = {"epochs": options.epochs, "learning_rate": 0.01, "schedule": "cosine"}
    train = {"first": phase, "later": phase, **fields.pop("train", {})}
    base = {"method": method, "backbone": options.backbone, "weights": None, "evaluate_batch": options.evaluate_batch}
    return resolve("cifar100-vit", {**base, "train": train, **fields})


def learner_of(options: argparse.Namespace, config: RunConfig) -> Learner:
    return build_learner(config, PLAIN, Engine.create(options.device, config.train))


def seconds(options: argparse.Namespace, work: Callable[[], object]) -> float:
    """Seconds of the fastest of several repetitions."""
    best = float("inf")
    for _ in range(options.repeats):
        _wait(options)
        start = time.perf_counter()
        work()
        _wait(options)
        best = min(best, time.perf_counter() - start)
    return best


def _wait(options: argparse.Namespace) -> None:
    if options.device != "cpu":
        torch.cuda.synchronize()


def training(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Images per second of TUNA's first step by batch size; first that of the references (eager, float32, batch 48)."""
    eager = {"graph": False, "compile": False, "precision": "float32"}
    rows = []
    for batch, switches in [(48, eager), *((batch, {}) for batch in options.batches)]:
        config = configuration(options, "tuna", train={"batch": batch, **switches})
        stream = noise(options.images, options.side, steps=1).to(torch.device(options.device))
        epochs = EpochEnds()
        notes = learner_of(options, config).learn(stream[0], epochs)
        speeds = epochs.speeds()
        rows.append(
            {
                "batch": batch,
                "eager": bool(switches),
                "images_per_second": max(speeds),
                "peak_memory_bytes": notes["peak_memory_bytes"],
            }
        )
        print(json.dumps(rows[-1]), flush=True)
    return rows


def grown(options: argparse.Namespace, method: str, stream: Stream, **fields: Any) -> Learner:
    """A learner that has grown through all steps without training in any."""
    learner = learner_of(options, configuration(options, method, **fields))
    for increment in stream:
        learner.begin(increment)
    return learner.eval()


def fresh_seconds(options: argparse.Namespace, learner: Learner, stream: Stream) -> float:
    """Seconds of scoring the test images of the last step without cached features, with the evaluation transform."""
    last = stream[len(stream) - 1]
    with learner.engine.settled(), evaluating(learner):
        return seconds(options, lambda: list(learner.over(last.test.images, last.test_rows, learner.logits)))


def inference(options: argparse.Namespace) -> dict[str, Any]:
    """Images per second of TUNA at its first step (one pass with adapters), without and with HA, in turn."""
    stream = noise(options.images, options.side, steps=1).to(torch.device(options.device))
    taken = {
        use: fresh_seconds(options, grown(options, "tuna", stream, ha={"use": use}), stream) for use in (False, True)
    }
    return {"images_per_second": options.images / taken[False], "with_ha_over_without": taken[True] / taken[False]}


def kept_features(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of MOS's evaluation at the last of twenty steps: with cached features of earlier steps, and without."""
    stream = noise(max(2, options.images // STEPS), options.side).to(torch.device(options.device))
    learner = grown(options, "mos", stream)
    assert isinstance(learner, Pretrained)
    before, last = stream[STEPS - 2], stream[STEPS - 1]
    kept = float("inf")
    for _ in range(options.repeats):
        learner.restore(learner.state())  # clears the cached features
        with learner.engine.settled(), evaluating(learner):
            list(learner.test_features(before, learner.fixed_networks()[:-1]))
        once = argparse.Namespace(**{**vars(options), "repeats": 1})
        kept = min(kept, seconds(once, lambda: learner.predictions(last)))
    fresh = fresh_seconds(options, learner, stream)
    return {"steps": STEPS, "fresh_seconds": fresh, "kept_seconds": kept, "ratio": fresh / kept}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backbone", default="vit_base_patch16_224")
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--images", type=int, default=2_560)
    parser.add_argument("--batches", type=int, nargs="+", default=[48, 128, 256])
    parser.add_argument("--evaluate-batch", type=int, default=256)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    compilation.FEW_STEPS = 0  # a short training is measured as the beginning of a long one
    document = {
        "training": training(options),
        "inference": inference(options),
        "kept_features": kept_features(options),
    }
    print(json.dumps({key: document[key] for key in ("inference", "kept_features")}), flush=True)
    if options.out:
        write_result(options.out, options.device, document, "cifar100-vit")


if __name__ == "__main__":
    main()
