"""The embedded data set: its contents, its reproducibility, and its difficulty."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont, features

from ffcil.data import glyphs as module
from ffcil.data.glyphs import CHARACTERS, GLYPHS_AUGMENTATION, draw_glyphs, faces_with, glyphs
from ffcil.errors import InputError
from oracles import nearest_mean_accuracy


@pytest.fixture(scope="module")
def sample() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """50 training and 10 test images of each class."""
    return draw_glyphs(CHARACTERS, 50, seed=0), draw_glyphs(CHARACTERS, 10, seed=1)


def drawing(character: str, face: str) -> NDArray[np.float64]:
    """A character drawn independently of the module and scaled to a common size."""
    path = Path(matplotlib.get_data_path(), "fonts", "ttf", f"{face}.ttf")
    canvas = Image.new("L", (200, 200))
    ImageDraw.Draw(canvas).text((60, 30), character, fill=255, font=ImageFont.truetype(path, 80))
    ink = canvas.crop(canvas.getbbox())
    square = Image.new("L", (max(ink.size), max(ink.size)))
    square.paste(ink, ((square.width - ink.width) // 2, (square.height - ink.height) // 2))
    return (np.asarray(square.resize((48, 48))) > 127).astype(float).ravel()


def likeness(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Intersection over union of two drawings."""
    return float((a * b).sum() / np.maximum(a, b).sum())


def test_a_hundred_different_characters() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 100
    assert all(len(character) == 1 for character in CHARACTERS)
    assert not set("0Oo1Ilix") & set(CHARACTERS)


def test_every_character_is_in_its_fonts() -> None:
    unassigned = "\U0002fffe"  # a code point that no font may draw
    missing = {}
    for character in CHARACTERS:
        faces = faces_with(character)
        assert len(faces) >= 6, character
        for face in faces:
            if face not in missing:
                missing[face] = drawing(unassigned, face)
            assert likeness(drawing(character, face), missing[face]) < 0.8, (character, face)


def test_no_two_characters_are_the_same_drawing() -> None:
    for latin, twin in ("PР", "XΧ", "oо"):  # Cyrillic and Greek letters that are left out
        assert likeness(drawing(latin, "DejaVuSerif"), drawing(twin, "DejaVuSerif")) > 0.95
    for face in {face for character in CHARACTERS for face in faces_with(character)}:
        present = [character for character in CHARACTERS if face in faces_with(character)]
        ink = np.stack([drawing(character, face) for character in present])
        shared, area = ink @ ink.T, ink.sum(1)
        alike = shared / (area[:, None] + area - shared)
        np.fill_diagonal(alike, 0)
        first, second = np.unravel_index(alike.argmax(), alike.shape)
        assert alike.max() < 0.91, (face, present[first], present[second])


def test_a_character_without_a_drawing_is_an_error() -> None:
    for culprit in ("\U0002fffe", "ab", " "):
        with pytest.raises(InputError, match="leave it out"):
            draw_glyphs(["A", culprit], 2, seed=0)


def test_images_are_determined_by_the_seed() -> None:
    threads = torch.get_num_threads()
    first = draw_glyphs("AБ★", 20, seed=5)
    try:
        torch.set_num_threads(1)
        again = draw_glyphs("AБ★", 20, seed=5)
    finally:
        torch.set_num_threads(threads)
    assert first.shape == (60, 3, 32, 32)
    assert first.dtype == np.uint8
    assert first.tobytes() == again.tobytes()
    other = draw_glyphs("AБ★", 20, seed=6)
    assert (first != other).any(axis=(1, 2, 3)).all()


def test_all_images_differ(sample: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    train, test = ({image.tobytes() for image in images} for images in sample)
    assert len(train) == 5000
    assert len(test) == 1000
    assert not train & test


def test_more_images_than_are_drawn_at_a_time() -> None:
    many, few = draw_glyphs("A&", 230, seed=0), draw_glyphs("A&", 100, seed=0)
    assert len({image.tobytes() for image in many}) == 460
    assert np.array_equal(many[:100], few[:100])
    assert np.array_equal(many[230:330], few[100:])


def test_the_normalisation_fits_the_images(sample: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    pixels = sample[0] / 255
    np.testing.assert_allclose(pixels.mean((0, 2, 3)), GLYPHS_AUGMENTATION.mean, atol=0.01)
    np.testing.assert_allclose(pixels.std((0, 2, 3)), GLYPHS_AUGMENTATION.std, atol=0.01)
    assert not GLYPHS_AUGMENTATION.flip


def test_classes_differ_by_shape_and_not_by_colour(sample: tuple[NDArray[np.uint8], NDArray[np.uint8]]) -> None:
    def shape(images: NDArray[np.uint8]) -> NDArray[np.float64]:
        """Distance of each pixel from the median brightness of its image, for light and dark characters alike."""
        brightness = images.mean(1).reshape(len(images), -1)
        away = np.abs(brightness - np.median(brightness, axis=1, keepdims=True))
        return (away - away.mean(1, keepdims=True)) / away.std(1, keepdims=True)

    def colour(images: NDArray[np.uint8]) -> NDArray[np.float64]:
        return images.mean((2, 3))

    train, test = sample
    assert 0.07 < nearest_mean_accuracy(shape(train), shape(test), 100) < 0.5  # chance is 0.01
    assert nearest_mean_accuracy(colour(train), colour(test), 100) < 0.03
    assert nearest_mean_accuracy(train.reshape(len(train), -1) / 255, test.reshape(len(test), -1) / 255, 100) < 0.05


def test_both_splits_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "CHARACTERS", some := CHARACTERS[::5])
    train, test = glyphs(train_per_class=3, test_per_class=2)
    assert (len(train), len(test)) == (60, 40)
    assert train.class_names == test.class_names == some
    assert train.image_size == (32, 32)
    assert train.counts().eq(3).all()
    assert test.counts().eq(2).all()
    assert np.array_equal(train.images.numpy(), draw_glyphs(some, 3, seed=0))
    assert np.array_equal(test.images.numpy(), draw_glyphs(some, 2, seed=1))

    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(module, "draw_glyphs", never)
    again, _ = glyphs(train_per_class=3, test_per_class=2)
    assert torch.equal(again.images, train.images)
    for other in ((4, 2), (3, 1)):  # other parameters give other images
        with pytest.raises(AssertionError, match="drawn again"):
            glyphs(*other)
    monkeypatch.setattr(features, "version", lambda name: "0.0")  # another version of FreeType too
    with pytest.raises(AssertionError, match="drawn again"):
        glyphs(train_per_class=3, test_per_class=2)


@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
@pytest.mark.parametrize("name", ["0.pixels", "0.sizes.npy", "store.json"])
def test_damaged_files_are_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, damage: str
) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "CHARACTERS", CHARACTERS[:3])
    want = glyphs(3, 2)[0].images.clone()
    path = next(tmp_path.glob(f"glyphs-*/{name}"))
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else b"")
    assert torch.equal(glyphs(3, 2)[0].images, want)
    assert f"{path.parent} is damaged (" in capsys.readouterr().err
    glyphs(3, 2)
    assert not capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1
