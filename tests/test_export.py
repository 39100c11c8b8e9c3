"""Exported classifiers: onnxruntime and torch alone give the scores of `Classifier.predict`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from typer.testing import CliRunner

from conftest import limited_files
from ffcil.classifier.classifier import Classifier
from ffcil.cli import app
from ffcil.data.decoding import as_shown
from ffcil.data.pictures import pixels_of
from ffcil.errors import InputError
from ffcil.serving.export import export
from served import NAMES, save_classifier, write_photos

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "exported_model.py"
METHODS = [("simplecil", "none"), ("simplecil", "flow"), ("ranpac", "none"), ("icarl", "none")]


def needs_onnx() -> Any:
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    return pytest.importorskip("onnxruntime")


def prepared(path: Path, about: dict[str, Any]) -> np.ndarray[Any, Any]:
    """The preprocessing that docs/serving.md describes."""
    from torchvision.transforms import InterpolationMode
    from torchvision.transforms.functional import center_crop, resize

    image, size = as_shown(Image.open(path)), about["size"]
    if about["short_side"] is not None:
        return pixels_of(center_crop(resize(image, about["short_side"], InterpolationMode.BICUBIC), [size])).numpy()
    return pixels_of(ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)).numpy()


def check_pt2(classifier: Classifier, photos: list[Path], path: Path) -> None:
    """torch alone gives the same classes, scores, novelties and unknown photos."""
    written = export(classifier, path)
    extra = {"ffcil": ""}
    run = torch.export.load(path, extra_files=extra).module()
    about = json.loads(extra["ffcil"])
    assert about == written
    images = torch.from_numpy(np.stack([prepared(photo, about) for photo in photos]))
    with torch.no_grad():
        compare(classifier, photos, about, [output.numpy() for output in run(images)])


def check_onnx(classifier: Classifier, photos: list[Path], path: Path) -> None:
    """onnxruntime gives the same classes, scores, novelties and unknown photos."""
    session = needs_onnx().InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["ffcil"])
    images = np.stack([prepared(photo, about) for photo in photos])
    compare(classifier, photos, about, session.run(None, {"images": images}))
    single = session.run(["scores"], {"images": images[:1]})[0]  # a batch of one image
    np.testing.assert_allclose(single, session.run(["scores"], {"images": images})[0][:1], atol=1e-5)


def compare(classifier: Classifier, photos: list[Path], about: dict[str, Any], outputs: list[Any]) -> None:
    names = list(classifier.class_names)
    assert about["classes"] == names
    scores = outputs[0]
    assert scores.shape == (len(photos), len(names))
    limited = about["novelty_limit"] is not None
    for row, answer in enumerate(classifier.answer(photos, len(names), about["false_alarms"] if limited else None)):
        assert answer is not None
        assert names[scores[row].argmax()] == answer.guesses[0].name
        for guess in answer.guesses:
            assert abs(scores[row, names.index(guess.name)] - guess.score) < 1e-3
        assert len(outputs) == (1 if answer.novelty is None else 2)
        if answer.novelty is not None:
            np.testing.assert_allclose(outputs[1][row], answer.novelty, rtol=1e-3, atol=1e-3)
            assert (outputs[1][row] > about["novelty_limit"]) == answer.unknown


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "model"
    save_classifier(folder)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Photos of known classes, and of one that is not known."""
    return write_photos(tmp_path_factory.mktemp("photos"), classes=5)


def test_torch_alone_gives_the_same_answers(model: Path, photos: list[Path], tmp_path: Path) -> None:
    check_pt2(Classifier.load(model, "cpu"), photos, tmp_path / "model.pt2")


