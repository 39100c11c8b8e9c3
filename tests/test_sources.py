"""Data sets from files: CIFAR-100 and folders of images."""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.datasets import CIFAR100
from torchvision.transforms.v2 import functional as tv

from ffcil.config.resolve import resolve
from ffcil.data.cache import cached_folder
from ffcil.data.image_set import ImageSet
from ffcil.data.layouts import image_files
from ffcil.data.sources import list_own, load_dataset
from ffcil.errors import InputError
from ffcil.runs.run import Run


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("FFCIL_DATA", raising=False)


def write_image(path: Path, colour: tuple[int, ...], size: tuple[int, int] = (40, 30), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour if len(colour) > 1 else colour[0]).save(path)


def tree(root: Path, classes: int = 3, images: int = 10) -> Path:
    for c in range(classes):
        for k in range(images):
            write_image(root / f"class {c}" / f"{k:02d}.png", (80 * c, 10 * k, 0))
    return root


def test_a_folder_of_classes_is_split_class_by_class(tmp_path: Path) -> None:
    data = load_dataset("folder", tree(tmp_path / "mine"), 16)
    assert data.train.class_names == ("class 0", "class 1", "class 2")
    assert data.train.counts().tolist() == [8, 8, 8]
    assert data.test.counts().tolist() == [2, 2, 2]
    assert data.train.image_size == (16, 16)
    for split in (data.train, data.test):  # the red channel encodes the class
        assert (split.images[:, 0].amax(dim=(1, 2)) == 80 * split.labels).all()
    green = torch.cat([s.images[s.labels == 1][:, 1, 0, 0] for s in (data.train, data.test)])
    assert sorted(green.tolist()) == [10 * k for k in range(10)]  # every image is in one of the splits
    again = load_dataset("folder", tmp_path / "mine", 16)
    assert torch.equal(again.test.images, data.test.images)


def test_hidden_files_and_folders_are_neither_images_nor_classes(tmp_path: Path) -> None:
    root = tree(tmp_path / "mine", 2, 5)
    write_image(root / ".ipynb_checkpoints" / "00.png", (1, 2, 3))
    write_image(root / "class 0" / ".thumbnails" / "00.png", (1, 2, 3))
    (root / "class 1" / "._00.png").write_bytes(b"what macOS writes beside a photo on a memory stick")
    data = load_dataset("folder", root, 16)
    assert data.train.class_names == ("class 0", "class 1")
    assert (data.train.counts() + data.test.counts()).tolist() == [5, 5]
    assert len(image_files([root])) == 10
    assert image_files([root / "class 1" / "._00.png"]) == [root / "class 1" / "._00.png"]  # it was asked for


def test_image_files_follow_links_as_class_folders_do(tmp_path: Path) -> None:
    photos = tree(tmp_path / "photos", 1, 3)
    folder = tmp_path / "asked"
    (folder / "album.png").mkdir(parents=True)
    (folder / "linked").symlink_to(photos / "class 0")
    (photos / "class 0" / "loop").symlink_to(folder)
    assert image_files([folder]) == [folder / "linked" / f"0{k}.png" for k in range(3)]


def test_a_file_given_as_a_folder_is_called_a_file(tmp_path: Path) -> None:
    (tmp_path / "all.csv").write_text("path,label\n")
    with pytest.raises(InputError, match=r"all\.csv is a file: give .*, or set dataset to parquet or csv\."):
        load_dataset("folder", tmp_path / "all.csv")


def test_images_given_for_the_drawn_data_set_are_an_error_not_ignored(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'glyphs' is drawn, not read from files: leave --data out, or set dataset"):
        load_dataset("glyphs", tree(tmp_path / "mine"))
    with pytest.raises(InputError, match="'glyphs' is drawn"):  # even if the same run without --data is finished
        Run(resolve("glyphs"), data=tmp_path / "mine")


def test_train_and_test_folders(tmp_path: Path) -> None:
    tree(tmp_path / "train", 2, 4)
    tree(tmp_path / "test", 2, 3)
    data = load_dataset("folder", tmp_path)
    assert (len(data.train), len(data.test)) == (8, 6)
    assert data.train.image_size == (64, 64)
    tree(tmp_path / "test", 3, 1)
    with pytest.raises(InputError, match=r"'class 2' is in only one of .*train and .*test: give both"):
        load_dataset("folder", tmp_path)


def test_val_is_a_test_folder_and_half_a_split_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path / "train", 2, 4)
    with pytest.raises(InputError, match="has only one of train/ and test/"):
        load_dataset("folder", tmp_path)
    tree(tmp_path / "val", 2, 3)
    assert len(load_dataset("folder", str(tmp_path)).test) == 6


