"""Damaged, foreign and missing files of runs: a sentence or the previous good file, and never other results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from ffcil.errors import InputError
from ffcil.report import load_run
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.runs.folder import checkpoints
from ffcil.runs.run import Run
from ffcil.training.progress import Listener
from test_run import Bomb, config, counts, records


class Hears(Listener):
    """Remembers warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warned(self, sentence: str) -> None:
        self.warnings.append(sentence)


def interrupted(folder: Path, data: Path, bomb: dict[str, int], **fields: Any) -> list[Path]:
    """Start a run and interrupt it; returns its checkpoints."""
    with pytest.raises(KeyboardInterrupt):
        Run(config(**fields), folder, data=data, device="cpu", threads=1, listener=Bomb(**bomb)).execute()
    return checkpoints(folder / "checkpoints")


def flip_a_bit(path: Path) -> None:
    """Flip the lowest bit of the last byte, which belongs to a tensor."""
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    Run(config(), folder, data=colours, device="cpu", threads=1).execute()
    return folder


def test_a_finished_run_keeps_one_checkpoint(whole: Path) -> None:
    assert [path.name for path in checkpoints(whole / "checkpoints")] == ["step-0004-epoch-00000.safetensors"]


def foreign(path: Path, data: Path) -> None:
    """Replace a checkpoint by that of a run with another training seed at the same moment."""
    other = path.parents[2] / "other"
    step = int(path.name.split("-")[1])
    interrupted(other, data, {"steps": step - 1}, train_seed=5)
    shutil.copy(other / "checkpoints" / path.name, path)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path, data: flip_a_bit(path), "is damaged (its content does not have its digest)"),
        (lambda path, data: path.write_bytes(path.read_bytes()[:1000]), "is damaged ("),
        (lambda path, data: path.write_bytes(b""), "is damaged ("),
        (foreign, "is of another run (it differs in train_seed)"),
        (
            lambda path, data: shutil.copy(path.with_name("step-0002-epoch-00004.safetensors"), path),
            "is of another moment (its own name is step-0002-epoch-00004.safetensors)",
        ),
    ],
    ids=["flipped bit", "truncated", "empty", "other seed", "renamed"],
)
def test_the_previous_checkpoint_replaces_one_that_cannot_be_used(
    tmp_path: Path, colours: Path, whole: Path, damage: Callable[[Path, Path], Any], reason: str
) -> None:
    previous, newest = interrupted(tmp_path / "run", colours, {"steps": 2})
    assert (previous.name, newest.name) == ("step-0002-epoch-00004.safetensors", "step-0003-epoch-00000.safetensors")
    damage(newest, colours)
    heard = Hears()
    Run(config(), tmp_path / "run", data=colours, device="cpu", threads=1, listener=heard).execute()
    (warning,) = heard.warnings
    assert warning.startswith(f"Checkpoint {newest} {reason}")
    assert warning.endswith(f": it is now unusable-{newest.name}, and the run continues from {previous.name}.")
    assert records(tmp_path / "run") == records(whole)
    assert counts(tmp_path / "run") == counts(whole)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_run_without_a_usable_checkpoint_is_a_sentence(tmp_path: Path, colours: Path, steps: int) -> None:
    found = interrupted(tmp_path / "run", colours, {"steps": steps})
    for path in found:
        flip_a_bit(path)
    before = records(tmp_path / "run")
    message = rf"{found[-1].name} is damaged \(.*\): restore it from a copy, or remove the run's folder and start again"
    with pytest.raises(InputError, match=message):
        Run(config(), tmp_path / "run", data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path / "run") == before
    assert checkpoints(tmp_path / "run" / "checkpoints") == found


def without_identity(path: Path) -> dict[str, Any]:
    """Rewrite a checkpoint in the form of earlier versions: no identity, no digest."""
    state = load_state(path)
    del state["run"]
    save_state(path, state)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
        skeleton = file.metadata()["state"].partition(" ")[2]
    save_file(tensors, path, metadata={"skeleton": skeleton})
    return state


def test_a_checkpoint_of_an_earlier_version_is_resumed(tmp_path: Path, colours: Path, whole: Path) -> None:
    *_, newest = interrupted(tmp_path, colours, {"epochs": 6})
    without_identity(newest)
    Run(config(), tmp_path, data=colours, device="cpu", threads=1).execute()
    assert records(tmp_path) == records(whole)


def test_a_foreign_checkpoint_of_an_earlier_version_is_a_sentence(tmp_path: Path, colours: Path) -> None:
    *_, newest = interrupted(tmp_path / "run", colours, {"steps": 1})
    *_, other = interrupted(tmp_path / "other", colours, {"steps": 1}, method="ewc")
    without_identity(other)
    shutil.copy(other, newest)
    with pytest.raises(InputError, match="does not fit this run: restore it from a copy, or remove the run's folder"):
        Run(config(), tmp_path / "run", data=colours, device="cpu", threads=1).execute()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "is missing although its step is recorded"),
        (lambda path: path.write_bytes(path.read_bytes()[:99]), "is damaged: remove the run and start it again"),
    ],
    ids=["missing", "truncated"],
)
def test_missing_counts_are_noticed_before_training(
    tmp_path: Path, colours: Path, damage: Callable[[Path], Any], message: str
) -> None:
    interrupted(tmp_path, colours, {"steps": 2})
    damage(tmp_path / "counts" / "step-001.npz")

    class Trains(Listener):
        def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
            raise AssertionError("the run trains")

    with pytest.raises(InputError, match=message):
        Run(config(), tmp_path, data=colours, device="cpu", threads=1, listener=Trains()).execute()


@pytest.mark.parametrize("kept", [None, 0, 2])
def test_done_without_all_records_is_the_same_sentence_everywhere(
    tmp_path: Path, colours: Path, whole: Path, kept: int | None
) -> None:
    folder = shutil.copytree(whole, tmp_path / "run")
    lines = (folder / "records.jsonl").read_text().splitlines(keepends=True)
    (folder / "records.jsonl").unlink()
    if kept is not None:
        (folder / "records.jsonl").write_text("".join(lines[:kept]))
    said = []
    for use in (
        lambda: Run(config(), folder, data=colours, device="cpu", threads=1).execute(),
        lambda: load_run(folder),
    ):
        with pytest.raises(InputError) as raised:
            use()
        said.append(str(raised.value))
    reason = f"done, but records.jsonl has {kept or 0} of 3 steps"
    assert said == [f"{folder} is damaged ({reason}): remove the folder and start the run again."] * 2
    assert json.loads((folder / "summary.json").read_text())["scored"] == "linear"
