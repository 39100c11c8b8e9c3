"""Execution of studies: the dry run, the live progress, and the final table."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from ffcil.cli import app, main
from ffcil.config.resolve import resolve
from ffcil.methods import METHODS
from ffcil.report.read.records import load_run
from ffcil.runs.state import RunState, read_state
from ffcil.studies.estimate import RuntimeHistory, in_words
from ffcil.studies.execution import execute_jobs, run_study
from ffcil.studies.executors.job import Job
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.plan import Plan, print_plan
from ffcil.studies.study import jobs_of, load_study, narrow
from ffcil.studies.watch import StudyProgress
from studies import SETTINGS, write_small_study


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> Plan:
    """An executed study of three settings and two seeds."""
    folder = tmp_path_factory.mktemp("study")
    groups = [{"recipes": ["glyphs"], "methods": ["icarl"], "settings": SETTINGS}]
    study = load_study(str(write_small_study(folder / "small.yaml", colours, groups=groups, seeds=[0, 1])))
    plan = Plan.make(study, folder / "out", "cpu")
    assert execute_jobs(plan, LocalExecutor("cpu", 2), Console(quiet=True)) == {}
    return plan


def test_every_run_of_the_grid_is_finished(finished: Plan) -> None:
    made, out = finished.jobs, finished.out
    assert len(made) == 6
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(job.folder.name for job in made)
    for job in made:
        run = load_run(job.folder)
        assert run.finished
        assert job.label == f"{run.setting} {run.seed_label}"
        assert run.environment["threads"] == 1
        assert run.environment["command"].startswith(f"ffcil run {job.folder}/config.json --out")


def test_a_second_execution_changes_nothing(finished: Plan) -> None:
    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (finished.out / "runs").rglob("*")}

    before = stamps()
    assert execute_jobs(finished, LocalExecutor("cpu", 2), Console(quiet=True)) == {}
    assert stamps() == before


def test_the_dry_run_estimates_time_from_earlier_runs(
    finished: Plan,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, made, out = finished.study, finished.jobs, finished.out
    monkeypatch.chdir(tmp_path)
    seconds = [json.loads((job.folder / "summary.json").read_text())["seconds"] for job in made]
    earlier = RuntimeHistory([out], on_gpu=False)
    config = made[0].config
    assert earlier.estimate(config) == pytest.approx(sum(seconds) / 6)
    assert earlier.estimate(config.model_copy(update={"method": "der"})) is None
    assert RuntimeHistory([out], on_gpu=True).estimate(config) is None
    assert [in_words(s) for s in (0.2, 99, 120, 7200)] == ["0 s", "99 s", "2 min", "2.0 h"]

    print_plan(finished, LocalExecutor("cpu", 2))
    listed = capsys.readouterr().out
    assert listed.count(" done") == 6
    assert "6 runs in" in listed
    assert "0 queued" in listed
    more = narrow(study, seeds=[0, 9], methods=["icarl", "replay"])
    print_plan(Plan.make(more, out, "cpu"), LocalExecutor("cpu", 2))
    listed = capsys.readouterr().out
    assert "9 queued, 2 at a time" in listed
    assert re.search(r"about \d+ s for 3 of the 9 queued runs \(\d+ s one after another\)", listed)
    assert "no earlier runs to estimate the time of 6 runs: replay on glyphs" in listed


def test_damaged_runs_are_ignored_by_the_estimate(finished: Plan, tmp_path: Path) -> None:
    made = finished.jobs
    damages = {"half": '{"dataset": ', "strange": '{"arrivals": [1]}', "empty": ""}
    for name, content in damages.items():
        shutil.copytree(made[0].folder, tmp_path / name)
        (tmp_path / name / "config.json").write_text(content)
    for name in ("summary.json", "environment.json"):
        shutil.copytree(made[0].folder, tmp_path / name)
        (tmp_path / name / name).unlink()
    assert RuntimeHistory([tmp_path], on_gpu=False).estimate(made[0].config) is None


@pytest.mark.parametrize("name", ["arrivals.json", "records.jsonl", "progress.json"])
@pytest.mark.parametrize("content", ["{", "[]\n", ""])
def test_the_readable_part_of_a_damaged_run_is_shown(finished: Plan, tmp_path: Path, name: str, content: str) -> None:
    made = finished.jobs
    shutil.copytree(made[0].folder, tmp_path / "run")
    (tmp_path / "run" / name).write_text(content)
    state = read_state(tmp_path / "run")
    assert (state.done, state.share, state.now) == (True, 1.0, None)
    assert len(state.records) == (3 if name == "progress.json" else 0)


def test_names_are_printed_literally(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are not markup, and without a terminal the name of a folder is not cut."""
    study = load_study("demo").model_copy(update={"title": "Odd [/] title", "about": "[bold]plain[/bold]"})
    long = "a-very-long-name-" * 12
    made = [Job("FF [ours]", jobs_of(study, tmp_path)[0].config, tmp_path / "runs" / long)]
    print_plan(Plan(study, made, tmp_path), LocalExecutor("cpu", 1))
    listed = capsys.readouterr().out
    for text in ("Odd [/] title", "[bold]plain[/bold]", "FF [ours]", long):
        assert text in listed
    with StudyProgress(Console(force_terminal=True, width=120, height=20), made) as progress:
        progress.update(made)
    assert "FF [ours]" in capsys.readouterr().out


