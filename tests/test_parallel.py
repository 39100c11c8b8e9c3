"""Several processes that train together: what they compute is what one process computes, and a lost one ends all."""

from __future__ import annotations

import json
import multiprocessing
import random
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import AUGMENTATION, small_config, small_stream
from ffcil.cli import main
from ffcil.config.settings import RunConfig
from ffcil.errors import InputError
from ffcil.methods import METHODS, build_learner, load_methods
from ffcil.methods.learner import Learner
from ffcil.runs.checkpoint import copied, load_state
from ffcil.runs.folder import checkpoints
from ffcil.runs.processes import in_processes
from ffcil.runs.run import Run
from ffcil.training.engine import Engine
from ffcil.training.parallel import ALONE, Parallel
from ffcil.training.progress import FitProgress, Listener

Trained = dict[str, dict[str, Any]]

# --- learners -----------------------------------------------------------------------------------------------------

FROM_SCRATCH = [name for name, method in METHODS.items() if not method.pretrained]
LOCAL = "replay with local batch norm"
SMALL_PROJECTOR = {"projector_hidden": 32, "projector_features": 16}


def cases() -> dict[str, RunConfig]:
    """Every method, two of them with every framework, losses that compare samples with each other, batch norm."""
    phase = {"epochs": 1, "learning_rate": 0.02}
    fields: dict[str, dict[str, Any]] = {name: {"method": name} for name in FROM_SCRATCH}
    for method in ("icarl", "memo"):
        for framework in ("paper", "flow"):
            fields[f"{method}, {framework}"] = {"method": method, "framework": framework}
    fields["centres"] = {"method": "der", "framework": "paper", "centre_weight": 0.01}
    fields[LOCAL] = {"method": "replay", "train": {"batch_norm": "local"}}
    for field in fields.values():
        field["train"] = {"first": phase, "later": phase, **field.get("train", {})}
        if field["method"] == "tagfex":
            field["options"] = SMALL_PROJECTOR
        if field["method"] == "bic":
            field["options"] = {"correction_steps": 1}
    return {name: small_config(**field) for name, field in fields.items()}


def train(parallel: Parallel, listener: Listener, change: Callable[[str, Learner], None] | None = None) -> Trained:
    """Notes of two steps, with batches that do not fill an epoch, and the state after them, of every case."""
    torch.set_num_threads(1)
    stream, trained = small_stream([2, 3], [11, 9, 7, 8, 12]), {}
    for name, config in cases().items():
        learner = build_learner(config, AUGMENTATION, Engine.create("cpu", config.train, parallel))
        if change:
            change(name, learner)
        notes = [learner.learn(increment) for increment in stream]
        trained[name] = {"notes": notes, "state": copied(learner.state())}
    return trained


def train_and_save(folder: Path, parallel: Parallel, listener: Listener) -> None:
    torch.save(train(parallel, listener), folder / str(parallel.rank))
    parallel.agree(0.0)  # wait for the other process, which would end with this one