def test_a_folder_of_trains_is_a_class_among_others(tmp_path: Path) -> None:
    root = tmp_path / "vehicles"
    for name in ("bus", "train"):
        write_image(root / name / "0.png", (1, 2, 3))
    assert list_own(root).class_names == load_dataset("folder", root).train.class_names == ("bus", "train")
    (root / "bus").rename(tmp_path / "bus")
    with pytest.raises(InputError, match=r"no class folders in .*train"):
        list_own(root)


def test_classes_beside_a_single_split_are_an_error_not_left_out(tmp_path: Path) -> None:
    tree(tmp_path / "train", 2, 2)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "read.txt").touch()
    assert list_own(tmp_path).class_names == ("class 0", "class 1")
    write_image(tmp_path / "bus" / "old" / "0.png", (1, 2, 3))
    with pytest.raises(InputError, match=r"class folders in train/, and bus/ with images beside it: give .*train if"):
        list_own(tmp_path)
    assert list_own(tmp_path / "train").class_names == ("class 0", "class 1")


def test_a_dangling_link_is_named(tmp_path: Path) -> None:
    tree(tmp_path, 1, 2)
    (tmp_path / "class 0" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(InputError, match=r"gone\.png"):
        load_dataset("folder", tmp_path)


def test_the_only_image_of_a_class_is_for_training(tmp_path: Path) -> None:
    tree(tmp_path, 2, 5)
    write_image(tmp_path / "rare" / "only.png", (1, 2, 3))
    data = load_dataset("folder", tmp_path)
    assert data.train.counts().tolist() == [4, 4, 1]
    assert data.test.counts().tolist() == [1, 1, 0]


def test_grey_palette_and_transparent_images_become_rgb(tmp_path: Path) -> None:
    write_image(tmp_path / "a" / "grey.png", (100,), mode="L")
    write_image(tmp_path / "a" / "alpha.png", (10, 20, 30, 255), mode="RGBA")
    write_image(tmp_path / "a" / "palette.gif.png", (0,), mode="P")
    write_image(tmp_path / "a" / "cmyk.jpg", (0, 0, 0, 0), mode="CMYK")
    data = load_dataset("folder", tmp_path, 8)
    assert len(data.train) + len(data.test) == 4


def test_a_changed_image_is_noticed(tmp_path: Path) -> None:
    tree(tmp_path / "x", 1, 2)
    before = load_dataset("folder", tmp_path / "x", 8).train.images.clone()
    for k in range(2):
        write_image(tmp_path / "x" / "class 0" / f"{k:02d}.png", (200, 200, 200))
    assert not torch.equal(load_dataset("folder", tmp_path / "x", 8).train.images, before)


def test_unreadable_images_are_named_all_at_once(tmp_path: Path) -> None:
    tree(tmp_path, 1, 3)
    (tmp_path / "class 0" / "empty.png").write_bytes(b"")
    whole = (tmp_path / "class 0" / "00.png").read_bytes()
    (tmp_path / "class 0" / "half.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match=r"2 image\(s\) cannot be read.*empty\.png.*half\.png"):
        load_dataset("folder", tmp_path)


def test_invalid_folders_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="needs images: give with --data"):
        load_dataset("folder")
    with pytest.raises(InputError, match="There is no folder"):
        load_dataset("folder", tmp_path / "absent")
    (tmp_path / "none").mkdir()
    with pytest.raises(InputError, match="no class folders"):
        load_dataset("folder", tmp_path / "none")
    tree(tmp_path / "x", 1, 2)
    (tmp_path / "x" / "hollow").mkdir()
    with pytest.raises(InputError, match=r"Class 'hollow' .* has no images"):
        load_dataset("folder", tmp_path / "x")


def test_unknown_names_and_sizes_are_an_error() -> None:
    with pytest.raises(InputError, match="did you mean 'cifar100'"):
        load_dataset("cifar-100")
    with pytest.raises(InputError, match="images of 32 pixels"):
        load_dataset("glyphs", None, 16)


def test_small_images_enlarged_for_a_vit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", os.environ["FFCIL_CACHE_OF_TESTS"])  # Other tests have drawn it already.
    data = load_dataset("glyphs", None, 64)
    images = data.augmentation.plain(data.test.images, torch.arange(3))
    pictures = [tv.to_pil_image(image) for image in data.test.images[:3]]
    resized = [tv.resize(picture, [73], tv.InterpolationMode.BICUBIC) for picture in pictures]
    expected = torch.stack([tv.pil_to_tensor(tv.center_crop(picture, [64, 64])) for picture in resized])
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (data.augmentation.mean, data.augmentation.std))
    assert ((images * std + mean) * 255 - expected).abs().max() <= 1.01  # one grey level
    still = data.augmentation.without_randomness()
    draws = still.draw(3, torch.Generator(), torch.full((3, 2), 32))
    assert torch.equal(still.train(data.test.images, torch.arange(3), draws), images)
    flipped = draws._replace(flip=torch.tensor([False, True, True]))
    mirrored = still.train(data.test.images, torch.arange(3), flipped)
    assert torch.equal(mirrored, torch.stack([images[0], images[1].flip(2), images[2].flip(2)]))
    draws = data.augmentation.draw(2, torch.Generator().manual_seed(0), torch.tensor([[32, 32], [32, 32]]))
    assert data.augmentation.train(data.train.images, torch.arange(2), draws).shape == (2, 3, 64, 64)


