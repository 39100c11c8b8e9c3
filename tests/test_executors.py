"""Executors: jobs whose workers crash, that other processes execute, or that are interrupted; SLURM; Ray."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.errors import InputError
from ffcil.locks import lock
from ffcil.methods import METHODS, load_methods
from ffcil.models.resnet import BACKBONES
from ffcil.runs.folder import is_busy
from ffcil.studies.executors.idle import Idleness
from ffcil.studies.executors.job import LOG, Ending, Job, Outcome, attempt
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.executors.loop import Executor, run_jobs
from ffcil.studies.executors.ray import RayExecutor
from ffcil.studies.executors.slurm import SlurmExecutor
from studies import launch, small_jobs, timeless_records, write_small_study

DONE, CRASHED = Outcome(Ending.DONE), Outcome(Ending.CRASHED, "killed by SIGKILL")


class Messages:
    """Progress that keeps the messages it receives."""

    def __init__(self, update: Callable[[Collection[Job]], None] = lambda running: None) -> None:
        self.messages: list[str] = []
        self.updates: list[int] = []
        """Number of running jobs at each update."""
        self._update = update

    def update(self, running: Collection[Job]) -> None:
        self.updates.append(len(running))
        self._update(running)

    def message(self, text: str) -> None:
        self.messages.append(text)


class Scripted(Executor):
    """An executor whose attempts end at once, with the outcomes of a script; None is a job that hangs."""

    def __init__(self, slots: int | None, script: Mapping[str, list[Outcome | None]]) -> None:
        super().__init__()
        self.slots, self.script = slots, script
        self.started: list[str] = []
        self.stopped: list[str] = []
        self.killed: list[str] = []
        self.most = self.now = 0

    def start(self, job: Job) -> Any:
        executor = self
        executor.started.append(job.label)
        executor.now += 1
        executor.most = max(executor.most, executor.now)

        class Ended:
            def outcome(self) -> Outcome | None:
                if executor.script[job.label][0] is None and job.label not in executor.killed:
                    return None  # It hangs until it is killed.
                executor.now -= 1
                return executor.script[job.label].pop(0) or CRASHED

            def began(self) -> bool:
                return True

            def stop(self) -> None:
                executor.stopped.append(job.label)

            def kill(self) -> None:
                executor.killed.append(job.label)

            def wait(self) -> None:
                executor.stopped.append(f"{job.label} awaited")

        return Ended()


@pytest.fixture
def jobs(tmp_path: Path, colours: Path) -> list[Job]:
    return small_jobs(tmp_path, colours, seeds=[0, 1])


def test_a_crashed_job_is_resumed_once_and_invalid_input_is_not_retried(jobs: list[Job]) -> None:
    labels = [job.label for job in jobs]
    wrong = Outcome(Ending.INVALID, "no such data")
    script = dict(zip(labels, [[CRASHED, DONE], [CRASHED, CRASHED], [wrong], [DONE]], strict=True))
    executor, progress = Scripted(2, script), Messages()
    failed = run_jobs(jobs, executor, progress, interval=0)
    assert failed == {jobs[1]: "killed by SIGKILL", jobs[2]: "no such data"}
    assert sorted(executor.started) == sorted([labels[0], labels[0], labels[1], labels[1], labels[2], labels[3]])
    assert executor.most == 2
    assert f"{labels[0]}: killed by SIGKILL; resumed" in progress.messages
    assert f"{labels[1]}: failed: killed by SIGKILL" in progress.messages


def test_crashes_are_counted_per_job(jobs: list[Job]) -> None:
    """Two jobs with the same label crash once each."""
    pair = [replace(job, label="FF.org") for job in jobs[:2]]
    executor = Scripted(1, {"FF.org": [CRASHED, CRASHED, DONE, DONE]})
    assert run_jobs(pair, executor, Messages(), interval=0) == {}


def test_a_job_that_another_process_executes_is_waited_for(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.studies.executors.loop.BUSY_SECONDS", 0.05)
    free, busy = jobs[:2]
    executor = Scripted(None, {free.label: [DONE], busy.label: [Outcome(Ending.BUSY), DONE]})
    assert run_jobs([free, busy], executor, Messages(), interval=0.01) == {}
    assert executor.started == [free.label, busy.label, busy.label]


def test_who_executes_a_job_that_is_waited_for(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.studies.executors.loop.BUSY_SECONDS", 0.001)
    jobs[0].folder.mkdir(parents=True)
    with ExitStack() as held:
        held.enter_context(lock(jobs[0].folder / ".lock"))
        progress = Messages(lambda running: None if running or len(progress.updates) < 20 else held.close())
        executor = Scripted(2, {job.label: [DONE] for job in jobs})
        assert run_jobs(jobs, executor, progress, interval=0.001) == {}
    assert executor.started[-1] == jobs[0].label
    (told,) = progress.messages  # once
    assert told.startswith(f"{jobs[0].label}: is executed by process {os.getpid()} on {socket.gethostname()}, since 20")
    assert told.endswith("; waiting for it")


def test_a_job_without_progress_is_named(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ffcil.studies.executors.loop.STALL_SECONDS", 0.05)
    first, *others = jobs
    progress = Messages(lambda running: executor.killed.append(first.label) if len(progress.updates) == 300 else None)
    script: dict[str, list[Outcome | None]] = {first.label: [None, DONE], **{job.label: [DONE] for job in others}}
    executor = Scripted(1, script)
    assert run_jobs(jobs, executor, progress, interval=0.001) == {}
    told, resumed = progress.messages
    assert told.startswith(f"{first.label}: no progress for 0 s (another process; {first.folder / LOG})")
    assert told.endswith("; --patience MINUTES would end and resume it")
    assert resumed == f"{first.label}: killed by SIGKILL; resumed"


def test_a_job_with_progress_is_not_named(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("ffcil.studies.executors.idle.time.monotonic", lambda: now)
    idleness, job = Idleness(), jobs[0]
    job.folder.mkdir(parents=True)
    assert idleness.seconds(job) == 0
    now = 5.0
    assert idleness.seconds(job) == 5
    (job.folder / LOG).write_text("step 1")
    assert idleness.seconds(job) == 0
    now = 7.0
    os.utime(job.folder / LOG, ns=(1, 1))  # the clock of another machine
    assert idleness.seconds(job) == 0
    now = 8.0
    assert idleness.seconds(job) == 1


def test_a_job_without_progress_is_ended_if_asked(jobs: list[Job]) -> None:
    first, progress = jobs[0], Messages()
    script: dict[str, list[Outcome | None]] = {first.label: [None, DONE], **{job.label: [DONE] for job in jobs[1:]}}
    executor = Scripted(None, script)
    assert run_jobs(jobs, executor, progress, interval=0.001, patience=0.05) == {}
    assert executor.killed == [first.label]
    assert [text.split("; ")[-1] for text in progress.messages] == ["ended", "resumed"]


def test_a_finished_job_is_not_started(jobs: list[Job]) -> None:
    jobs[0].folder.mkdir(parents=True)
    (jobs[0].folder / "done").touch()
    executor = Scripted(1, {jobs[1].label: [DONE]})
    run_jobs(jobs[:2], executor, Messages(), interval=0)
    assert executor.started == [jobs[1].label]


def test_the_executor_is_not_entered_if_all_jobs_are_done(jobs: list[Job]) -> None:
    for job in jobs:
        job.folder.mkdir(parents=True)
        (job.folder / "done").touch()

    class Closed(Scripted):
        def __enter__(self) -> Scripted:
            raise AssertionError("entered")

    assert run_jobs(jobs, Closed(1, {}), Messages()) == {}


def test_an_interrupt_stops_all_jobs_before_it_waits_for_them(jobs: list[Job]) -> None:
    def interrupt(running: Collection[Job]) -> None:
        raise KeyboardInterrupt

    executor = Scripted(2, {})
    with pytest.raises(KeyboardInterrupt):
        run_jobs(jobs, executor, Messages(interrupt), interval=0)
    first, second = (job.label for job in jobs[:2])
    assert executor.stopped == [first, second, f"{first} awaited", f"{second} awaited"]


def test_a_lock_is_released_when_its_process_ends(tmp_path: Path) -> None:
    assert not is_busy(tmp_path)
    program = (
        f"import fcntl, sys; file = open({str(tmp_path / '.lock')!r}, 'w'); fcntl.flock(file, fcntl.LOCK_EX)\n"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        assert is_busy(tmp_path)
        holder.kill()
    assert not is_busy(tmp_path)


def mortal_jobs(tmp_path: Path, colours: Path, methods: list[str], death: str = "SIGKILL") -> list[Job]:
    """Jobs of `methods`. `mortal` is iCaRL that kills its process in the second step if the file `doom` exists."""
    tmp_path.mkdir()
    file = tmp_path / "mortal.py"
    file.write_text(
        "import os, signal\nfrom pathlib import Path\n"
        "from ffcil.methods import register\nfrom ffcil.methods.icarl import ICaRL\n"
        "@register('mortal')\nclass Mortal(ICaRL):\n    title = 'Mortal'\n"
        "    def finish(self, increment):\n"
        f"        doom = Path({str(tmp_path / 'doom')!r})\n"
        "        if increment.step == 2 and doom.exists():\n"
        f"            doom.unlink()\n            os.kill(os.getpid(), signal.{death})\n"
        "        return super().finish(increment)\n"
    )
    load_methods(str(file))
    groups = [{"recipes": ["glyphs"], "methods": methods, "settings": {"FF.ours": {"framework": "paper"}}}]
    jobs = small_jobs(tmp_path, colours, groups=groups)
    METHODS.pop("mortal")  # Other tests list all methods.
    return [replace(job, imports=(str(file),)) for job in jobs]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> dict[str, list[dict[str, Any]]]:
    """Records of uninterrupted runs."""
    folder = tmp_path_factory.mktemp("undisturbed") / "study"
    jobs = mortal_jobs(folder, colours, ["mortal", "icarl", "replay"])
    assert run_jobs(jobs, LocalExecutor("cpu", 2), Messages()) == {}
    return timeless_records(folder / "out")


def check_records(jobs: list[Job], undisturbed: dict[str, list[dict[str, Any]]]) -> None:
    """The records equal those of uninterrupted runs."""
    found = timeless_records(jobs[0].folder.parents[1])
    assert found == {job.folder.name: undisturbed[job.folder.name] for job in jobs}


def test_a_killed_child_is_resumed(tmp_path: Path, colours: Path, undisturbed: dict[str, list[dict[str, Any]]]) -> None:
    """One of two runs is killed."""
    jobs, progress = mortal_jobs(tmp_path / "again", colours, ["mortal", "icarl"]), Messages()
    (tmp_path / "again" / "doom").touch()
    assert run_jobs(jobs, LocalExecutor("cpu", 2), progress) == {}
    assert [text.split("; ")[0] for text in progress.messages] == [f"{jobs[0].label}: killed by SIGKILL"]
    assert "resumed after step 1" in (jobs[0].folder / LOG).read_text()
    check_records(jobs, undisturbed)


def test_the_output_of_a_child_goes_to_its_log(tmp_path: Path, colours: Path) -> None:
    method = tmp_path / "mine.py"
    method.write_text(
        "import os\nfrom ffcil.methods import register\nfrom ffcil.methods.finetune import Finetune\n"
        "@register('noisy')\nclass Noisy(Finetune):\n    title = 'Noisy'\n"
        "    def finish(self, increment):\n"
        "        os.system('echo from below >&2')\n        raise ZeroDivisionError('oh')\n"
    )
    load_methods(str(method))
    (job,) = small_jobs(tmp_path, colours, groups=one_setting("noisy"))
    METHODS.pop("noisy")  # Other tests list all methods.
    job = Job(job.label, job.config, job.folder, data=job.data, device="cpu", imports=(str(method),))
    failed = run_jobs([job], LocalExecutor("cpu", 1), Messages())
    assert failed == {job: "ZeroDivisionError: oh"}
    log = (job.folder / LOG).read_text()
    assert log.count("Traceback") == 2  # two attempts
    assert "from below" in log


def test_a_worker_imports_only_what_is_not_registered(
    tmp_path: Path, colours: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program may have imported the file as a module of another name. A second registration would be an error."""
    ran, file = tmp_path / "ran", tmp_path / "mine.py"
    file.write_text(
        f"open({str(ran)!r}, 'a').write('x')\n"
        "from ffcil import register_backbone\nfrom ffcil.models.resnet import BACKBONES\n"
        "register_backbone('my_backbone')(BACKBONES['resnet8'])\n"
    )
    monkeypatch.setattr("ffcil.methods.registry.BACKBONES", known := dict(BACKBONES))
    monkeypatch.setattr("ffcil.models.resnet.BACKBONES", known)
    (job,) = small_jobs(tmp_path, colours, groups=one_setting("finetune"), epochs=1)
    config = job.config.model_copy(update={"backbone": "my_backbone"})
    assert attempt(replace(job, config=config, imports=(str(file),))) == DONE
    del sys.modules[str(file)]
    again = replace(job, config=config, imports=(str(file),), folder=tmp_path / "again")
    assert attempt(again) == DONE
    assert ran.read_text() == "x"


