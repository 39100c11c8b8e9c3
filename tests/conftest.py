"""Fixtures and helpers of the tests: images that a small network learns in seconds."""

from __future__ import annotations

import functools
import os
import resource
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings
from PIL import Image
from torch import Tensor

from ffcil.arrivals import given_arrivals
from ffcil.config.resolve import resolve
from ffcil.config.settings import RunConfig
from ffcil.data.augment import Augmentation
from ffcil.data.image_set import ImageSet
from ffcil.methods import METHODS, Learner, build_learner
from ffcil.methods.anyarrival import AnyArrival
from ffcil.models.pretrained import build_network
from ffcil.stream import Stream
from ffcil.training.engine import Engine
from ffcil.training.progress import FitProgress, Listener
from skips import pytest_terminal_summary as pytest_terminal_summary

settings.register_profile("ci", derandomize=True)  # CI uses fixed examples; local runs explore new ones
if os.environ.get("CI"):
    settings.load_profile("ci")

_cache = tempfile.TemporaryDirectory(prefix="ffcil-tests-")  # shared by all processes of a session
os.environ.setdefault("FFCIL_CACHE_OF_TESTS", _cache.name)
os.environ["FFCIL_CACHE"] = os.environ["FFCIL_CACHE_OF_TESTS"]

AUGMENTATION = Augmentation(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25), padding=1, flip=True)


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background job
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests of Ctrl-C would wait for it
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # tests of a lost terminal would wait for it


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def coloured_images(per_class: Sequence[int], seed: int) -> ImageSet:
    """Images whose class is a colour with noise. They are easy to classify, as long as the class is not forgotten."""
    colours = torch.rand(len(per_class), 3, generator=seeded(7)) * 200 + 25
    labels = torch.repeat_interleave(torch.arange(len(per_class)), torch.tensor(per_class))
    noise = torch.randn(len(labels), 3, 16, 16, generator=seeded(seed)) * 20
    images = (colours[labels][:, :, None, None] + noise).clamp(0, 255).to(torch.uint8)
    return ImageSet(images, labels, tuple(f"colour {k}" for k in range(len(per_class))))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def small_stream(sizes: Sequence[int], per_class: Sequence[int] | None = None) -> Stream:
    per_class = per_class or [16] * sum(sizes)
    train, test = coloured_images(per_class, 1), coloured_images([8] * len(per_class), 2)
    return Stream(train, test, given_arrivals(sizes), class_seed=None)


def small_config(**overrides: Any) -> RunConfig:
    """Recipe `glyphs` with a training of seconds; `overrides` as for `resolve`.

    A pre-trained network needs fewer epochs than one from scratch."""
    method = METHODS.get(overrides.get("method", ""))
    phase = {"epochs": 2 if method and method.pretrained else 4, "learning_rate": 0.05}
    base = {"train": {"batch": 16, "first": phase, "later": phase}, "memory": {"budget": 60}}
    for key, value in overrides.items():
        base[key] = {**base[key], **value} if isinstance(base.get(key), dict) else value
    return resolve("glyphs", base)


class OnEpoch(Listener):
    """Calls a function after every epoch."""

    def __init__(self, call: Callable[[FitProgress], None]) -> None:
        self.epoch_done = call  # type: ignore[method-assign]


Make = Callable[..., Any]
"""Type of `make_learner`: fields of a configuration -> a learner on the CPU."""
SHORT = {phase: {"epochs": 2, "learning_rate": 0.05} for phase in ("first", "later")}
"""Settings `train` for tests that need a trained learner, but not a good one."""


@pytest.fixture
def make_learner() -> Make:
    def make(**overrides: Any) -> Learner:
        config = small_config(**overrides)
        return build_learner(config, AUGMENTATION, Engine.create("cpu", config.train))

    return make


@pytest.fixture
def pixel_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """AnyArrival on some pixels, whose values do not depend on the batch as those of a network do in the last bit."""

    def features(self: AnyArrival, images: Tensor) -> Tensor:
        return torch.nn.functional.pad(images[:, :, ::6, ::6].flatten(1), (0, self.feature_dim - 27))

    monkeypatch.setattr(AnyArrival, "features", features)
    monkeypatch.setattr("ffcil.methods.pretrained.build_network", shared_network)


shared_network = functools.cache(build_network)
"""A frozen network that several learners hold, for tests that do not use it: building it takes long."""


def begin_second_step(learner: Learner, sizes: Sequence[int] = (2, 3)) -> Stream:
    """Train a learner on the first step and prepare it for the second one.

    It is in evaluation mode, in which the results of an image do not depend on the other images of its batch.
    """
    stream = small_stream(sizes)
    learner.learn(stream[0])
    learner.begin(stream[1])
    learner.eval()
    return stream


def captured(compute: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """Capture a computation on the GPU as a CUDA graph. Returns the graph and the tensors that `replay` fills."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        compute()  # copies constants to the device, which is not allowed during the capture
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        return graph, compute()


def write_colours(root: Path, classes: int = 6, images: int = 12) -> Path:
    """Write `coloured_images` as a folder of class folders, for runs from files."""
    made = coloured_images([images] * classes, seed=3)
    for k, (image, label) in enumerate(zip(made.images, made.labels, strict=True)):
        folder = root / made.class_names[int(label)]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(folder / f"{k:04d}.png")
    return root


def forked(work: Callable[[], object]) -> int:
    """Start `work` in a copy of this process, which has imported everything already. Returns its process id."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)  # nothing of pytest runs in the copy
    return child


def status_of(child: int) -> int:
    """Wait for a process of `forked`. Returns its exit status, negative for a signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as `ulimit -f` does."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture(scope="session")
def colours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_colours(tmp_path_factory.mktemp("colours"))
