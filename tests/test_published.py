"""Published data sets, read from small trees in the published layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torchvision.datasets
from PIL import Image

from ffcil.config.resolve import recipe_names, resolve
from ffcil.data.layouts import list_folder
from ffcil.data.published import PUBLISHED
from ffcil.data.sources import SOURCES, load_dataset
from ffcil.errors import InputError

Tree = Callable[[Path], Path]


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FFCIL_DATA", str(tmp_path / "nothing"))


def expect(monkeypatch: pytest.MonkeyPatch, name: str, classes: int, train: int, test: int) -> None:
    """Replace the published numbers of images by those of a small tree."""
    forms = tuple(replace(form, train=train, test=test) for form in PUBLISHED[name].forms)
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], classes=classes, forms=forms))


def write(path: Path, label: int) -> None:
    """Write an image whose red channel encodes the class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 16), (40 * label, 90, 200)).save(path)


def train_test(root: Path, classes: Sequence[str], splits: Sequence[str], suffix: str = "png") -> Path:
    """Three images of every class for training, two for testing."""
    for split, images in zip(splits, (3, 2), strict=True):
        for label, name in enumerate(classes):
            for k in range(images):
                write(root / split / name / f"{name}_{k}.{suffix}", label)
    return root


def pilot(root: Path) -> Path:
    return train_test(root, ["n01498041", "n01531178", "n01534433"], ["train", "test"])


def cub(root: Path) -> Path:
    names = ["001.Black_footed_Albatross", "002.Laysan_Albatross", "003.Sooty_Albatross"]
    lines: dict[str, list[str]] = {"images": [], "image_class_labels": [], "train_test_split": []}
    number = 0
    for label, name in enumerate(names):
        for k in range(5):
            number += 1
            write(root / "images" / name / f"{k}.png", label)
            lines["images"].append(f"{number} {name}/{k}.png")
            lines["image_class_labels"].append(f"{number} {label + 1}")
            lines["train_test_split"].append(f"{number} {int(k % 2 == 0)}")
    for table, content in {**lines, "classes": [f"{k + 1} {name}" for k, name in enumerate(names)]}.items():
        (root / f"{table}.txt").write_text("\n".join(content) + "\n")
    return root


