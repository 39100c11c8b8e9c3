"""Data sets in Parquet and CSV files, and errors in them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow.parquet import write_table

from ffcil.data.ragged import RaggedImages
from ffcil.data.sources import SOURCES, DataSet, form_of, list_own, load_dataset
from ffcil.data.tables import list_parquet
from ffcil.errors import InputError


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))


def encoded(red: int, size: tuple[int, int] = (30, 20), kind: str = "png") -> bytes:
    content = BytesIO()
    Image.new("RGB", size, (red, 0, 0)).save(content, kind)
    return content.getvalue()


def reds(data: DataSet) -> list[list[int]]:
    """Red values of the training and test images, in their order."""
    return [
        [int(split.images.image(k)[0, 0, 0]) for k in range(len(split))]
        if isinstance(split.images, RaggedImages)
        else split.images[:, 0, 0, 0].tolist()
        for split in (data.train, data.test)
    ]


def parquet(path: Path, labels: Sequence[Any], first: int = 0, features: Any = None, **columns: Any) -> Path:
    """A column of images; the red value of image k is `first` + k."""
    images = [{"bytes": encoded(first + k), "path": f"{k}.png"} for k in range(len(labels))]
    table = pa.table({"image": images, "label": labels, **columns})
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(table, path, row_group_size=3)
    return path


def test_a_parquet_file_with_a_split(tmp_path: Path) -> None:
    splits = ["train", "test", "train", "train", "test", "train"]
    path = parquet(tmp_path / "x.parquet", [0, 0, 1, 0, 1, 1], split=splits)
    (tmp_path / "classes.txt").write_text("Käfer\nVW Golf\n", encoding="utf-8")
    for root in (path, tmp_path):
        data = load_dataset("parquet", root, 112)
        assert data.train.class_names == ("Käfer", "VW Golf")
        assert reds(data) == [[0, 2, 3, 5], [1, 4]]
        assert data.train.labels.tolist() == [0, 1, 0, 1]
        assert data.test.labels.tolist() == [0, 1]
        assert isinstance(data.train.images, RaggedImages)
        assert data.train.images.sizes[0].tolist() == [128, 192]
    small = load_dataset("parquet", path, 16)
    assert small.train.image_size == (16, 16)
    assert small.augmentation.crop is None
    assert reds(small) == reds(data)


def test_parquet_files_of_hugging_face(tmp_path: Path) -> None:
    """Splits in the names of the files, classes in the schema."""
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    parquet(tmp_path / "data" / "train-00000-of-00002.parquet", [0, 1], 0, features)
    parquet(tmp_path / "data" / "train-00001-of-00002.parquet", [1, 0], 10, features)
    parquet(tmp_path / "data" / "test-00000-of-00001.parquet", [1, 0], 20, features)
    data = load_dataset("parquet", tmp_path, 16)
    assert data.train.class_names == ("cat", "dog")
    assert reds(data) == [[0, 1, 10, 11], [20, 21]]
    parquet(tmp_path / "data" / "validation-00000-of-00001.parquet", [0], 30, features)
    assert reds(load_dataset("parquet", tmp_path, 16)) == reds(data)  # not used if there is a test split


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("default/train/0000", "default/test/0000"),
        ("train/a/0", "validation/a/0"),
        ("train_0", "test_0"),
        ("train", "val.0"),
    ],
)
def test_splits_in_the_names_of_files_and_folders(tmp_path: Path, train: str, test: str) -> None:
    root = tmp_path / "train"  # the name of the data folder itself is ignored
    parquet(root / f"{train}.parquet", [0, 1] * 5, 0)
    parquet(root / f"{test}.parquet", [0, 1], 20)
    assert reds(load_dataset("parquet", root, 16)) == [list(range(10)), [20, 21]]
    parquet(root / "extra.parquet", [0, 1], 30)
    with pytest.raises(InputError, match=r"extra\.parquet has no split, but other files in .* have one: add a column"):
        load_dataset("parquet", root, 16)


def test_a_parquet_file_without_a_split_or_names(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", [7, 11, 3] * 10)
    data = load_dataset("parquet", path, 16)
    assert data.train.class_names == ("3", "7", "11")
    assert data.train.counts().tolist() == [8, 8, 8]
    assert data.test.counts().tolist() == [2, 2, 2]
    assert sorted(red for split in reds(data) for red in split) == list(range(30))


def test_string_labels_and_plain_bytes(tmp_path: Path) -> None:
    table = pa.table({"image": [encoded(k) for k in range(4)], "label": ["b", "a", "b", "a"]})
    write_table(table, tmp_path / "x.parquet")
    data = load_dataset("parquet", tmp_path, 16)
    assert data.train.class_names == ("a", "b")
    (tmp_path / "classes.txt").write_text("b\na\n")
    assert load_dataset("parquet", tmp_path, 16).train.class_names == ("b", "a")


def test_images_beside_a_parquet_file(tmp_path: Path) -> None:
    for k in range(2):
        (tmp_path / f"{k}.png").write_bytes(encoded(50 + k))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    images = pa.array([{"bytes": None, "path": f"{k}.png"} for k in range(2)], kind)
    write_table(pa.table({"image": images, "label": [0, 1], "split": ["train", "test"]}), tmp_path / "x.parquet")
    assert reds(load_dataset("parquet", tmp_path, 16)) == [[50], [51]]
    (tmp_path / "1.png").write_bytes(encoded(99))  # a changed image is noticed
    assert reds(load_dataset("parquet", tmp_path, 16)) == [[50], [99]]


def test_numerals_as_class_names(tmp_path: Path) -> None:
    """Integers are class numbers, also if names are numerals; strings are class names first."""
    (tmp_path / "classes.txt").write_text("2\n1\n0\n")
    parquet(tmp_path / "x.parquet", [0, 1, 2, 0, 1, 2], split=["train"] * 3 + ["test"] * 3)
    assert load_dataset("parquet", tmp_path, 16).train.labels.tolist() == [0, 1, 2]
    parquet(tmp_path / "x.parquet", ["0", "1", "2"] * 2, split=["train"] * 3 + ["test"] * 3)
    assert load_dataset("parquet", tmp_path, 16).train.labels.tolist() == [2, 1, 0]
    (tmp_path / "classes.txt").write_text("a\nb\na\n")
    with pytest.raises(InputError, match=r"classes\.txt lists class 'a' more than once"):
        load_dataset("parquet", tmp_path, 16)


@pytest.mark.parametrize("rows_together", [100, 4000])
def test_a_parquet_file_is_not_held_in_memory(tmp_path: Path, rows_together: int) -> None:
    """Neither the whole file nor a whole large row group is read at once."""
    noise = np.random.default_rng(0).bytes(2**20)
    images = [noise[k : k + 5_000] for k in range(4000)]
    path = tmp_path / "x.parquet"
    table = pa.table({"image": images, "label": [0] * 4000})
    write_table(table, path, rows_together, compression="none", use_dictionary=False, write_batch_size=64)
    del table
    held = [pa.total_allocated_bytes()]
    for content, want in zip(list_parquet(path).contents(), images, strict=True):
        assert content == want
        held.append(pa.total_allocated_bytes())
    assert max(held) - held[0] < path.stat().st_size / 5


def test_invalid_parquet_files_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"

    def problem() -> str:
        with pytest.raises(InputError) as error:
            load_dataset("parquet", path, 16)
        return str(error.value)

    assert "There is no file or folder" in problem()
    path.write_bytes(b"PAR1 cut off")
    assert "is not a complete Parquet file" in problem()
    write_table(pa.table({"picture": [b""], "label": [0]}), path)
    assert "no column 'image' (its columns: picture, label): rename" in problem()
    write_table(pa.table({"image": [b""], "class": [0]}), path)
    assert "no column 'label'" in problem()
    write_table(pa.table({"image": ["a.png"], "label": [0]}), path)
    assert "Column 'image' of" in problem()
    parquet(path, [0, None, 1])
    assert "no label in row 2" in problem()
    write_table(pa.table({"image": pa.array([], pa.binary()), "label": pa.array([], pa.int64())}), path)
    assert "lists no images" in problem()
    parquet(path, [0, 1], split=["train", "exam"])
    assert "has a split 'exam': use the names train, test and validation" in problem()
    parquet(path, [0, 1], split=["train", "train"])
    assert "has only the split train" in problem()
    parquet(path, [0, 1], split=["train", None])
    assert "row 2 has no split" in problem()
    parquet(path, [0, 5, 0, 5])
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    assert "has label '5' in row 2, which is neither the name nor the number of one of the 2" in problem()
    parquet(path, [0, 0, 0, 0])
    assert "Class 'dog' in" in problem()
    assert "has no images" in problem()


def test_unreadable_images_in_a_parquet_file_are_named_by_their_rows(tmp_path: Path) -> None:
    whole = encoded(1, (300, 200), "jpeg")
    images = [{"bytes": content, "path": "x.jpg"} for content in (whole, b"", whole[:700], whole)]
    write_table(pa.table({"image": images, "label": [0, 0, 1, 1]}), tmp_path / "x.parquet")
    with pytest.raises(InputError, match=r"2 image\(s\) cannot be read.*x\.parquet row 2 .*row 3 ") as error:
        load_dataset("parquet", tmp_path, 112)
    assert "0x" not in str(error.value)


def test_a_parquet_file_damaged_in_the_middle(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", [0, 1] * 3)
    content = bytearray(path.read_bytes())
    content[4:200] = bytes(196)  # the images of the first rows
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"x\.parquet is not a complete Parquet file .*: download it again"):
        load_dataset("parquet", path, 16)


def csv(root: Path, lines: Sequence[str], name: str = "labels.csv", encoding: str = "utf-8") -> Path:
    (root / name).write_text("\n".join(lines) + "\n", encoding=encoding)
    return root / name


def test_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "meine Bilder").mkdir()
    for k in range(4):
        (tmp_path / "meine Bilder" / f"Käfer {k}.png").write_bytes(encoded(k))
    lines = [
        f"meine Bilder/Käfer {k}.png,{'ab'[k % 2]}{' ' * (k // 2)},{'train' if k < 2 else 'val'}" for k in range(4)
    ]
    path = csv(tmp_path, ["path,label,split", *lines], encoding="utf-8-sig")  # as spreadsheets write it
    for root in (path, tmp_path):
        data = load_dataset("csv", root, 112)
        assert data.train.class_names == ("a", "b")
        assert reds(data) == [[0, 1], [2, 3]]
    csv(tmp_path, ["path,label", *(f"meine Bilder/Käfer {k}.png,{10 - k // 2}" for k in range(4))])
    data = load_dataset("csv", tmp_path, 16)
    assert data.train.class_names == ("9", "10")
    assert data.test.counts().tolist() == [1, 1]


def test_suffixes_in_capitals(tmp_path: Path) -> None:
    Image.new("RGB", (9, 9)).save(tmp_path / "a.png")
    (tmp_path / "LIST.CSV").write_text("path,label\na.png,cat\n")
    for place in (tmp_path / "LIST.CSV", tmp_path):
        assert form_of(place) == "csv"
        assert list_own(place).class_names == ("cat",)
    shutil.copy(tmp_path / "a.png", tmp_path / "x.PARQUET")
    assert form_of(tmp_path / "x.PARQUET") == "parquet"


def test_an_unrelated_table_beside_images_is_ignored(tmp_path: Path) -> None:
    """Notes in a folder of class folders do not make it a CSV data set; a list of the images does."""
    for name in ("cat", "dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "1.png").write_bytes(encoded(1))
    root = tmp_path / "images"
    csv(root, ["camera,lens", "K1,50"], "notes.csv")
    (root / "dump.csv").write_bytes(b"\xff" * 200_000)
    (root / "parts.csv").mkdir()
    (root / "parts.csv" / "1.png").write_bytes(encoded(1))
    assert form_of(root) == "folder"
    assert list_own(root).class_names == ("cat", "dog", "parts.csv")
    shutil.rmtree(root / "parts.csv")
    with pytest.raises(InputError, match="has 0 CSV files with columns path and label"):
        load_dataset("csv", root, 16)
    for header in ("path, label", "path ,label ", '"path", "label"'):
        csv(root, [header, "cat/1.png, tabby", 'dog/1.png, "tabby"'], "list.csv")
        assert form_of(root) == "csv"
        assert list_own(root).class_names == ("tabby",)


def test_a_wrong_header_beside_a_folder_of_images_is_an_error(tmp_path: Path) -> None:
    """The folder is not read as a single class called `images`."""
    (tmp_path / "images").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "images" / "1.png").write_bytes(encoded(1))
    csv(tmp_path, ["filename,class", "images/1.png,cat"], "train.csv")
    assert form_of(tmp_path) == "csv"
    with pytest.raises(InputError, match=r"has no column 'path' \(its first line: filename, class\)"):
        list_own(tmp_path)


def test_invalid_csv_files_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(encoded(1))

    def problem(*lines: str) -> str:
        path = csv(tmp_path, lines)
        with pytest.raises(InputError) as error:
            load_dataset("csv", path, 16)
        return str(error.value)

    assert "no column 'path' (its first line: a.png, cat): the first line must be" in problem("a.png,cat")
    assert "no column 'label'" in problem("path,class", "a.png,cat")
    assert "lists no images" in problem("path,label")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(InputError, match=r"empty\.csv has no column 'path' \(its first line: none\)"):
        list_own(tmp_path / "empty.csv")
    (tmp_path / "empty.csv").unlink()
    assert "has no label in line 3" in problem("path,label", "a.png,cat", "a.png")
    missing = problem("path,label", "a.png,cat", "b.png,cat", "c.png,cat")
    assert "b.png and 1 more files that do not exist: correct the paths" in missing
    assert "b.png, which does not exist" in problem("path,label", "b.png,cat")
    assert "has only the split train" in problem("path,label,split", "a.png,cat,train")
    (tmp_path / "labels.csv").write_bytes(b"path,label\n\xff\xfe\n")
    with pytest.raises(InputError, match="not a CSV file in UTF-8"):
        load_dataset("csv", tmp_path, 16)
    csv(tmp_path, ["path,label"], "other.csv")
    with pytest.raises(InputError, match="has 2 CSV files"):
        load_dataset("csv", tmp_path, 16)


@pytest.mark.parametrize("name", ["parquet", "csv"])
def test_missing_data_is_an_error_with_a_remedy(tmp_path: Path, name: str) -> None:
    for root in (None, tmp_path / "absent", tmp_path):
        problem = SOURCES[name].find(root)
        assert problem is not None
        assert "--data" in problem
