"""Studies: the runs of a grid, the options of the command line, and the file study.yaml."""

from __future__ import annotations

import signal
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from rich.console import Console
from typer.testing import CliRunner

from ffcil.cli import app
from ffcil.commands.output import stoppable
from ffcil.config import reading
from ffcil.config.resolve import load_recipe, resolve
from ffcil.errors import InputError
from ffcil.methods import find_method
from ffcil.methods.framework import Framework
from ffcil.runs.run import build_arrivals
from ffcil.studies.execution import execute_jobs
from ffcil.studies.executors.job import Job
from ffcil.studies.executors.local import LocalExecutor
from ffcil.studies.plan import Plan
from ffcil.studies.study import jobs_of, load_study, missing_data, narrow, study_names, write_study
from studies import write_small_study

PAPER = ["table-main", "table-ablation", "figure-alpha", "figure-order", "figure-overhead"]


def jobs(name: str, **changes: Any) -> list[Job]:
    return jobs_of(narrow(load_study(name), **changes), Path("out"))


def by_label(made: list[Job]) -> dict[str, Job]:
    return {job.label: job for job in made}


def test_the_tables_and_figures_of_the_paper_exist() -> None:
    assert sorted([*PAPER, "demo", "sensitivity", "table-flow"]) == study_names()
    # Data sets x methods x (settings of the paper + those of flow) x seeds, the former counted in the paper.
    assert len(jobs("table-main")) == (2 * 4 + 2 * 4) * (3 + 2) * 5
    assert len(jobs("table-ablation")) == (2 * (4 + 4) + 2 * 6 + 2 * 8) * 5
    assert len(jobs("figure-alpha")) == 4 * (1 + (2 + 1) * 6) * 3
    assert len(jobs("figure-order")) == 4 * (1 + (2 + 1) * 3) * 3
    assert len(jobs("figure-overhead")) == (4 * (2 + 1) + 4 * (3 + 1)) * 3


@pytest.mark.parametrize("name", [*PAPER, "sensitivity", "table-flow"])
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
    settings = ("Equ.T", "FF.org", "FF.ours", "FF.flow", "Equ.flow")
    assert set(made) == {f"{setting} seed {seed}" for setting in settings for seed in (3, 7)}
    for seed in (3, 7):
        configs = [made[f"{setting} seed {seed}"].config for setting in settings]
        equal, original, ours, flow, equal_flow = configs
        for config in configs:
            assert (config.class_seed, config.arrival_seed, config.train_seed) == (seed, seed, seed)
        assert build_arrivals(equal, 100).sizes == (10,) * 10
        assert build_arrivals(original, 100).sizes == build_arrivals(ours, 100).sizes
        assert (equal.framework, original.framework, ours.framework) == ("none", "none", "paper")
        assert original.model_copy(update={"framework": "paper"}) == ours
        assert original.model_copy(update={"framework": "flow"}) == flow
        assert equal.model_copy(update={"framework": "flow"}) == equal_flow
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


def test_ablations_set_the_parts_of_the_framework() -> None:
    made = by_label(jobs("table-ablation", seeds=[0]))
    assert made["cifar100 icarl CWM"].config.reduction == "class_wise_mean"
    assert made["cifar100 icarl DIWA"].config.alignment == "diwa"
    assert made["cars mos HA"].config.ha.use is True
    assert made["cars mos CWM+HA without surrogates"].config.ha.surrogates == 0
    assert made["cars tuna CWM+HA without identity"].config.ha.identity == "none"
    assert made["cars tuna CWM+HA without identity"].config.framework == "paper"
    assert made["cars moal flow without enough"].config.flow.enough == 1
    assert made["cars cllora flow without whiten"].config.flow.whiten is False
    for job in made.values():  # no part is set for the wrong kind of method
        method = find_method(job.config.method)
        Framework.resolve(job.config, method.own_alignment, method.pretrained)


def test_a_study_of_the_earlier_version_has_the_same_runs(tmp_path: Path, colours: Path) -> None:
    """The study file of a begun study still says `robust`. Its runs are found again, and the file is kept."""
    now = write_small_study(tmp_path / "now.yaml", colours)
    text = now.read_text().replace("framework: none", "robust: false").replace("framework: paper", "robust: true")
    assert "robust" in text
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.yaml").write_text(text)
    earlier, study = load_study(str(tmp_path / "out" / "study.yaml")), load_study(str(now))
    names = [job.folder.name for job in jobs_of(study, tmp_path)]
    assert [job.folder.name for job in jobs_of(earlier, tmp_path)] == names
    write_study(study, tmp_path / "out")
    assert (tmp_path / "out" / "study.yaml").read_text() == text