def test_the_last_words_of_a_child_are_reported(tmp_path: Path, colours: Path) -> None:
    method = tmp_path / "mine.py"
    method.write_text("import os\nprint('cannot open shared memory', flush=True)\nos._exit(3)\n")
    (job,) = small_jobs(tmp_path, colours, groups=one_setting("icarl"))
    config = job.config.model_copy(update={"method": "mine"})
    job = Job(job.label, config, job.folder, data=job.data, device="cpu", imports=(str(method),))
    failed = run_jobs([job], LocalExecutor("cpu", 1), Messages())
    assert failed == {job: "ended with status 3; its log ends with 'cannot open shared memory'"}


@pytest.mark.parametrize(
    ("message", "reported"),
    [
        ("CUDA error: out of luck\nCompile with `TORCH_USE_CUDA_DSA`.", "CUDA error: out of luck Compile with"),
        ("word " * 5000, f"{'word ' * 20}"),
    ],
)
def test_an_error_of_several_lines_is_reported_with_its_kind_and_its_beginning(
    tmp_path: Path, colours: Path, message: str, reported: str
) -> None:
    method = tmp_path / "mine.py"
    method.write_text(f"raise RuntimeError({message!r})\n")
    (job,) = small_jobs(tmp_path, colours, groups=one_setting("icarl"))
    config = job.config.model_copy(update={"method": "mine"})
    outcome = attempt(replace(job, config=config, imports=(str(method),)))
    assert outcome.ending is Ending.CRASHED
    assert outcome.reason.startswith(f"RuntimeError: {reported}")
    assert len(outcome.reason.splitlines()) == 1
    assert len(outcome.reason) <= 300


