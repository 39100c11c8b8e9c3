"""A classifier beside plain timm: time for one photo, and photos per second, from files to classes.

python benchmarks/classifier_speed.py --out results/classifier-speed.json

Both decode the same JPEG files, scale them (bicubic) and cut out the centre, run the same network with the same random
weights, and return the best class. Plain timm is written as its documentation does it: PIL, the transform of timm, the
network, a linear head. With many photos, the files are decoded by a pool of threads, and batches have the same size.
`Classifier.answer` also gives calibrated probabilities and the novelty. The contenders take turns in every round.
`--photos FOLDER` reads photos of your own.

The second part is the time of changes beside known classes of which 20 images each were learned: one new class of 20
images, corrections of two labels, saving and loading. Features are pixels, so that only AnyArrival itself takes time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor, nn

from ffcil.classifier.classifier import Classifier
from ffcil.config.resolve import resolve
from ffcil.data.image_set import ImageSet
from ffcil.data.layouts import image_files
from ffcil.data.pictures import frame_of, store_frames
from ffcil.methods.anyarrival import AnyArrival
from ffcil.methods.registry import register
from loading import draw_photographs
from result_file import write_result

CLASSES, IMAGES = 50, 2
"""Classes of the classifier, and images of each of them."""
SINGLE, MANY = 20, 128
"""Photos that are answered one by one, and in batches, in each round."""

KNOWN = (10, 100, 1000)
"""Numbers of classes that are known before a change."""
EACH, SIDE = 20, 16
"""Images of each of them, and their side in pixels."""

Answer = Callable[[Sequence[Path]], list[Any]]
"""From files to one answer for each."""


def noise_images(first: int, classes: int, images: int, size: int) -> ImageSet:
    """Images of noise around one colour for each class."""
    generator = torch.Generator().manual_seed(first)
    frames = []
    for _ in range(classes):
        colour = torch.randint(40, 215, (3, 1, 1), generator=generator)
        for _ in range(images):
            noise = torch.randint(-40, 40, (3, size, size), generator=generator)
            frames.append(frame_of((colour + noise).to(torch.uint8), size, "noise"))
    labels = torch.arange(classes).repeat_interleave(images)
    return ImageSet(store_frames(frames, size), labels, tuple(f"class {first + k}" for k in range(classes)))


def ours(backbone: str, weights: Path, batch: int) -> Answer:
    fields = {"backbone": backbone, "weights": str(weights), "evaluate_batch": batch}
    classifier = Classifier(resolve("own-images", fields), "cpu")
    classifier.learn(noise_images(0, CLASSES, IMAGES, classifier.size))
    return classifier.answer


def plain(backbone: str, weights: Path, batch: int) -> Answer:
    model = timm.create_model(backbone, num_classes=0, checkpoint_path=str(weights)).eval()
    config = timm.data.resolve_data_config({"crop_pct": 224 / 256}, model=model)
    transform = timm.data.create_transform(**config)
    head = nn.Linear(model.num_features, CLASSES)
    pool = ThreadPoolExecutor()

    def read(path: Path) -> Tensor:
        tensor: Tensor = transform(Image.open(path).convert("RGB"))
        return tensor

    def answer(paths: Sequence[Path]) -> list[Any]:
        found: list[Any] = []
        for some in (paths[k : k + batch] for k in range(0, len(paths), batch)):
            images = torch.stack([read(some[0])] if len(some) == 1 else list(pool.map(read, some)))
            with torch.inference_mode():
                best = head(model(images)).softmax(dim=1).max(dim=1)
            found += zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return found

    return answer


def compare(backbone: str, photos: list[Path], rounds: int, batch: int, folder: Path) -> dict[str, Any]:
    """Milliseconds of one photo, and photos per second, of both contenders: medians over the rounds."""
    weights = folder / f"{backbone}.safetensors"
    torch.manual_seed(0)
    save_file(timm.create_model(backbone, num_classes=0).state_dict(), weights)
    contenders = {"classifier": ours(backbone, weights, batch), "timm": plain(backbone, weights, batch)}
    single, many = (photos * (1 + count // len(photos)) for count in (SINGLE, MANY))
    one: dict[str, list[float]] = {name: [] for name in contenders}
    rate: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in list(contenders)[:: 1 if number % 2 else -1]:
            answer, times = contenders[name], []
            for photo in single[:SINGLE]:
                start = time.perf_counter()
                answer([photo])
                times.append(time.perf_counter() - start)
            start = time.perf_counter()
            answered = answer(many[:MANY])
            seconds = time.perf_counter() - start
            assert len(answered) == MANY
            if number:  # the first round warms up
                one[name].append(1000 * statistics.median(times))
                rate[name].append(MANY / seconds)
    return {
        "milliseconds_of_one_photo": {name: round(statistics.median(values), 2) for name, values in one.items()},
        "photos_per_second": {name: round(statistics.median(values), 2) for name, values in rate.items()},
        "one_photo_ratio": _ratio(one["classifier"], one["timm"]),
        "throughput_ratio": _ratio(rate["classifier"], rate["timm"]),
    }


def _ratio(first: list[float], second: list[float]) -> dict[str, float]:
    """Median, smallest and largest ratio of the classifier to timm over the rounds."""
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return {
        name: round(value, 3)
        for name, value in (("median", statistics.median(ratios)), ("lowest", min(ratios)), ("highest", max(ratios)))
    }


@register("anyarrival-of-pixels")
class OfPixels(AnyArrival):
    """AnyArrival whose features are the pixels."""

    feature_dim = 3 * SIDE * SIDE

    def features(self, images: Tensor) -> Tensor:
        return images.flatten(1)


def similar_images(first: int, classes: int) -> ImageSet:
    """Images of classes that overlap."""
    generator = torch.Generator().manual_seed(first)
    centres = torch.randint(122, 135, (classes, 1, 3, SIDE, SIDE), generator=generator)
    noise = torch.randint(-60, 60, (classes, EACH, 3, SIDE, SIDE), generator=generator)
    labels = torch.arange(classes).repeat_interleave(EACH)
    names = tuple(f"class {first + k}" for k in range(classes))
    return ImageSet((centres + noise).to(torch.uint8).flatten(0, 1), labels, names)


def changes(known: int, rounds: int, folder: Path) -> dict[str, float]:
    """Median seconds of changes of a classifier that knows many classes."""
    classifier = Classifier(resolve("glyphs", {"method": "anyarrival-of-pixels", "image_size": SIDE}), "cpu")
    classifier.learn(similar_images(0, known))
    seconds: dict[str, list[float]] = {}

    def timed(name: str, change: Callable[[], object]) -> None:
        start = time.perf_counter()
        change()
        seconds.setdefault(name, []).append(time.perf_counter() - start)

    for number in range(known, known + rounds):
        new = similar_images(number, 1)
        wrong = replace(new.subset(torch.arange(2)), class_names=("class 0",))
        timed("learn", partial(classifier.learn, new))
        timed("correct", partial(classifier.correct, wrong))
        timed("forget", partial(classifier.forget, new.class_names))
        timed("save", partial(classifier.save, folder))
        timed("load", partial(Classifier.load, folder, "cpu"))
    return {name: round(statistics.median(values), 3) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbones", nargs="+", default=["vit_tiny_patch16_224", "vit_base_patch16_224"])
    parser.add_argument("--photos", type=Path, help="Folder of photos (default: drawn ones of 500 x 375 pixels).")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    measured: dict[str, Any] = {
        "rounds": options.rounds,
        "batch": options.batch,
        "threads": torch.get_num_threads(),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.photos:
            photos = image_files([options.photos])[:MANY]
        else:
            (folder / "photos").mkdir()
            draw_photographs(folder / "photos", MANY)
            photos = sorted((folder / "photos").iterdir())
        measured["photos"] = len(photos)
        measured["networks"] = {
            backbone: compare(backbone, photos, options.rounds, options.batch, folder) for backbone in options.backbones
        }
        measured["seconds_of_changes"] = {
            f"{known} known classes": changes(known, options.rounds, folder / f"known-{known}") for known in KNOWN
        }
    print(json.dumps(measured, indent=2))
    if options.out:
        write_result(options.out, "cpu", measured, "own-images")


if __name__ == "__main__":
    main()
