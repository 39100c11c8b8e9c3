"""A fortnight in the life of a classifier: 1 to 50 classes arrive a day, known ones come back, labels are corrected,
one class is dropped. Accuracy after each day, beside three rivals that keep all features of the same network.

python benchmarks/fortnight.py --data cars.parquet --weights FILE.safetensors --out results/fortnight.json

The rivals see the same features and the right labels of the day: the nearest class mean, 10 nearest neighbours by the
cosine, and logistic regression that is trained again on everything every day (L-BFGS, standardised features, the
penalty of a fixed share of its loss). `--plot FILE.png` draws the file.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ffcil.calibration import expected_calibration_error
from ffcil.classifier.classifier import Classifier
from ffcil.config.resolve import resolve
from ffcil.data.image_set import ImageSet
from ffcil.data.sources import list_own
from result_file import write_result

DAYS = (2, 1, 9, 1, 20, 3, 40, 1, 30, 5, 25, 1, 50, 8)
"""New classes of each day."""
FIRST = 0.7
"""Share of the images of a class that come on its first day. The others come one to five days later."""
WRONG = 0.02
"""Share of images that come with a wrong label. The mistake is corrected two days later."""
DROPPED_ON = 10
"""Day on which one known class is dropped."""


@dataclass
class Day:
    """What happens on one day: rows of the training images, with the labels that they come with."""

    new: list[int] = field(default_factory=list)
    arriving: dict[int, int] = field(default_factory=dict)
    corrected: dict[int, int] = field(default_factory=dict)
    dropped: int | None = None


def plan(labels: Tensor, seed: int) -> list[Day]:
    """All days of a fortnight."""
    draw = random.Random(seed)
    days = [Day() for _ in DAYS]
    order = draw.sample(range(int(labels.max()) + 1), sum(DAYS))
    for number, day in enumerate(days):
        day.new, order = order[: DAYS[number]], order[DAYS[number] :]
    known = [[label for day in days[: number + 1] for label in day.new] for number in range(len(days))]
    days[DROPPED_ON - 1].dropped = dropped = draw.choice(known[4])
    for number, day in enumerate(days):
        for label in day.new:
            rows = (labels == label).nonzero().flatten().tolist()
            draw.shuffle(rows)
            for k, row in enumerate(rows):
                when = number if k < max(2, FIRST * len(rows)) else min(number + draw.randint(1, 5), len(days) - 1)
                if label == dropped and when >= DROPPED_ON - 1:
                    continue
                days[when].arriving[row] = label
    for number, day in enumerate(days[:-2]):
        others = [label for label in known[number] if label != dropped]
        for row, label in list(day.arriving.items()):
            if label != dropped and len(others) > 1 and draw.random() < WRONG:
                day.arriving[row] = draw.choice([other for other in others if other != label])
                days[number + 2].corrected[row] = label
    return days


# --- the rivals -----------------------------------------------------------------------------------------------------

Rival = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From all features so far, their classes, and test features to predicted classes."""


def nearest_mean(features: Tensor, targets: Tensor, test: Tensor) -> Tensor:
    classes = targets.unique()
    means = torch.stack([features[targets == label].mean(0) for label in classes])
    return classes[torch.cdist(test, means).argmin(1)]


def neighbours(features: Tensor, targets: Tensor, test: Tensor, number: int = 10) -> Tensor:
    """The class with the largest sum of cosines among the nearest images."""
    cosines, rows = (F.normalize(test, dim=1) @ F.normalize(features, dim=1).T).topk(min(number, len(features)))
    votes = torch.zeros(len(test), int(targets.max()) + 1).scatter_add_(1, targets[rows], cosines)
    return votes.argmax(1)


