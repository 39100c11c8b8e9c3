"""States on disk: exact round trips, and complete files whatever happens."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ffcil.atomic import write_whole
from ffcil.errors import InputError
from ffcil.runs.checkpoint import load_state, save_checkpoint, save_state
from ffcil.runs.folder import checkpoint_name, checkpoints


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


def test_the_previous_checkpoint_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path, 1, 9, {"x": 1})
    save_checkpoint(tmp_path, 2, 0, {"x": 2})

    def no_space(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_space)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(tmp_path, 3, 0, {"x": 3})
    monkeypatch.undo()
    assert [load_state(path)["x"] for path in checkpoints(tmp_path)] == [1, 2]
    assert len(list(tmp_path.iterdir())) == 2  # No drafts remain.
    save_checkpoint(tmp_path, 3, 0, {"x": 3})
    assert [load_state(path)["x"] for path in checkpoints(tmp_path)] == [2, 3]


def test_the_newest_comes_last(tmp_path: Path) -> None:
    for step, epoch in [(2, 100), (10, 0), (2, 20), (10_000, 0), (9999, 7)]:
        save_state(tmp_path / checkpoint_name(step, epoch), {"at": [step, epoch]})
    assert [load_state(path)["at"] for path in checkpoints(tmp_path)] == [
        [2, 20], [2, 100], [10, 0], [9999, 7], [10_000, 0],
    ]  # fmt: skip


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """Or it changes nothing: the header of a file may hold spaces that mean nothing."""
    state = {"weights": torch.arange(6.0), "rows": [torch.tensor([3, 1])], "finished": 2, "name": "α"}
    path = tmp_path / "x.safetensors"
    save_state(path, state)
    whole, noticed = path.read_bytes(), 0
    for place in range(len(whole)):
        for bit in range(8):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                loaded = load_state(path)
            except InputError:
                noticed += 1
            else:
                assert torch.equal(loaded.pop("weights"), state["weights"])  # type: ignore[arg-type]
                assert [rows.tolist() for rows in loaded.pop("rows")] == [[3, 1]]
                assert loaded == {"finished": 2, "name": "α"}
    assert noticed > 0.95 * 8 * len(whole)


@pytest.mark.parametrize("length", [0, 7, 8, 100, -1])
def test_a_truncated_file_is_named(tmp_path: Path, length: int) -> None:
    path = tmp_path / "x.safetensors"
    save_state(path, {"weights": torch.arange(60.0)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(InputError, match=r"x\.safetensors is damaged \(.*\): restore a copy\."):
        load_state(path, "restore a copy")


def test_a_file_that_cannot_be_opened_is_an_error_of_the_system_with_its_name(tmp_path: Path) -> None:
    for path, kind in ((tmp_path / "absent", FileNotFoundError), (tmp_path, IsADirectoryError)):
        with pytest.raises(kind) as caught:
            load_state(path)
        assert caught.value.filename == str(path)


def test_files_of_earlier_versions_have_no_digest(tmp_path: Path) -> None:
    skeleton = {"mapping": {"x": {"tensor": "/x"}, "step": {"value": 3}}}
    save_file({"/x": torch.arange(3)}, tmp_path / "x", metadata={"skeleton": json.dumps(skeleton)})
    loaded = load_state(tmp_path / "x")
    assert (loaded["x"].tolist(), loaded["step"]) == ([0, 1, 2], 3)


@pytest.mark.parametrize("skeleton", ["[]", "{}", '"x"', '{"list": 3}', '{"tensor": "/y"}', '{"mapping": []}', "{"])
def test_damaged_files_of_earlier_versions_are_named(tmp_path: Path, skeleton: str) -> None:
    save_file({"/x": torch.arange(3)}, tmp_path / "x", metadata={"skeleton": skeleton})
    with pytest.raises(InputError, match="is damaged"):
        load_state(tmp_path / "x")


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
