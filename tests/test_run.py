"""Runs: files of a folder, and interrupted runs that end like uninterrupted ones."""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from conftest import SHORT, OnEpoch, coloured_images, limited_files, small_config, write_colours
from ffcil.config.settings import RunConfig
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import own_augmentation
from ffcil.data.sources import DataSet
from ffcil.errors import BusyError, InputError
from ffcil.methods import METHODS, Learner
from ffcil.report import load_run
from ffcil.runs.counts import unpack_counts
from ffcil.runs.folder import is_busy, locked
from ffcil.runs.run import Run
from ffcil.stream import Increment
from ffcil.training.progress import FitProgress, Listener

TIMING = ("seconds", "images_per_second")


def config(**overrides: Any) -> RunConfig:
    fields = {
        "dataset": "folder",
        "image_size": 16,
        "arrivals": {"sizes": [1, 3, 2]},
        "memory": {"budget": 18},
        "checkpoint_seconds": 0,
        "class_seed": 3,
    }
    return small_config(**{**fields, **overrides})


def records(folder: Path) -> list[dict[str, Any]]:
    """Records of a run without times."""
    lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key not in TIMING} for line in lines]


def counts(folder: Path) -> dict[str, Any]:
    return {
        f"{path.stem}/{name}": array.tolist()
        for path in sorted((folder / "counts").glob("*.npz"))
        for name, array in np.load(path).items()
    }


class Bomb(Listener):
    """Interrupts a run after a number of epochs or records."""

    def __init__(self, epochs: int = 0, steps: int = 0) -> None:
        self.epochs, self.steps = epochs, steps

    def epoch_done(self, progress: FitProgress) -> None:
        self.epochs -= 1
        if self.epochs == 0:
            raise KeyboardInterrupt

    def step_done(self, record: Mapping[str, Any]) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    Run(config(), folder, data=colours, device="cpu", threads=1).execute()
    return folder


