"""Stores made of image files: kinds of files, and interrupted preparations."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import socket
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import forked, limited_files, small_config, status_of
from ffcil.data import decoding
from ffcil.data.cache import cache_folder, cached_folder
from ffcil.data.decoding import LONGEST, decode
from ffcil.data.image_set import ImageSet
from ffcil.data.ragged import RaggedImages
from ffcil.data.sources import DataSet, load_dataset
from ffcil.data.store import StoreDraft, open_store, verify_store
from ffcil.errors import InputError
from ffcil.locks import lock
from ffcil.runs.run import Run


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def two_halves(width: int = 80, height: int = 60) -> Image.Image:
    """Red on the left, blue on the right."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[:, : width // 2, 0] = pixels[:, width // 2 :, 2] = 255
    return Image.fromarray(pixels)


def photographs(root: Path, classes: int = 3, images: int = 10) -> Path:
    """Of many sizes; the class is the colour."""
    for c in range(classes):
        folder = root / f"class {c}"
        folder.mkdir(parents=True, exist_ok=True)
        for k in range(images):
            noise = np.random.default_rng(k).integers(0, 60, (100 + 7 * k, 150 - 5 * k, 3), np.uint8)
            noise[..., c % 3] += 150
            Image.fromarray(noise).save(folder / f"{k}.png")
    return root


def only_image(root: Path, size: int = 112) -> torch.Tensor:
    """Of a folder with one image."""
    store = load_dataset("folder", root, size).train.images
    assert isinstance(store, RaggedImages)
    assert len(store) == 1
    return store.image(0)


def saved(root: Path, name: str) -> Path:
    (root / "class").mkdir(parents=True, exist_ok=True)
    return root / "class" / name


# --- what people have -----------------------------------------------------------------------------------------------


def test_the_full_frame_is_kept_with_a_scaled_short_side(tmp_path: Path) -> None:
    photographs(tmp_path / "x", 1, 6)
    data = load_dataset("folder", tmp_path / "x", 112)
    assert data.augmentation.crop is not None
    assert data.augmentation.crop.short_side == 128
    for split in (data.train, data.test):
        assert isinstance(split.images, RaggedImages)
        assert (split.images.sizes.amin(1) == 128).all()
    tall = Image.open(tmp_path / "x" / "class 0" / "5.png")  # 125 wide, 135 high
    want = np.asarray(tall.resize((128, 138), Image.Resampling.BICUBIC))
    assert np.array_equal(decode(tmp_path / "x" / "class 0" / "5.png", 112), want)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # rotated clockwise by 90 degrees for display
    two_halves().save(saved(tmp_path, "sideways.jpg"), exif=exif, quality=95)
    image = only_image(tmp_path)
    assert image.shape == (3, 170, 128)
    assert image[:, 10, 64].tolist() == pytest.approx([254, 0, 0], abs=3)  # the left side is now the top
    assert image[:, 160, 64].tolist() == pytest.approx([0, 0, 254], abs=3)


@pytest.mark.parametrize(
    ("mode", "colour", "name", "want"),
    [
        ("L", 100, "grey.png", (100, 100, 100)),
        ("L", 100, "grey.jpg", (100, 100, 100)),
        ("1", 1, "black and white.png", (255, 255, 255)),
        ("LA", (100, 0), "grey alpha.png", (100, 100, 100)),
        ("RGBA", (10, 20, 30, 128), "alpha.png", (10, 20, 30)),
        ("CMYK", (0, 0, 0, 0), "print.jpg", (255, 255, 255)),
        ("CMYK", (0, 255, 255, 0), "print.jpg", (255, 0, 0)),
        ("I;16", 100 * 256 + 7, "sixteen bits.png", (100, 100, 100)),
        ("I;16", 100 * 256 + 7, "sixteen bits.pgm", (100, 100, 100)),
        ("I", 100 * 256 + 7, "thirty-two bits.tif", (100, 100, 100)),
        ("I", 0, "black.tif", (0, 0, 0)),
        ("F", 100 / 255, "a share of one.tif", (100, 100, 100)),
        ("RGB", (10, 20, 30), "Käfer  Straße 猫.png", (10, 20, 30)),
    ],
)
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str, colour: Any, name: str, want: tuple[int, ...]) -> None:
    Image.new(mode, (150, 140), colour).save(saved(tmp_path, name))
    image = only_image(tmp_path)
    assert image.shape[1] == 128
    assert image.flatten(1).float().mean(1).tolist() == pytest.approx(want, abs=3)