def test_data_sets_select_or_replace() -> None:
    names = {(job.folder.name.split("-")[0], job.config.method) for job in jobs("table-main", datasets=["cifar100"])}
    assert names == {("cifar100", method) for method in ("icarl", "der", "memo", "tagfex")}
    assert {job.config.method for job in jobs("table-main", datasets=["cars"])} == {"mos", "moal", "cllora", "tuna"}
    both = jobs("table-main", datasets=["cifar100", "cars"], seeds=[0])
    assert len(both) == 8 * 5
    with pytest.raises(InputError, match="Unknown recipe 'cifar10'"):
        jobs("table-main", datasets=["cifar10"])


def test_methods_select_or_join_their_kind() -> None:
    made = jobs("table-main", methods=["wa", "simplecil", "der"], seeds=[0])
    assert {(job.folder.name.split("-")[0], job.config.method) for job in made} == {
        *((recipe, method) for recipe in ("cifar100", "imagenet100") for method in ("wa", "der")),
        *((recipe, "simplecil") for recipe in ("cars", "imagenet")),
    }
    # No group of the demo is of its kind.
    assert {job.config.method for job in jobs("demo", methods=["simplecil"])} == {"simplecil"}
    with pytest.raises(InputError, match="did you mean 'icarl'"):
        jobs("table-main", methods=["icral"])
    with pytest.raises(InputError, match="No runs are left"):
        jobs("table-main", datasets=["cars"], methods=["icarl"])


def test_settings_override_assigned_fields() -> None:
    made = by_label(
        jobs("table-main", datasets=["glyphs"], methods=["icarl"], seeds=[0], assignments=["arrivals.alpha=0.5"])
    )
    assert made["FF.org"].config.arrivals.alpha == 0.5  # type: ignore[union-attr]
    assert made["Equ.T"].config.arrivals.kind == "equal"  # which has no alpha
    for assignment in ("framework=flow", "robust=true", "train_seed=1", "arrivals.sizes=[1,2]", "method=der"):
        with pytest.raises(InputError, match=r"sets .* itself"):
            jobs("table-main", assignments=[assignment])
    with pytest.raises(InputError, match=r"sets arrivals\.alpha itself"):
        jobs("figure-alpha", assignments=["arrivals.alpha=1"])
    with pytest.raises(InputError, match=r"Unknown field 'train.bach'"):
        jobs("table-main", assignments=["train.bach=1"])


def test_a_setting_may_have_its_own_seed(tmp_path: Path) -> None:
    content = load_study("demo").model_dump(mode="json")
    content["groups"][0]["settings"]["FF.org"]["arrival_seed"] = 9
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(content))
    for job in jobs(str(tmp_path / "mine.yaml"), seeds=[3]):
        arrival_seed = 9 if job.label == "FF.org" else 3
        assert (job.config.class_seed, job.config.arrival_seed, job.config.train_seed) == (3, arrival_seed, 3)


def test_budget_and_per_class_count_as_one_field(tmp_path: Path) -> None:
    """--set cannot replace a budget that the study varies. It can replace one that the study only sets."""
    content = load_study("demo").model_dump(mode="json")
    (tmp_path / "set.yaml").write_text(yaml.safe_dump({**content, "set": {"memory": {"budget": 100}}}))
    for job in jobs(str(tmp_path / "set.yaml"), assignments=["memory.per_class=20"]):
        assert (job.config.memory.budget, job.config.memory.per_class) == (None, 20)
    content["groups"][0]["vary"] = {"memory.budget": [100, 500]}
    (tmp_path / "varied.yaml").write_text(yaml.safe_dump(content))
    with pytest.raises(InputError, match=r"The study sets memory\.budget itself: drop --set memory\.per_class="):
        jobs(str(tmp_path / "varied.yaml"), assignments=["memory.per_class=20"])


def test_runs_with_the_same_words_get_different_labels(tmp_path: Path) -> None:
    """Two settings with the same name differ only in the hash of their folders' names."""
    content = load_study("demo").model_dump(mode="json")
    (group,) = content["groups"]
    settings = [{"FF.org": {"arrivals": {"kind": "free-flow", "alpha": alpha}}} for alpha in (1.0, 0.2)]
    content |= {"seeds": [0], "groups": [{**group, "settings": setting} for setting in settings]}
    (tmp_path / "two.yaml").write_text(yaml.safe_dump(content))
    two = jobs(str(tmp_path / "two.yaml"))
    assert [job.label for job in two] == [f"FF.org {job.config.identity()}" for job in two]
    content["groups"].append({**group, "settings": {"Equ.T": {"arrivals": {"kind": "equal"}}}})
    (tmp_path / "three.yaml").write_text(yaml.safe_dump(content))
    three = jobs(str(tmp_path / "three.yaml"))
    assert [job.label for job in three] == [*(job.label for job in two), "Equ.T"]