@pytest.mark.faults
def test_a_child_that_hangs_is_ended_and_resumed(
    tmp_path: Path, colours: Path, undisturbed: dict[str, list[dict[str, Any]]]
) -> None:
    jobs, progress = mortal_jobs(tmp_path / "again", colours, ["mortal"], "SIGSTOP"), Messages()
    (tmp_path / "again" / "doom").touch()
    assert run_jobs(jobs, LocalExecutor("cpu", 1), progress, patience=10) == {}
    ended, resumed = progress.messages
    assert re.search(r"no progress for 1\d s \(process \d+ on .*; ended$", ended)
    assert re.search(r"killed by SIGKILL; its log ends with .*; resumed$", resumed)
    check_records(jobs, undisturbed)


def test_two_studies_on_one_folder_divide_the_runs(tmp_path: Path, colours: Path) -> None:
    """Each run is executed once, and both studies succeed. One is a process of its own, the other begins during its
    first run."""
    study = write_small_study(tmp_path / "small.yaml", colours, epochs=3, seeds=[0, 1])
    first = launch(study, tmp_path / "out", "--jobs", "1")
    wait_until(lambda: any(map(is_busy, (tmp_path / "out" / "runs").glob("*"))), first)
    arguments = ["study", str(study), "--out", str(tmp_path / "out"), "--device", "cpu", "--jobs", "1"]
    second = CliRunner().invoke(app, arguments)
    output, _ = first.communicate()
    for status, told in ((first.returncode, output), (second.exit_code, second.output)):
        assert status == 0, told
        assert "4 of 4 runs done" in told
    logs = [path.read_text() for path in (tmp_path / "out" / "runs").glob(f"*/{LOG}")]
    assert len(logs) == 4
    assert [log.count(": 3 steps") for log in logs] == [1] * 4
    assert [log.count("step 3/3: ") for log in logs] == [1] * 4


