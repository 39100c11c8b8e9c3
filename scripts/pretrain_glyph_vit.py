"""Pre-train the embedded ViT on images of characters that the data set `glyphs` does not use.

python scripts/pretrain_glyph_vit.py --device cpu --minutes 22
python scripts/pretrain_glyph_vit.py --device cuda --minutes 25 --characters 800 --images-per-class 1500 --batch 512

Writes the weights (half precision, without the classifier) and a log with the command, the characters, one line per
epoch and the results. Decisions are based on characters held out of the training; the results on the characters of the
benchmark are only reported at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shlex
import sys
import time
import unicodedata
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn
from torch.nn import functional as F

from ffcil.config.resolve import resolve
from ffcil.data.augment import Augmentation
from ffcil.data.glyphs import CHARACTERS, draw_glyphs, faces_with, glyph_mask, glyphs
from ffcil.models.pretrained import glyph_vit, glyph_vit_weights
from ffcil.runs.environment import describe_environment
from ffcil.training.engine import Engine

KINDS = {"Lu", "Ll", "Lo", "Nd", "So", "Sc", "Po"}  # letters, digits, symbols, currencies, punctuation
PATTERNS = ("BRAILLE", "BOX ", "BLOCK", "SHADE", "QUADRANT", "ARROW", "HEXAGRAM")  # differ by a dot or a bar
# objects of the benchmark's symbols: a hollow heart or open scissors would be too similar
THINGS = {"STAR", "SUN", "HEART", "CLUB", "DIAMOND", "NOTE", "FACE", "TELEPHONE", "UMBRELLA", "AIRPLANE"}
THINGS |= {"SCISSOR", "ANCHOR", "KNIGHT"}
UPRIGHT = ("DejaVuSans", "DejaVuSerif", "STIXGeneral")  # faces in which characters are compared
LIKE_BENCHMARK, LIKE_OTHER = 0.55, 0.6  # overlap (shared ink over all ink) from which a character is excluded
HELD_OUT = 15  # one of 15 characters is held out
SEED = 0

AUGMENTATION = Augmentation(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0), padding=2, flip=False, brightness=0.2)
WARM_UP = 0.04  # fraction of the training
EASY = 0.4  # fraction of the training in which some images are simplified
WEIGHT_DECAY = 0.05
LARGEST_GRADIENT = 1.0
SCALE = 16.0  # initial scale of the cosine logits


def candidates() -> list[str]:
    """Shuffled characters of the fonts, without those of the benchmark in either case or with a diacritic."""
    used = {form for character in CHARACTERS for form in (character, character.lower(), character.upper())}
    found = []
    for character in map(chr, range(0x21, 0xFFF0)):
        name = unicodedata.name(character, "")
        if not name or unicodedata.category(character) not in KINDS or {character, character.lower()} & used:
            continue
        # É is composed; Đ is not, but its name contains "with stroke"
        composed = unicodedata.decomposition(character) or " WITH " in name
        shown = {word.rstrip("S") for word in name.split()} & THINGS
        if composed or shown or any(pattern in name for pattern in PATTERNS):
            continue
        faces = faces_with(character)
        if len(faces) >= 4 and UPRIGHT[0] in faces:
            found.append(character)
    order = np.random.Generator(np.random.PCG64(SEED)).permutation(len(found))
    return [found[k] for k in order]


def drawings(character: str) -> NDArray[np.float32]:
    """Binary drawings of a character in the upright faces, scaled to one size: [faces, 1024]."""
    masks = [glyph_mask(character, face) for face in UPRIGHT if face in faces_with(character)]
    coarse = np.stack(masks).reshape(-1, 32, 2, 32, 2).mean((2, 4)) > 127
    return coarse.reshape(len(masks), -1).astype(np.float32)


def likeness(some: NDArray[np.float32], others: NDArray[np.float32]) -> float:
    """Largest overlap of a drawing of `some` with one of `others`: shared ink over all ink."""
    shared = some @ others.T
    return float((shared / (some.sum(1)[:, None] + others.sum(1) - shared)).max())


def choose_characters(at_most: int) -> list[str]:
    """Candidates that resemble neither a character of the benchmark, in any of three faces, nor each other."""
    benchmark = np.concatenate([drawings(character) for character in CHARACTERS])
    chosen: list[str] = []
    kept = np.empty((0, benchmark.shape[1]), np.float32)
    for character in candidates():
        if len(chosen) == at_most:
            break
        own = drawings(character)
        if likeness(own, benchmark) < LIKE_BENCHMARK and (not chosen or likeness(own, kept) < LIKE_OTHER):
            chosen.append(character)
            kept = np.concatenate([kept, own])
    assert not set(chosen) & set(CHARACTERS)
    return chosen


def _draw_part(arguments: tuple[list[str], int, int]) -> NDArray[np.uint8]:
    torch.set_num_threads(1)
    return draw_glyphs(*arguments)


def draw(characters: Sequence[str], per_class: int, seed: int) -> tuple[Tensor, Tensor]:
    """Draw images (uint8, [N, 3, 32, 32]) and labels with one process per core."""
    # Parts of a fixed size give the same images on any number of cores.
    parts = [list(characters[k : k + 20]) for k in range(0, len(characters), 20)]
    with multiprocessing.get_context("spawn").Pool(min(len(parts), os.cpu_count() or 1)) as pool:
        images = np.concatenate(pool.map(_draw_part, [(part, per_class, seed) for part in parts], chunksize=1))
    return torch.from_numpy(images), torch.arange(len(characters)).repeat_interleave(per_class)


class Classifier(nn.Module):
    """Scaled cosines of standardised features, similar to a nearest-mean classifier."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.standardise = nn.BatchNorm1d(features, affine=False)
        self.weight = nn.Parameter(torch.randn(classes, features))
        self.scale = nn.Parameter(torch.tensor(math.log(SCALE)))

    def forward(self, features: Tensor) -> Tensor:
        standardised = self.standardise(features.float())
        return self.scale.exp() * F.linear(F.normalize(standardised), F.normalize(self.weight))


