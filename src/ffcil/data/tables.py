"""Data sets in tables: Parquet files that contain the images, and CSV files that list them."""

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ffcil.data.own_images import TEST_NAMES, Listing, check_classes, file_key, parts_of, readable, stratified
from ffcil.errors import InputError

HOW_PARQUET = "give with --data a Parquet file or a folder of them, with columns image, label and, optionally, split"
HOW_CSV = "give with --data a CSV file with columns path, label and, optionally, split"
_CLASSES = "classes.txt"
_AT_ONCE = 64  # rows of a Parquet file in memory at a time
_FIRST_LINE = 2**16  # largest number of characters of a header
_BUFFER = 2**20  # bytes of a Parquet file read at a time; the default is a whole row group


def parquet_files(root: Path | None) -> list[Path]:
    """The files of a data set, sorted by name."""
    if root is None:
        raise InputError(f"Data set 'parquet' needs files: {HOW_PARQUET}.")
    files = sorted(root.rglob("*.parquet")) if root.is_dir() else [root]
    if not files or not root.exists():
        what = "no Parquet file in" if root.is_dir() else "no file or folder"
        raise InputError(f"There is {what} {root}: {HOW_PARQUET}.")
    for file in files:
        check_regular(file)
    return files


def check_regular(file: Path) -> None:
    """Raise an error for a pipe or a device, whose content may never come or never end."""
    if not file.is_file():
        raise InputError(f"{file} is not a regular file: replace it by one, or remove it.")


def list_parquet(root: Path | None, partial: bool = False) -> Listing:
    """List the images of one Parquet file or a folder of them, in the format of Hugging Face image data sets.

    With `partial`, a single split is sufficient."""
    files = parquet_files(root)
    assert root is not None
    tables = [_columns(path) for path in files]
    if len({table.schema.field("label").type for table in tables}) > 1:
        raise InputError(f"The files in {root} have labels of different types: give all of them the same type.")
    values = [value for table in tables for value in table.column("label").to_pylist()]
    folder = root if root.is_dir() else root.parent
    labels, class_names = _labels(values, _class_names(folder, tables[0].schema.metadata), root)
    splits = _all_splits(files, tables, root)
    parts = stratified(labels, len(class_names)) if splits is None else parts_of(splits, root, partial)
    named = [image for path in files for image in _named_images(path)]
    names = [f"{path} row {row + 1}" for path, table in zip(files, tables, strict=True) for row in range(len(table))]
    return Listing(
        names,
        labels,
        parts,
        class_names,
        contents=lambda: _parquet_contents(files),
        content_key=file_key([*files, *named]),
        random_split=splits is None,
        outside=outside(named, folder),
    )