def test_progress_is_read_from_the_files_of_the_runs(
    finished: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = finished.jobs
    job = made[0]
    copy = Job(job.label, job.config, tmp_path / "run", device="cpu")
    plain = StudyProgress(Console(), [copy])
    assert read_state(copy.folder) == RunState()
    shutil.copytree(job.folder, copy.folder)
    (copy.folder / "done").unlink()
    lines = (copy.folder / "records.jsonl").read_text().splitlines(keepends=True)
    (copy.folder / "records.jsonl").write_text("".join(lines[:2]) + lines[2][:20])  # The third record is being written.
    now = {"step": 3, "epochs": 4, "epoch": 1, "images_per_second": 1234.0, "seconds": 10.0}
    (copy.folder / "progress.json").write_text(json.dumps(now))
    state = read_state(copy.folder)
    assert state.share == pytest.approx((2 + 2 + 2 * 0.25) / 6)
    recorded = sum(sum(json.loads(line)["seconds"].values()) for line in lines[:2])
    assert state.seconds == pytest.approx(recorded + 10)
    assert state.total_seconds == pytest.approx(state.seconds / state.share)

    plain.update([])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(", linear")[0] for line in printed] == [
        f"{job.label}: step 1/3, 2 classes",
        f"{job.label}: step 2/3, 4 classes",
    ]
    with StudyProgress(Console(force_terminal=True, width=120, height=20), [copy]) as progress:
        progress.update([copy])
    shown = capsys.readouterr().out
    assert "0 of 1 runs done" in shown
    assert "2/3" in shown
    assert "1,234" in shown


@pytest.mark.parametrize(("runs", "rows"), [(3, 10), (50, 10), (50, 3)])
def test_running_jobs_are_shown_first(runs: int, rows: int, tmp_path: Path) -> None:
    config = jobs_of(load_study("demo"), tmp_path)[0].config
    made = [Job(f"run {k}", config, tmp_path / str(k)) for k in range(runs)]
    progress = StudyProgress(Console(quiet=True), made)
    progress.running = {made[2], made[1]}
    shown = progress._selection(rows)
    assert len(shown) == min(runs, rows)
    assert progress.running <= set(shown)


