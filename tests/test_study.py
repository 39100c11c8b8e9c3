"""Studies: what a grid resolves to, what the command line changes of it, and that it lists and runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.errors import InputError
from ffcil.estimate import Earlier, in_words
from ffcil.executors.job import Job
from ffcil.executors.local import LocalExecutor
from ffcil.report.records import load_run
from ffcil.run import build_arrivals
from ffcil.run_state import RunState, read_state
from ffcil.study import Study, jobs_of, load_study, missing_data, narrow, study_names, write_study
from ffcil.study_run import carry_out, list_runs
from ffcil.watch import Watch
from studies import SETTINGS, write_small_study

PAPER = ["table-main", "table-ablation", "figure-alpha", "figure-order", "figure-overhead"]


def jobs(name: str, **changes: Any) -> list[Job]:
    return jobs_of(narrow(load_study(name), **changes), Path("out"))


def by_label(made: list[Job]) -> dict[str, Job]:
    return {job.label: job for job in made}


def test_the_papers_tables_and_figures_are_there() -> None:
    assert sorted([*PAPER, "demo"]) == study_names()
    # data sets x methods x settings x seeds, counted in the paper
    assert len(jobs("table-main")) == (2 * 4 + 2 * 4) * 3 * 5
    assert len(jobs("table-ablation")) == (2 * 4 + 2 * 6) * 5
    assert len(jobs("figure-alpha")) == 4 * (1 + 2 * 6) * 3
    assert len(jobs("figure-order")) == 4 * (1 + 2 * 3) * 3
    assert len(jobs("figure-overhead")) == (4 * 2 + 4 * 3) * 3


@pytest.mark.parametrize("name", PAPER)
def test_every_study_resolves_on_the_embedded_data_set(name: str) -> None:
    made = jobs(name, datasets=["glyphs"])
    assert {job.config.dataset for job in made} == {"glyphs"}
    folders = [job.folder.name for job in made]
    assert len(set(folders)) == len(folders)
    assert len({job.label for job in made}) == len(made)
    for job in made:
        assert job.folder.name.endswith(job.config.identity())
        assert job.config.method in job.folder.name


def test_the_settings_of_a_seed_share_permutation_and_spectrum() -> None:
    made = by_label(jobs("table-main", datasets=["cifar100"], methods=["icarl"], seeds=[3, 7]))
    assert set(made) == {f"{setting} seed {seed}" for setting in ("Equ.T", "FF.org", "FF.ours") for seed in (3, 7)}
    for seed in (3, 7):
        equal, original, ours = (made[f"{setting} seed {seed}"].config for setting in ("Equ.T", "FF.org", "FF.ours"))
        for config in (equal, original, ours):
            assert (config.class_seed, config.arrival_seed, config.train_seed) == (seed, seed, seed)
        assert build_arrivals(equal, 100).sizes == (10,) * 10
        assert build_arrivals(original, 100).sizes == build_arrivals(ours, 100).sizes
        assert (equal.robust, original.robust, ours.robust) == (False, False, True)
        assert original.model_copy(update={"robust": True}) == ours
    assert (
        build_arrivals(made["FF.org seed 3"].config, 100).sizes
        != build_arrivals(made["FF.org seed 7"].config, 100).sizes
    )


def test_one_spectrum_in_three_orders_and_one_permutation_for_every_alpha() -> None:
    orders = by_label(jobs("figure-order", datasets=["cifar100"], methods=["der"], seeds=[1]))
    sizes = {
        order: build_arrivals(orders[f"FF.org order={order}"].config, 100).sizes
        for order in ("jumbled", "ascending", "descending")
    }
    assert sizes["ascending"] == tuple(sorted(sizes["jumbled"])) == sizes["descending"][::-1]
    alphas = jobs("figure-alpha", datasets=["cifar100"], methods=["icarl"], seeds=[1])
    drawn = [job.config.arrivals.alpha for job in alphas if "FF.org" in job.label]  # type: ignore[union-attr]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 6


def test_ablations_set_the_parts() -> None:
    made = by_label(jobs("table-ablation", seeds=[0]))
    assert made["cifar100 icarl CWM"].config.reduction == "class_wise_mean"
    assert made["cifar100 icarl DIWA"].config.alignment == "diwa"
    assert made["cars mos HA"].config.ha.use is True
    assert made["cars mos CWM+HA without surrogates"].config.ha.surrogates == 0
    assert made["cars tuna CWM+HA without identity"].config.ha.identity is False
    assert made["cars tuna CWM+HA without identity"].config.robust


def test_data_sets_select_or_replace() -> None:
    names = {(job.folder.name.split("-")[0], job.config.method) for job in jobs("table-main", datasets=["cifar100"])}
    assert names == {("cifar100", method) for method in ("icarl", "der", "memo", "tagfex")}
    assert {job.config.method for job in jobs("table-main", datasets=["cars"])} == {"mos", "moal", "cllora", "tuna"}
    both = jobs("table-main", datasets=["cifar100", "cars"], seeds=[0])
    assert len(both) == 8 * 3
    with pytest.raises(InputError, match="Unknown recipe 'cifar10'"):
        jobs("table-main", datasets=["cifar10"])


def test_methods_select_or_join_their_kind() -> None:
    made = jobs("table-main", methods=["wa", "simplecil", "der"], seeds=[0])
    assert {(job.folder.name.split("-")[0], job.config.method) for job in made} == {
        *((recipe, method) for recipe in ("cifar100", "imagenet100") for method in ("wa", "der")),
        *((recipe, "simplecil") for recipe in ("cars", "imagenet")),
    }
    assert {job.config.method for job in jobs("demo", methods=["simplecil"])} == {"simplecil"}  # no group of its kind
    with pytest.raises(InputError, match="did you mean 'icarl'"):
        jobs("table-main", methods=["icral"])
    with pytest.raises(InputError, match="Nothing is left"):
        jobs("table-main", datasets=["cars"], methods=["icarl"])


def test_fields_go_below_the_settings() -> None:
    made = by_label(
        jobs("table-main", datasets=["glyphs"], methods=["icarl"], seeds=[0], assignments=["arrivals.alpha=0.5"])
    )
    assert made["FF.org"].config.arrivals.alpha == 0.5  # type: ignore[union-attr]
    assert made["Equ.T"].config.arrivals.kind == "equal"  # where alpha has no meaning
    for assignment in ("robust=true", "train_seed=1", "arrivals.sizes=[1,2]", "method=der"):
        with pytest.raises(InputError, match=r"sets .* itself"):
            jobs("table-main", assignments=[assignment])
    with pytest.raises(InputError, match=r"sets arrivals\.alpha itself"):
        jobs("figure-alpha", assignments=["arrivals.alpha=1"])
    with pytest.raises(InputError, match=r"Unknown field 'train.bach'"):
        jobs("table-main", assignments=["train.bach=1"])


def test_a_study_that_grows_finds_its_runs_again() -> None:
    small = {job.folder for job in jobs("table-main", datasets=["glyphs"], methods=["icarl"], seeds=[0])}
    large = {job.folder for job in jobs("table-main", datasets=["glyphs"], seeds=[0, 1])}
    assert small < large


def test_each_recipe_has_its_own_data() -> None:
    made = jobs("table-main", seeds=[0], data=["cars=/images/cars", "imagenet-a=/images/a", "/images/rest"])
    places = {job.folder.name.rsplit("-seed", 1)[0]: str(job.data) for job in made}
    assert places["cars-mos-FF.org"] == "/images/cars"
    assert places["imagenet-a-mos-FF.org"] == "/images/a"
    assert places["imagenet100-der-FF.org"] == "/images/rest"


def test_missing_data_are_told_by_recipe(tmp_path: Path) -> None:
    made = jobs("table-main", datasets=["glyphs", "imagenet-a"], seeds=[0], methods=["mos"], data=[f"{tmp_path}"])
    (problem,) = missing_data(made)
    assert problem.startswith("imagenet-a: Data set 'imagenet-a' is not in")
    study = load_study("table-main")
    with pytest.raises(InputError, match="imagenet-a: Data set 'imagenet-a' is not in"):
        carry_out(study, made[-1:], tmp_path / "out", LocalExecutor("cpu", 1), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_the_resolved_study_is_the_same_study(tmp_path: Path) -> None:
    study = narrow(
        load_study("figure-order"), datasets=["glyphs"], seeds=[2], assignments=["train.batch=8"], data=["x"]
    )
    write_study(study, tmp_path)
    again = load_study(str(tmp_path / "study.yaml"))
    assert [job.folder for job in jobs_of(again, tmp_path)] == [job.folder for job in jobs_of(study, tmp_path)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seed": [0]}, "Unknown field 'seed': did you mean 'seeds'"),
        ({"groups": [{"recipe": ["glyphs"]}]}, "Unknown field 'groups.recipe': did you mean 'groups.recipes'"),
        ({"seeds": []}, "Bad value for seeds"),
        ({"seeds": [-1]}, "Bad value for seeds.0"),
    ],
)
def test_a_study_with_a_mistake(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({**load_study("demo").model_dump(mode="json"), **content}))
    with pytest.raises(InputError, match=message):
        load_study(str(path))


def test_names_of_studies() -> None:
    with pytest.raises(InputError, match="did you mean 'table-main'"):
        load_study("table-mian")
    with pytest.raises(InputError, match="'glyphs' is the recipe of a run: `ffcil run glyphs`"):
        load_study("glyphs")
    with pytest.raises(InputError, match=r"There is no study file 'absent\.yaml'"):
        load_study("absent.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--executor", "cloud"], "Unknown executor"),
        (["--jobs", "many"], "Cannot read --jobs 'many'"),
        (["--seeds", "a"], "Cannot read --seeds 'a'"),
        (["--seeds", "0"], "Cannot read --seeds '0'"),
        (["--log", "tensorbord"], "Unknown log 'tensorbord': did you mean 'tensorboard'?"),
        (["--address", "auto"], "--address is a Ray cluster's"),
        (["--slurm", "timeout_min=3"], "--slurm has no meaning here"),
        (["--executor", "slurm", "--slurm", "timeout"], "Cannot read --slurm 'timeout'"),
    ],
)
def test_options_with_a_mistake(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["study", "demo", "--dry-run", "--device", "cpu", *arguments])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_a_study_of_times_goes_one_by_one() -> None:
    command = ["study", "figure-overhead", "--dataset", "glyphs", "--dry-run", "--device", "cpu"]
    assert "1 at a time" in CliRunner().invoke(app, command).output
    assert "measures time" in str(CliRunner().invoke(app, [*command, "--jobs", "2"]).exception)


# --- runs that were made -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, colours: Path) -> tuple[Study, list[Job], Path]:
    """A study of three settings and two seeds, carried out."""
    folder = tmp_path_factory.mktemp("study")
    groups = [{"recipes": ["glyphs"], "methods": ["icarl"], "settings": SETTINGS}]
    study = load_study(str(write_small_study(folder / "small.yaml", colours, groups=groups, seeds=[0, 1])))
    made = jobs_of(study, folder / "out", device="cpu")
    assert carry_out(study, made, folder / "out", LocalExecutor("cpu", 2), Console(quiet=True)) == {}
    return study, made, folder / "out"


def test_every_cell_is_filled(finished: tuple[Study, list[Job], Path]) -> None:
    _, made, out = finished
    assert len(made) == 6
    assert sorted(path.name for path in (out / "runs").iterdir()) == sorted(job.folder.name for job in made)
    for job in made:
        run = load_run(job.folder)
        assert run.finished
        assert job.label == f"{run.setting} {run.seed_label}"
        assert run.environment["threads"] == 1
        assert run.environment["command"].startswith(f"ffcil run {job.folder}/config.json --out")


def test_carried_out_again_it_touches_nothing(finished: tuple[Study, list[Job], Path]) -> None:
    study, made, out = finished

    def stamps() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (out / "runs").rglob("*")}

    before = stamps()
    assert carry_out(study, made, out, LocalExecutor("cpu", 2), Console(quiet=True)) == {}
    assert stamps() == before


def test_the_list_tells_time_from_earlier_records(
    finished: tuple[Study, list[Job], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study, made, out = finished
    monkeypatch.chdir(tmp_path)
    seconds = [json.loads((job.folder / "summary.json").read_text())["seconds"] for job in made]
    earlier = Earlier([out], on_gpu=False)
    config = made[0].config.model_dump(mode="json")
    assert earlier.of(config) == pytest.approx(sum(seconds) / 6)
    assert earlier.of({**config, "method": "der"}) is None
    assert Earlier([out], on_gpu=True).of(config) is None
    assert [in_words(s) for s in (0.2, 99, 120, 7200)] == ["0 s", "99 s", "2 min", "2.0 h"]

    list_runs(study, made, out, LocalExecutor("cpu", 2))
    listed = capsys.readouterr().out
    assert listed.count(" done") == 6
    assert "6 runs in" in listed
    assert "0 of them to run" in listed
    more = narrow(study, seeds=[0, 9], methods=["icarl", "replay"])
    list_runs(more, jobs_of(more, out, device="cpu"), out, LocalExecutor("cpu", 2))
    listed = capsys.readouterr().out
    assert "9 of them to run, 2 at a time" in listed
    assert "one after another" in listed
    assert "no earlier records to tell the time of 6 runs by: replay on glyphs" in listed


def test_the_table_and_the_lines_come_from_the_runs_files(
    finished: tuple[Study, list[Job], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, made, _ = finished
    job = made[0]
    copy = Job(job.label, job.config, tmp_path / "run", device="cpu")
    plain = Watch(Console(), [copy])
    assert read_state(copy.folder) == RunState()
    shutil.copytree(job.folder, copy.folder)
    (copy.folder / "done").unlink()
    lines = (copy.folder / "records.jsonl").read_text().splitlines(keepends=True)
    (copy.folder / "records.jsonl").write_text("".join(lines[:2]) + lines[2][:20])  # the third is being written
    now = {"step": 3, "epochs": 4, "epoch": 1, "images_per_second": 1234.0, "seconds": 10.0}
    (copy.folder / "progress.json").write_text(json.dumps(now))
    state = read_state(copy.folder)
    assert state.share == pytest.approx((2 + 2 + 2 * 0.25) / 6)
    recorded = sum(sum(json.loads(line)["seconds"].values()) for line in lines[:2])
    assert state.seconds == pytest.approx(recorded + 10)
    assert state.total_seconds == pytest.approx(state.seconds / state.share)

    plain.look([])
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(", linear")[0] for line in printed] == [
        f"{job.label}: step 1/3, 2 classes",
        f"{job.label}: step 2/3, 4 classes",
    ]
    with Watch(Console(force_terminal=True, width=120, height=20), [copy]) as watch:
        watch.look([copy])
    shown = capsys.readouterr().out
    assert "0 of 1 runs done" in shown
    assert "2/3" in shown
    assert "1,234" in shown


@pytest.mark.parametrize(("runs", "room"), [(3, 10), (50, 10), (50, 3)])
def test_of_many_runs_those_at_work_are_shown(runs: int, room: int, tmp_path: Path) -> None:
    config = load_study("demo") and jobs("demo", seeds=[0])[0].config
    made = [Job(f"run {k}", config, tmp_path / str(k)) for k in range(runs)]
    watch = Watch(Console(quiet=True), made)
    watch.running = {"run 2", "run 1"}
    shown = watch._most_telling(room)
    assert len(shown) == min(runs, room)
    assert watch.running <= set(shown)


def test_the_whole_command(colours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that cannot be made is told with its reason, the others are made, and the exit status says so."""
    monkeypatch.chdir(tmp_path)
    study = write_small_study(tmp_path / "mine.yaml", colours, epochs=1)
    content = yaml.safe_load(study.read_text())
    content["groups"][0]["settings"]["broken"] = {
        "arrivals": {"kind": "free-flow", "classes": 99, "largest": 50},
        "robust": False,
    }
    study.write_text(yaml.safe_dump(content))
    done = CliRunner().invoke(app, ["study", "mine.yaml", "--device", "cpu", "--jobs", "2"])
    assert done.exit_code == 1, done.output
    assert "2 of 3 runs done in studies/mine/runs" in done.output
    assert "failed: broken: arrivals.classes is 99, but the data set has 6" in done.output.replace("\n", " ")
    assert (tmp_path / "studies/mine/study.yaml").exists()