@pytest.mark.slow
def test_a_killed_study_is_resumed_by_the_same_command(tmp_path: Path, colours: Path) -> None:
    study = write_small_study(tmp_path / "small.yaml", colours, epochs=60, seeds=[0, 1])
    for job in small_jobs(tmp_path / "reference", colours, epochs=60, seeds=[0, 1]):
        assert attempt(job) == DONE
    expected = timeless_records(tmp_path / "reference" / "out")
    killed = launch(study, tmp_path / "out", "--jobs", "2")
    wait_until(lambda: sum(map(recorded, (tmp_path / "out" / "runs").glob("*"))) >= 2, killed)
    killed.kill()
    killed.wait()
    again = launch(study, tmp_path / "out", "--jobs", "2")
    output, _ = again.communicate()
    assert again.returncode == 0, output
    assert timeless_records(tmp_path / "out") == expected
    logs = [path.read_text() for path in (tmp_path / "out" / "runs").glob(f"*/{LOG}")]
    assert [[log.count(f"step {k}/3: ") for k in (1, 2, 3)] for log in logs] == [[1, 1, 1]] * 4  # No step is repeated.


def recorded(folder: Path) -> bool:
    """Whether a run's first step is done."""
    records = folder / "records.jsonl"
    return records.exists() and records.stat().st_size > 0


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Wait for a condition, as long as the process that is to fulfil it is running."""
    while not condition():
        assert process.poll() is None, "the process ended before"
        time.sleep(0.1)


def test_an_interrupted_study_leaves_no_process(tmp_path: Path, colours: Path) -> None:
    study = write_small_study(tmp_path / "small.yaml", colours, epochs=5000)
    process = launch(study, tmp_path / "out", "--jobs", "2")
    runs = tmp_path / "out" / "runs"
    wait_until(lambda: len({file.parent for file in runs.glob("*/checkpoints/*.safetensors")}) == 2, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate()
    assert process.returncode == 130
    assert output.splitlines()[-1] == "ffcil: interrupted; the same command resumes it."
    for folder in runs.iterdir():
        assert not is_busy(folder)
        assert (folder / LOG).read_text().endswith("ffcil: interrupted\n")
        assert not (folder / "progress.json").exists()


# --- SLURM --------------------------------------------------------------------------------------------------------


def test_slurm_through_submitit(tmp_path: Path, colours: Path, undisturbed: dict[str, list[dict[str, Any]]]) -> None:
    """With submitit's local executor, a killed job is submitted again, is resumed, and gives the same records."""
    pytest.importorskip("submitit")
    (job,), progress = mortal_jobs(tmp_path / "again", colours, ["mortal"]), Messages()
    (tmp_path / "again" / "doom").touch()
    assert run_jobs([job], SlurmExecutor("cpu", 1, {"timeout_min": 5}, cluster="local"), progress) == {}
    (message,) = progress.messages
    assert message.startswith(f"{job.label}: ")
    assert message.endswith("; resumed")
    assert "resumed after step 1" in (job.folder / LOG).read_text()
    check_records([job], undisturbed)