@pytest.fixture(scope="module")
def exported(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the command wrote."""
    needs_onnx()
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    result = CliRunner().invoke(app, ["export", str(model), "--to", str(path), "--false-alarms", "10%", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["false_alarms"] == 0.1
    return path


def test_onnxruntime_gives_the_same_answers(model: Path, photos: list[Path], exported: Path) -> None:
    check_onnx(Classifier.load(model, "cpu"), photos, exported)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "framework"), METHODS)
def test_other_methods_give_the_same_answers(method: str, framework: str, photos: list[Path], tmp_path: Path) -> None:
    classifier = save_classifier(tmp_path / "model", method, framework=framework)
    check_pt2(classifier, photos, tmp_path / "model.pt2")
    needs_onnx()
    export(classifier, tmp_path / "model.onnx")
    check_onnx(classifier, photos, tmp_path / "model.onnx")


@pytest.mark.slow
@pytest.mark.parametrize("hidden", [0, 32])
def test_photos_that_are_scaled_and_cropped(hidden: int, photos: list[Path], tmp_path: Path) -> None:
    """From 96 pixels on, classifiers scale the short side and use the centre. Random features are exported, too."""
    from ffcil.config.resolve import resolve

    classifier = Classifier(
        resolve("glyphs", {"method": "anyarrival", "image_size": 112, "options": {"blocks": 1, "hidden": hidden}}),
        "cpu",
    )
    for k, name in enumerate(NAMES[:2]):
        folder = tmp_path / "images" / name
        write_photos(folder, first=k, classes=1, images=12, seed=1)
    classifier.learn(tmp_path / "images")
    check_pt2(classifier, photos, tmp_path / "model.pt2")
    needs_onnx()
    export(classifier, tmp_path / "model.onnx")
    check_onnx(classifier, photos, tmp_path / "model.onnx")


def test_the_example_without_ffcil(model: Path, photos: list[Path], exported: Path, tmp_path: Path) -> None:
    grey = np.asarray(Image.open(photos[0]).convert("L")).astype(np.uint16)
    Image.fromarray(grey * 257).save(tmp_path / "16 bits.png")
    photos = [*photos, tmp_path / "16 bits.png"]
    blocked = f"import runpy, sys; sys.modules['ffcil'] = sys.modules['torch'] = None; sys.argv = sys.argv[1:]; \
runpy.run_path({str(EXAMPLE)!r}, run_name='__main__')"
    arguments = ["example", str(exported), *map(str, photos)]
    shown = subprocess.run([sys.executable, "-c", blocked, *arguments], capture_output=True, text=True, check=True)
    answers = Classifier.load(model, "cpu").answer(photos, 1, 0.1)
    for line, photo, answer in zip(shown.stdout.splitlines(), photos, answers, strict=True):
        assert answer is not None
        path_shown, name, score = line.split("\t")
        assert (path_shown, name) == (str(photo), "unknown" if answer.unknown else answer.guesses[0].name)
        assert abs(float(score) - answer.guesses[0].score) < 1e-3


def test_a_file_holds_nothing_that_prediction_does_not_need(tmp_path: Path) -> None:
    """iCaRL's teacher is as large as its network, and its exemplars are images."""
    classifier = save_classifier(tmp_path / "model", "icarl")
    export(classifier, tmp_path / "model.pt2")
    stored = torch.export.load(tmp_path / "model.pt2").state_dict
    learner = classifier.learner
    assert not [name for name in stored if "teacher" in name]
    needed = sum(value.numel() for module in learner.deployed() for value in module.parameters())
    assert 0 < sum(value.numel() for value in stored.values()) < 1.05 * needed


def test_errors(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = Classifier.load(model, "cpu")
    with pytest.raises(InputError, match=r"unknown suffix: choose a name that ends in .onnx or .pt2"):
        export(classifier, tmp_path / "model.tflite")
    with pytest.raises(InputError, match="There is no folder"):
        export(classifier, tmp_path / "nowhere" / "model.pt2")
    with pytest.raises(InputError, match="between 0 and 1"):
        export(classifier, tmp_path / "model.pt2", false_alarms=2.0)
    with pytest.raises(InputError, match="knows no classes"):
        export(Classifier(classifier.config, "cpu"), tmp_path / "model.pt2")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs the package onnx: pip install 'ffcil\[export\]'"):
        export(classifier, tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []


def test_a_file_with_other_scores_is_not_kept(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ffcil.serving import export as module

    (path := tmp_path / "model.pt2").write_bytes(b"earlier")
    monkeypatch.setattr(module, "_run_pt2", lambda path, images: [torch.zeros(2, len(NAMES))])
    with pytest.raises(InputError, match="so it was not kept"):
        export(Classifier.load(model, "cpu"), path)
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_cannot_be_written_is_an_error_of_the_system(model: Path, tmp_path: Path) -> None:
    """torch's own writer would end the process with C++ frames."""
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with limited_files(10_000), pytest.raises(OSError, match=r"File too large.*model\.pt2"):
            export(Classifier.load(model, "cpu"), tmp_path / "model.pt2")
    finally:
        signal.signal(signal.SIGXFSZ, ignored)
    assert list(tmp_path.iterdir()) == []


def test_a_network_that_is_too_large_for_onnx_says_so(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_onnx()
    monkeypatch.setattr("ffcil.serving.export.LARGEST_ONNX", 1000)
    with pytest.raises(InputError, match=r"an \.onnx file at most 2: export it as \.pt2"):
        export(Classifier.load(model, "cpu"), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