def test_only_running_jobs_are_read_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study of 2,000 runs is not read from the disk every second."""
    made = [Job(str(k), resolve("glyphs"), tmp_path / str(k)) for k in range(2000)]
    now, read = 100.0, list[Path]()
    monkeypatch.setattr("ffcil.studies.watch.time.monotonic", lambda: now)
    progress = StudyProgress(Console(), made)
    progress.update(made[:2])
    monkeypatch.setattr("ffcil.studies.watch.read_state", lambda folder: read.append(folder) or RunState())
    for _ in range(9):
        now += 1.0
        progress.update(made[1:3])
    assert set(read) == {job.folder for job in made[:3]}  # the first has just ended
    assert len(read) == 1 + 9 * 2
    now += 1.0
    progress.update(made[1:3])  # others may run elsewhere
    assert len(read) == 19 + 2000


def test_the_whole_command(colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that fails is reported with its reason, the others are executed, and the exit status is 1."""
    monkeypatch.chdir(tmp_path)
    study = write_small_study(tmp_path / "mine.yaml", colours, epochs=1)
    content = yaml.safe_load(study.read_text())
    content["groups"][0]["settings"]["broken"] = {
        "arrivals": {"kind": "free-flow", "classes": 99, "largest": 50},
        "framework": "none",
    }
    study.write_text(yaml.safe_dump(content))
    done = CliRunner().invoke(app, ["study", "mine.yaml", "--device", "cpu", "--jobs", "2"])
    assert done.exit_code == 1, done.output
    assert "2 of 3 runs done in studies/mine/runs" in done.output
    assert "failed: broken: arrivals.classes is 99, but the data set has 6" in done.output.replace("\n", " ")
    assert (tmp_path / "studies/mine/study.yaml").exists()


def test_a_damaged_run_is_reported_and_left_out_of_the_table(
    finished: Plan, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(finished.out, tmp_path / "out")
    plan = Plan.make(finished.study, tmp_path / "out", "cpu")
    counts = plan.jobs[0].folder / "counts" / "step-002.npz"
    counts.write_bytes(counts.read_bytes()[:100])
    assert not run_study(plan, LocalExecutor("cpu", 2))
    printed = capsys.readouterr().out
    assert "FF.ours" in printed
    assert "6 of 6 runs done" in printed
    assert f"left out of the table: {counts} is damaged" in printed
    assert (tmp_path / "out" / "report" / "report.html").exists()


def test_code_of_a_study_file_is_run_only_if_asked(
    colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, ran = tmp_path / "mine.py", tmp_path / "ran"
    code.write_text(
        f"open({str(ran)!r}, 'a').write('x')\n"
        "from ffcil.methods import register\nfrom ffcil.methods.finetune import Finetune\n"
        "@register('of-a-file')\nclass OfAFile(Finetune):\n    title = 'Of a file'\n"
    )
    group = {"recipes": ["glyphs"], "methods": ["of-a-file"], "settings": {"FF.org": SETTINGS["FF.org"]}}
    study = write_small_study(tmp_path / "small.yaml", colours, imports=[str(code)], groups=[group])

    def command(*options: str) -> int:
        METHODS.pop("of-a-file", None)
        sys.modules.pop(str(code), None)  # as in a process of its own
        monkeypatch.setattr(sys, "argv", ["ffcil", "study", str(study), "--out", str(tmp_path / "out"), *options])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    try:
        assert command() == 2
        refused = (
            f"ffcil: {study} imports Python code: {code}: read it, then add --trust, or --import FILE for each file"
        )
        assert capsys.readouterr().err == f"{refused}.\n"
        assert command("--dry-run") == 0
        assert capsys.readouterr().out.startswith(f"{study} imports Python code: {code}\nThe code was not run")
        assert not ran.exists()
        for option in (["--trust"], ["--import", str(code)]):
            assert command("--dry-run", *option) == 0
            printed = capsys.readouterr().out
            assert "1 runs in" in printed
            assert f"imports the Python code of {code}" in printed
        assert ran.read_text() == "xx"
    finally:
        METHODS.pop("of-a-file", None)