@pytest.mark.parametrize(("mode", "value"), [("I", -1), ("I", 2**16), ("I", 200), ("F", 1.5), ("F", float("nan"))])
def test_pixels_that_are_not_grey_levels_are_an_error(tmp_path: Path, mode: str, value: float) -> None:
    Image.new(mode, (150, 140), value).save(saved(tmp_path, "x.tif"))
    with pytest.raises(InputError, match=r"x\.tif \(its pixels "):
        only_image(tmp_path)


@pytest.mark.filterwarnings("error")
def test_a_palette_with_transparency(tmp_path: Path) -> None:
    image = Image.new("P", (150, 150), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    image.save(saved(tmp_path, "palette.png"), transparency=bytes([255, 0]))
    assert only_image(tmp_path).flatten(1).unique(dim=1).flatten().tolist() == [200, 100, 50]


def test_an_image_of_one_pixel(tmp_path: Path) -> None:
    Image.new("RGB", (1, 1), (9, 8, 7)).save(saved(tmp_path, "dot.png"))
    image = only_image(tmp_path)
    assert image.shape == (3, 128, 128)
    assert image.flatten(1).unique(dim=1).flatten().tolist() == [9, 8, 7]


def test_all_unreadable_files_are_named_and_nothing_is_stored(tmp_path: Path, cache: Path) -> None:
    root = photographs(tmp_path / "x", 2, 6)
    (root / "class 0" / "zero bytes.jpg").write_bytes(b"")
    two_halves(400, 300).save(root / "class 1" / "whole.jpg")
    content = (root / "class 1" / "whole.jpg").read_bytes()
    (root / "class 1" / "cut off.jpg").write_bytes(content[: len(content) // 2])
    (root / "class 1" / "text.jpg").write_text("no image")
    Image.new("RGB", (LONGEST * 10 + 1, 10)).save(root / "class 1" / "thread.png")
    named = r"4 image\(s\) cannot be read.*zero bytes\.jpg.*cut off\.jpg.*text\.jpg.*thread\.png.*times its short side"
    with pytest.raises(InputError, match=named) as error:
        load_dataset("folder", root, 112)
    assert "BytesIO" not in str(error.value)
    assert not [path for path in cache.iterdir() if path.is_dir()]
    for name in ("class 0/zero bytes.jpg", "class 1/cut off.jpg", "class 1/text.jpg", "class 1/thread.png"):
        (root / name).unlink()
    assert len(load_dataset("folder", root, 112).train) == 11


def test_very_many_unreadable_images_are_counted(tmp_path: Path) -> None:
    for k in range(30):
        saved(tmp_path, f"{k:02d}.png").write_bytes(b"")
    with pytest.raises(InputError, match=r"30 image\(s\).*19\.png \([^;]*; and 10 more\.$"):
        load_dataset("folder", tmp_path, 112)


# --- the cache ------------------------------------------------------------------------------------------------------


def test_images_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = photographs(tmp_path / "x", 2, 4)
    first = load_dataset("folder", root, 96)
    monkeypatch.setattr("ffcil.data.decoding.decode", None)
    monkeypatch.chdir(tmp_path)
    again = load_dataset("folder", "x", 96)  # a relative path to the same folder
    assert torch.equal(pixels(first), pixels(again))
    with pytest.raises(InputError, match="8 image"):  # another size, or a changed file, is decoded again
        load_dataset("folder", root, 104)
    os.utime(root / "class 0" / "0.png", ns=(1, 1))
    with pytest.raises(InputError, match="8 image"):
        load_dataset("folder", root, 96)


def pixels(data: DataSet) -> torch.Tensor:
    assert isinstance(data.train.images, RaggedImages)
    return data.train.images.pixels


def preparing(root: Path) -> int:
    """Prepare images in another process. Returns its id."""
    return forked(lambda: load_dataset("folder", root, 224))


def many_photographs(root: Path) -> Path:
    two_halves(1500, 1000).save(saved(root, "0.png"))
    for k in range(1, 50):
        shutil.copy(root / "class" / "0.png", root / "class" / f"{k}.png")
    return root


def test_a_killed_preparation_is_resumed(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "x"
    for k in range(500):
        two_halves(150 + k % 7, 140).save(saved(root, f"{k:03d}.png"))
    process = preparing(root)
    while not any(path.stat().st_size for path in cache.glob(".images-*/journal.jsonl")):
        assert os.waitpid(process, os.WNOHANG) == (0, 0)  # it is running
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    assert status_of(process) == -signal.SIGKILL
    assert not list(cache.glob("images-*"))
    decodings = []
    monkeypatch.setattr(decoding, "decode", lambda *image: decodings.append(image) or decode(*image))
    resumed = load_dataset("folder", root, 224).train
    assert len(resumed) == 400
    assert 0 < len(decodings) <= 500 - 256
    assert len(list(cache.iterdir())) == 1
    monkeypatch.setenv("FFCIL_CACHE", str(tmp_path / "other"))
    undisturbed = load_dataset("folder", root, 224).train
    assert torch.equal(resumed.images.pixels, undisturbed.images.pixels)  # type: ignore[union-attr]
    assert torch.equal(resumed.images.sizes, undisturbed.images.sizes)  # type: ignore[union-attr]
    stores = [next(folder.glob("images-*/store.json")).read_bytes() for folder in (cache, tmp_path / "other")]
    assert stores[0] == stores[1]


def fill(folder: Path, images: int, finish: bool) -> None:
    """Add images of any size; every tenth is unreadable."""
    folder.mkdir(exist_ok=True)
    with closing(StoreDraft(folder)) as draft:
        for k in range(len(draft), images):
            if k % 10 == 3:
                draft.leave_out(f"image {k}", "it is cut off")
            else:
                height, width = 2 + k % 3, 3 + k % 5
                draft.add(k % 2, np.full((height, width, 3), k % 256, np.uint8), height, width)
        if finish:
            draft.finish()


@pytest.mark.parametrize("accident", ["none", "torn journal", "lost pixels"])
def test_a_draft_continues_after_its_last_complete_entry(tmp_path: Path, accident: str) -> None:
    fill(tmp_path / "whole", 600, finish=True)
    fill(tmp_path / "draft", 550, finish=False)
    if accident == "torn journal":
        with (tmp_path / "draft" / "journal.jsonl").open("a") as file:
            file.write("[[0, 2, 3], [1, ")
    elif accident == "lost pixels":
        with (tmp_path / "draft" / "1.pixels").open("r+b") as file:
            file.truncate(100)
    with closing(StoreDraft(tmp_path / "draft")) as draft:
        assert len(draft) == (0 if accident == "lost pixels" else 512)
    fill(tmp_path / "draft", 600, finish=True)
    for path in sorted((tmp_path / "whole").iterdir()):
        assert (tmp_path / "draft" / path.name).read_bytes() == path.read_bytes()
    verify_store(tmp_path / "draft")
    store = open_store(tmp_path / "draft")
    assert [image.position for image in store.left_out] == list(range(3, 600, 10))
    assert [len(sizes) for _, sizes in store.parts] == [300, 240]


def test_two_preparations_at_once_do_not_collide(tmp_path: Path, cache: Path) -> None:
    root = many_photographs(tmp_path / "x")
    first, second = preparing(root), preparing(root)
    assert (status_of(first), status_of(second)) == (0, 0)
    assert len(list(cache.iterdir())) == 1


def test_a_draft_of_a_killed_process_is_continued(cache: Path) -> None:
    (cache / ".key").mkdir(parents=True)
    (cache / ".key" / "half").write_bytes(b"x")
    folder = cached_folder("key", lambda draft: (draft / "half").rename(draft / "whole"))
    assert [path.name for path in cache.iterdir()] == ["key"]
    assert (folder / "whole").exists()


def test_ctrl_c_keeps_the_draft(cache: Path) -> None:
    def stopped(draft: Path) -> None:
        (draft / "half").touch()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cached_folder("key", stopped)
    assert [path.name for path in cache.iterdir() if path.is_dir()] == [".key"]
    assert (cached_folder("key", lambda draft: None) / "half").exists()


def test_a_full_disk_is_reported_with_its_place(cache: Path) -> None:
    def write(draft: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # like the error of a write, without a file name

    with pytest.raises(
        InputError, match=rf"{cache / 'key'} could not be written \(No space left on device\): free some space"
    ):
        cached_folder("key", write)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_limit_on_the_size_of_files_is_reported(cache: Path) -> None:
    def write(draft: Path) -> None:
        with limited_files(1000):
            (draft / "large").write_bytes(bytes(2000))

    with pytest.raises(
        InputError, match=r"key could not be written \(File too large\): raise the limit .* `ulimit -f`"
    ):
        cached_folder("key", write)


def test_everything_is_on_the_disk_before_the_folder_has_its_name(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []

    def name(handle: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{handle}")).name

    monkeypatch.setattr(os, "fsync", lambda handle: events.append(name(handle)))
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: (events.append(f"-> {to.name}"), rename(path, to))[1])

    def write(draft: Path) -> None:
        (draft / "part").mkdir()
        (draft / "part" / "b").touch()
        (draft / "a").touch()

    cached_folder("key", write)
    assert sorted(events[:4]) == [".key", "a", "b", "part"]
    assert events[4:] == ["-> key", cache.name]


def test_a_second_preparation_says_what_it_waits_for(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ffcil.locks._SILENT", 0.05)
    cache.mkdir()
    with lock(cache / ".key.lock"):
        waiting = threading.Thread(target=cached_folder, args=("key", lambda draft: None))
        waiting.start()
        for _ in range(500):
            time.sleep(0.01)
            if "waiting" in (said := capsys.readouterr().err):
                break
        assert said.startswith(f"ffcil: waiting for process {os.getpid()} on {socket.gethostname()}, since 20")
        assert said.endswith(f", which prepares {cache / 'key'}\n")
        assert waiting.is_alive()
    waiting.join(10)
    assert [path.name for path in cache.iterdir()] == ["key"]


def test_an_empty_cache_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FFCIL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == Path.home() / ".cache" / "ffcil"


def test_a_draft_is_kept_if_folders_cannot_be_locked(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(handle: int, operation: int) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr("fcntl.flock", no_locks)
    (cache / ".key").mkdir(parents=True)
    (cache / ".key" / "theirs").touch()
    folder = cached_folder("key", lambda draft: (draft / "a").touch())
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert (cache / ".key" / "theirs").exists()


# --- a run ----------------------------------------------------------------------------------------------------------


def run(root: Path, folder: Path, **overrides: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "dataset": "folder",
        "image_size": 96,
        "backbone": "resnet8",
        "arrivals": {"sizes": [2, 1]},
        "memory": {"budget": 6},
        "train": {"batch": 8, "first": {"epochs": 4, "learning_rate": 0.05}},
    }
    config = small_config(**{**fields, **overrides})
    return Run(config, folder, data=root, device="cpu", threads=1).execute()


@pytest.mark.parametrize("method", ["icarl", "der", "ewc"])
def test_a_run_over_photographs(tmp_path: Path, method: str) -> None:
    summary = run(photographs(tmp_path / "x"), tmp_path / "run", method=method)
    assert summary["sizes"] == [2, 1]
    assert 0 <= summary["average"] <= 100


def test_a_run_notices_other_photographs(tmp_path: Path) -> None:
    root = photographs(tmp_path / "x")
    first = run(root, tmp_path / "run")
    (tmp_path / "run" / "done").unlink()
    assert run(root, tmp_path / "run")["average"] == first["average"]  # resumed at its end
    (tmp_path / "run" / "done").unlink()
    for path in root.rglob("*.png"):
        Image.open(path).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)
    with pytest.raises(InputError, match="was started with other images"):
        run(root, tmp_path / "run")


@pytest.mark.parametrize("augment", ["auto", "none"])
def test_augmentations_of_photographs(tmp_path: Path, augment: str) -> None:
    train = {"batch": 8, "augment": augment, "first": {"epochs": 1}, "later": {"epochs": 1}}
    root = photographs(tmp_path / "x", 2, 4)
    assert run(root, tmp_path / "run", arrivals={"sizes": [2]}, train=train)["average"] >= 0


# --- digests of the images ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [112, 32])
def test_digests_are_computed_once_and_kept_with_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    photographs(tmp_path / "x", 2, 5)

    def load() -> ImageSet:
        return load_dataset("folder", tmp_path / "x", size).train

    train, plain = load(), []
    for row in range(len(train)):
        image = train.images.image(row) if isinstance(train.images, RaggedImages) else train.images[row]
        content = str(tuple(image.shape)).encode() + bytes(image.flatten().tolist())
        plain.append(int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little", signed=True))
    rows = torch.tensor([3, 0, 3])
    assert train.digests(rows).tolist() == [plain[row] for row in rows]
    assert train.subset(rows).digests(torch.tensor([1])).tolist() == [plain[0]]
    assert train.followed_by(train).digests(torch.tensor([len(train)])).tolist() == [plain[0]]

    with monkeypatch.context() as patch:
        patch.setattr(ImageSet, "_computed_digests", None)
        assert load().digests(rows).tolist() == [plain[row] for row in rows]
    file = load().digest_file
    assert file is not None
    whole = file.read_bytes()
    for damaged in (whole[:-4], b"", whole[:-20] + bytes([whole[-20] ^ 1]) + whole[-19:]):
        file.write_bytes(damaged)
        assert load().digests(torch.arange(len(plain))).tolist() == plain
