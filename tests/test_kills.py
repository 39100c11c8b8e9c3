"""Commands that change a classifier, and services that learn, are killed at random moments, 21 in all: the classifier
is then the version before or the version after the change, bit for bit, and goes on."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ffcil.classifier.classifier import Classifier
from ffcil.classifier.versions import FOLDER, MODEL, Versions
from ffcil.runs.folder import LOCK
from served import save_classifier, write_photos, write_table

START = [sys.executable, "-m", "ffcil"]
TOKEN = "a token of the tests"
KILLS = 3
"""Kills of each command."""
SERVICES = 2
"""Kills of a service, of a process that learns for it, and of both."""


@dataclass(frozen=True)
class Reference:
    """What a version contains, without the time and the random identity of its changes."""

    state: dict[str, Any]
    scores: Tensor

    @classmethod
    def of(cls, folder: Path, photos: list[Path]) -> Reference:
        state = Versions(folder).read()
        described = Classifier.load(folder, "cpu").describe(photos)
        assert described.novelty is not None
        kept = {key: state[key] for key in ("config", "steps", "version", "learner", "kept")}
        return cls(kept, torch.cat([described.scores, described.novelty[:, None]], dim=1))

    def equals(self, other: Reference) -> bool:
        return equal(self.state, other.state) and equal(self.scores, other.scores)


def equal(first: Any, second: Any) -> bool:
    """Whether two nested states are equal to the bit."""
    if isinstance(first, Tensor):
        return isinstance(second, Tensor) and first.dtype == second.dtype and torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(equal, first, second))
    return bool(first == second)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier with two versions."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_classifier(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_photos(tmp_path_factory.mktemp("photos"), classes=5)


def test_a_reference_notices_every_change(saved: Path, photos: list[Path], tmp_path: Path) -> None:
    other = shutil.copytree(saved, tmp_path / "model")
    before = Reference.of(saved, photos[:2])
    assert Reference.of(other, photos[:2]).equals(before)
    classifier = Classifier.load(other, "cpu")
    classifier.rename("dog", "hound")
    classifier.save(other)
    assert not Reference.of(other, photos[:2]).equals(before)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["learn", "forget", "correct", "rename", "undo"])
def test_a_killed_command_leaves_the_version_before_or_after_it(
    kind: str, saved: Path, photos: list[Path], tmp_path: Path
) -> None:
    base = shutil.copytree(saved, tmp_path / "base")
    table = write_table(tmp_path / "table", photos[12:], "eel")
    if kind == "correct":
        subprocess.run([*START, "learn", base, table, "--device", "cpu"], check=True)
        table.write_text(table.read_text().replace("eel", "moray"))
    arguments = {
        "learn": [table, "--device", "cpu"],
        "forget": ["bee", "--device", "cpu"],
        "correct": [table, "--device", "cpu"],
        "rename": ["dog", "hound", "--device", "cpu"],
        "undo": [],
    }[kind]

    def command(folder: Path) -> list[str | Path]:
        return [*START, kind, folder, *arguments]

    old = Reference.of(base, photos)
    whole = shutil.copytree(base, tmp_path / "whole")
    began = time.monotonic()
    subprocess.run(command(whole), check=True)
    seconds = time.monotonic() - began
    new = Reference.of(whole, photos)
    assert not new.equals(old)

    moments = random.Random(kind)
    for number in range(KILLS):
        folder = shutil.copytree(base, tmp_path / f"killed {number}")
        process = subprocess.Popen(command(folder))
        # the first part of a command's life is spent on imports
        time.sleep(seconds * moments.uniform(0.4 + 0.2 * number, 0.6 + 0.2 * number))
        process.kill()
        process.wait()
        found = Reference.of(folder, photos)
        assert found.equals(old) or found.equals(new)
        if found.equals(old):  # the same command works now, whatever the killed one has left
            subprocess.run(command(folder), check=True)
            again = Reference.of(folder, photos)
            # a complete version that was not switched to keeps its number
            skipped = {**again.state, "version": new.state["version"]}
            assert equal(skipped, new.state)
            assert equal(again.scores, new.scores)


@contextmanager
def service(folder: Path, token: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`ffcil serve` as a process of its own group, and its address."""
    options = ["--port", "0", "--device", "cpu", "--token-file", token]
    process = subprocess.Popen(
        [*START, "serve", folder, *options], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+:\d+", process.stdout.readline())
        assert found
        yield process, found[0]
    finally:
        process.terminate()
        process.wait()


@pytest.mark.faults
@pytest.mark.parametrize("victims", ["service", "learning process", "both"])
def test_a_service_that_is_killed_while_it_learns_starts_again(
    victims: str, saved: Path, photos: list[Path], tmp_path: Path
) -> None:
    """A process that learns goes on if only its service is killed. A container that ends kills both."""
    for module in ("fastapi", "uvicorn", "python_multipart"):
        pytest.importorskip(module)
    httpx = pytest.importorskip("httpx")
    (token := tmp_path / "token").write_text(TOKEN)
    eels = [("eel", (photo.name, photo.read_bytes())) for photo in photos[12:]]

    def learn(address: str) -> None:
        sent = httpx.post(f"{address}/learn", files=eels, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)
        assert sent.status_code == 202

    def wait_for_end(address: str) -> None:
        while httpx.get(f"{address}/health").json()["change"]["state"] == "running":
            time.sleep(0.05)

    def wait_until_idle(folder: Path) -> None:
        while learning_in(folder):
            time.sleep(0.05)

    def is_answered(address: str, reference: Reference) -> bool:
        sent = [("images", (photo.name, photo.read_bytes())) for photo in photos]
        told = [httpx.post(f"{address}/predict", files=[one], timeout=60).json() for one in sent]
        best = [answer["answers"][0]["guesses"][0]["score"] for answer in told]
        assert {answer["version"] for answer in told} == {reference.state["version"]}
        expected = reference.scores[:, :-1].softmax(dim=1).amax(dim=1)
        return torch.allclose(torch.tensor(best, dtype=expected.dtype), expected, atol=1e-5)

    old = Reference.of(saved, photos)
    whole = shutil.copytree(saved, tmp_path / "whole")
    with service(whole, token) as (_, address):
        began = time.monotonic()
        learn(address)
        wait_for_end(address)
        seconds = time.monotonic() - began
    new = Reference.of(whole, photos)
    assert not new.equals(old)

    moments = random.Random(victims)
    for number in range(SERVICES):
        folder = shutil.copytree(saved, tmp_path / f"killed {number}")
        with service(folder, token) as (process, address):
            learn(address)
            time.sleep(seconds * moments.uniform(number / SERVICES, (number + 1) / SERVICES))
            if victims == "both":
                os.killpg(process.pid, signal.SIGKILL)
            elif victims == "service":
                process.kill()
            else:
                for child in learning_in(folder):
                    os.kill(child, signal.SIGKILL)
                wait_for_end(address)
                assert is_answered(address, Reference.of(folder, photos))
                continue
            process.wait()
            found = Reference.of(folder, photos)
            assert found.equals(old) or found.equals(new)
        with service(folder, token) as (_, address):
            assert httpx.get(f"{address}/health").json()["status"] == "ok"
            wait_until_idle(folder)
            time.sleep(2)  # it follows its folder once a second
            left = Reference.of(folder, photos)
            assert left.equals(old) or left.equals(new)
            assert is_answered(address, left)
            learn(address)
            wait_for_end(address)
            end = Reference.of(folder, photos)
            assert equal({**end.state, "version": new.state["version"]}, new.state)
        assert {path.name for path in folder.iterdir()} == {MODEL, FOLDER, LOCK}


def learning_in(folder: Path) -> list[int]:
    """Processes that learn in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it may have ended
            words = path.read_bytes().split(b"\0")
            if b"learn" in words and str(folder).encode() in words:
                found.append(int(path.parent.name))
    return found
