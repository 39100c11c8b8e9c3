"""`ffcil data`: list, prepare, check and show, on every supported kind of file."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import ffcil
from conftest import small_config
from ffcil.cli import main
from ffcil.data import decoding
from ffcil.data.glyphs import GLYPHS_AUGMENTATION, glyphs, verify_glyphs
from ffcil.data.published import PUBLISHED
from ffcil.data.sources import SOURCES, DataSet, load_dataset
from ffcil.errors import InputError
from ffcil.runs.run import Run, augmentation_of

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ffcil_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command line in this process; it returns status, standard output and standard error."""
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FFCIL_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)

    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["ffcil", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err

    return command


def photograph(path: Path, colour: int = 0, size: tuple[int, int] = (60, 40)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(path.name)).integers(0, 60, (size[1], size[0], 3), np.uint8)
    noise[..., colour % 3] += 150
    Image.fromarray(noise).save(path)
    return path


def tree(root: Path, classes: int = 3, train: int = 4, test: int = 2) -> Path:
    for c in range(classes):
        for split, images in (("train", train), ("test", test)):
            for k in range(images):
                photograph(root / split / f"n{c:08d}" / f"0.{k}_ship _ ship_0.{k}.jpg", c)
    return root


def damage(root: Path) -> list[Path]:
    """Add three unreadable files to a class: empty, truncated, not an image."""
    folder = root / "train" / "n00000001"
    whole = (folder / "0.0_ship _ ship_0.0.jpg").read_bytes()
    contents = {"zero bytes.jpg": b"", "cut off.jpg": whole[: len(whole) // 2], "tëxt.jpg": b"no image"}
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return [folder / name for name in contents]


def test_list(ffcil_data: Command) -> None:
    status, out, _ = ffcil_data("data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert status == 0
    assert {"glyphs", "cifar100", "cars", "imagenet-a", "folder", "parquet", "csv", *PUBLISHED} == set(rows)
    assert rows["cars"]["train_images"] == 8144
    assert not rows["cars"]["found"]
    assert "`ffcil data prepare cars` downloads it" in rows["cars"]["missing"]
    for row in rows.values():
        assert row["origin"]
        assert row["licence"]
    _, out, _ = ffcil_data("data", "list")
    assert "cub200  200 classes, 9,430 + 2,358 images, 1.2 GB  not found" in out
    assert "https://github.com/LAMDA-CL/LAMDA-PILOT#-datasets" in out  # Addresses stay on one line.


def test_a_tree_like_imagenet_a_from_prepare_to_a_run(
    ffcil_data: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The published layout with 3 small classes, the unchanged recipe, and a ViT with random weights."""
    published = PUBLISHED["imagenet-a"]
    forms = (replace(published.forms[0], train=12, test=6),)
    monkeypatch.setitem(PUBLISHED, "imagenet-a", replace(published, classes=3, forms=forms))
    there = ["--data", str(tree(tmp_path / "imagenet-a"))]
    status, out, err = ffcil_data("data", "check", "imagenet-a", *there)
    assert (status, err) == (0, "")
    assert "12 training and 6 test images as published" in out
    assert "18 images read, all of them intact" in out
    assert "store for image_size=224: not prepared yet" in out
    status, out, err = ffcil_data("data", "prepare", "imagenet-a", *there)
    assert (status, err) == (0, "")
    assert out == ("imagenet-a: 12 training and 6 test images of 3 classes, ready for image_size=224\n")
    assert "checksums are correct" in ffcil_data("data", "check", "imagenet-a", *there)[1]
    cut = {"method": "simplecil", "backbone": "vit_tiny_patch16_224", "weights": None, "arrivals.sizes": "[2,1]"}
    settings = [part for key, value in cut.items() for part in ("--set", f"{key}={'null' if value is None else value}")]
    run = ("run", "imagenet-a", *there, "--device", "cpu", "--threads", "1", "--out", "run", *settings)
    monkeypatch.setattr("ffcil.data.decoding.decode", None)  # Nothing is decoded again.
    status, out, err = ffcil_data(*run)
    assert status == 0, err
    assert "prototype (scored)" in out


def test_unreadable_images_are_named_and_left_out_on_request(ffcil_data: Command, tmp_path: Path) -> None:
    root = tree(tmp_path / "mine")
    bad = damage(root)
    for command in ("check", "prepare"):
        status, out, err = ffcil_data("data", command, str(root), "--image-size", "96")
        assert status == 2
        assert out == ""
        assert err.count("\n") == 4  # One line per image, and the error.
        assert "ffcil: 3 image(s) cannot be read" in err
        for path in bad:
            assert f"{path}: " in err
    assert f"`ffcil data prepare folder --data {root} --image-size 96 --skip-bad`" in err
    config = small_config(dataset="folder", image_size=96, arrivals={"sizes": [2, 1]}, method="finetune")
    with pytest.raises(InputError, match=r"3 image\(s\) cannot be read, repair them, or leave them out with `ffcil"):
        Run(config, tmp_path / "run", data=root, device="cpu").execute()
    status, out, err = ffcil_data("data", "prepare", str(root), "--image-size", "96", "--skip-bad", "--json")
    assert status == 0
    summary = json.loads(out)
    assert summary["left_out"] == sorted(map(str, bad))
    assert (summary["train_images"], summary["test_images"]) == (12, 6)
    data = load_dataset("folder", root, 96)  # They stay left out.
    assert data.train.counts().tolist() == [4, 4, 4]
    red_green_blue = data.augmentation.plain(data.train.images).mean(dim=(2, 3))
    assert red_green_blue.argmax(1).tolist() == data.train.labels.tolist()  # Labels still belong to their images.
    assert Run(config, tmp_path / "run", data=root, device="cpu").execute()["sizes"] == [2, 1]
    assert "; 3 left out" in ffcil_data("data", "prepare", str(root), "--image-size", "96")[1]
    status, out, err = ffcil_data("data", "check", str(root), "--image-size", "96")
    assert status == 0
    assert (
        "12 training and 6 test images\n21 images read, 3 left out\nstore for image_size=96: checksums are correct"
        in out
    )
    assert all(f"{path}: " in err for path in bad)
    photograph(bad[0])  # A repaired file changes the data set.
    with pytest.raises(InputError, match=r"2 image\(s\)"):
        load_dataset("folder", root, 96)


def test_check_finds_images_that_occur_twice(ffcil_data: Command, tmp_path: Path) -> None:
    """By their pixels: the copies are files of another format."""
    root = tree(tmp_path / "mine", 3, 3, 2)
    for colour, path in enumerate(sorted(root.rglob("*.jpg"))):
        Image.new("RGB", (64, 64), (10 * colour, 90, 90)).save(path)
    assert "accuracies are wrong" not in ffcil_data("data", "check", str(root))[1]
    tested, trained = (min((root / part).iterdir()) for part in ("test/n00000000", "train/n00000001"))
    with Image.open(tested) as image:
        image.save(leak := root / "train" / "n00000000" / "copy.bmp")
    with Image.open(trained) as image:
        image.save(contradiction := root / "train" / "n00000002" / "copy.bmp")
    status, out, _ = ffcil_data("data", "check", str(root))
    assert status == 0
    assert f"1 test image(s) are also training images, so accuracies are wrong: {tested} = {leak}\n" in out
    assert f"1 image(s) are in two classes, so accuracies are wrong: {contradiction} = {trained}\n" in out
    found = json.loads(ffcil_data("data", "check", str(root), "--json")[1])
    assert found["in_both_parts"] == [[str(tested), str(leak)]]
    assert found["in_two_classes"] == [[str(contradiction), str(trained)]]


def test_check_compares_unreadable_images_with_those_left_out(
    ffcil_data: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tree(tmp_path / "mine", 2, 3, 1)
    bad = damage(root)[0]
    for path in damage(root)[1:]:
        path.unlink()
    assert ffcil_data("data", "prepare", str(root), "--skip-bad")[0] == 0
    read = decoding.decode
    victim = next((root / "test" / "n00000000").iterdir())

    def worse(content: Path, size: int) -> Image.Image:
        if content == victim:
            raise ValueError("it is no longer read")
        return read(content, size)

    monkeypatch.setattr(decoding, "decode", worse)
    status, _, err = ffcil_data("data", "check", str(root))
    assert status == 2
    assert "1 image(s) cannot be read" in err
    assert err.endswith(f": {victim} (it is no longer read).\n")
    monkeypatch.setattr(decoding, "decode", lambda content, size: read(victim if content == bad else content, size))
    status, _, err = ffcil_data("data", "check", str(root))
    assert status == 2
    assert "leaves out 1 image(s) that can be read now: remove the store" in err


def test_check_reports_as_published_only_what_it_compared(
    ffcil_data: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expect(train: int) -> None:
        forms = (replace(published.forms[0], train=train),)
        monkeypatch.setitem(PUBLISHED, "omnibenchmark", replace(published, classes=2, forms=forms))

    published = PUBLISHED["omnibenchmark"]
    root = tree(tmp_path / "omnibenchmark", 2, 3, 1)
    there = ("omnibenchmark", "--data", str(root))
    expect(6)
    out = ffcil_data("data", "check", *there)[1]
    assert out.startswith("omnibenchmark: 6 training images as published and 2 test images (not compared: ")
    damage(root)
    expect(9)
    assert ffcil_data("data", "prepare", *there, "--skip-bad")[0] == 0
    out = ffcil_data("data", "check", *there)[1]
    assert out.startswith("omnibenchmark: 6 training and 2 test images\n11 images read, 3 left out\n")


def test_check_downloads_nothing(ffcil_data: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = replace(PUBLISHED["cars"], download=lambda root: pytest.fail("it was downloaded"))
    monkeypatch.setitem(PUBLISHED, "cars", there)
    tree(tmp_path / "data" / "cars")
    status, _, err = ffcil_data("data", "check", "cars")
    assert status == 2
    assert "has 3 classes, but cars as published has 196" in err


def test_a_class_without_test_images_is_reported(ffcil_data: Command, tmp_path: Path) -> None:
    root = tree(tmp_path / "mine", 2, 3, 1)
    next((root / "test" / "n00000001").iterdir()).write_bytes(b"")
    out = ffcil_data("data", "prepare", str(root), "--skip-bad")[1]
    assert "; 1 left out\n1 class(es) without test images: n00000001\n" in out


def test_a_changed_store_is_detected(ffcil_data: Command, tmp_path: Path) -> None:
    root = tree(tmp_path / "mine")
    _, out, _ = ffcil_data("data", "prepare", str(root), "--json")
    pixels = Path(json.loads(out)["store"]) / "0.pixels"
    content = bytearray(pixels.read_bytes())
    content[100] ^= 1
    pixels.write_bytes(content)
    status, _, err = ffcil_data("data", "check", str(root))
    assert status == 2
    assert "is damaged (the checksum of 0.pixels is wrong): remove it" in err


@pytest.mark.parametrize("name", ["0.pixels", "1.pixels", "0.sizes.npy", "1.sizes.npy", "store.json"])
@pytest.mark.parametrize("damage", ["cut", "empty", "gone"])
def test_an_incomplete_store_is_created_again(ffcil_data: Command, tmp_path: Path, name: str, damage: str) -> None:
    root = tree(tmp_path / "mine", 1, 2, 1)
    _, out, _ = ffcil_data("data", "prepare", str(root), "--json")
    path = Path(json.loads(out)["store"]) / name
    whole = {file.name: file.read_bytes() for file in path.parent.iterdir()}
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] if damage == "cut" else b"")
    status, out, err = ffcil_data("data", "check", str(root))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "is damaged (" in err
    assert "remove it, and it is created again" in err
    status, out, err = ffcil_data("data", "prepare", str(root))
    assert (status, err.count("\n")) == (0, 1)
    assert err.startswith(f"ffcil: The store {path.parent} is damaged (")
    assert err.endswith("), so it is created again.\n")
    assert {file.name: file.read_bytes() for file in path.parent.iterdir()} == whole
    assert ffcil_data("data", "check", str(root))[0] == 0


def test_the_checksums_of_drawn_images_are_verified(
    ffcil_data: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = DataSet(*glyphs(3, 2), GLYPHS_AUGMENTATION)
    few = replace(SOURCES["glyphs"], load=lambda *arguments: small, verify=partial(verify_glyphs, 3, 2))
    monkeypatch.setitem(SOURCES, "glyphs", few)
    assert "the checksums of its files are correct" in ffcil_data("data", "check", "glyphs")[1]
    pixels = next((tmp_path / "cache").glob("glyphs-*/0.pixels"))
    content = np.frombuffer(pixels.read_bytes(), np.uint8).copy()
    content[::100] ^= 1
    pixels.write_bytes(content.tobytes())
    status, out, err = ffcil_data("data", "check", "glyphs")
    assert (status, out) == (2, "")
    assert "is damaged (the checksum of 0.pixels is wrong)" in err


def test_files_without_an_image_suffix_are_reported(ffcil_data: Command, tmp_path: Path) -> None:
    root = tree(tmp_path / "mine", 1, 2, 1)
    Image.new("RGB", (9, 9)).save(root / "train" / "n00000000" / "x.jp2")
    for name in ("a.heic", "notes.txt", ".DS_Store"):
        (root / "train" / "n00000000" / name).write_bytes(b"x")
    message = "2 file(s) are ignored because their suffixes are not those of images: "
    status, out, err = ffcil_data("data", "prepare", str(root))
    assert status == 0
    assert "3 training and 1 test images" in out
    assert err.startswith(message)
    assert "a.heic, " in err
    assert message not in ffcil_data("data", "prepare", str(root))[2]  # They are reported once.
    assert message in ffcil_data("data", "check", str(root))[2]
    assert len(json.loads(ffcil_data("data", "check", str(root), "--json")[1])["ignored"]) == 2


def test_names_in_other_encodings(ffcil_data: Command, tmp_path: Path) -> None:
    root = tree(tmp_path / "mine", 2, 2, 1)
    folder = os.fsencode(root / "train" / "n00000000")
    os.rename(folder + b"/0.0_ship _ ship_0.0.jpg", folder + b"/K\xe4fer.jpg")
    Path(os.fsdecode(folder + b"/M\xfcll.jpg")).write_bytes(b"no image")
    for split in ("train", "test"):
        there = os.fsencode(root / split)
        os.rename(there + b"/n00000001", there + b"/V\xf6gel")
    for command in ("check", "prepare"):
        assert r"M\xfcll.jpg: its format is unknown" in ffcil_data("data", command, str(root))[2]
    summary = json.loads(ffcil_data("data", "prepare", str(root), "--skip-bad", "--json")[1])
    assert summary["train_images"] == 4
    assert ffcil_data("data", "check", str(root))[0] == 0
    assert r"V\xf6gel" in ffcil_data("data", "show", str(root))[1]


def test_show(ffcil_data: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tree(tmp_path / "my [b] photos")
    photograph(root / "train" / "n00000002" / "long.jpg", 2, (200, 20))
    status, out, err = ffcil_data("data", "show", str(root), "--image-size", "96")
    assert status == 0, err
    assert "13 training and 6 test images of 3 classes" in out
    assert "4 (n00000000) to 5 (n00000002) (1.2 to 1)" in out
    sheet = Image.open(tmp_path / "my [b] photos.png")
    assert sheet.size == (1004, 3 * 118)
    for c in range(3):  # The first image of each class has its colour.
        assert int(np.argmax(sheet.getpixel((50, 118 * c + 66)))) == c
    assert sheet.getpixel((900, 66)) == (255, 255, 255)  # There are only four images.
    _, out, _ = ffcil_data("data", "show", str(root), "--class", "n00000002", "--out", "new/one.png", "--json")
    about = json.loads(out)
    assert about["per_class"][2] == {"class": "n00000002", "train_images": 5, "test_images": 2}
    assert about["imbalance"] == 1.25
    assert Image.open(about["sheet"]).size == (1004, 118)
    monkeypatch.chdir(root)
    assert ffcil_data("data", "show", ".")[0] == 0
    assert (root / "my [b] photos.png").is_file()
    assert "did you mean 'n00000002'" in ffcil_data("data", "show", str(root), "--class", "n0000002")[2]


def test_the_embedded_data_set(ffcil_data: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", os.environ["FFCIL_CACHE_OF_TESTS"])  # Other tests have drawn it already.
    assert "ready for image_size=32" in ffcil_data("data", "prepare", "glyphs")[1]
    assert ffcil_data("data", "check", "glyphs")[1] == (
        "glyphs: 20,000 training and 5,000 test images as published\nthe checksums of its files are correct\n"
    )
    assert ffcil_data("data", "show", "glyphs")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["check", "car"], "Unknown data set 'car': did you mean 'cars'?"),
        (["check", "cars"], "'cars' is not in"),
        (["prepare", "imagenet-a"], "download the archive linked at"),
        (["prepare", "there/is/none"], "There is no file or folder there/is/none"),
        (["check", "none.parquet"], "There is no file or folder none.parquet"),
        (["show", "notes.txt"], "notes.txt is not a folder, .parquet or .csv file: give one of these; unpack"),
        (["check", "empty"], "There are no class folders in empty"),
        (["check", "empty", "--data", "empty"], "empty is already a path: leave --data out"),
        (["show", "hollow", "--out", "x.xyz"], "--out x.xyz is not a PNG file: give a name that ends in .png"),
        (["show", "hollow", "--out", "empty"], "--out empty is not a PNG file"),
        (["check", "glyphs", "--data", "empty"], "'glyphs' is drawn, not read from files: leave --data out"),
        (["prepare", "glyphs", "--skip-bad"], "'glyphs' has no image files that could be unreadable"),
        (["check", "list.csv"], "lists missing.png, which does not exist: correct the paths"),
        (["check", "hollow"], "Class 'b' in hollow has no images: add some, or remove its folder."),
    ],
)
def test_an_error_is_one_sentence(ffcil_data: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "empty").mkdir()
    (tmp_path / "hollow" / "b").mkdir(parents=True)
    photograph(tmp_path / "hollow" / "a" / "x.png")
    (tmp_path / "list.csv").write_text("path,label\nmissing.png,a\n")
    status, out, err = ffcil_data("data", *arguments)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_the_kind_of_images_is_found_from_the_path(ffcil_data: Command, tmp_path: Path) -> None:
    photograph(tmp_path / "listed" / "a.png")
    photograph(tmp_path / "listed" / "b.png")
    (tmp_path / "listed" / "all.csv").write_text("path,label,split\na.png,x,train\nb.png,x,test\n")
    for name in ("listed", "listed/all.csv"):
        assert json.loads(ffcil_data("data", "prepare", name, "--json")[1])["name"] == "csv"
    assert json.loads(ffcil_data("data", "prepare", str(tree(tmp_path / "t")), "--json")[1])["name"] == "folder"


# --- input of a ViT ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("normalise", "mean", "std"),
    [
        *((name, 0.0, 1.0) for name in ("auto", "published", "unit")),
        *((name, 0.5, 0.5) for name in ("weights", None)),
        ("data", 0.485, 0.229),
    ],
)
def test_normalisation_of_pixels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, normalise: str | None, mean: float, std: float
) -> None:
    """[0, 1] as in the published pre-trained methods, or the mean and deviation with which the weights were trained.

    Earlier versions had `auto` for [0, 1].
    """
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))
    data = load_dataset("folder", tree(tmp_path / "x", 1), 96)
    config = ffcil.resolve("cars-vit-tiny", {"normalise": normalise})  # augreg's weights: 0.5 and 0.5
    augmentation = augmentation_of(config, data.augmentation)
    rows = torch.arange(2)
    values = augmentation.plain(data.train.images, rows)
    grey = data.augmentation.crop.test(data.train.images, rows)  # type: ignore[union-attr]
    assert torch.allclose(values[:, 0], (grey[:, 0] / 255 - mean) / std, atol=1e-5)
    draws = augmentation.draw(2, torch.Generator().manual_seed(0), data.train.images.sizes[:2])  # type: ignore[union-attr]
    low, high = -mean / std, (1 - mean) / std
    trained = augmentation.train(data.train.images, rows, draws)[:, 0]
    assert low - 1e-5 <= trained.min() < trained.max() <= high + 1e-5
    assert trained.max() > (0.6 - mean) / std