def test_a_larger_study_finds_its_earlier_runs() -> None:
    small = {job.folder for job in jobs("table-main", datasets=["glyphs"], methods=["icarl"], seeds=[0])}
    large = {job.folder for job in jobs("table-main", datasets=["glyphs"], seeds=[0, 1])}
    assert small < large


def test_each_recipe_has_its_own_data() -> None:
    made = jobs("table-main", seeds=[0], data=["cars=/images/cars", "imagenet-a=/images/a", "/images/rest"])
    places = {job.folder.name.rsplit("-seed", 1)[0]: str(job.data) for job in made}
    assert places["cars-mos-FF.org"] == "/images/cars"
    assert places["imagenet-a-mos-FF.org"] == "/images/a"
    assert places["imagenet100-der-FF.org"] == "/images/rest"


def test_runs_on_other_own_images_are_other_runs(tmp_path: Path) -> None:
    def folders(place: str, *assignments: str) -> set[Path]:
        return {job.folder for job in jobs("demo", assignments=assignments, data=[str(tmp_path / place)])}

    assert not folders("a", "dataset=folder") & folders("b", "dataset=folder")
    assert folders("a", "dataset=folder") == folders("a/../a", "dataset=folder")
    assert folders("a", "dataset=cifar100") == folders(
        "b", "dataset=cifar100"
    )  # A published data set does not depend on its path.


def test_missing_data_are_reported_per_recipe(tmp_path: Path) -> None:
    made = jobs(
        "table-main", datasets=["glyphs", "imagenet-a"], seeds=[0], methods=["mos"], data=[f"imagenet-a={tmp_path}"]
    )
    (problem,) = missing_data(made)
    assert problem.startswith("imagenet-a: Data set 'imagenet-a' is not in")
    plan = Plan(load_study("table-main"), made[-1:], tmp_path / "out")
    with pytest.raises(InputError, match="imagenet-a: Data set 'imagenet-a' is not in"):
        execute_jobs(plan, LocalExecutor("cpu", 1), Console(quiet=True))
    assert not (tmp_path / "out").exists()


def test_the_written_study_has_the_same_runs(tmp_path: Path) -> None:
    study = narrow(
        load_study("figure-order"), datasets=["cifar100"], seeds=[2], assignments=["train.batch=8"], data=["x"]
    )
    write_study(study, tmp_path)
    again = load_study(str(tmp_path / "study.yaml"))
    assert [job.folder for job in jobs_of(again, tmp_path)] == [job.folder for job in jobs_of(study, tmp_path)]


