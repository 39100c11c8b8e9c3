"""A classifier in a folder, and photos of its classes and of another one, for the tests of `ffcil.serving`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from conftest import seeded, small_config
from ffcil.classifier.classifier import Classifier
from ffcil.data.glyphs import CHARACTERS, draw_glyphs
from ffcil.data.image_set import ImageSet

NAMES = ("ant", "bee", "cat", "dog")
"""Classes of the classifier."""


def glyph_images(first: int, names: tuple[str, ...], images: int, seed: int) -> ImageSet:
    """Images of embedded characters under other names."""
    drawn = torch.from_numpy(draw_glyphs(CHARACTERS[first : first + len(names)], images, seed))
    return ImageSet(drawn, torch.arange(len(names)).repeat_interleave(images), names)


def save_classifier(folder: Path, method: str = "anyarrival", **overrides: Any) -> Classifier:
    """Save a classifier of four classes that arrived in two steps."""
    classifier = Classifier(small_config(method=method, image_size=32, **overrides), "cpu")
    for first in (0, 2):
        classifier.learn(glyph_images(first, NAMES[first : first + 2], 20, first))
        classifier.save(folder)
    return classifier


def write_photos(folder: Path, first: int = 0, classes: int = 4, images: int = 3, seed: int = 9) -> list[Path]:
    """Photos of the characters from `first` on, of another size and shape than the classifier's input."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = glyph_images(first, tuple(map(str, range(classes))), images, seed)
    paths = []
    for number, pixels in enumerate(drawn.images):
        photo = Image.fromarray(pixels.permute(1, 2, 0).numpy()).resize((96, 96), Image.Resampling.BICUBIC)
        wide = Image.new("RGB", (120, 96), tuple(torch.randint(0, 255, (3,), generator=seeded(number)).tolist()))
        wide.paste(photo, (12, 0))
        wide.save(path := folder / f"{number:03d}.png")
        paths.append(path)
    return paths


def write_table(folder: Path, photos: list[Path], label: str) -> Path:
    """A table of copies of photos that have one label."""
    folder.mkdir()
    for photo in photos:
        shutil.copy(photo, folder)
    table = folder / "images.csv"
    table.write_text("path,label\n" + "".join(f"{photo.name},{label}\n" for photo in photos), encoding="utf-8")
    return table