def outside(paths: Iterable[Path], folder: Path) -> list[str]:
    """Paths that are absolute, or lead through `..` out of the folder of a table."""
    top = os.path.join(os.path.abspath(folder), "")
    return [readable(path) for path in paths if not os.path.abspath(path).startswith(top)]


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a Parquet file; errors in opening or reading it are reported."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path, buffer_size=_BUFFER, pre_buffer=False) as file:
            yield file
    except (pa.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise InputError(f"{path} is not a complete Parquet file ({reason}): download it again.") from error


def _columns(path: Path) -> Any:
    """Read labels and splits as a table of pyarrow, and check the schema of the file."""
    with _opened(path) as file:
        schema = file.schema_arrow
        table = file.read(columns=[name for name in ("label", "split") if name in schema.names])
    for needed in ("image", "label"):
        if needed not in schema.names:
            raise InputError(f"{path} has no column {needed!r} (its columns: {', '.join(schema.names)}): rename one.")
    if not _holds_bytes(kind := schema.field("image").type):
        raise InputError(f"Column 'image' of {path} is {kind}: it must contain encoded images, or bytes and path.")
    return table.replace_schema_metadata(schema.metadata)


def _holds_bytes(kind: Any) -> bool:
    """Whether a column of images contains bytes."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return bool(kind.get_field_index("bytes") >= 0)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _parquet_contents(files: Sequence[Path]) -> Iterator[Path | bytes]:
    """Encoded images, read a few rows at a time."""
    for path in files:
        with _opened(path) as file:
            for batch in file.iter_batches(_AT_ONCE, columns=["image"]):
                for value in batch.column("image").to_pylist():
                    yield _content(value, path.parent)


def _content(value: Any, folder: Path) -> Path | bytes:
    """The bytes, or else the file of the path, or else empty bytes, which are not a readable image."""
    if isinstance(value, dict):
        named = value.get("path")
        value = folder / named if value["bytes"] is None and named else value["bytes"]
    return b"" if value is None else value


def _named_images(path: Path) -> Iterator[Path]:
    """Image files that a Parquet file refers to because it does not contain their bytes."""
    import pyarrow as pa

    with _opened(path) as file:
        kind = file.schema_arrow.field("image").type
        if not pa.types.is_struct(kind) or kind.get_field_index("path") < 0:
            return
        for group in range(file.num_row_groups):
            if _may_lack_bytes(file.metadata.row_group(group)):
                for value in file.read_row_group(group, ["image.path"]).column("image").to_pylist():
                    if value and value["path"]:
                        yield path.parent / value["path"]


def _may_lack_bytes(group: Any) -> bool:
    columns = (group.column(k) for k in range(group.num_columns))
    counts = next(column.statistics for column in columns if column.path_in_schema == "image.bytes")
    return counts is None or not counts.has_null_count or counts.null_count > 0


def _all_splits(files: Sequence[Path], tables: Sequence[Any], root: Path) -> list[str] | None:
    """Splits of all rows of all files; None if no file has splits."""
    splits = [_splits(path, table, root) for path, table in zip(files, tables, strict=True)]
    if all(each is None for each in splits):
        return None
    if None in splits:
        raise InputError(
            f"{files[splits.index(None)]} has no split, but other files in {root} have one: add a column split, rename "
            "it to e.g. train-0.parquet, move it into train/ or test/, or remove it."
        )
    return [split for each in splits if each for split in each]


def _splits(path: Path, table: Any, root: Path) -> list[str] | None:
    """Splits of all rows: from the column, or else from the name of the file (train-00000-of-00002) or its folder."""
    if "split" in table.column_names:
        splits: list[str | None] = table.column("split").to_pylist()
        if None in splits:
            raise InputError(f"{path} row {splits.index(None) + 1} has no split: fill it in, or drop the column.")
        return [str(split) for split in splits]
    folders = path.relative_to(root).parts[:-1] if root.is_dir() else ()
    names = (re.split(r"[-_.]", path.stem)[0], *reversed(folders))
    name = next((name for name in names if name in ("train", *TEST_NAMES)), None)
    return None if name is None else [name] * len(table)


def _class_names(folder: Path, metadata: dict[bytes, bytes] | None) -> tuple[str, ...] | None:
    """Class names from classes.txt beside the file, or else from the metadata of Hugging Face."""
    if names := listed_classes(folder):
        return names
    try:
        features = json.loads((metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features["label"]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def csv_file(root: Path | None) -> Path:
    if root is None:
        raise InputError(f"Data set 'csv' needs a file: {HOW_CSV}.")
    if not root.exists():
        raise InputError(f"There is no file {root}: {HOW_CSV}.")
    if not root.is_dir():
        check_regular(root)
    files = csv_files(root) if root.is_dir() else [root]
    if len(files) != 1:
        raise InputError(f"{root} has {len(files)} CSV files with columns path and label: give one with --data.")
    return files[0]


def csv_files(folder: Path) -> list[Path]:
    """CSV files of a folder that list images. If none has the right header, all are returned, so that the wrong header
    is reported, unless there are class folders beside them."""
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() == ".csv" and file.is_file())
    listing = [file for file in files if {"path", "label"} <= set(_header(file))]
    folders = sum(child.is_dir() and not child.name.startswith(".") for child in folder.iterdir())
    return listing if listing or folders > 1 else files


def _header(file: Path) -> list[str]:
    """First line of a table."""
    with file.open(encoding="utf-8-sig", errors="replace", newline="") as lines:
        return [name.strip() for name in next(csv.reader([lines.readline(_FIRST_LINE)], skipinitialspace=True), [])]


def list_csv(root: Path | None, partial: bool = False) -> Listing:
    """List the images of a CSV file; paths are relative to it. With `partial`, a single split is sufficient."""
    file = csv_file(root)
    rows = _csv_rows(file)
    paths = [file.parent / row["path"] for row in rows]
    if missing := [path for path in paths if not path.exists()]:
        more = f" and {len(missing) - 1} more files that do" if len(missing) > 1 else ", which does"
        raise InputError(f"{file} lists {missing[0]}{more} not exist: correct the paths, or remove the lines.")
    labels, class_names = _labels([row["label"] for row in rows], listed_classes(file.parent), file)
    random_split = not (rows and "split" in rows[0])
    if random_split:
        parts = stratified(labels, len(class_names))
    else:
        parts = parts_of([row["split"] for row in rows], file, partial)
    listing = Listing.of_files(paths, labels, parts, class_names, random_split=random_split)
    return replace(listing, outside=outside(paths, file.parent))


def _csv_rows(file: Path) -> list[dict[str, str]]:
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            reader = csv.DictReader(lines, skipinitialspace=True)
            reader.fieldnames = columns = [name.strip() for name in reader.fieldnames or []]
            rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{file} is not a CSV file in UTF-8 ({error}): save it as one.") from error
    for needed in ("path", "label"):
        if needed not in columns:
            raise InputError(
                f"{file} has no column {needed!r} (its first line: {', '.join(columns) or 'none'}): the first line "
                "must be path,label or path,label,split."
            )
    wanted = [name for name in ("path", "label", "split") if name in columns]
    for number, row in enumerate(rows):
        if lacking := [name for name in wanted if not (row[name] or "").strip()]:
            raise InputError(f"{file} has no {lacking[0]} in line {number + 2}: add it, or remove the line.")
    # a path may end with a blank, so only labels and splits are stripped
    return [{name: row[name] if name == "path" else row[name].strip() for name in wanted} for row in rows]


def listed_classes(folder: Path) -> tuple[str, ...] | None:
    """The classes in classes.txt, one per line; None if there is no such file."""
    path = folder / _CLASSES
    if not path.is_file():
        return None
    names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise InputError(f"{path} lists class {twice[0]!r} more than once: remove the repeated line.")
    return tuple(names)


def _labels(
    values: Sequence[Any], class_names: tuple[str, ...] | None, where: Path
) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Class of every label, int64 [N], and the names of the classes.

    Without class names, the labels are the names. With class names, an integer is the number of a class, from 0, and a
    text is the name of a class or else such a number.
    """
    if not values:
        raise InputError(f"{where} lists no images: add some.")
    if None in values:
        raise InputError(f"{where} has no label in row {values.index(None) + 1}: add it, or remove the row.")
    texts = [str(value) for value in values]
    numeric = all(text.isdecimal() for text in texts)
    numbers = class_names is not None and type(values[0]) is int
    if class_names is None:
        class_names = tuple(sorted(set(texts), key=int if numeric else None))
    position = {name: number for number, name in enumerate(class_names)}
    if numbers or (numeric and not set(texts) <= position.keys()):
        position = {str(number): number for number in range(len(class_names))}
    for row, text in enumerate(texts):
        if text not in position:
            raise InputError(
                f"{where} has label {text!r} in row {row + 1}, which is neither the name nor the number of one of the "
                f"{len(class_names)} listed classes: correct it, or {_CLASSES}."
            )
    labels = np.array([position[text] for text in texts], np.int64)
    check_classes(labels, class_names, where, "remove it from the list of classes")
    return labels, class_names