def tiny_imagenet(root: Path) -> Path:
    root = root / "tiny-imagenet-200"
    wnids = ["n01443537", "n01629819", "n01641577"]
    for label, wnid in enumerate(wnids):
        for k in range(3):
            write(root / "train" / wnid / "images" / f"{wnid}_{k}.png", label)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.png\t0\t0\t9\t9\n")
    lines = []
    for k in range(6):
        write(root / "val" / "images" / f"val_{k}.png", (5 - k) % 3)
        lines.append(f"val_{k}.png\t{wnids[(5 - k) % 3]}\t0\t32\t44\t62")
    (root / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    (root / "wnids.txt").write_text("\n".join(reversed(wnids)) + "\n")
    return root


def cars_devkit(root: Path) -> Path:
    base = root / "stanford_cars"
    (base / "devkit").mkdir(parents=True)
    names = ["AM General Hummer SUV 2000", "Acura RL Sedan 2012", "Acura TL Sedan 2012"]
    scipy.io.savemat(base / "devkit" / "cars_meta.mat", {"class_names": np.array(names, object)})
    tables = (("train", 3, "devkit/cars_train_annos.mat"), ("test", 2, "cars_test_annos_withlabels.mat"))
    for split, images, table in tables:
        rows = [(f"{k:05d}.jpg", k % 3 + 1) for k in range(3 * images)]
        for file, label in rows:
            write(base / f"cars_{split}" / file, label - 1)
        kind = [("fname", object), ("class", np.uint8)]
        scipy.io.savemat(base / table, {"annotations": np.array(rows, dtype=kind)})
    return root


def cars_hub(root: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (root / "data").mkdir(parents=True)
    features = {"label": {"names": ["a car", "b car", "c car"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    for split, images in (("train", 3), ("test", 2)):
        rows = []
        for k in range(3 * images):
            write(root / "one.png", k % 3)
            rows.append({"image": {"bytes": (root / "one.png").read_bytes(), "path": None}, "label": k % 3})
        table = pa.Table.from_pylist(rows).replace_schema_metadata(metadata)
        pq.write_table(table, root / "data" / f"{split}-00000-of-00001.parquet")
    (root / "one.png").unlink()
    return root


def food101(root: Path) -> Path:
    meta: dict[str, dict[str, list[str]]] = {"train": {}, "test": {}}
    for label, name in enumerate(["apple_pie", "baby_back_ribs", "baklava"]):
        for k in range(5):
            write(root / "food-101" / "images" / name / f"{k}.jpg", label)
            meta["train" if k < 3 else "test"].setdefault(name, []).append(f"{name}/{k}")
    (root / "food-101" / "meta").mkdir(exist_ok=True)
    for split, content in meta.items():
        (root / "food-101" / "meta" / f"{split}.json").write_text(json.dumps(content))
    return root


def flowers102(root: Path) -> Path:
    base = root / "flowers-102"
    for k in range(15):
        write(base / "jpg" / f"image_{k + 1:05d}.jpg", k % 3)
    scipy.io.savemat(base / "imagelabels.mat", {"labels": np.arange(15)[None] % 3 + 1})
    ids = np.arange(1, 16)[None]
    scipy.io.savemat(base / "setid.mat", {"trnid": ids[:, :6], "valid": ids[:, 6:9], "tstid": ids[:, 9:]})
    return root


def aircraft(root: Path) -> Path:
    base = root / "fgvc-aircraft-2013b" / "data"
    names = ["707-320", "727-200", "737 200"]
    for k in range(15):
        write(base / "images" / f"{k:07d}.jpg", k % 3)
    (base / "variants.txt").write_text("\n".join(names) + "\n")
    for split, numbers in (("trainval", range(9)), ("test", range(9, 15))):
        lines = [f"{k:07d} {names[k % 3]}" for k in numbers]
        (base / f"images_variant_{split}.txt").write_text("\n".join(lines) + "\n")
    return root


def gtsrb(root: Path) -> Path:
    base = root / "gtsrb"
    for k in range(9):
        write(base / "GTSRB" / "Training" / f"{k % 3:05d}" / f"{k:05d}_00000.ppm", k % 3)
    lines = ["Filename;Width;Height;Roi.X1;Roi.Y1;Roi.X2;Roi.Y2;ClassId"]
    for k in range(6):
        write(base / "GTSRB" / "Final_Test" / "Images" / f"{k:05d}.ppm", k % 3)
        lines.append(f"{k:05d}.ppm;20;16;5;5;15;15;{k % 3}")
    (base / "GT-final_test.csv").write_text("\n".join(lines) + "\n")
    return root


SHAPES: list[tuple[str, Tree]] = [
    *((name, pilot) for name in ("imagenet-a", "imagenet-r", "cub200", "omnibenchmark", "vtab", "objectnet", "cars")),
    ("cub200", cub),
    ("tiny-imagenet", tiny_imagenet),
    ("cars", cars_devkit),
    ("cars", cars_hub),
    ("food101", food101),
    ("flowers102", flowers102),
    ("aircraft", aircraft),
    ("gtsrb", gtsrb),
]


@pytest.mark.parametrize(("name", "tree"), SHAPES)
def test_every_published_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tree: Tree) -> None:
    root = tree(tmp_path / "there")
    expect(monkeypatch, name, 102 if name == "flowers102" else 3, 9, 6)
    monkeypatch.setattr(torchvision.datasets.Flowers102, "_check_integrity", lambda self: True)  # its sums are others
    data = load_dataset(name, root, 64)
    assert (len(data.train), len(data.test)) == (9, 6)
    for split in (data.train, data.test):
        assert split.counts()[:3].tolist() == [len(split) // 3] * 3
        red = split.images[:, 0].float().mean(dim=(1, 2))
        assert ((red - 40 * split.labels).abs() < 6).all()
    assert load_dataset(name, root, 64).train.labels.equal(data.train.labels)


@pytest.mark.parametrize(("name", "tree"), [("vtab", pilot), ("food101", food101), ("cars", cars_hub)])
def test_where_a_data_set_is_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, tree: Tree) -> None:
    """In the data folder; and people name its folder, the one above or the one below."""
    monkeypatch.setenv("FFCIL_DATA", str(tmp_path / "data"))
    assert SOURCES[name].find(None) is not None
    places = {"vtab": "vtab-cil/vtab", "food101": "", "cars": "cars"}
    tree(tmp_path / "data" / places[name])
    below = {"vtab": "vtab-cil/vtab", "food101": "food-101", "cars": "cars/data"}
    for root in (None, tmp_path / "data", tmp_path / "data" / below[name]):
        assert SOURCES[name].find(root) is None


def test_other_folders_are_not_confused_with_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, "cars", 3, 9, 6)
    monkeypatch.setenv("FFCIL_DATA", str(tmp_path))
    train_test(tmp_path, ["somebody", "else"], ["train", "test"])
    cars_hub(tmp_path / "cars")
    for root in (None, tmp_path, tmp_path / "cars", tmp_path / "cars" / "data"):
        assert load_dataset("cars", root, 16).train.class_names == ("a car", "b car", "c car")
    with pytest.raises(InputError, match="'cars' is not in"):
        load_dataset("cars", tmp_path / "absent", 16)


def test_a_data_set_with_another_split_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = pilot(tmp_path / "there")
    with pytest.raises(InputError, match=r"has 3 classes, but imagenet-a as published has 200: .*dataset=folder"):
        load_dataset("imagenet-a", root)
    expect(monkeypatch, "imagenet-a", 3, 9, 6)
    next((root / "train" / "n01498041").iterdir()).unlink()
    with pytest.raises(InputError, match="has 8 training images, but imagenet-a as published has 9"):
        load_dataset("imagenet-a", root)


def test_imagenet100_has_the_classes_of_seed_1993(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from timm.data import ImageNetInfo

    all_of_them = sorted(ImageNetInfo().label_names())
    numbers = np.arange(1000)
    np.random.seed(1993)  # noqa: NPY002 - as PyCIL draws its order
    np.random.shuffle(numbers)  # noqa: NPY002
    wnids = sorted(all_of_them[k] for k in numbers[:100])
    assert all_of_them[numbers[0]] == "n01729322"  # hog-nosed snake, the 55th of the 1,000
    for wnid in [*wnids, "n01440764"]:  # and one that is none of them
        write(tmp_path / "train" / wnid / "a.png", 1)
        write(tmp_path / "val" / wnid / "b.png", 1)
    expect(monkeypatch, "imagenet100", 100, 100, 100)
    data = load_dataset("imagenet100", tmp_path, 16)
    assert data.train.class_names == data.test.class_names == tuple(wnids)
    (tmp_path / "classes.txt").write_text("\n".join(reversed([*wnids[1:], "n01440764"])))
    assert load_dataset("imagenet100", tmp_path, 16).train.class_names == ("n01440764", *wnids[1:])
    (tmp_path / "classes.txt").write_text("\n".join([*wnids, wnids[3]]))
    with pytest.raises(InputError, match=f"lists class '{wnids[3]}' more than once"):
        load_dataset("imagenet100", tmp_path, 16)
    (tmp_path / "classes.txt").unlink()
    (tmp_path / "train" / wnids[7] / "a.png").unlink()
    with pytest.raises(InputError, match=f"Class '{wnids[7]}' in .*train has no images"):
        load_dataset("imagenet100", tmp_path, 16)
    (tmp_path / "classes.txt").write_text("n99999999\n")
    with pytest.raises(InputError, match=r"1 of the 1 classes, such as n99999999, have no folder"):
        load_dataset("imagenet100", tmp_path, 16)


def test_crops_of_published_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.data.sources.list_published", lambda *_: list_folder(pilot(tmp_path / "there")))
    for name, smallest in (("imagenet100", 0.08), ("imagenet-r", 0.05)):
        crop = load_dataset(name, tmp_path).augmentation.crop
        assert crop is not None
        assert crop.scale == (smallest, 1.0)


def test_a_damaged_table_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expect(monkeypatch, "cub200", 3, 9, 6)
    root = cub(tmp_path / "there")
    (root / "train_test_split.txt").write_text("1 1\n")
    with pytest.raises(InputError, match=r"is not cub200 as published \('2'\): download it again"):
        load_dataset("cub200", root)


def test_missing_data_sets_are_downloaded_or_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        InputError, match=r"'imagenet-a' is not in .*: download the archive linked at https://github.com/LAMDA"
    ):
        load_dataset("imagenet-a")

    def no_network(root: Path) -> None:
        raise OSError("no route to host")

    monkeypatch.setitem(PUBLISHED, "food101", replace(PUBLISHED["food101"], download=no_network))
    # The table is read again; whether a download exists was known before.
    with pytest.raises(InputError, match=r"food101 could not be downloaded \(no route to host\): try again, or unpack"):
        load_dataset("food101")
    expect(monkeypatch, "food101", 3, 9, 6)
    monkeypatch.setitem(
        PUBLISHED, "food101", replace(PUBLISHED["food101"], download=lambda root: food101(root) and None)
    )
    assert len(load_dataset("food101", None, 64).train) == 9
    there = tmp_path / "nothing" / "food-101"
    assert there.is_dir()
    (there / "meta" / "test.json").write_text(json.dumps({"apple_pie": []}))  # a download that broke off goes on
    assert len(load_dataset("food101", None, 64).test) == 6


def test_published_numbers() -> None:
    """As printed by those who published them."""
    counts = {name: (SOURCES[name].classes, *(SOURCES[name].counts or ())) for name in PUBLISHED}
    assert counts == {
        "imagenet100": (100, None, 5_000),
        "cars": (196, 8_144, 8_041),
        "imagenet-a": (200, 5_981, 1_519),
        "imagenet-r": (200, 24_000, 6_000),
        "cub200": (200, 9_430, 2_358),
        "tiny-imagenet": (200, 100_000, 10_000),
        "omnibenchmark": (300, 89_697, None),
        "vtab": (50, 1_796, 8_619),
        "objectnet": (200, 26_509, 6_628),
        "food101": (101, 75_750, 25_250),
        "flowers102": (102, 2_040, 6_149),
        "aircraft": (100, 6_667, 3_333),
        "gtsrb": (43, 26_640, 12_630),
    }
    # all images of a set are in one of its two splits
    for name, images in {"imagenet-a": 7_500, "imagenet-r": 30_000, "cub200": 11_788, "cars": 16_185}.items():
        for form in PUBLISHED[name].forms:
            assert (form.train or 0) + (form.test or 0) == images


def test_data_sets_of_recipes_exist() -> None:
    for name in recipe_names():
        assert resolve(name).dataset in SOURCES
    for name in ("cars", "imagenet-a", "imagenet-r", "cub200", "imagenet100"):
        assert resolve(name).dataset == name
