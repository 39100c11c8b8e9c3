"""The command line as a user types it: output, JSON, and one sentence for every mistake."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module, metadata
from pathlib import Path
from typing import NamedTuple

import pytest
from PIL import Image

from conftest import write_colours
from ffcil.__main__ import main as start
from ffcil.cli import main
from ffcil.commands.packages import Package
from ffcil.methods import METHODS
from ffcil.models.pretrained import glyph_vit_weights

QUICK = ["--set", "train.epochs_scale=0.1", "--set", "image_size=16", "--set", "dataset=folder", "--device", "cpu"]


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


Command = Callable[..., Done]


@pytest.fixture
def ffcil(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """`ffcil(*arguments)` as a user types it in an empty folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def call(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["ffcil", *arguments])
        capsys.readouterr()
        try:
            main()
            status = 0
        except SystemExit as stop:
            status = stop.code if isinstance(stop.code, int) else 0
        return Done(status, *capsys.readouterr())

    return call


def test_help_does_not_import_torch() -> None:
    program = (
        "import sys, ffcil.cli\ntry: ffcil.cli.app(['--help'])\nexcept SystemExit: pass\nprint('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "arrivals" in done.stdout


def test_arrivals(ffcil: Command) -> None:
    arguments = [
        "--classes",
        "100",
        "--steps",
        "10",
        "--smallest",
        "1",
        "--largest",
        "15",
        "--alpha",
        "1",
        "--order",
        "jumbled",
        "--seed",
        "0",
    ]
    done = ffcil("arrivals", *arguments, "--json")
    made = json.loads(done.stdout)
    assert next(iter(made)) == "sizes"
    assert (sum(made["sizes"]), len(made["sizes"])) == (100, 10)
    assert all(1 <= size <= 15 for size in made["sizes"])
    picture = ffcil("arrivals", *arguments).stdout
    assert picture.count("\n") >= 11
    assert all(len(line) <= 80 for line in picture.splitlines())


def test_arrivals_plot(ffcil: Command, tmp_path: Path) -> None:
    assert ffcil("arrivals", "--plot", str(tmp_path / "a.svg")).returncode == 0
    assert (tmp_path / "a.svg").read_text().lstrip().startswith("<?xml")


def test_arrivals_of_other_kinds(ffcil: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("class,time\na,0\nb,5\nc,1\n")
    for arguments, sizes in [
        (["--kind", "equal", "--classes", "10", "--steps", "3"], [4, 3, 3]),
        (["--kind", "half", "--classes", "10", "--steps", "6"], [5, 1, 1, 1, 1, 1]),
        (["--kind", "trickle", "--classes", "6", "--steps", "4"], [2, 1, 1, 1, 1]),
        (["--sizes", "3,1,2"], [3, 1, 2]),
        (["--sizes", "3,1,2", "--order", "ascending"], [1, 2, 3]),
        (["--trace", str(trace), "--window", "2"], [2, 1]),
    ]:
        done = ffcil("arrivals", *arguments, "--json")
        assert json.loads(done.stdout)["sizes"] == sizes


def test_run_and_run_again(ffcil: Command, tmp_path: Path, colours: Path) -> None:
    arguments = ["run", "glyphs", "--set", "arrivals.sizes=[1,2]", "--set", "framework=paper", "--set", "train_seed=1"]
    arguments += [*QUICK, "--data", str(colours), "--out", str(tmp_path / "run")]
    done = ffcil(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["sizes"] == [1, 2]
    assert summary["framework"] == {"reduction": "class_wise_mean", "alignment": "diwa", "ha": False}
    assert "step 2/2: +2 = 3 classes" in done.stderr
    again = ffcil(*arguments)
    assert again.returncode == 0
    assert "linear (scored): average" in again.stdout
    assert "step" not in again.stderr  # Nothing was trained.


def test_a_run_without_out_is_named_by_its_configuration(ffcil: Command, tmp_path: Path, colours: Path) -> None:
    arguments = ["run", "glyphs", "--set", "arrivals.sizes=[2]", *QUICK, "--data", str(colours), "--json"]
    done = ffcil(*arguments)
    (folder,) = Path("runs").iterdir()
    assert json.loads(done.stdout)["folder"] == f"runs/{folder.name}"
    dry = ffcil(*arguments, "--dry-run")
    assert json.loads(dry.stdout) == json.loads((folder / "config.json").read_text())


def test_an_own_method_in_one_file(ffcil: Command, colours: Path) -> None:
    Path("mine.py").write_text(
        "from ffcil.methods import MethodConfig, register\n"
        "from ffcil.methods.finetune import Finetune\n"
        "class MineConfig(MethodConfig):\n"
        "    power: float = 2.0\n"
        "@register('mine')\n"
        "class Mine(Finetune):\n"
        "    title, Config = 'Mine', MineConfig\n"
        "    def loss(self, images, targets):\n"
        "        return super().loss(images, targets) ** self.config.power\n"
    )
    arguments = ["--set", "arrivals.sizes=[2]", *QUICK, "--data", str(colours), "--set", "method=mine", "--json"]
    done = ffcil("run", "glyphs", *arguments, "--import", "mine.py", "--set", "options.power=1.5")
    METHODS.pop("mine")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["method"] == "mine"
    Path("empty.py").write_text("")
    assert "registers no method" in ffcil("methods", "--import", "empty.py").stderr


def test_a_mistake_in_a_file_of_methods_is_one_sentence_with_its_line(ffcil: Command) -> None:
    for code, problem in (
        ("import math\nimport absent_module\n", "line 2: ModuleNotFoundError: No module named 'absent_module'"),
        ("def fail():\n    return 1 / 0\n\nfail()\n", "line 2: ZeroDivisionError: division by zero"),
        ("\nx =\n", "line 2: SyntaxError: invalid syntax"),
    ):
        Path("broken.py").write_text(code)
        done = ffcil("methods", "--import", "broken.py")
        assert done.returncode == 2
        assert "broken.py " + problem in done.stderr
        assert done.stderr.count("\n") == 1


def test_no_test_images(ffcil: Command, tmp_path: Path) -> None:
    data = write_colours(tmp_path / "one each", classes=2, images=1)
    arguments = ["run", "glyphs", "--set", "arrivals.sizes=[1,1]", *QUICK, "--data", str(data)]
    done = ffcil(*arguments, "--out", "odd [red] name [/b]")
    assert done.returncode == 0, done.stderr
    assert "no test images" in done.stdout
    assert "odd [red] name [/b]" in done.stderr


def test_listings(ffcil: Command) -> None:
    methods = {row["name"]: row for row in json.loads(ffcil("methods", "--json").stdout)}
    assert {"finetune", "replay", "joint", "icarl"} <= set(methods)
    documented = METHODS["icarl"].Config.model_fields["temperature"].description
    assert methods["icarl"]["options"]["temperature"] == {"default": 2.0, "about": documented}
    assert documented
    assert all(row["about"] for row in methods.values())
    datasets = {row["name"]: row for row in json.loads(ffcil("data", "list", "--json").stdout)}
    assert {"glyphs", "cifar100", "folder"} <= set(datasets)
    assert datasets["glyphs"]["found"] is True
    shown = ffcil("methods").stdout
    assert "icarl  linear (scored), nearest-mean" in shown
    for row in methods.values():  # no name is cut off, and values are as `--set` takes them
        for name, info in row["options"].items():
            assert f"options.{name} = {json.dumps(info['default'])}" in shown
    assert "glyphs" in ffcil("data", "list").stdout
    assert "diwa.tau" in {row["name"] for row in json.loads(ffcil("fields", "--json").stdout)}
    assert "train.first.epochs" in ffcil("fields").stdout


def test_doctor(ffcil: Command, tmp_path: Path) -> None:
    found = json.loads(ffcil("doctor", "--json", "--data", str(tmp_path)).stdout)
    assert found["versions"]["torch"]
    assert found["data_found"]["glyphs"] is True
    assert found["data_found"]["cifar100"] is False
    assert any("cifar100" in advice for advice in found["advice"])
    assert "advice" in ffcil("doctor").stdout
    required = {re.split(r"[<>=!~ ;]", line)[0] for line in metadata.requires("ffcil") or [] if "extra ==" not in line}
    assert set(found["versions"]) == required
    assert "ray (ffcil[ray])" in found["optional"]


def doctor_without(modules: list[str], versions: dict[str, str | None], *arguments: str) -> Done:
    """`ffcil doctor` in a process that cannot import `modules` and finds other `versions` (None: not installed)."""
    program = (
        "import sys\n"
        "from importlib import metadata\n"
        f"modules, versions, find_version = {modules!r}, {versions!r}, metadata.version\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in modules:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "def version(name):\n"
        "    if versions.get(name, '') is None:\n"
        "        raise metadata.PackageNotFoundError(name)\n"
        "    return versions.get(name) or find_version(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "metadata.version = version\n"
        f"sys.argv = {['ffcil', 'doctor', *arguments]!r}\n"
        "from ffcil.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return Done(done.returncode, done.stdout, done.stderr)


# torch is always absent here: without it, the packages that take seconds to import fail at once.
@pytest.mark.parametrize(
    "absent",
    [
        {"torch": "torch"},
        {"torch": "torch", "yaml": "pyyaml", "PIL": "pillow"},
        {"torch": "torch", "pydantic": "pydantic"},
        {"torch": "torch", "typer": "typer"},
        {"torch": "torch", "rich": "rich"},
    ],
    ids=lambda absent: " ".join(absent.values()),
)
def test_doctor_names_packages_that_are_not_installed(absent: dict[str, str]) -> None:
    done = doctor_without(list(absent), dict.fromkeys(absent.values()))
    printed = done.stdout + done.stderr
    assert (done.returncode, "Traceback" in printed) == (1, False)
    for package in absent.values():
        assert f"{package} is not installed: pip install '{package}" in printed


def test_doctor_names_packages_that_are_too_old_or_broken() -> None:
    done = doctor_without(["torch", "PIL"], {"torch": None, "numpy": "1.26.4"}, "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["versions"]["numpy"], found["versions"]["torch"]) == (1, "1.26.4", None)
    by_package = {advice.split()[0]: advice for advice in found["advice"]}
    assert "1.26.4 is installed, but ffcil needs" in by_package["numpy"]
    assert "cannot be imported (ModuleNotFoundError: No module named 'PIL')" in by_package["pillow"]
    assert set(by_package) == {"torch", "numpy", "pillow"}  # timm only lacks torch, and is not named.


@pytest.mark.parametrize("module", ["packaging", "pygments", "markdown_it"])
def test_doctor_works_without_indirect_dependencies(module: str) -> None:
    done = doctor_without(["torch", module], {"torch": None})
    assert (done.returncode, "Traceback" in done.stderr) == (1, False)
    named = "packaging" if module == "packaging" else "torch"
    assert f"{named} is not installed: pip install" in done.stdout


def test_a_command_names_the_package_that_it_lacks(ffcil: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import that fails for another reason than a missing package is still a traceback."""
    missing = [Package("timm", advice="timm is not installed: pip install timm")]
    monkeypatch.setattr("ffcil.cli.app", lambda: import_module("timm.absent"))
    monkeypatch.setattr("ffcil.commands.packages.missing_packages", lambda: missing)
    with pytest.raises(SystemExit, match="ffcil: timm is not installed: pip install timm"):
        start()
    monkeypatch.setattr("ffcil.commands.packages.missing_packages", list)
    with pytest.raises(ModuleNotFoundError):
        start()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "glyps"], "Unknown recipe 'glyps': did you mean 'glyphs'?"),
        (["run", "/"], "/ is not a recipe: name one before it, for example `ffcil run own-images --data /`"),
        (["run", "own-images", "--set", "method=icarl"], "trains from scratch and cannot use the pre-trained 'vit"),
        (["run", "glyphs", "--set", "method=icrl"], "Unknown method 'icrl': did you mean 'icarl'?"),
        (["run", "glyphs", "--set", "method=focal"], "A method of your own needs --import FILE."),
        (["run", "glyphs", "--set", "backbone=mobilenet"], "A backbone of your own needs --import FILE."),
        (["run", "glyphs", "--set", "dataset=gliphs"], "Unknown data set 'gliphs': did you mean 'glyphs'?"),
        (["run", "glyphs", "--set", "framewrk=paper"], "Unknown field 'framewrk': did you mean 'framework'?"),
        (["run", "glyphs", "--set", "arrivals.sizes=[1,200]"], "but the data set has 100"),
        (["run", "glyphs", "--set", "arrivals.largest=3"], "do not fit in 10 steps"),
        (["run", "glyphs", "--set", "train.batch=none"], "Bad value for train.batch"),
        (["run", "glyphs", "--set", "dataset=folder"], "give with --data a folder"),
        (["run", "glyphs", "--device", "tpu"], "Unknown device 'tpu': choose cpu or cuda."),
        (["run", "glyphs", "--set", "options.temprature=1"], "did you mean 'options.temperature'?"),
        (["arrivals", "--classes", "100", "--steps", "10", "--largest", "9"], "do not fit in 10 steps"),
        (["arrivals", "--alpha", "0"], "Alpha"),
        (["arrivals", "--kind", "fre-flow"], "did you mean 'free-flow'?"),
        (["arrivals", "--order", "random"], "random"),
        (["arrivals", "--sizes", "1,x"], "write whole numbers with commas"),
        (["arrivals", "--trace", "absent.csv"], "absent.csv"),
        (["arrivals", "--plot", "a.xyz"], "xyz"),
        (["arrivals", "--sizes", "1,2", "--kind", "equal"], "--sizes does not apply to arrivals of kind 'equal'"),
        (["arrivals", "--sizes", "1,2", "--steps", "4"], "--steps does not apply to arrivals of kind 'given'"),
        (["arrivals", "--window", "7d"], "--window does not apply to arrivals of kind 'free-flow'"),
        (["arrivals", "--kind", "equal", "--alpha", "1"], "--alpha does not apply to arrivals of kind 'equal'"),
        (["arrivals", "--trace", "a.csv", "--order", "jumbled"], "--order does not apply to arrivals of kind 'trace'"),
        (["run", "glyphs", "--dry-run", "--set", "method=icrl"], "did you mean 'icarl'?"),
        (
            ["run", "glyphs", "--dry-run", "--set", "dataset=gliphs"],
            "Unknown data set 'gliphs': did you mean 'glyphs'?",
        ),
        (["run", "glyphs", "--set", "method=[1]"], "Bad value for method"),
        (["run", "glyphs", "--set", "arrivals=5"], "arrivals needs a kind"),
        (["run", "glyphs", "--set", "arrivals.sizes=1,4,2"], "a list in brackets, such as [a, b], not '1,4,2'"),
        (["run", "glyphs", "--set", "train=3"], "should be a mapping of fields, {} for an empty one, not 3"),
        (["run", "glyphs", "--set", "memory=3"], "Bad value for memory"),
        (["run", "glyphs", "--set", "class_seed=-1"], "Bad value for class_seed"),
        (["run", "glyphs", "--set", "train.epochs_scale=.inf"], "Bad value for train.epochs_scale"),
        (["run", "glyphs", "--set", "options=3"], "Bad value for options"),
        (["run", "glyphs", "--set", "train.first=null"], "Bad value for train.first"),
        (["run", "glyphs", "--set", "x=2020-13-45"], "Cannot read the value of --set"),
        (["run", "glyphs", "--set", "method=finetune", "--set", "options.a=1"], "has no fields of its own"),
        (["run", "glyphs", "--device", "cpu:3"], "Unknown device 'cpu:3'"),
        (["run", "glyphs", "--out", "/dev/null/x", "--set", "arrivals.sizes=[1]"], "/dev/null/x"),
        (["run", "glyphs", "--import", "absent.py"], "There is no file 'absent.py' to import methods from"),
        (["demo", "--set", "framework=flow"], "The demo sets framework itself"),
        (["demo", "--set", "robust=true"], "The demo sets framework itself"),
        (["demo", "--method", "icral"], "Unknown method 'icral': did you mean 'icarl'?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(ffcil: Command, tmp_path: Path, arguments: list[str], message: str) -> None:
    done = ffcil(*arguments)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "waiting for process" not in line]  # another test draws glyphs
    assert len(said) == 1, done.stderr
    assert message in said[0]
    assert done.stdout == ""


def test_a_trace_with_a_label_that_repeats(ffcil: Command, tmp_path: Path) -> None:
    Path("t.csv").write_text("class,time\ncat,1\ndog,2\ncat,9\n")
    done = ffcil("arrivals", "--trace", "t.csv", "--window", "1")
    assert done.returncode == 2
    assert "'cat'" in done.stderr


def test_a_device_that_does_not_exist(ffcil: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    done = ffcil("run", "glyphs", "--device", "cuda", "--out", "x")
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert "Device 'cuda' is not available: run with --device cpu" in done.stderr


def test_an_unreadable_image_is_named(ffcil: Command, tmp_path: Path) -> None:
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "broken.jpg").write_bytes(b"not a picture")
    done = ffcil("run", "glyphs", *QUICK, "--data", str(tmp_path / "data"), "--set", "arrivals.sizes=[1]")
    assert done.returncode == 2
    assert "broken.jpg" in done.stderr


SMALL = ["--recipe", "glyphs", "--set", "image_size=16", "--set", "train.epochs_scale=0.3", "--device", "cpu"]


def test_learning_predicting_and_testing(ffcil: Command, tmp_path: Path) -> None:
    write_colours(tmp_path / "first", classes=4, images=10)
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "colour 3").rename(tmp_path / "second" / "colour 3")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    done = ffcil("learn", "model", first, *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{first}: learned colour 0, colour 1, colour 2 from 30 images")
    assert done.stdout.endswith("model knows 3 class(es) from 1 step(s)\n")
    notes = json.loads(ffcil("learn", "model", second, "--device", "cpu", "--json").stdout)
    assert [note["classes"] for note in notes] == [["colour 3"]]
    assert notes[0]["new_images"] == 10
    assert notes[0]["training_images"] == 40  # The budget could keep all images.

    tested = json.loads(ffcil("test", "model", first, "--device", "cpu", "--json").stdout)
    assert tested["images"] == 30
    assert tested["by_step"][1] is None  # There were no images of the second step.
    shown = ffcil("test", "model", second, "--device", "cpu").stdout
    assert "% of 10 images" in shown
    assert "lowest: colour 3" in shown

    rows = json.loads(ffcil("predict", "model", first, second, "--top", "2", "--device", "cpu", "--json").stdout)
    assert len(rows) == 80
    assert [row["rank"] for row in rows[:4]] == [1, 2, 1, 2]
    right = sum(Path(row["image"]).parent.name == row["class"] for row in rows if row["rank"] == 1)
    in_all = [ffcil("test", "model", place, "--device", "cpu", "--json").stdout for place in (first, second)]
    assert right == sum(round(t["accuracy"] * t["images"] / 100) for t in map(json.loads, in_all))
    lines = ffcil("predict", "model", first, "--device", "cpu").stdout.splitlines()
    assert [line.split("\t")[1] for line in lines] == [row["class"] for row in rows[:60] if row["rank"] == 1]
    assert ffcil("predict", "model", first, "--device", "cpu", "--out", "all.csv").stdout == ""
    assert Path("all.csv").read_text().splitlines()[0] == "image,rank,class,score,unknown"


def test_mistakes_with_a_classifier(ffcil: Command, tmp_path: Path) -> None:
    write_colours(tmp_path / "first", classes=2, images=4)
    first = str(tmp_path / "first")

    def refused(*arguments: str) -> str:
        done = ffcil(*arguments)
        assert done.returncode == 2
        assert done.stderr.startswith("ffcil: ")
        assert done.stderr.count("\n") == 1
        return done.stderr

    assert "There is no classifier in model: make one with `ffcil learn model IMAGES`" in refused(
        "predict", "model", first
    )
    assert "There is no file or folder nowhere" in refused("learn", "model", "nowhere", *SMALL)
    assert not Path("model").exists()
    bad = tmp_path / "damaged" / "colour 0"
    bad.mkdir(parents=True)
    (bad / "1.png").write_bytes(b"nothing")
    assert "1 image(s) cannot be read" in refused("learn", "model", str(bad.parent), *SMALL)
    assert "weights" in refused("learn", "model", first, "--set", "weights=absent.safetensors", "--device", "cpu")
    assert not Path("model").exists()  # It would be in the way, for example among class folders.
    assert ffcil("learn", "model", first, *SMALL).returncode == 0
    again = ffcil("learn", "model", first, *SMALL)  # The same command also works when it is done.
    assert again.returncode == 0
    assert again.stdout.startswith(f"{first} was learned before\nmodel knows 2 class(es)")
    write_colours(tmp_path / "more", classes=2, images=3)
    assert "Class 'colour 0' is already known" in refused("learn", "model", str(tmp_path / "more"), "--device", "cpu")
    assert "The method of the classifier" in refused("learn", "model", first, "--set", "method=der")
    assert "There is no file or folder what.jpg" in refused("predict", "model", "what.jpg")
    assert "There is no folder" in refused("predict", "model", first, "--out", "nowhere/all.csv")
    assert f"{first} is a folder: add the name of a file" in refused("predict", "model", first, "--out", first)
    Path("empty").mkdir()
    assert "There are no images in empty" in refused("predict", "model", "empty")
    Path("bad.png").write_bytes(b"nothing")
    assert "1 image(s) cannot be read" in refused("predict", "model", "bad.png", "--device", "cpu")
    passed = ffcil("predict", "model", "bad.png", "--skip-bad", "--device", "cpu")
    assert (passed.returncode, passed.stdout) == (0, "")
    assert passed.stderr == "ffcil: bad.png cannot be read and is skipped.\n"
    (tmp_path / "more" / "colour 0" / "bad.png").write_bytes(b"nothing")
    tested = ffcil("test", "model", str(tmp_path / "more"), "--skip-bad", "--device", "cpu")
    assert "of 6 images" in tested.stdout
    assert tested.stderr.endswith("bad.png cannot be read and is skipped.\n")
    write_colours(tmp_path / "other", classes=3, images=2)
    assert "Class 'colour 2' is not known" in refused("test", "model", str(tmp_path / "other"), "--device", "cpu")


EXACT = ["--recipe", "glyphs", "--set", "method=anyarrival", "--set", "image_size=16", "--set", "options.width=50"]


def test_changes_and_history_of_a_classifier(ffcil: Command, tmp_path: Path) -> None:
    write_colours(tmp_path / "first", classes=3, images=12)
    write_colours(tmp_path / "second", classes=4, images=4)
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert ffcil("learn", "model", first, *EXACT).returncode == 0
    learned = ffcil("learn", "model", second, "--device", "cpu", "--versions", "4")
    assert "learned colour 3, colour 0 (again), colour 1 (again), colour 2 (again) from 16 images" in learned.stdout
    assert ffcil("forget", "model", "colour 1").stdout == "model has forgotten colour 1: version 3\n"
    assert ffcil("rename", "model", "colour 2", "green").stdout == "model: colour 2 is called green now: version 4\n"
    Path("right.csv").write_text(f"path,label\n{next((tmp_path / 'first' / 'colour 0').iterdir())},green\n")
    assert "--allow-outside" in ffcil("correct", "model", "right.csv").stderr
    corrected = ffcil("correct", "model", "right.csv", "--allow-outside")
    assert corrected.stdout == "model: 1 image(s) have the labels of right.csv now: version 5\n"

    shown = ffcil("history", "model", "--plot", "history.png")
    assert shown.stdout.splitlines()[0].endswith("┓")  # The table fits a terminal of 80 columns.
    assert Path("history.png").read_bytes().startswith(b"\x89PNG")
    assert "version 5 of model knows 3 class(es)\nother versions to return to: 2, 3, 4\n" in shown.stdout
    assert re.search(r"kept of the images: features of \d+ image\(s\), 0\.\d MB", shown.stdout)
    told = json.loads(ffcil("history", "model", "--json").stdout)
    assert [change["kind"] for change in told["changes"]] == ["learn", "learn", "forget", "rename", "correct"]
    assert (told["version"], told["other_versions"]) == (5, [2, 3, 4])
    assert ffcil("undo", "model").stdout == "model is at version 4 now\n"
    assert ffcil("undo", "model", "--to", "2").stdout == "model is at version 2 now\n"
    Image.new("RGB", (16, 16)).save("never.png")
    Path("never.csv").write_text("path,label\nnever.png,green\n")
    for arguments, message in (
        (("forget", "model", "colour 9"), "Unknown class 'colour 9': did you mean"),
        (("rename", "model", "colour 1", "colour 2"), "Class 'colour 2' is already known"),
        (
            ("correct", "model", "never.csv"),
            "images were never learned, such as never.png: leave them out, or learn them",
        ),
        (("undo", "model", "--to", "1"), "model has no version 1: choose one of those that are kept (2, 3, 4, 5)"),
        (("undo", "nothing"), "There is no classifier in nothing"),
        (("forget", "nothing", "a"), "There is no classifier in nothing"),
        (("history", "nothing"), "There is no classifier in nothing"),
    ):
        refused = ffcil(*arguments)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused
        assert message in refused.stderr
    assert not Path("nothing").exists()


def test_copies_and_images_in_two_classes_are_reported(ffcil: Command, tmp_path: Path) -> None:
    first, second = write_colours(tmp_path / "first", classes=3, images=4), tmp_path / "second"
    shutil.copytree(first / "colour 0", second / "colour 0")
    shutil.copytree(first / "colour 1", second / "red")
    assert ffcil("learn", "model", str(first), *EXACT).stdout.count("\n") == 2
    shown = ffcil("learn", "model", str(second)).stdout.splitlines()
    assert shown[1:3] == [
        "  copies of images with the same label, which count once: 4",
        "  images in two classes now: 4, one of them in 'colour 1' and 'red': use ffcil correct or undo",
    ]
    Path("right.csv").write_text(
        "path,label\n" + "".join(f"{image},red\n" for image in sorted((first / "colour 1").iterdir()))
    )
    assert ffcil("correct", "model", "right.csv", "--allow-outside").returncode == 0
    assert json.loads(ffcil("learn", "model", str(second / "colour 0" / ".."), "--json").stdout) == []
    assert json.loads(ffcil("history", "model", "--json").stdout)["kept"]["features"]["images"] == 12


def test_weights_that_have_moved_are_given_to_any_command(ffcil: Command, tmp_path: Path) -> None:
    write_colours(tmp_path / "first", classes=2, images=4)
    first = str(tmp_path / "first")
    shutil.copy(glyph_vit_weights(), "weights.safetensors")
    assert ffcil("learn", "model", first, *EXACT, "--set", "weights=weights.safetensors").returncode == 0
    Path("right.csv").write_text(f"path,label\n{next((tmp_path / 'first' / 'colour 0').iterdir())},colour 1\n")
    for arguments in (
        ("history", "model"),
        ("export", "model", "--to", "model.pt2"),
        ("rename", "model", "colour 0", "red"),
        ("forget", "model", "colour 0"),
        ("correct", "model", "right.csv", "--allow-outside"),
    ):
        Path("weights.safetensors").rename("moved.safetensors")
        refused = ffcil(*arguments)
        assert "give an existing file with --set weights=FILE" in refused.stderr
        done = ffcil(*arguments, "--set", "weights=moved.safetensors")
        assert done.returncode == 0, done.stderr
        Path("moved.safetensors").rename("weights.safetensors")
        ffcil("undo", "model", "--to", "1")


def test_unknown_images_and_suggestions(ffcil: Command, tmp_path: Path) -> None:
    write_colours(tmp_path / "known", classes=4, images=25)
    (tmp_path / "others").mkdir()
    (tmp_path / "known" / "colour 3").rename(tmp_path / "others" / "colour 3")
    known, others = str(tmp_path / "known"), str(tmp_path / "others")
    assert ffcil("learn", "model", known, *EXACT).returncode == 0
    write_colours(tmp_path / "alone", classes=20, images=1)
    ffcil("learn", "each", str(tmp_path / "alone"), *EXACT)
    alone = ffcil("predict", "each", others).stderr
    assert alone.startswith("ffcil: no image is called unknown: at 5.00% it takes 19 learned images that are not alone")
    ffcil("forget", "each", *(f"colour {k}" for k in range(20)))
    assert ffcil("predict", "each", others).stderr.startswith("ffcil: The classifier knows no classes yet")
    rows = json.loads(ffcil("predict", "model", others, "--false-alarms", "10%", "--json").stdout)
    assert {type(row["novelty"]) for row in rows} == {float}
    assert rows == json.loads(ffcil("predict", "model", others, "--false-alarms", "0.1", "--json").stdout)
    lines = ffcil("predict", "model", others, "--false-alarms", "10%").stdout.splitlines()
    assert [line.endswith("\tunknown") for line in lines] == [row["unknown"] for row in rows]
    ffcil("predict", "model", others, "--false-alarms", "10%", "--out", "all.csv")
    assert Path("all.csv").read_text().splitlines()[0] == "image,rank,class,score,unknown"
    few = ffcil("predict", "model", others, "--false-alarms", "1%")
    needed = "it takes 99 learned images that are not alone in their class"
    assert few.stderr == f"ffcil: no image is called unknown: at 1.00% {needed}.\n"

    tested = json.loads(ffcil("test", "model", known, "--unknown", others, "--false-alarms", "10%", "--json").stdout)
    assert tested["unknown"]["found"] == pytest.approx(100 * sum(row["unknown"] for row in rows) / 25)
    shown = ffcil("test", "model", known, "--unknown", others).stdout
    assert re.search(r"expected calibration error: \d+\.\d %\nunknown: \d+\.\d % of 25 images found with", shown)

    suggested = json.loads(ffcil("suggest", "model", others, "--count", "3", "--json").stdout)
    assert [row["order"] for row in suggested[:3]] == [1, 2, 3]
    assert ffcil("suggest", "model", others, "--count", "3").stdout.startswith("label next:\n  ")
    assert ffcil("suggest", "model", known, "--labelled", "--out", "doubts.csv").stdout == ""
    assert Path("doubts.csv").read_text().splitlines()[0] == "image,label,label_score,class,score,wrong"
    assert ffcil("suggest", "model", known, "--labelled").stdout.endswith("label(s) look wrong\n")
    for arguments, message in (
        (("predict", "model", known, "--false-alarms", "few"), "Cannot read --false-alarms 'few': write a share"),
        (("predict", "model", known, "--false-alarms", "150%"), "Cannot read --false-alarms '150%'"),
        (("test", "model", known, "--false-alarms", "1%"), "add --unknown FOLDER"),
        (("suggest", "model", known, "--labelled", "--false-alarms", "1%"), "is for images without labels"),
        (("suggest", "model", others, "--labelled"), "Class 'colour 3' is not known"),
        (("suggest", "model", "nowhere"), "There is no file or folder nowhere"),
    ):
        refused = ffcil(*arguments)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1), refused
        assert message in refused.stderr