@torch.no_grad()
def standardised(net: VisionTransformer, classifier: Classifier) -> VisionTransformer:
    """A copy with the standardisation of the classifier merged into its last norm."""
    copy, known = deepcopy(net), classifier.standardise
    assert known.running_mean is not None
    assert known.running_var is not None
    deviation = (known.running_var + known.eps).sqrt()
    copy.norm.weight.div_(deviation)
    copy.norm.bias.sub_(known.running_mean).div_(deviation)
    return copy


@torch.no_grad()
def initialise(net: VisionTransformer) -> None:
    """Initialise with larger weights than timm, with which the loss stayed at chance level for 350 steps."""
    for module in net.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    nn.init.normal_(net.pos_embed, std=0.5)
    # Pixels have a deviation of about 0.25 and a mean of 0.5; start as if they were standardised.
    projection = net.patch_embed.proj
    projection.weight.mul_(4)
    projection.bias.sub_(0.5 * projection.weight.sum((1, 2, 3)))


@torch.no_grad()
def features(net: nn.Module, images: Tensor, device: torch.device) -> Tensor:
    """Unit-length features of uint8 images, on the CPU."""
    net.eval()
    parts = [net(AUGMENTATION.plain(part.to(device))).float().cpu() for part in images.split(500)]
    return F.normalize(torch.cat(parts))


