"""Signals stop a run or a classifier at the end of an epoch, or before it if the epoch is long."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from conftest import coloured_images, small_config, write_colours
from ffcil.classifier.classifier import LEARNING, Classifier
from ffcil.classifier.teaching import teach
from ffcil.data.image_set import ImageSet
from ffcil.runs import stopping
from ffcil.runs.checkpoint import checkpoints
from ffcil.runs.run import Run
from ffcil.runs.stopping import Stop
from ffcil.training.progress import FitProgress, Listener


class Signals(Listener):
    """Sends signals to this process after a number of epochs, then waits for `seconds` or for another signal."""

    def __init__(self, at: int, signals: int = 1, seconds: float = 0.0) -> None:
        self.at, self.signals, self.seconds = at, signals, seconds
        self.epochs: list[int] = []
        self.returned = False

    def epoch_done(self, progress: FitProgress) -> None:
        self.epochs.append(progress.epoch)
        if len(self.epochs) == self.at:
            for _ in range(self.signals):
                os.kill(os.getpid(), signal.SIGINT)
            time.sleep(self.seconds)
            self.returned = True


def run(folder: Path, listener: Listener | None = None) -> Run:
    config = small_config(method="icarl", image_size=16, dataset="folder", arrivals={"sizes": [2, 1]})
    config = config.model_copy(update={"checkpoint_seconds": 1e6})
    colours = folder.parent / "colours"
    if not colours.exists():
        write_colours(colours, classes=3)
    return Run(config, folder, data=colours, device="cpu", threads=1, listener=listener)


def test_a_signal_stops_a_run_at_the_end_of_the_epoch(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    listener = Signals(at=6)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", listener).execute()
    assert "a second signal stops immediately" in capfd.readouterr().err
    path = checkpoints(tmp_path / "run" / "checkpoints")[-1]
    assert path.name == "step-0002-epoch-00002.safetensors"  # four epochs per step: the second epoch of step 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    rest = Signals(at=0)
    run(tmp_path / "run", rest).execute()
    assert rest.epochs == [3, 4]
    run(tmp_path / "whole").execute()
    counts = [(tmp_path / name / "counts" / "step-002.npz").read_bytes() for name in ("run", "whole")]
    assert counts[0] == counts[1]


def test_a_second_signal_stops_immediately(tmp_path: Path) -> None:
    listener = Signals(at=1, signals=2)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", listener).execute()
    assert not listener.returned
    assert checkpoints(tmp_path / "run" / "checkpoints") == []


def test_a_long_epoch_is_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its listener would wait for an hour; the alarm interrupts it."""
    monkeypatch.setattr(stopping, "SECONDS", 0.1)
    listener = Signals(at=1, seconds=3600)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", listener).execute()
    assert not listener.returned


def test_a_signal_stops_a_classifier_at_the_end_of_the_epoch(tmp_path: Path) -> None:
    config = small_config(method="replay", image_size=16).model_copy(update={"checkpoint_seconds": 1e6})
    images = coloured_images([8] * 3, 1)
    classifier = Classifier(config, "cpu")
    with pytest.raises(KeyboardInterrupt):
        classifier.learn(images, tmp_path, Signals(at=2))
    assert (tmp_path / LEARNING).exists()
    rest = Signals(at=0)
    classifier.learn(images, tmp_path, rest)
    assert rest.epochs == [3, 4]


def test_a_signal_stops_a_method_without_epochs_after_the_step(tmp_path: Path) -> None:
    """The step is completed and saved, and the next one is not started."""

    class AtOnce(Listener):
        def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    config = small_config(method="simplecil", image_size=16)
    images = coloured_images([8] * 2, 1)
    first, second = (
        ImageSet(images.images[images.labels == k], torch.zeros(8, dtype=torch.int64), (f"class {k}",)) for k in (0, 1)
    )
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "model", [first, second], config, device="cpu", listener=AtOnce())
    assert Classifier.load(tmp_path / "model", "cpu").class_names == ("class 0",)


def test_a_signal_at_the_end_of_a_run_stops_what_follows(tmp_path: Path) -> None:
    class AtTheEnd(Listener):
        def step_done(self, record: Mapping[str, Any]) -> None:
            if record["step"] == 2:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", AtTheEnd()).execute()
    assert (tmp_path / "run" / "done").exists()


def test_a_closed_terminal_does_not_prevent_stopping(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> int:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(stopping.os, "write", gone)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", Signals(at=3)).execute()
    (path,) = checkpoints(tmp_path / "run" / "checkpoints")
    assert path.name == "step-0001-epoch-00003.safetensors"


def test_handlers_of_other_code_are_kept() -> None:
    def other(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, other)
    try:
        with Stop() as stop:
            assert signal.getsignal(signal.SIGTERM) is other
            assert signal.getsignal(signal.SIGINT) == stop._request
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_signals_are_not_handled_in_a_thread() -> None:
    seen = []

    def work() -> None:
        with Stop():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