def fake_cifar100(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in the published format with few images, whose checksums torchvision expects."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    generator = np.random.default_rng(0)
    contents = {
        "train": {
            "data": generator.integers(0, 256, (30, 3072), np.uint8),
            "fine_labels": [k % 100 for k in range(30)],
        },
        "test": {"data": generator.integers(0, 256, (20, 3072), np.uint8), "fine_labels": [k % 100 for k in range(20)]},
        "meta": {"fine_label_names": [f"name {k}" for k in range(100)]},
    }
    sums = {}
    for name, content in contents.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    monkeypatch.setattr(CIFAR100, "meta", {**CIFAR100.meta, "md5": sums["meta"]})


@pytest.mark.parametrize("named", ["parent", "folder"])
def test_cifar100_from_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    fake_cifar100(tmp_path, monkeypatch)
    root = tmp_path if named == "parent" else tmp_path / "cifar-100-python"
    data = load_dataset("cifar100", root)
    assert (len(data.train), len(data.test), data.train.classes) == (30, 20, 100)
    with (tmp_path / "cifar-100-python" / "train").open("rb") as file:
        raw = pickle.load(file)
    assert torch.equal(data.train.images[3], torch.from_numpy(raw["data"][3]).view(3, 32, 32))
    assert data.train.labels.tolist() == raw["fine_labels"]


def test_missing_cifar100_is_an_error_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(self: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr(CIFAR100, "download", no_network)
    with pytest.raises(InputError, match=r"cifar-100-python\.tar\.gz .* --data.*no route to host"):
        load_dataset("cifar100")


def test_nothing_is_downloaded_to_a_given_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CIFAR100, "download", lambda self: pytest.fail("it was downloaded"))
    with pytest.raises(InputError, match=r"with internet access, omit --data, and the first run downloads it"):
        load_dataset("cifar100", tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_damaged_cifar100_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_cifar100(tmp_path, monkeypatch)
    (tmp_path / "cifar-100-python" / "test").write_bytes(b"other")
    with pytest.raises(InputError, match="are not those of CIFAR-100"):
        load_dataset("cifar100", tmp_path)


def test_an_interrupted_cache_entry_is_removed(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        cached_folder("key", broken)
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]
    made = cached_folder("key", lambda folder: (folder / "whole").touch())
    assert cached_folder("key", broken) == made  # from the cache
    assert [path.name for path in made.iterdir()] == ["whole"]


@pytest.mark.parametrize(
    ("images", "labels"),
    [
        (torch.zeros(2, 3, 4, 4), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 1, 4, 4, dtype=torch.uint8), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3, dtype=torch.int64)),
    ],
)
def test_invalid_image_sets_are_an_error(images: torch.Tensor, labels: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="must be"):
        ImageSet(images, labels, ("a",))


def test_an_image_set_is_shown_in_one_line() -> None:
    images, labels = torch.zeros(1200, 3, 4, 4, dtype=torch.uint8), torch.zeros(1200, dtype=torch.int64)
    assert repr(ImageSet(images, labels, ("a", "b"))) == "ImageSet(1,200 images of 2 classes: a, b)"
    assert repr(ImageSet(images, labels, tuple("abcdefg"))).endswith("of 7 classes: a, b, c, d, e, ...)")