def logistic_regression(features: Tensor, targets: Tensor, test: Tensor, penalty: float = 1e-3) -> Tensor:
    classes, position = targets.unique(return_inverse=True)
    mean, deviation = features.mean(0), features.std(0).clamp_min(1e-6)
    rows, asked = (features - mean) / deviation, (test - mean) / deviation
    weight = torch.zeros(len(classes), rows.shape[1], requires_grad=True)
    bias = torch.zeros(len(classes), requires_grad=True)
    optimiser = torch.optim.LBFGS([weight, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = F.cross_entropy(F.linear(rows, weight, bias), position) + penalty / 2 * weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[arg-type]
    return classes[F.linear(asked, weight, bias).argmax(1)]


RIVALS: dict[str, Rival] = {
    "nearest mean": nearest_mean,
    "10 nearest neighbours": neighbours,
    "logistic regression": logistic_regression,
}


# --- the fortnight --------------------------------------------------------------------------------------------------


def labelled(train: ImageSet, rows: dict[int, int]) -> ImageSet:
    """The images of some rows with the labels that they come with."""
    part = train.subset(torch.tensor(list(rows)))
    return replace(part, labels=torch.tensor(list(rows.values())))


def live(classifier: Classifier, train: ImageSet, test: ImageSet, days: list[Day]) -> list[dict[str, Any]]:
    learner = classifier.learner
    store = {
        name: learner.applied(part, torch.arange(len(part)), learner.features)
        for name, part in (("train", train), ("test", test))
    }
    right: dict[int, int] = {}
    records = []
    for number, day in enumerate(days, 1):
        start = time.perf_counter()
        classifier.learn(labelled(train, day.arriving))
        if day.corrected:
            classifier.correct(labelled(train, day.corrected))
        if day.dropped is not None:
            classifier.forget([train.class_names[day.dropped]])
        seconds = time.perf_counter() - start
        right = {**right, **day.arriving, **day.corrected}
        if day.dropped is not None:
            right = {row: label for row, label in right.items() if label != day.dropped}
        position = torch.tensor([train.class_names.index(name) for name in classifier.class_names])
        asked = torch.isin(test.labels, position)
        truth, features = test.labels[asked], store["test"][asked]
        with torch.no_grad():
            scores = classifier.learner.score_features(features)
        found = position[scores.argmax(1)]
        among = torch.searchsorted(position.sort().values, truth)
        probabilities = scores.exp()[:, position.argsort()]
        record: dict[str, Any] = {
            "day": number,
            "new_classes": len(day.new),
            "classes": len(position),
            "images": len(day.arriving),
            "of_known_classes": sum(label not in day.new for label in day.arriving.values()),
            "corrected": len(day.corrected),
            "dropped": day.dropped is not None,
            "AnyArrival": {"accuracy": _percent(found == truth), "seconds": seconds},
            "calibration_error": 100 * expected_calibration_error(probabilities, among),
        }
        rows, targets = torch.tensor(list(right)), torch.tensor(list(right.values()))
        for name, rival in RIVALS.items():
            start = time.perf_counter()
            found = rival(store["train"][rows], targets, features)
            record[name] = {"accuracy": _percent(found == truth), "seconds": time.perf_counter() - start}
        records.append(record)
        print(record, flush=True)
    return records


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def draw(records: list[dict[str, Any]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7.5, 4), layout="constrained")
    days = [record["day"] for record in records]
    for name in ("AnyArrival", *RIVALS):
        width = 2.4 if name == "AnyArrival" else 1.2
        axes.plot(days, [record[name]["accuracy"] for record in records], label=name, linewidth=width, marker=".")
    for record in records:
        axes.annotate(f"{record['classes']}", (record["day"], axes.get_ylim()[0]), ha="center", va="bottom", fontsize=8)
    axes.set(xlabel="day (below the curves: classes known)", ylabel="accuracy, %", xticks=days)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="Labelled images with a split, 196 classes or more.")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--backbone", default="vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    fields = {"backbone": options.backbone, "weights": options.weights, "features": "stored"}
    classifier = Classifier(resolve("own-images", fields), "cpu")
    train, test = list_own(options.data).load(classifier.size)
    records = live(classifier, train, test, plan(train.labels, options.seed))
    if options.plot:
        draw(records, options.plot)
    write_result(options.out, "cpu", {"seed": options.seed, "days": records}, recipe="glyphs")


if __name__ == "__main__":
    main()