def by_halves(name: str, learner: Learner) -> None:
    """Local batch norm in one process: each half of a batch passes through the network alone."""
    if name == LOCAL:
        whole = learner.features
        learner.features = lambda images: torch.cat([whole(half) for half in images.chunk(2)])  # type: ignore[method-assign]


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Tensors and plain values of a nested state, by path."""
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        return {leaf: part for key, item in items for leaf, part in leaves(item, f"{path}/{key}").items()}
    return {path: value}


def untimed(record: dict[str, Any]) -> dict[str, Any]:
    """A record without times and devices."""
    return {k: v for k, v in record.items() if k not in ("seconds", "images_per_second", "devices")}


def check_close(one: Any, other: Any, case: str = "", exact: bool = False) -> None:
    """The same nested values; unless `exact`, numbers with fractions agree up to rounding and its consequences."""
    ours, expected = leaves(one), leaves(other)
    assert ours.keys() == expected.keys(), case
    for path, value in expected.items():
        if isinstance(value, Tensor):
            fraction = value.is_floating_point() and not exact
            same = torch.allclose(ours[path], value, 1e-4, 1e-5) if fraction else torch.equal(ours[path], value)
        else:
            fraction = isinstance(value, float) and not exact
            same = ours[path] == (pytest.approx(value, 1e-4, 1e-5) if fraction else value)
        assert same, f"{case} {path}: {ours[path]}, not {value}"


def test_two_processes_learn_what_one_learns(tmp_path: Path) -> None:
    """Losses, alignments, exemplars, teachers, frozen networks, Fisher diagonals, batch-norm statistics of every case;
    all in one test, because starting processes takes longer than training."""
    in_processes(2, partial(train_and_save, tmp_path), Listener())
    first, second = (torch.load(tmp_path / str(rank)) for rank in range(2))
    alone = train(ALONE, Listener(), by_halves)
    for case in alone.keys() - {LOCAL}:
        for notes, expected in zip(first[case]["notes"], alone[case]["notes"], strict=True):
            check_close(untimed(notes), untimed(expected), case)
        check_close(first[case]["state"], alone[case]["state"], case)
        check_close(second[case]["state"], first[case]["state"], case, exact=True)

    local, synchronised = first[LOCAL]["notes"][0]["loss"], alone["replay"]["notes"][0]["loss"]
    assert local == pytest.approx(alone[LOCAL]["notes"][0]["loss"], rel=1e-4)
    assert local != pytest.approx(synchronised, rel=1e-4)


# --- runs ---------------------------------------------------------------------------------------------------------


def config(**overrides: Any) -> RunConfig:
    phase = {"epochs": 3, "learning_rate": 0.02}
    fields = {"dataset": "folder", "image_size": 16, "arrivals": {"sizes": [1, 3, 2]}, "memory": {"budget": 18}}
    training = {"first": phase, "later": phase, **overrides.pop("train", {})}
    return small_config(**{**fields, "checkpoint_seconds": 0, "framework": "paper", "train": training, **overrides})


def run(folder: Path, colours: Path, devices: int, listener: Listener | None = None, **overrides: Any) -> None:
    made = Run(config(**overrides), folder, data=colours, device="cpu", devices=devices, threads=1, listener=listener)
    made.execute()


def records(folder: Path) -> list[dict[str, Any]]:
    """Records without times and devices."""
    return [untimed(json.loads(line)) for line in (folder / "records.jsonl").read_text().splitlines()]


def devices(folder: Path) -> list[int]:
    return [json.loads(line)["devices"] for line in (folder / "records.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(folder, colours, devices=1)
    return folder


def check_same(folder: Path, whole: Path) -> None:
    """The records and the last checkpoint are those of one process."""
    check_close(records(folder), records(whole))
    last, expected = (load_state(checkpoints(one / "checkpoints")[-1]) for one in (folder, whole))
    check_close(last["learner"], expected["learner"])


def test_a_run_on_two_devices_has_the_files_of_a_run_on_one(tmp_path: Path, colours: Path, whole: Path) -> None:
    heard = []

    class Hears(Listener):
        def started(self, folder: str, steps: int, finished: int, epoch: int) -> None:
            heard.append("started")

        def epoch_done(self, progress: FitProgress) -> None:
            heard.append(progress.epoch)

        def finished(self) -> None:
            heard.append("finished")

    run(tmp_path / "run", colours, 2, Hears())
    assert heard == ["started", 1, 2, 3, 1, 2, 3, 1, 2, 3, "finished"]
    files = [
        sorted(str(path.relative_to(folder)) for path in folder.rglob("*")) for folder in (tmp_path / "run", whole)
    ]
    assert files[0] == files[1]
    assert (devices(tmp_path / "run"), devices(whole)) == ([2, 2, 2], [1, 1, 1])
    check_same(tmp_path / "run", whole)


def test_a_run_begun_on_one_device_resumes_on_two(tmp_path: Path, colours: Path, whole: Path) -> None:
    class AfterFive(Listener):
        epochs = 0

        def epoch_done(self, progress: FitProgress) -> None:
            self.epochs += 1
            if self.epochs == 5:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, colours, 1, AfterFive())
    run(tmp_path, colours, 2)
    check_same(tmp_path, whole)
    assert devices(tmp_path) == [1, 2, 2]


# --- methods of a user's file, which do something inside a process ------------------------------------------------

OWN_METHOD = """
import multiprocessing, os, signal, time
from pathlib import Path
from torch.nn.functional import cross_entropy
from ffcil.methods.icarl import ICaRL
from ffcil.methods.registry import register

@register("own")
class Own(ICaRL):
    title = "Own"
    batches = 0

    def happens(self, rank, batch, file):
        "Whether this is the batch of this process at which something happens, for the first time."
        Own.batches += 1
        now = self.engine.parallel.rank == rank and Own.batches == batch and not Path(file).exists()
        if now:
            Path(file).touch()
        return now
"""
DIES = """
    def loss(self, images, targets):
        if self.happens({rank}, {batch}, {file!r}):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(images, targets)
"""
REQUESTS_A_STOP = """
    def loss(self, images, targets):
        if self.happens({rank}, {batch}, {file!r}):
            os.kill(multiprocessing.parent_process().pid, signal.SIGINT)
            while not signal.getitimer(signal.ITIMER_REAL)[0]:  # until the request has come back to this process
                time.sleep(0.01)
        return super().loss(images, targets)
"""
TAKES_A_PLAIN_MEAN = """
    def loss(self, images, targets):
        return cross_entropy(self.head(self.features(images)), targets)
