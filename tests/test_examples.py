"""The examples run without changes."""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models import mobilenet_v3_small
from typer.testing import CliRunner

from conftest import SHORT, small_stream
from ffcil.classifier.classifier import Classifier
from ffcil.cli import app
from ffcil.config.resolve import resolve
from ffcil.errors import InputError
from ffcil.methods import METHODS, Learner, load_methods
from ffcil.models.folding import Folded
from ffcil.models.resnet import BACKBONES, Backbone, register_backbone
from ffcil.report import load_runs
from ffcil.runs.run import Run
from ffcil.studies.study import jobs_of, load_study, narrow
from ffcil.training.engine import Engine

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
BACKBONE = EXAMPLES / "my_backbone.py"
CONVENTIONAL, PRETRAINED = EXAMPLES / "my_conventional_method.py", EXAMPLES / "my_pretrained_method.py"


def test_in_your_own_loop(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "in_your_own_loop.py"), run_name="__main__")
    lines = capsys.readouterr().out.splitlines()
    accuracies = {
        match[1]: float(match[2]) for line in lines if (match := re.search(r"(\w+): accuracy ([\d.]+) %", line))
    }
    assert list(accuracies) == ["none", "paper", "flow"]
    assert min(accuracies.values()) > 40  # Chance is 12.5.
    assert accuracies["flow"] > accuracies["none"]


@pytest.mark.slow
def test_schedule_to_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(EXAMPLES / "schedule_to_table.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert "12 classes, 5 steps" in printed
    assert "FF.ours" in printed
    assert len(list((tmp_path / "runs").glob("*/done"))) == 2


@pytest.mark.slow
def test_step_by_step_gives_the_results_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / "step_by_step.py"), run_name="__main__")
    printed = capsys.readouterr().out
    config = resolve("glyphs", {"arrivals": {"sizes": [2, 1, 4]}, "train": {"epochs_scale": 0.02}})
    found = Run(config, tmp_path / "run", device="cpu", threads=torch.get_num_threads()).execute()
    assert f"average {found['average']:.2f} %, forgetting {found['forgetting']:.2f} %" in printed
    assert f"step 3: {found['last']:.1f} % of 7 classes" in printed


def test_the_example_of_an_own_study() -> None:
    study = load_study(str(EXAMPLES / "alignment.yaml"))
    jobs = jobs_of(narrow(study, datasets=["glyphs"]), Path("out"))
    seen = {(job.config.arrivals.kind, job.config.reduction, job.config.alignment) for job in jobs}
    assert len(jobs) == 12
    assert len(seen) == 6
    assert ("free-flow", "class_wise_mean", "diwa") in seen


@pytest.fixture(autouse=True)
def _forget_examples() -> Iterator[None]:
    """Unregister what the examples register, because other tests list all methods and backbones."""
    before = [dict(names) for names in (METHODS, BACKBONES)]
    yield
    for names, known in zip((METHODS, BACKBONES), before, strict=True):
        names.clear()
        names.update(known)
    for file in EXAMPLES.glob("*.py"):
        sys.modules.pop(str(file), None)