def test_a_study_is_continued_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own recipe, images and methods are given relative to the first folder."""
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(yaml.safe_dump({**load_recipe("glyphs"), "dataset": "folder"}))
    begun = narrow(load_study("demo"), datasets=["mine.yaml"], data=["mine.yaml=images"], imports=["mine.py"])
    write_study(begun, Path("out"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    again = load_study("../out/study.yaml")
    assert again == begun
    for job in jobs_of(again, Path("../out")):
        assert job.recipe == str(tmp_path / "mine.yaml")
        assert job.data == tmp_path / "images"
        assert job.imports == (str(tmp_path / "mine.py"),)


def test_a_smaller_study_keeps_the_file_of_a_larger_one(tmp_path: Path) -> None:
    def write(seeds: list[int], **changes: Any) -> tuple[int, ...]:
        write_study(narrow(load_study("demo"), seeds=seeds, **changes), tmp_path)
        return load_study(str(tmp_path / "study.yaml")).seeds

    assert write([0, 1]) == (0, 1)
    assert write([0]) == (0, 1)
    assert write([1], methods=["icarl"]) == (0, 1)
    assert write([0, 1, 2]) == (0, 1, 2)
    assert write([0], assignments=["train.batch=8"]) == (0,)  # These are other runs.
    assert write([0, 1], assignments=["train.batch=8"], data=["x"]) == (0, 1)
    assert write([0], assignments=["train.batch=8"], data=["y"]) == (0,)
    (tmp_path / "study.yaml").write_text("seeds: [")
    assert write([0]) == (0,)


GROUP = {"recipes": ["glyphs"], "methods": ["icarl"], "settings": {"A": {}}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"seed": [0]}, "Unknown field 'seed': did you mean 'seeds'"),
        ({"groups": [{"recipe": ["glyphs"]}]}, "Unknown field 'groups.recipe': did you mean 'groups.recipes'"),
        ({"seeds": []}, r"Bad value for seeds: Input should not be empty, not \[\]"),
        ({"groups": [{**GROUP, "vary": {"train.batch": []}}]}, "groups.0.vary.train.batch: Input should not be empty"),
        ({"groups": [{**GROUP, "settings": {"A": None}}]}, "groups.0.settings.A: Input should be a mapping of fields"),
        ({"seeds": [-1]}, "Bad value for seeds.0"),
        ({"groups": 5}, "Bad value for groups: Input should be a list in brackets"),
        ({"groups": [{"recipes": ["glyphs"], "methods": ["icarl"]}]}, r"groups\.0\.settings is missing: add it\."),
        ({"groups": [{**GROUP, "vary": {"method": ["icarl", "wa"]}}]}, "names its methods in `methods`: drop"),
        ({"groups": [{**GROUP, "settings": {"A": {"method": "wa"}}}]}, "names its methods in `methods`: drop"),
        ({"set": {"method": "wa"}}, "Bad value for set: groups name their methods in `methods`"),
        (
            {"groups": [{**GROUP, "settings": {"A": {"memory": {"budget": 9}}}, "vary": {"memory.budget": [5, 7]}}]},
            "the setting 'A' sets memory.budget, and `vary` varies memory.budget: drop one",
        ),
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
    with pytest.raises(InputError, match="'glyphs' is a recipe: use `ffcil run glyphs`"):
        load_study("glyphs")
    with pytest.raises(InputError, match=r"There is no study file 'absent\.yaml'"):
        load_study("absent.yaml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--executor", "cloud"], "Unknown executor"),
        (["--jobs", "many"], "Cannot read --jobs 'many'"),
        (["--jobs", "²"], "Cannot read --jobs '²'"),
        (["--per-gpu", "4"], "--per-gpu does not apply to a CPU"),
        (["--set", "flow.shared_ridge=true"], "flow.shared_ridge=true is not supported by 'icarl'"),
        (["--set", "ha.use=true"], "ha.use=true is not supported by 'icarl'"),
        (["--data", "."], "'glyphs' is drawn, not read from files: leave --data out"),
        (["--seeds", "a"], "Cannot read --seeds 'a'"),
        (["--seeds", "0"], "Cannot read --seeds '0'"),
        (["--log", "tensorbord"], "Unknown log 'tensorbord': did you mean 'tensorboard'?"),
        (["--address", "auto"], "--address is an option of Ray: add --executor ray"),
        (["--slurm", "timeout_min=3"], "--slurm is an option of SLURM: add --executor slurm"),
        (["--executor", "slurm", "--slurm", "timeout"], "Cannot read --slurm 'timeout'"),
    ],
)
def test_options_with_a_mistake(arguments: list[str], message: str) -> None:
    done = CliRunner().invoke(app, ["study", "demo", "--dry-run", "--device", "cpu", *arguments])
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_the_loss_of_the_terminal_stops_a_command_except_under_nohup() -> None:
    before = signal.getsignal(signal.SIGHUP)
    with pytest.raises(typer.Exit) as stopped, stoppable():
        signal.raise_signal(signal.SIGHUP)
    assert stopped.value.exit_code == 130
    assert signal.getsignal(signal.SIGHUP) is before
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # nohup does this.
    try:
        with stoppable():
            signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_study_that_measures_time_runs_one_job_at_a_time() -> None:
    command = ["study", "figure-overhead", "--dataset", "glyphs", "--dry-run", "--device", "cpu"]
    assert "1 at a time" in CliRunner().invoke(app, command).output
    assert "measures time" in str(CliRunner().invoke(app, [*command, "--jobs", "2"]).exception)


def test_a_recipe_is_parsed_once_for_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tmp_path / "mine.yaml"
    recipe.write_text((resources.files("ffcil.config.recipes") / "glyphs.yaml").read_text() + "# another\n")
    parsed: list[str] = []
    load = reading.read_value
    monkeypatch.setattr(reading, "read_value", lambda text: parsed.append(text) or load(text))
    study = narrow(load_study("demo"), datasets=[str(recipe)], seeds=range(20))
    configs = [job.config for job in jobs_of(study, tmp_path)]
    assert len(configs) == 80
    assert sum("# another" in text for text in parsed) == 1
    recipe.write_text(recipe.read_text().replace("# another", "# a third") + "train_seed: 5\n")
    assert resolve(str(recipe)).train_seed == 5  # a changed file is read again