def test_a_summary_takes_records_with_and_without_start_up(
    tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may have begun on a CPU, or with a version that did not record the start-up of a GPU."""
    seconds = {1: {"train": 4.0, "memory": 1.0}, 2: {"train": 3.0, "start_up": 5.0, "memory": 1.0}}
    learn = Learner.learn

    def timed(self: Learner, increment: Increment, *args: Any) -> dict[str, Any]:
        notes = learn(self, increment, *args)
        return notes | {"seconds": dict(seconds[min(increment.step, 2)]), "images_per_second": 100.0 * increment.step}

    monkeypatch.setattr(Learner, "learn", timed)
    summary = Run(config(), tmp_path / "run", data=colours, device="cpu", threads=1).execute()
    by_phase = summary["seconds_by_phase"]
    assert {phase: by_phase[phase] for phase in ("train", "start_up", "memory")} == {
        "train": 10.0, "start_up": 10.0, "memory": 3.0
    }  # fmt: skip
    assert summary["seconds"] == pytest.approx(23.0 + by_phase["evaluate"])
    assert summary["images_per_second"] == pytest.approx((100 * 4 + 200 * 8 + 300 * 8) / 20)
    assert load_run(tmp_path / "run").seconds("start_up") == 10.0


def test_files_of_a_folder(whole: Path, colours: Path) -> None:
    names = {path.name for path in whole.iterdir()} - {".lock"}
    files = {f"{name}.json" for name in ("config", "arrivals", "data", "method", "environment", "summary")}
    assert names == files | {"records.jsonl", "counts", "checkpoints", "done"}
    lines = [json.loads(line) for line in (whole / "records.jsonl").read_text().splitlines()]
    assert [(r["step"], r["new_classes"], r["seen_classes"]) for r in lines] == [(1, 1, 1), (2, 3, 4), (3, 2, 6)]
    assert [len(r["new_labels"]) for r in lines] == [1, 3, 2]
    for record in lines:
        assert list(record["accuracy"]) == ["linear", "nearest-mean"]
        assert set(record["seconds"]) == {"train", "memory", "evaluate"}
        assert record["images_per_second"] > 0
    assert lines[0]["old_accuracy"]["linear"] is None
    assert json.loads((whole / "environment.json").read_text())["data"] == colours.name
    saved = json.loads((whole / "config.json").read_text())
    assert saved.pop("options") == {"temperature": 2.0, "distillation_weight": 1.0}  # the method's own are filled in
    assert saved.pop("normalise") == "published"  # the default for methods that train from scratch
    assert saved == config().model_dump(mode="json", exclude={"options", "normalise"})


def test_data_is_named_after_its_folder(tmp_path: Path, colours: Path) -> None:
    named = shutil.copytree(colours, tmp_path / "birds.v2")
    Run(config(), tmp_path / "run", data=named, device="cpu", threads=1).execute()
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["data"] == "birds.v2"


def test_every_pass_over_images_is_reported(tmp_path: Path, colours: Path) -> None:
    """Training batches, the last one filled up; then the passes over images for class means and for testing."""

    class Hears(Listener):
        looks: ClassVar[list[tuple[int, int]]] = []

        def images_done(self, done: int, total: int) -> None:
            self.looks.append((done, total))

    settings = config(method="replay", arrivals={"sizes": [2]}, evaluate_batch=15)
    Run(settings, tmp_path, data=colours, device="cpu", threads=1, listener=Hears()).execute()
    batch, epochs = settings.train.batch, settings.train.first.epochs
    data = json.loads((tmp_path / "data.json").read_text())
    train, test = (sum(data[f"{split}_images"][:2]) for split in ("train", "test"))
    steps = -(-train // batch)
    trained = [(k * batch, steps * batch) for k in range(1, steps + 1)] * epochs
    looks = [(min(k + 15, images), images) for images in (train, test) for k in range(0, images, 15)]
    assert Hears.looks == trained + looks


def test_accuracies_come_from_the_counts(whole: Path) -> None:
    for record in records(whole):
        table = unpack_counts((whole / "counts" / f"step-{record['step']:03d}.npz").read_bytes())["linear"].dense()
        new = record["new_classes"]
        assert record["accuracy"]["linear"] == pytest.approx(100 * np.trace(table) / table.sum())
        assert record["new_accuracy"]["linear"] == pytest.approx(
            100 * np.trace(table[-new:, -new:]) / table[-new:].sum()
        )
    summary = json.loads((whole / "summary.json").read_text())
    curve = [record["accuracy"]["linear"] for record in records(whole)]
    assert summary["classifiers"]["linear"]["curve"] == curve
    assert summary["average"] == pytest.approx(sum(curve) / 3)
    assert summary["last"] == curve[-1]


@pytest.mark.parametrize("bomb", [{"epochs": k} for k in (1, 3, 4, 5, 9)] + [{"steps": k} for k in (1, 2, 3)], ids=str)
def test_a_resumed_run_ends_like_an_uninterrupted_one(
    tmp_path: Path, colours: Path, whole: Path, bomb: dict[str, int]
) -> None:
    with pytest.raises(KeyboardInterrupt):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(**bomb)).execute()
    assert not (tmp_path / "done").exists()
    Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path) == records(whole)
    assert counts(tmp_path) == counts(whole)


@pytest.mark.parametrize("method", sorted(set(METHODS) - {"icarl"}))
def test_every_method_can_be_resumed(tmp_path: Path, colours: Path, method: str) -> None:
    """Interrupted between steps or, if later steps train, in the second (twice) and in the third one."""
    settings = config(method=method, framework="paper", train=SHORT)
    trained: list[int] = []
    listener = OnEpoch(lambda progress: trained.append(progress.epoch))
    Run(settings, tmp_path / "whole", data=colours, device="cpu", threads=1, listener=listener).execute()
    bombs = [{"epochs": 3}, {"epochs": 2}, {"epochs": 3}]
    if len(trained) < 6:  # some steps do not train
        bombs = [{"steps": 1}, {"steps": 1}] if len(trained) <= 2 else bombs[:2]
    for bomb in bombs:
        with pytest.raises(KeyboardInterrupt):
            Run(settings, tmp_path / "part", data=colours, device="cpu", threads=1, listener=Bomb(**bomb)).execute()
    Run(settings, tmp_path / "part", data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path / "part") == records(tmp_path / "whole")
    assert counts(tmp_path / "part") == counts(tmp_path / "whole")


def test_a_step_without_its_checkpoint_is_repeated(tmp_path: Path, colours: Path, whole: Path) -> None:
    """The run was killed between record and checkpoint, in the middle of a line."""
    with pytest.raises(KeyboardInterrupt):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(epochs=6)).execute()
    with (tmp_path / "records.jsonl").open("a") as file:
        file.write('{"step": 2, "new_cla')
    Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path) == records(whole)


def test_removed_checkpoints_are_an_error(tmp_path: Path, colours: Path) -> None:
    """Records without checkpoints are not overwritten by a new run."""
    with pytest.raises(KeyboardInterrupt):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(steps=3)).execute()
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(InputError, match="has records of 3 steps and checkpoints of 0: restore the newest"):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert len(records(tmp_path)) == 3


def test_a_finished_run_does_nothing(whole: Path, colours: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".lock"}
    summary = Run(config(), whole, data=colours / "not looked at", device="cpu", threads=1).execute()
    assert summary["average"] > 0
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*") if path.name != ".lock"} == before
    Run(config(checkpoint_seconds=9), whole, device="cpu").execute()  # It does not affect results.


def test_a_mistake_does_not_claim_the_folder(tmp_path: Path, colours: Path) -> None:
    for wrong in ({"memory": {"budget": 2}}, {"arrivals": {"sizes": [9]}}, {"backbone": "resnet33"}):
        with pytest.raises(InputError):
            Run(config(**wrong), tmp_path / "run", data=colours, device="cpu", threads=1).execute()
    assert not (tmp_path / "run").exists()
    Run(config(arrivals={"sizes": [2]}), tmp_path / "run", data=colours, device="cpu", threads=1).execute()


def test_a_run_is_not_resumed_on_other_images(tmp_path: Path, colours: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        Run(config(), tmp_path / "run", data=colours, device="cpu", threads=1, listener=Bomb(epochs=6)).execute()
    other = write_colours(tmp_path / "other", images=11)
    with pytest.raises(InputError, match="was started with other images"):
        Run(config(), tmp_path / "run", data=other, device="cpu", threads=1).execute()
    with pytest.raises(InputError, match=r"was started with 1 thread\(s\): leave --threads out"):
        Run(config(), tmp_path / "run", data=colours, device="cpu", threads=2).execute()


def test_a_finished_run_does_not_answer_for_other_images(tmp_path: Path) -> None:
    """A data set in memory has a name and no path, so another one may come under the same name."""
    settings = config(arrivals={"sizes": [2]}, dataset="mine", train={"epochs_scale": 0.1})
    first, other = (dataset_of_sets(coloured_images([6] * 2, seed)) for seed in (1, 2))
    Run(settings, tmp_path / "run", data=first, device="cpu", threads=1).execute()
    Run(settings, tmp_path / "run", data=first, device="cpu", threads=1).execute()
    with pytest.raises(InputError, match="was started with other images"):
        Run(settings, tmp_path / "run", data=other, device="cpu", threads=1).execute()


def test_a_finished_run_notices_that_its_folder_has_changed(tmp_path: Path) -> None:
    photos = write_colours(tmp_path / "photos", classes=2, images=6)
    settings = config(arrivals={"sizes": [2]}, train={"epochs_scale": 0.1})

    def repeat() -> dict[str, Any]:
        return Run(settings, tmp_path / "run", data=photos, device="cpu", threads=1).execute()

    done = repeat()
    (photos / "notes.txt").write_text("no image")
    assert repeat() == done
    shutil.copy(photos / "colour 0" / "0000.png", photos / "colour 1" / "9999.png")
    with pytest.raises(InputError, match="was started with other images: restore them, or choose another --out"):
        repeat()
    shutil.rmtree(photos)  # results stay readable without their images
    assert repeat() == done


def dataset_of_sets(images: ImageSet) -> DataSet:
    return DataSet(images, images, own_augmentation(16))


def test_a_run_is_not_resumed_with_a_changed_trace(tmp_path: Path, colours: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("class,time\n" + "".join(f"colour {k},{k}\n" for k in range(6)))
    settings = config(arrivals={"trace": str(trace), "window": 2})
    with pytest.raises(KeyboardInterrupt):
        Run(settings, tmp_path / "run", data=colours, device="cpu", threads=1, listener=Bomb(epochs=6)).execute()
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["new_labels"] == ["colour 0", "colour 1"]
    trace.write_text("class,time\n" + "".join(f"colour {k},{-k}\n" for k in range(6)))
    with pytest.raises(InputError, match="its trace has changed"):
        Run(settings, tmp_path / "run", data=colours, device="cpu", threads=1).execute()


@pytest.mark.parametrize("name", ["config.json", "data.json"])
def test_a_damaged_folder_is_named(tmp_path: Path, colours: Path, name: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(epochs=6)).execute()
    path = tmp_path / name
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InputError, match="is damaged"):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()


def test_drafts_of_a_killed_process_are_removed(tmp_path: Path, colours: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / ".step-0001-epoch-00001.safetensors.draft").write_bytes(b"half")
    Run(config(arrivals={"sizes": [1]}), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert not list(tmp_path.rglob("*.draft"))


def test_names_with_odd_characters(tmp_path: Path) -> None:
    root = write_colours(tmp_path / "data", classes=2)
    (root / "colour 1").rename(root / "line\u2028separator [b]")
    settings = config(arrivals={"sizes": [1, 1]})
    with pytest.raises(KeyboardInterrupt):
        Run(settings, tmp_path / "run", data=root, device="cpu", threads=1, listener=Bomb(epochs=7)).execute()
    Run(settings, tmp_path / "run", data=root, device="cpu", threads=1).execute()
    assert len(load_run(tmp_path / "run").records) == 2


def test_a_run_does_not_mix_its_files_with_others(tmp_path: Path, colours: Path) -> None:
    images = write_colours(tmp_path / "images", classes=2, images=3)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(InputError, match="images contains other files, such as"):
        Run(config(), images, data=colours, device="cpu").execute()
    picture = next(images.rglob("*.png"))
    with pytest.raises(InputError, match="png is a file: choose a folder for the run with --out"):
        Run(config(), picture, data=colours, device="cpu").execute()
    assert sorted(tmp_path.rglob("*")) == before


def test_another_configuration_in_the_same_folder(whole: Path) -> None:
    with pytest.raises(InputError, match=r"another configuration \(it differs in framework, train_seed\)"):
        Run(config(framework="paper", train_seed=4), whole, device="cpu", threads=1).execute()
    with pytest.raises(InputError, match=r"\(it differs in train\.later\.epochs\)"):
        Run(config(train={"later": {"epochs": 99}}), whole, device="cpu", threads=1).execute()


def test_a_run_of_a_version_without_a_field_is_resumed(tmp_path: Path, colours: Path) -> None:
    settings = config(arrivals={"sizes": [1, 1]})
    with pytest.raises(KeyboardInterrupt):
        Run(settings, tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(epochs=3)).execute()
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["normalise"]
    (tmp_path / "config.json").write_text(json.dumps(saved))
    Run(settings, tmp_path, data=colours, device="cpu", threads=1).execute()
    assert json.loads((tmp_path / "config.json").read_text())["normalise"] == "published"


@pytest.mark.parametrize("framework", ["none", "paper"])
def test_a_run_of_the_version_with_robust_is_resumed(tmp_path: Path, colours: Path, framework: str) -> None:
    settings = config(framework=framework, arrivals={"sizes": [1, 1]})
    with pytest.raises(KeyboardInterrupt):
        Run(settings, tmp_path, data=colours, device="cpu", threads=1, listener=Bomb(epochs=3)).execute()
    saved = json.loads((tmp_path / "config.json").read_text())
    del saved["framework"], saved["flow"]
    (tmp_path / "config.json").write_text(json.dumps({**saved, "robust": framework == "paper"}))
    assert load_run(tmp_path).config["framework"] == framework
    for other in {"none", "paper", "flow"} - {framework}:
        with pytest.raises(InputError, match="it differs in framework"):
            Run(config(framework=other, arrivals={"sizes": [1, 1]}), tmp_path, data=colours, device="cpu").execute()
    Run(settings, tmp_path, data=colours, device="cpu", threads=1).execute()
    assert load_run(tmp_path).finished
    assert "robust" not in json.loads((tmp_path / "config.json").read_text())


def test_a_limit_on_the_size_of_files_names_the_file(tmp_path: Path, colours: Path, whole: Path) -> None:
    named = r"checkpoints/step-\d+-epoch-\d+\.safetensors is larger than the system allows: raise the limit .*ulimit -f"
    with limited_files(50_000), pytest.raises(InputError, match=named):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path) == records(whole)


def test_a_full_disk_damages_nothing(
    tmp_path: Path, colours: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, fsync = 0, os.fsync

    def fills_up(descriptor: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 12:
            raise OSError(28, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fills_up)
    with pytest.raises(InputError, match=r"The disk is full .*free some space, then the same command continues"):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    monkeypatch.undo()
    Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path) == records(whole)


def command(folder: Path, data: Path, settings: RunConfig) -> list[str]:
    recipe = folder.parent / f"{folder.name}.json"
    recipe.write_text(settings.model_dump_json())
    arguments = ["run", str(recipe), "--out", str(folder), "--data", str(data), "--device", "cpu", "--threads", "1"]
    return [sys.executable, "-m", "ffcil", *arguments]


def kill_at_random(folder: Path, data: Path, settings: RunConfig, seed: int) -> None:
    """Start the command, kill it at a random moment after its first file, and start it again."""
    process = subprocess.Popen(command(folder, data, settings), stderr=subprocess.DEVNULL)
    while not (folder / "environment.json").exists() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(random.Random(seed).uniform(0, 2.5))
    process.send_signal(signal.SIGKILL)
    process.wait()
    subprocess.run(command(folder, data, settings), check=True, capture_output=True)


def test_a_killed_run_is_resumed(tmp_path: Path, colours: Path, whole: Path) -> None:
    kill_at_random(tmp_path / "run", colours, config(), seed=0)
    assert records(tmp_path / "run") == records(whole)
    assert counts(tmp_path / "run") == counts(whole)


@pytest.mark.faults
def test_a_run_killed_at_twenty_moments_on_glyphs_is_resumed(tmp_path: Path) -> None:
    phase = {"epochs": 3}
    settings = small_config(
        dataset="glyphs",
        arrivals={"sizes": [2, 5, 3, 1]},
        memory={"budget": 100},
        train={"batch": 32, "first": phase, "later": phase},
        checkpoint_seconds=0.3,
    )
    subprocess.run(command(tmp_path / "whole", tmp_path, settings), check=True, capture_output=True)
    for seed in range(20):
        folder = tmp_path / f"killed-{seed}"
        kill_at_random(folder, tmp_path, settings, seed)
        assert records(folder) == records(tmp_path / "whole"), seed
        assert counts(folder) == counts(tmp_path / "whole"), seed


def test_two_processes_do_not_share_a_folder(tmp_path: Path, colours: Path) -> None:
    class Second(Listener):
        def step_done(self, record: Mapping[str, Any]) -> None:
            with pytest.raises(InputError, match="Another process is running"):
                Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()

    Run(config(), tmp_path, data=colours, device="cpu", threads=1, listener=Second()).execute()


def test_checking_for_a_lock_does_not_block_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that checks holds the lock for a moment; a run holds it to its end."""
    with (tmp_path / ".lock").open("w") as asking:
        fcntl.flock(asking, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (asking, fcntl.LOCK_UN)).start()
        monkeypatch.setattr("ffcil.runs.folder.LOCK_SECONDS", 600)
        with locked(tmp_path):
            monkeypatch.undo()
            assert is_busy(tmp_path)
            with pytest.raises(BusyError, match="Another process is running"), locked(tmp_path):
                pass
    assert not is_busy(tmp_path)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "icrl"}, "Unknown method 'icrl': did you mean 'icarl'"),
        ({"memory": {"budget": 5}}, "memory.budget=5 is less than one exemplar for each of 6 classes"),
        ({"arrivals": {"sizes": [5, 5]}}, "10 classes arrive, but the data set has 6"),
        ({"arrivals": {"kind": "equal", "steps": 2, "classes": 9}}, "arrivals.classes is 9, but the data set has 6"),
        ({"backbone": "resnet33"}, "Unknown backbone 'resnet33'"),
    ],
)
def test_wrong_settings_are_named_before_training(
    tmp_path: Path, colours: Path, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        Run(config(**fields), tmp_path / "run", data=colours, device="cpu", threads=1).execute()


@pytest.mark.parametrize(
    ("arrivals", "sizes"),
    [
        ({"kind": "equal", "steps": 4, "classes": None}, [2, 2, 1, 1]),
        ({"kind": "half", "steps": 4, "classes": None}, [3, 1, 1, 1]),
        ({"kind": "trickle", "steps": 3, "classes": None}, [2, 1, 1, 1, 1]),
        ({"kind": "equal", "steps": 2, "classes": 4}, [2, 2]),
        ({"steps": 3, "smallest": 2, "largest": 2, "order": "ascending", "classes": None}, [2, 2, 2]),
    ],
)
def test_arrivals_of_every_kind(tmp_path: Path, colours: Path, arrivals: dict[str, Any], sizes: list[int]) -> None:
    settings = config(method="finetune", arrivals=arrivals, train={"epochs_scale": 0.2})
    assert Run(settings, tmp_path, data=colours, device="cpu", threads=1).execute()["sizes"] == sizes
