"""Calibration error and detection of unknown classes of AnyArrival on labelled images with a split.

python benchmarks/calibration.py --data cars.parquet --weights FILE.safetensors --out results/calibration-cars.json
python benchmarks/calibration.py --dataset cifar100 --data DIR --weights FILE.safetensors \\
  --out results/calibration-cifar100.json

First all classes are learned, and the expected calibration error is measured on the test images. Then, for each seed,
half of the classes are learned; test images of the others are unknown. The novelty is compared with one minus the
highest probability of the same model, both by the AUROC and by the share of unknown images found at a stated rate of
false alarms, whose threshold comes from left-out training images.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ffcil.arrivals import given_arrivals
from ffcil.calibration import auroc, expected_calibration_error
from ffcil.config.resolve import resolve
from ffcil.config.settings import RunConfig
from ffcil.data.sources import DataSet, form_of, list_own, load_dataset
from ffcil.methods.anyarrival import AnyArrival
from ffcil.methods.registry import build_learner
from ffcil.runs.run import augmentation_of
from ffcil.stream import Stream
from ffcil.training.engine import Engine
from result_file import write_result

RATES = (0.01, 0.05, 0.1)
"""Rates of false alarms."""


def learned(config: RunConfig, data: DataSet, classes: Tensor) -> AnyArrival:
    """AnyArrival after one step with these classes."""
    learner = build_learner(config, augmentation_of(config, data.augmentation), Engine.create("cpu", config.train))
    assert isinstance(learner, AnyArrival)
    train = data.train.subset(torch.isin(data.train.labels, classes).nonzero().flatten())
    position = torch.empty(data.train.classes, dtype=torch.int64)
    position[classes] = torch.arange(len(classes))
    names = tuple(train.class_names[c] for c in classes.tolist())
    train = replace(train, labels=position[train.labels], class_names=names)
    learner.learn(Stream(train, train, given_arrivals([len(classes)]), class_seed=None)[0])
    return learner


def calibration_error(learner: AnyArrival, features: Tensor, targets: Tensor) -> dict[str, float]:
    scores = learner.score_features(features)
    return {
        "accuracy": 100 * float((scores.argmax(1) == targets).double().mean()),
        "expected_calibration_error": 100 * expected_calibration_error(scores.exp(), targets),
        "images": len(targets),
    }


def detection(learner: AnyArrival, known: Tensor, unknown: Tensor) -> dict[str, Any]:
    """Figures of the novelty and of one minus the highest probability."""
    values = [(learner.novelty_of(some), 1 - learner.score_features(some).exp().amax(1)) for some in (known, unknown)]
    found: dict[str, Any] = {}
    for k, name in enumerate(("novelty", "highest_probability")):
        of_known, of_unknown = (pair[k] for pair in values)
        assert of_known is not None
        assert of_unknown is not None
        found[name] = {"auroc": 100 * auroc(of_known, of_unknown)}
        if name == "novelty":
            for rate in RATES:
                limit = learner.novelty_limit(rate)
                shares = {"known": of_known, "unknown": of_unknown}
                found[name][f"called_unknown_at_{rate:.0%}"] = {
                    kind: 100 * float((some > limit).double().mean()) for kind, some in shares.items()
                }
    return found


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--dataset", help="A name of `ffcil data list`, if the images are not your own.")
    parser.add_argument("--precision", default="auto", help="float32 or bfloat16")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--other", type=Path, help="A folder of images of something else altogether.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    fields: dict[str, Any] = {"backbone": options.backbone, "weights": options.weights, "features": "stored"}
    fields["train"] = {"precision": options.precision}
    config = resolve("own-images", fields)
    data = load_dataset(options.dataset or form_of(options.data), options.data, config.image_size)
    test, classes = data.test, data.train.classes
    learner = learned(config, data, torch.arange(classes))
    features = learner.applied(test, torch.arange(len(test)), learner.features)
    measured: dict[str, Any] = {"all_classes": calibration_error(learner, features, test.labels), "halves": []}
    if options.other:
        images, _ = list_own(options.other).undivided().load(config.image_size)
        other = learner.applied(images, torch.arange(len(images)), learner.features)
        measured["all_classes_against_something_else"] = detection(learner, features, other)
    print(measured, flush=True)
    for seed in options.seeds:
        half = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))[: classes // 2]
        here = torch.isin(test.labels, half)
        row = {"seed": seed, **detection(learned(config, data, half), features[here], features[~here])}
        measured["halves"].append(row)
        print(row, flush=True)
    write_result(options.out, "cpu", measured, "own-images", fields)


if __name__ == "__main__":
    main()
