"""States on disk: exact round trips, and complete files whatever happens."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ffcil.runs.atomic import write_whole
from ffcil.runs.checkpoint import load_state, save_checkpoint, save_state
from ffcil.runs.folder import checkpoints


def test_state_is_restored_exactly(tmp_path: Path) -> None:
    state = {
        "weights": {"a": torch.randn(3, 4), "empty": torch.empty(0, 5), "scalar": torch.tensor(3)},
        "rows": [torch.arange(4), torch.empty(0, dtype=torch.int64)],
        "shared": [w := torch.randn(2, 2), w],
        "transposed": torch.randn(3, 2).T,
        "position": {"step": 3, "seconds": 0.1 + 0.2, "nothing": None, "names": ["α", "b/c"], "tuple": (1, 2)},
    }
    save_state(tmp_path / "x.safetensors", state)
    loaded = load_state(tmp_path / "x.safetensors")
    assert torch.equal(loaded["weights"]["a"], state["weights"]["a"])  # type: ignore[index]
    assert loaded["weights"]["empty"].shape == (0, 5)
    assert loaded["weights"]["scalar"].item() == 3
    assert [r.tolist() for r in loaded["rows"]] == [[0, 1, 2, 3], []]
    assert torch.equal(loaded["shared"][0], loaded["shared"][1])
    assert torch.equal(loaded["transposed"], state["transposed"])  # type: ignore[arg-type]
    assert loaded["position"] == {
        "step": 3, "seconds": 0.1 + 0.2, "nothing": None, "names": ["α", "b/c"], "tuple": [1, 2],
    }  # fmt: skip


def test_a_checkpoint_is_removed_after_the_next_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, 9, {"x": 1})

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, 2, 0, {"x": 2})
    monkeypatch.undo()
    assert [load_state(path)["x"] for path in checkpoints(tmp_path)] == [1]
    assert len(list(tmp_path.iterdir())) == 1  # No drafts remain.
    save_checkpoint(tmp_path, 2, 0, {"x": 2})
    assert [load_state(path)["x"] for path in checkpoints(tmp_path)] == [2]


def test_the_newest_comes_last(tmp_path: Path) -> None:
    for step, epoch in [(2, 100), (10, 0), (2, 20)]:
        save_state(tmp_path / f"step-{step:04d}-epoch-{epoch:05d}.safetensors", {"at": [step, epoch]})
    assert load_state(checkpoints(tmp_path)[-1])["at"] == [10, 0]


def test_writing_replaces_whole_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"


def test_a_link_in_place_of_a_draft_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"content")
    (tmp_path / ".config.json.draft").symlink_to("precious")
    with pytest.raises(OSError, match=r"config\.json"):
        write_whole(tmp_path / "config.json", b"new")
    assert (tmp_path / "precious").read_bytes() == b"content"
    write_whole(tmp_path / "config.json", b"new")  # the link is gone
    assert (tmp_path / "config.json").read_bytes() == b"new"
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").symlink_to("precious")
    write_whole(tmp_path / "config.json", b"newer")  # replaces the link
    assert (tmp_path / "precious").read_bytes() == b"content"
