"""Data that would hang, exhaust the memory, read private files, or change the terminal."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from PIL import Image
from torchvision.datasets import ImageFolder

from conftest import small_config
from ffcil.arrivals.trace import steps_of_trace
from ffcil.classifier.classifier import Classifier
from ffcil.cli import main
from ffcil.config.reading import read_yaml
from ffcil.config.resolve import resolve
from ffcil.data import decoding
from ffcil.data.budget import Budget
from ffcil.data.layouts import image_files, list_folder
from ffcil.data.sources import load_dataset
from ffcil.errors import InputError, printable
from ffcil.studies.study import load_study


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))


def image(path: Path, value: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), (value, 0, 0)).save(path)
    return path


def folder(root: Path) -> Path:
    for k in range(4):
        image(root / f"class {k % 2}" / f"{k}.png", k)
    return root


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["ffcil", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


# --- only regular files ---------------------------------------------------------------------------------------------


def test_pipes_sockets_and_devices_are_unreadable_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = folder(tmp_path / "x")
    os.mkfifo(root / "class 0" / "pipe.png")
    (root / "class 0" / "zero.png").symlink_to("/dev/zero")
    monkeypatch.chdir(root / "class 1")  # paths of sockets must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket.png")
        with pytest.raises(
            InputError, match=r"3 image\(s\).*pipe\.png \(it is not a regular file\).*zero\.png.*socket"
        ):
            load_dataset("folder", root, 16)


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_pipe_instead_of_a_table_is_an_error(tmp_path: Path, form: str) -> None:
    os.mkfifo(tmp_path / f"x.{form}")
    with pytest.raises(InputError, match=r"x\.\w+ is not a regular file"):
        load_dataset(form, tmp_path / f"x.{form}", 16)
    if form == "parquet":
        with pytest.raises(InputError, match=r"x\.parquet is not a regular file"):
            load_dataset(form, tmp_path, 16)


def test_a_pipe_instead_of_a_trace_is_an_error(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trace.csv")
    with pytest.raises(InputError, match="is not a regular file"):
        steps_of_trace(tmp_path / "trace.csv", 1)


def test_postscript_is_not_executed(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    Image.new("RGB", (8, 8)).save(root / "class 0" / "script.eps")
    os.rename(root / "class 0" / "script.eps", root / "class 0" / "script.png")
    with pytest.raises(InputError, match=r"script\.png \(its format is unknown\)"):
        load_dataset("folder", root, 16)


# --- folders --------------------------------------------------------------------------------------------------------


def test_folders_are_listed_as_torchvision_lists_them(tmp_path: Path) -> None:
    for name in ("b/1.png", "b/a-b/2.png", "b/a/3.png", "b/a/c/4.png", "a/z.PNG", "a/link/5.png", "c d/x.jpg"):
        image(tmp_path / "x" / name)
    (tmp_path / "x" / "a" / "other").symlink_to(image(tmp_path / "elsewhere" / "6.png").parent)
    want = ImageFolder(str(tmp_path / "x"))
    listing = list_folder(tmp_path / "x")
    assert listing.names == [path for path, _ in want.samples]
    assert listing.labels.tolist() == want.targets
    assert list(listing.class_names) == want.classes


def test_a_link_to_a_folder_above_is_not_followed(tmp_path: Path) -> None:
    root = folder(tmp_path / "x")
    (root / "class 0" / "up").symlink_to(root)
    (root / "class 1" / "here").symlink_to(root / "class 1")
    (root / "class 1" / "top").symlink_to(tmp_path)
    listing = list_folder(root)
    assert sorted(Path(name).name for name in listing.names) == ["0.png", "1.png", "2.png", "3.png"]
    assert len(image_files([root])) == 4
    (root / "all").symlink_to(root)
    with pytest.raises(InputError, match=r"Class 'all' in .* has no images"):
        list_folder(root)


# --- memory ---------------------------------------------------------------------------------------------------------


def test_a_budget_limits_the_sum_of_all_threads() -> None:
    budget, most = Budget(100), 0

    def take(amount: int) -> None:
        nonlocal most
        with budget.take(amount):
            most = max(most, budget.used)
            time.sleep(0.001)

    threads = [threading.Thread(target=take, args=(amount,)) for amount in [30, 70, 1, 99, 50] * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert 50 < most <= 100
    assert budget.used == 0
    with budget.take(1000):  # alone
        assert budget.used == 1000


def test_images_are_decoded_within_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget, seen = Budget(150), []
    monkeypatch.setattr(decoding, "IN_FLIGHT", budget)
    monkeypatch.setattr(
        decoding, "scaled", lambda image, size: (seen.append(budget.used), image.resize((size, size)))[1]
    )
    for k in range(20):
        image(tmp_path / "x" / "class" / f"{k}.png", k)
    load_dataset("folder", tmp_path / "x", 16)
    assert len(seen) == 20
    assert set(seen) <= {64, 128}  # one or two images of 8 x 8 pixels


_PEAK = """
import resource, sys
from ffcil.data.sources import load_dataset
load_dataset("folder", sys.argv[1], 64)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.faults
def test_large_images_from_small_files_do_not_exhaust_the_memory(tmp_path: Path) -> None:
    (tmp_path / "class").mkdir()
    large = Image.new("RGB", (13_000, 13_000))
    large.save(tmp_path / "class" / "0.png")
    for k in range(1, 6):
        os.link(tmp_path / "class" / "0.png", tmp_path / "class" / f"{k}.png")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PEAK, tmp_path], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 2000  # MiB; one of the images takes 650