FAKE_SLURM = {
    "sbatch": """#!{python}
import os, pathlib, re, subprocess, sys
place = pathlib.Path(__file__).parent
text = pathlib.Path(sys.argv[1]).read_text()
last, at_once = re.search(r"--array=0-([0-9]+)%([0-9]+)", text).groups()
with (place / "submitted").open("a") as file:
    print(int(last) + 1, at_once, file=file)
for task in range(int(last) + 1):
    own = dict(SLURM_JOB_ID=str(100 + task), SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID=str(task))
    own |= dict(SLURM_NTASKS="1", SLURM_JOB_NUM_NODES="1", SLURM_NODEID="0", SLURM_PROCID="0", SLURM_LOCALID="0")
    subprocess.Popen(["bash", sys.argv[1]], env=os.environ | own, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with (place / "queue").open("a") as file:
        print("7_" + str(task), file=file)
print("Submitted batch job 7")
""",
    "srun": """#!/bin/bash
while [[ $1 == --* ]]; do [[ $1 == --unbuffered ]] || shift; shift; done
exec "$@"
""",
    "squeue": """#!/bin/bash
cat "$(dirname "$0")/queue"
""",
}


def test_slurm_executes_a_study_as_one_array(
    tmp_path: Path,
    colours: Path,
    undisturbed: dict[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("submitit")
    (tmp_path / "bin").mkdir()
    for name, text in FAKE_SLURM.items():
        (tmp_path / "bin" / name).write_text(text.replace("{python}", sys.executable))
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    jobs = mortal_jobs(tmp_path / "there", colours, ["icarl", "replay"])
    assert run_jobs(jobs, SlurmExecutor("cpu", 5, {}), Messages()) == {}
    assert (tmp_path / "bin" / "submitted").read_text() == "2 2\n"
    check_records(jobs, undisturbed)
    # jobs that an interrupted study submitted and that are in the queue are not submitted again
    again = SlurmExecutor("cpu", None, {}).start_all(jobs)
    assert (tmp_path / "bin" / "submitted").read_text() == "2 2\n"
    assert [attempt.outcome() for attempt in again] == [Outcome(Ending.DONE, "")] * 2


def one_setting(method: str = "icarl") -> list[dict[str, Any]]:
    return [{"recipes": ["glyphs"], "methods": [method], "settings": {"FF.ours": {"framework": "paper"}}}]


# --- Ray ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A substitute for Ray that takes over signals, as Ray does. Returns the socket of its head node."""

    class Never(Exception):
        pass

    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"127.0.0.1:{head.getsockname()[1]}"
        ray = SimpleNamespace(
            init=lambda *_, **__: signal.signal(signal.SIGTERM, signal.SIG_DFL),
            exceptions=SimpleNamespace(AuthenticationError=Never, RayError=Never),
            shutdown=lambda: None,
            get_runtime_context=lambda: SimpleNamespace(gcs_address=address),
            remote=lambda **_: lambda function: SimpleNamespace(remote=lambda job: job),
            cluster_resources=dict,
            wait=lambda references, timeout: ([], references),
            cancel=lambda reference: pytest.fail("waits for the head node"),
        )
        monkeypatch.setitem(sys.modules, "ray", ray)
        yield head


def test_ray_leaves_signals_to_the_command(fake_ray: socket.socket) -> None:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with RayExecutor("cpu", 1, None, None):
            assert signal.getsignal(signal.SIGTERM) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_lost_head_node_of_ray_is_a_sentence(
    jobs: list[Job], fake_ray: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ffcil.studies.executors.ray.HEAD_SECONDS", 0.02)

    def lose(running: Collection[Job]) -> None:
        if len(progress.updates) == 10:
            fake_ray.close()

    progress = Messages(lose)
    with pytest.raises(
        InputError, match=r"head node of the Ray cluster at 127.* does not answer \(Connection refused\)"
    ):
        run_jobs(jobs, RayExecutor("cpu", 1, None, None), progress, interval=0.01)
    assert len(progress.updates) > 10


@pytest.mark.faults
def test_sigterm_ends_a_study_under_ray(tmp_path: Path, colours: Path) -> None:
    pytest.importorskip("ray")
    study, out = write_small_study(tmp_path / "small.yaml", colours, epochs=300), tmp_path / "out"
    process = launch(study, out, "--executor", "ray", "--jobs", "1", RAY_USAGE_STATS_ENABLED="0")
    wait_until(lambda: bool(list(out.rglob("progress.json"))), process)
    process.terminate()
    output, _ = process.communicate()
    assert process.returncode == 130, output
    assert "ffcil: interrupted; the same command resumes it." in output
    assert "SIGTERM received" not in output
    assert not list(out.rglob("progress.json"))


def test_a_share_of_a_gpu_needs_gpus() -> None:
    pytest.importorskip("ray")

    def share(device: str | None, per_gpu: int | None, **resources: float) -> float:
        executor = RayExecutor(device, None, per_gpu, None)
        executor.ray = SimpleNamespace(cluster_resources=lambda: resources)
        return executor._gpu_share()

    assert share(None, None, CPU=2) == share("cpu", None, GPU=1) == 0
    assert share(None, None, GPU=1) == 1
    assert share("cuda", 4, GPU=1) == 0.25
    for device, resources in ((None, {"CPU": 2.0}), ("cpu", {"GPU": 1.0})):
        with pytest.raises(InputError, match="--per-gpu does not apply to CPUs"):
            share(device, 4, **resources)


@pytest.fixture
def two_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], None]]]:
    """A Ray cluster of two nodes with one core each: its address, and a function that kills the second node."""
    pytest.importorskip("ray")
    # A separate token protects the cluster from other users and does not touch the user's own token.
    for name, value in {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}.items():
        monkeypatch.setenv(name, value)
    environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1"}
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--num-cpus=1", "--block"]
    sizes = ["--object-store-memory=80000000", "--node-ip-address=127.0.0.1"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True, "env": environment}
    head = subprocess.Popen([*ray, *sizes, "--head", "--port=6399", "--include-dashboard=false"], **quiet)  # type: ignore[call-overload]
    time.sleep(12)
    second = subprocess.Popen([*ray, *sizes, "--address=127.0.0.1:6399"], **quiet)  # type: ignore[call-overload]
    time.sleep(10)

    def kill(node: subprocess.Popen[bytes]) -> None:
        if node.poll() is None:
            os.killpg(node.pid, signal.SIGKILL)
            node.wait()

    yield "127.0.0.1:6399", lambda: kill(second)
    kill(second)
    kill(head)


@pytest.mark.slow
def test_a_run_is_resumed_when_its_ray_node_crashes(
    tmp_path: Path, colours: Path, two_nodes: tuple[str, Callable[[], None]]
) -> None:
    address, kill_second = two_nodes
    (tmp_path / "reference").mkdir()
    for job in small_jobs(tmp_path / "reference", colours, epochs=60, seeds=[0, 1]):
        assert attempt(job) == DONE
    study = write_small_study(tmp_path / "small.yaml", colours, epochs=60, seeds=[0, 1])
    process = launch(study, tmp_path / "out", "--executor", "ray", "--address", address)
    wait_until(lambda: sum(map(recorded, (tmp_path / "out" / "runs").glob("*"))) >= 2, process)
    assert not list((tmp_path / "out" / "runs").glob("*/done"))
    kill_second()
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "4 of 4 runs done" in output
    assert timeless_records(tmp_path / "out") == timeless_records(tmp_path / "reference" / "out")
    logs = [path.read_text() for path in (tmp_path / "out" / "runs").glob(f"*/{LOG}")]
    assert sum("resumed after" in log for log in logs) == 1  # the run of the killed node