def nearest_mean_accuracy(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> float:
    """Nearest-mean accuracy in percent; features are [N, D] with labels."""
    (known, labels), (asked, truth) = train, test
    sums = torch.zeros(int(labels.max()) + 1, known.shape[1]).index_add_(0, labels, known)
    means = sums / labels.bincount()[:, None]
    return 100 * float((torch.cdist(asked, means).argmin(1) == truth).float().mean())


@dataclass(frozen=True)
class HeldOut:
    """Held-out characters, whose nearest-mean accuracy is used to compare versions of this script."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def draw(cls, characters: Sequence[str]) -> HeldOut:
        return cls(draw(characters, 40, seed=SEED + 10), draw(characters, 20, seed=SEED + 11))

    def accuracy(self, net: nn.Module, device: torch.device) -> float:
        train, test = ((features(net, images, device), labels) for images, labels in (self.train, self.test))
        return nearest_mean_accuracy(train, test)


@dataclass
class Budget:
    """Progress of the training, measured in time or in epochs."""

    minutes: float | None
    epochs: int | None
    steps_per_epoch: int
    steps: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> float:
        if self.minutes is not None:
            return self.seconds / (60 * self.minutes)
        assert self.epochs is not None
        return self.steps / (self.epochs * self.steps_per_epoch)


def rate_factor(done: float) -> float:
    """Factor of the learning rate: linear warm-up, then cosine to 0."""
    if done < WARM_UP:
        return max(done, 1e-4) / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP))))


def simplified(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Replace a random share of the images by the distance of each pixel's brightness from the median of its image.

    The character is then bright on a dark background. This makes the start of the training easier; its effect was not
    measured separately.
    """
    brightness = images.mean(1, keepdim=True)
    away = (brightness - brightness.flatten(1).median(1).values[:, None, None, None]).abs()
    away = away / away.amax((1, 2, 3), keepdim=True).clamp_min(1e-3)
    chosen = torch.rand(len(images), generator=generator, device=images.device) < share
    return torch.where(chosen[:, None, None, None], away, images)


def batches(count: int, batch: int, generator: torch.Generator) -> Iterator[Tensor]:
    order = torch.randperm(count, generator=generator, device=generator.device)
    return iter(order[: count // batch * batch].view(-1, batch))


class Trainer:
    """Training of the network and a classifier on images (uint8) and labels."""

    def __init__(
        self, net: VisionTransformer, data: tuple[Tensor, Tensor], engine: Engine, arguments: argparse.Namespace
    ) -> None:
        self.net, self.engine, self.learning_rate = net, engine, arguments.learning_rate
        self.images, self.labels = (part.to(engine.device) for part in data)
        self.classifier = Classifier(net.num_features, int(self.labels.max()) + 1).to(engine.device)
        matrices = [p for p in net.parameters() if p.ndim > 1] + [self.classifier.weight]
        vectors = [p for p in net.parameters() if p.ndim <= 1] + [self.classifier.scale]
        self.parameters = [*matrices, *vectors]
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}],
            lr=arguments.learning_rate,
            fused=True,
        )
        self.generator = torch.Generator(engine.device).manual_seed(SEED)
        self.batch = min(arguments.batch, len(self.labels))
        self.budget = Budget(arguments.minutes, arguments.epochs, len(self.labels) // self.batch)

    def epoch(self) -> dict[str, float]:
        """Train for one epoch, or until the budget is used; returns the mean loss and the accuracy in percent."""
        total, hits = torch.zeros(2, device=self.engine.device)
        steps = 0
        self.net.train()
        for rows in batches(len(self.labels), self.batch, self.generator):
            if self.budget.done >= 1:
                break
            start = time.perf_counter()
            loss, correct = self.step(rows)
            total += loss
            hits += correct
            steps += 1
            self.budget.steps += 1
            self.budget.seconds += time.perf_counter() - start
        accuracy = 100 * hits.item() / (steps * self.batch)
        return {"loss": round(total.item() / steps, 4), "accuracy": round(accuracy, 2)}

    def step(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Train on one batch; returns the loss and the number of correct predictions."""
        for group in self.optimiser.param_groups:
            group["lr"] = self.learning_rate * rate_factor(self.budget.done)
        inputs = AUGMENTATION.train(self.images, rows, AUGMENTATION.draw(self.batch, self.generator))
        if self.budget.done < EASY:
            inputs = simplified(inputs, 1 - self.budget.done / EASY, self.generator)
        with self.engine.autocast():
            encoded = self.net(inputs)
        logits = self.classifier(encoded)  # in float32, because cosines need the precision
        loss = F.cross_entropy(logits, self.labels[rows])
        self.optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, LARGEST_GRADIENT)
        self.optimiser.step()
        return loss.detach(), (logits.detach().argmax(1) == self.labels[rows]).sum()


def train(trainer: Trainer, held_out: HeldOut) -> tuple[VisionTransformer, list[dict[str, float]]]:
    """Train until the budget is used; returns the network and one line per epoch."""
    budget, lines = trainer.budget, []
    while budget.done < 1:
        figures = trainer.epoch()
        accuracy = held_out.accuracy(standardised(trainer.net, trainer.classifier), trainer.engine.device)
        progress = {"images": budget.steps * trainer.batch, "seconds": round(budget.seconds, 1)}
        lines.append({"epoch": len(lines) + 1, **figures, "held_out_nearest_mean": round(accuracy, 2), **progress})
        print(json.dumps(lines[-1]), flush=True)
    return standardised(trainer.net, trainer.classifier), lines


def benchmark_figures(net: nn.Module, random: nn.Module, device: torch.device, per_class: int) -> dict[str, Any]:
    """Nearest-mean accuracy on all classes of the data set `glyphs`, for the report only."""
    train, test = glyphs(per_class, max(1, per_class // 4))

    def raw(images: Tensor) -> Tensor:
        return F.normalize(images.flatten(1).float())

    def accuracy(encode: Any) -> float:
        figure = nearest_mean_accuracy((encode(train.images), train.labels), (encode(test.images), test.labels))
        return round(figure, 2)

    return {
        "what": "nearest class mean on the data set glyphs, percent",
        "train_images_per_class": per_class,
        "pixels": accuracy(raw),
        "random_weights": accuracy(lambda images: features(random, images, device)),
        "pretrained": accuracy(lambda images: features(net, images, device)),
    }


def save(net: VisionTransformer, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: value.detach().cpu().half().contiguous() for key, value in net.state_dict().items()}, path)
    path.chmod(0o644)  # safetensors makes the file readable for the owner only


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="duration of the training (default 22)")
    length.add_argument(
        "--epochs", type=int, help="epochs of the training instead of minutes; gives reproducible results"
    )
    parser.add_argument("--characters", type=int, default=300, help="maximal number, including held-out ones")
    parser.add_argument("--images-per-class", type=int, default=300)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads; more hardly help for such small steps")
    parser.add_argument(
        "--benchmark-images", type=int, default=200, help="images per class for the class means of the report"
    )
    parser.add_argument("--out", type=Path, default=glyph_vit_weights(), help="output file (.safetensors)")
    parsed = parser.parse_args(arguments)
    if parsed.minutes is None and parsed.epochs is None:
        parsed.minutes = 22.0
    return parsed


def main(arguments: Sequence[str] | None = None) -> None:
    parsed = parse(arguments)
    torch.set_num_threads(parsed.threads)
    torch.manual_seed(SEED)
    engine = Engine.create(parsed.device, resolve("glyphs", {"train": {"graph": False, "compile": False}}).train)
    environment = describe_environment(engine)
    characters = choose_characters(parsed.characters)
    trained = [character for k, character in enumerate(characters) if k % HELD_OUT]
    held_out = [character for k, character in enumerate(characters) if not k % HELD_OUT]
    print(f"{len(trained)} characters for training, {len(held_out)} held out", flush=True)
    start = time.perf_counter()
    data = draw(trained, parsed.images_per_class, seed=SEED)
    judge = HeldOut.draw(held_out)
    print(f"{len(data[0]):,} images drawn in {time.perf_counter() - start:.0f} s", flush=True)

    random, net = glyph_vit().to(engine.device), glyph_vit().to(engine.device)
    initialise(net)
    net, lines = train(Trainer(net, data, engine, parsed), judge)
    net.load_state_dict({key: value.half() for key, value in net.state_dict().items()})  # evaluate the saved precision
    figures = benchmark_figures(net, random, engine.device, parsed.benchmark_images)
    print(json.dumps(figures), flush=True)

    save(net, parsed.out)
    given = sys.argv[1:] if arguments is None else arguments
    log = {
        "command": shlex.join(["python", "scripts/pretrain_glyph_vit.py", *given]),
        "environment": {key: value for key, value in environment.items() if key not in ("command", "graph", "compile")},
        "parameters": sum(parameter.numel() for parameter in net.parameters()),
        "settings": {key: value for key, value in vars(parsed).items() if key != "out"},
        "characters": "".join(trained),
        "held_out_characters": "".join(held_out),
        "epochs": lines,
        "benchmark": figures,
    }
    parsed.out.with_suffix(".json").write_text(json.dumps(log, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