"""
COMPARES_STATES = """
    def grow(self, increment):
        super().grow(increment)
        sums = [value.double().sum().item() for value in self.state_dict().values()]
        mine = [*sums, *self.exemplars.means.flatten().tolist(), *self.exemplars.rows().tolist()]
        assert self.engine.parallel.broadcast(mine) == mine, "the states differ"
"""
Write = Callable[..., Path]


@pytest.fixture
def own_method(tmp_path: Path) -> Iterator[Write]:
    """Writes the file of the method `own`, which is registered for one test only."""

    def write(body: str, rank: int = 0, batch: int = 0) -> Path:
        file = tmp_path / "own.py"
        file.write_text(OWN_METHOD + body.format(rank=rank, batch=batch, file=str(tmp_path / "happened")))
        return file

    yield write
    METHODS.pop("own", None)


@pytest.mark.parametrize("other", [1, 2])
def test_a_killed_process_ends_the_run_and_it_resumes(
    other: int, tmp_path: Path, colours: Path, whole: Path, own_method: Write
) -> None:
    rank, batch = random.randint(0, 1), random.randint(1, 20)
    load_methods(str(own_method(DIES, rank, batch)))
    folder = tmp_path / "run"
    with pytest.raises(InputError, match=f"^Process {rank + 1} of 2 was killed by SIGKILL: the same command resumes"):
        run(folder, colours, 2, method="own")
    assert not multiprocessing.active_children()
    run(folder, colours, other, method="own")
    check_same(folder, whole)
    assert devices(folder)[-1] == other


def test_the_command_ends_with_a_sentence(
    tmp_path: Path, colours: Path, own_method: Write, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    fields = ("method=own", "dataset=folder", "image_size=16", "arrivals.sizes=[2]")
    place = ("--data", str(colours), "--out", str(tmp_path / "run"), "--device", "cpu", "--devices", "2")
    options = (*place, "--threads", "1", "--import", str(own_method(DIES, rank=1, batch=3)))
    monkeypatch.setattr(sys, "argv", ["ffcil", "run", "glyphs", *(f"--set={field}" for field in fields), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    error = capfd.readouterr().err
    assert error.endswith("ffcil: Process 2 of 2 was killed by SIGKILL: the same command resumes the run.\n")
    assert "Traceback" not in error


def test_a_request_to_stop_saves_the_epoch(tmp_path: Path, colours: Path, own_method: Write) -> None:
    load_methods(str(own_method(REQUESTS_A_STOP, rank=0, batch=5)))  # in the first epoch of the second step
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", colours, 2, method="own", checkpoint_seconds=1000)
    newest = load_state(checkpoints(tmp_path / "run" / "checkpoints")[-1])
    assert (newest["finished"], newest["progress"]["epoch"]) == (1, 1)


def test_all_processes_continue_from_one_state(tmp_path: Path, colours: Path, own_method: Write) -> None:
    """With local batch norm, features differ between the processes, and so would exemplars and teachers."""
    load_methods(str(own_method(COMPARES_STATES)))
    run(tmp_path / "run", colours, 2, method="own", train={"batch_norm": "local"})
    assert devices(tmp_path / "run") == [2, 2, 2]


def test_a_loss_that_is_not_gathered_is_refused(tmp_path: Path, colours: Path, own_method: Write) -> None:
    load_methods(str(own_method(TAKES_A_PLAIN_MEAN)))
    with pytest.raises(InputError, match="have different losses, because a part of the method's loss"):
        run(tmp_path / "run", colours, 2, method="own", framework="none", arrivals={"sizes": [2]})


def test_methods_and_batches_that_cannot_be_divided() -> None:
    with pytest.raises(InputError, match=r"^devices=2 is not supported by 'simplecil', a pre-trained method: run it"):
        Run(small_config(method="simplecil"), devices=2)
    with pytest.raises(
        InputError, match=r"^train.batch=16 cannot be divided equally among 3 devices: set train.batch=15"
    ):
        Run(small_config(), devices=3)
    with pytest.raises(InputError, match=r"^devices=0 is not possible"):
        Run(small_config(), devices=0)


def test_an_error_of_a_process_is_raised(tmp_path: Path, colours: Path) -> None:
    with pytest.raises(InputError, match="is less than one exemplar for each of 6 classes"):
        run(tmp_path, colours, 2, memory={"budget": 5})
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match="file"):
        run(tmp_path / "file" / "run", colours, 2)
    with pytest.raises(RuntimeError, match=r"Process 2 of 2 failed:\n(.*\n)*ZeroDivisionError"):
        in_processes(2, divide, Listener())


def divide(parallel: Parallel, listener: Listener) -> None:
    1 / (1 - parallel.rank)
    parallel.broadcast(0)