# --- YAML -----------------------------------------------------------------------------------------------------------


def test_aliases_that_repeat_too_much_are_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 10)]
    file = tmp_path / "laughs.yaml"
    file.write_text("\n".join(lines))
    for read in (resolve, load_study):
        with pytest.raises(InputError, match=r"is not YAML: its aliases repeat more than 100,000 values"):
            read(str(file))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [*a]", "is part of the value"),
        ("a: " + "[" * 100_000, "nested more than 100 levels"),
        ("*b", "undefined"),
    ],
)
def test_yaml_without_an_end_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"Recipe is not YAML: .*{reason}"):
        read_yaml("Recipe", text)


def test_moderate_aliases_are_read() -> None:
    text = "shared: &s {x: [1, 2], y: &y 3}\nlist: [*s, *s, *y]\nother: {<<: *s, z: 4}"
    assert read_yaml("Recipe", text) == yaml.safe_load(text)


# --- files outside --------------------------------------------------------------------------------------------------


def write_table(form: str, file: Path, paths: list[str]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if form == "csv":
        lines = [f"{path},{k % 2},{('train', 'test')[k // 2]}" for k, path in enumerate(paths)]
        file.write_text("\n".join(["path,label,split", *lines]))
    else:
        images = pa.array([{"bytes": None, "path": path} for path in paths])
        splits = [("train", "test")[k // 2] for k in range(len(paths))]
        pq.write_table(pa.table({"image": images, "label": [0, 1, 0, 1], "split": splits}), file)
    return file


@pytest.mark.parametrize("form", ["csv", "parquet"])
@pytest.mark.parametrize("absolute", [True, False])
def test_a_table_reads_files_outside_its_folder_only_if_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, absolute: bool
) -> None:
    private = image(tmp_path / "private" / "secret.png")
    inside = [str(image(tmp_path / "x" / f"{k}.png", k).relative_to(tmp_path / "x")) for k in range(3)]
    table = write_table(
        form, tmp_path / "x" / f"t.{form}", [*inside, str(private) if absolute else "../private/secret.png"]
    )
    with pytest.raises(
        InputError, match=r"1 image\(s\) are not in the folder of their table, such as .*secret\.png"
    ) as found:
        load_dataset(form, table, 16)
    assert f"`ffcil data prepare {form} --data {table} --image-size 16 --allow-outside`" in str(found.value)
    assert command(monkeypatch, "data", "check", table, "--image-size", 16) == 2
    assert command(monkeypatch, "data", "prepare", form, "--data", table, "--image-size", 16, "--allow-outside") == 0
    assert len(load_dataset(form, table, 16).test) == 2  # from the store
    assert command(monkeypatch, "data", "check", table, "--image-size", 16, "--allow-outside") == 0
    classifier = Classifier(small_config(dataset="folder", image_size=16, backbone="resnet8"), "cpu")
    os.utime(private)  # another store
    with pytest.raises(InputError, match=r"if you trust the table, add --allow-outside\.$"):
        classifier.read(table)
    assert len(classifier.read(table, allow_outside=True)) == 2


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_a_path_that_stays_inside_is_read(tmp_path: Path, form: str) -> None:
    for k in range(4):
        image(tmp_path / "x" / f"{k}.png", k)
    paths = ["0.png", "./1.png", "sub/../2.png", str(tmp_path / "x" / "3.png")]
    (tmp_path / "x" / "sub").mkdir()
    assert len(load_dataset(form, write_table(form, tmp_path / "x" / f"t.{form}", paths), 16).train) == 2


# --- the terminal ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\rb\x07\x9b", r"a\rb\x07\x9b"),
        ("a\u202eb", r"a\u202eb"),
        ("\udcff", r"\udcff"),
        ("Käfer 猫 👩\u200d🔬\n\tmi\u200cx", "Käfer 猫 👩\u200d🔬\n\tmi\u200cx"),
    ],
)
def test_control_characters_are_shown_escaped(text: str, want: str) -> None:
    assert printable(text) == want


def test_class_names_have_no_effect_on_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    image(tmp_path / "x" / "a\x1b[31m" / "1.png")
    image(tmp_path / "x" / "b" / "1.png")
    assert command(monkeypatch, "data", "show", "x", "--image-size", 16) == 0
    assert command(monkeypatch, "data", "show", "x", "--image-size", 16, "--class", "\x1b[2J") == 2
    (tmp_path / "x" / "a\x1b[31m" / "1.png").unlink()
    assert command(monkeypatch, "data", "show", "x") == 2
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    assert r"a\x1b[31m" in printed.out
    assert r"a\x1b" in printed.err