def ffcil(*arguments: object) -> str:
    done = CliRunner().invoke(app, [str(part) for part in arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_own_methods_from_run_to_report(tmp_path: Path, colours: Path) -> None:
    """One file each, outside the package: enough for `methods`, `run` and `report`."""
    quick = ("dataset=folder", "image_size=16", "arrivals.sizes=[2,1,3]", "train.epochs_scale=0.5", "framework=paper")
    for file, method in ((CONVENTIONAL, "focal"), (PRETRAINED, "slda")):
        options = [part for field in (f"method={method}", *quick) for part in ("--set", field)]
        ffcil("run", "glyphs", "--import", file, *options, "--data", colours, "--out", tmp_path / method)
    listed = {row["name"]: row for row in json.loads(ffcil("methods", "--json"))}
    assert listed["slda"]["about"].startswith("SLDA: linear discriminant analysis")
    assert listed["focal"]["options"]["gamma"]["about"].startswith("Exponent of the factor (1 - p)")
    focal, slda = load_runs(tmp_path)
    assert [run.parts.name for run in (focal, slda)] == ["ours", "ours"]  # CWM + DIWA, CWM + HA
    assert slda.config["backbone"] == "glyph_vit"  # the recipe's default for pre-trained methods
    assert min(run.summary["last"] for run in (focal, slda) if run.summary) > 40  # chance is 16.7
    ffcil("report", tmp_path)
    table = (tmp_path / "report" / "table.md").read_text(encoding="utf-8")
    page = (tmp_path / "report" / "report.html").read_text(encoding="utf-8")
    for name in ("Focal replay, linear head", "Focal replay, nearest mean", "SLDA, linear discriminant"):
        assert name in table
        assert name in page


@pytest.mark.parametrize("method", ["icarl", "memo"])
def test_an_own_backbone_is_torchvisions_network(method: str, make_learner: Callable[..., Learner]) -> None:
    load_methods(str(BACKBONE))
    load_methods(str(BACKBONE))  # a second time is no mistake
    learner = make_learner(method=method, backbone="mobilenet", train=SHORT)
    for increment in small_stream([2, 1]):
        learner.learn(increment)
    theirs = mobilenet_v3_small(weights=None).features.eval()
    theirs.load_state_dict(dict(zip(theirs.state_dict(), learner.backbone.state_dict().values(), strict=True)))  # type: ignore[operator]
    images = torch.randn(4, 3, 32, 32)
    with torch.no_grad():
        features = learner.features(images)[:, -576:]  # type: ignore[operator]
        torch.testing.assert_close(features, theirs(images).mean(dim=(2, 3)))


def test_an_own_backbone_in_two_processes_and_in_a_classifier(tmp_path: Path, colours: Path) -> None:
    """Both need the file: the processes import it themselves, and the user has to name it again for the classifier."""
    quick = ("backbone=mobilenet", "image_size=16", "train.epochs_scale=0.1")
    own = ("--import", BACKBONE, *(part for field in quick for part in ("--set", field)), "--device", "cpu")
    stream = ("--set", "dataset=folder", "--set", "arrivals.sizes=[2,1]", "--data", colours)
    ffcil("run", "glyphs", *own, *stream, "--devices", "2", "--out", tmp_path / "run")
    ffcil("learn", tmp_path / "model", colours, "--recipe", "glyphs", *own)
    del BACKBONES["mobilenet"]
    with pytest.raises(InputError, match="uses backbone 'mobilenet', which is not registered: add --import FILE"):
        Classifier.load(tmp_path / "model", "cpu")


def test_frozen_copies_of_an_own_backbone_are_not_folded(
    make_learner: Callable[..., Learner], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch norm may be registered after a convolution and be computed before it."""
    monkeypatch.setattr(Engine, "folds", True)

    class Backwards(Backbone):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.norm = nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3)
            self.lower, self.upper, self.feature_dim = self.norm, self.convolution, 3

    register_backbone("backwards")(Backwards)
    with pytest.raises(InputError, match="Two backbones are called 'backwards'"):
        register_backbone("backwards")(Backwards)
    for name, folded in (("backwards", False), ("resnet8", True)):
        learner = make_learner(method="finetune", backbone=name)
        assert isinstance(learner.frozen_copy(learner.build_backbone()).forward, Folded) == folded


def test_focal_loss_by_hand(make_learner: Callable[..., Learner]) -> None:
    load_methods(str(CONVENTIONAL))
    learner = make_learner(method="focal", options={"gamma": 1.5}).eval()
    learner.begin(small_stream([3])[0])
    images, targets = torch.randn(4, 3, 16, 16), torch.tensor([0, 2, 2, 1])
    with torch.no_grad():
        p = learner.head(learner.features(images)).softmax(dim=1)[range(4), targets]  # type: ignore[operator]
        assert learner.loss(images, targets).item() == pytest.approx(((1 - p) ** 1.5 * -p.log()).mean().item())


def test_slda_in_steps_is_lda_on_all_images(make_learner: Callable[..., Learner]) -> None:
    load_methods(str(PRETRAINED))
    learner = make_learner(method="slda", options={"shrinkage": 0.1})
    stream = small_stream([2, 1, 2])
    for increment in stream:
        learner.learn(increment)
    with torch.no_grad():
        features = learner.features(learner.settings.augmentation.plain(stream.train.images)).double()  # type: ignore[operator]
        means = torch.stack([features[stream.train.labels == label].mean(dim=0) for label in range(5)])
        within = torch.cov((features - means[stream.train.labels]).T, correction=0)
        inverse = torch.linalg.inv(0.9 * within + 0.1 * torch.eye(len(within)))
        differences = features[:, None] - means  # [N, classes, D]
        distances = torch.einsum("ncd,de,nce->nc", differences, inverse, differences)
        scores = learner.classify(features.float())  # type: ignore[operator]
    assert torch.equal(scores.argmax(dim=1), distances.argmin(dim=1))
    expected = (distances[:, :1] - distances) / 2  # the part that depends on the class
    torch.testing.assert_close((scores - scores[:, :1]).double(), expected, rtol=1e-2, atol=1e-2)
