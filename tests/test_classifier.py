"""The classifier: learning step by step equals a run, also after saving, loading and interruptions."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset, Subset

from conftest import SHORT, coloured_images, small_config, write_colours
from ffcil.arrivals import given_arrivals
from ffcil.classifier.classifier import LEARNING, Classifier
from ffcil.classifier.reading import names_read, skipped
from ffcil.classifier.teaching import teach
from ffcil.classifier.versions import MODEL
from ffcil.config.settings import RunConfig
from ffcil.data import pictures
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import own_augmentation
from ffcil.data.pictures import frames
from ffcil.data.ragged import RaggedImages
from ffcil.errors import InputError
from ffcil.methods import METHODS, build_learner
from ffcil.models.pretrained import glyph_vit_weights
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.runs.run import augmentation_of
from ffcil.stream import Increment, Stream
from ffcil.training.engine import Engine
from ffcil.training.progress import FitProgress, Listener

SIZES = [2, 1, 3]
SIDE = 16


def config_of(**overrides: Any) -> RunConfig:
    return small_config(image_size=SIDE, **overrides)


def parts(images: ImageSet, sizes: list[int] = SIZES) -> list[ImageSet]:
    """The images of each step, with labels from 0."""
    ends = torch.tensor(sizes).cumsum(0).tolist()
    steps = []
    for end, size in zip(ends, sizes, strict=True):
        rows = ((images.labels >= end - size) & (images.labels < end)).nonzero().flatten()
        part = images.subset(rows)
        steps.append(ImageSet(part.images, part.labels - (end - size), images.class_names[end - size : end]))
    return steps


def scores_of_a_stream(config: RunConfig, images: ImageSet, test: ImageSet) -> torch.Tensor:
    """Scores of the same learner with access to all images, as in a run."""
    augmentation = augmentation_of(config, own_augmentation(SIDE))
    learner = build_learner(config, augmentation, Engine.create("cpu", config.train))
    for increment in Stream(images, test, given_arrivals(SIZES), class_seed=None):
        learner.learn(increment)
    with torch.no_grad():
        return torch.cat(
            [s[learner.scored] for s in learner.over(test.images, torch.arange(len(test)), learner.logits)]
        )


@pytest.mark.parametrize("method", sorted(METHODS))
def test_learning_step_by_step_equals_a_run(tmp_path: Path, method: str) -> None:
    """The scores are bit-equal, although the classifier is saved and loaded at every step and keeps only exemplars."""
    config = config_of(method=method, framework="paper", train=SHORT)
    images, test = coloured_images([10] * sum(SIZES), 1), coloured_images([4] * sum(SIZES), 2)
    classifier = Classifier(config, "cpu")
    for step in parts(images):
        classifier.learn(step)
        classifier.save(tmp_path)
        classifier = Classifier.load(tmp_path, "cpu")
    assert classifier.class_names == images.class_names
    assert torch.equal(classifier._scores(test.images), scores_of_a_stream(config, images, test))


def test_a_listener_of_learn_receives_only_the_images_of_learn() -> None:
    totals: list[int] = []

    class RecordsTotals(Listener):
        def images_done(self, done: int, total: int) -> None:
            totals.append(total)

    classifier = Classifier(config_of(method="simplecil"), "cpu")
    images = coloured_images([10] * 6, 1)
    classifier.learn(parts(images)[0], listener=RecordsTotals())
    assert totals == [20]
    classifier._scores(images.images)
    assert totals == [20]


def test_only_exemplars_are_kept() -> None:
    classifier = Classifier(config_of(method="icarl", memory={"budget": 12}), "cpu")
    for step in parts(coloured_images([10] * 6, 1)):
        classifier.learn(step)
    assert len(classifier._kept) == 12
    assert classifier._kept.counts().tolist() == [2] * 6
    nothing = Classifier(config_of(method="simplecil"), "cpu")
    nothing.learn(parts(coloured_images([10] * 6, 1))[0])
    assert len(nothing._kept) == 0


class Breaks(Listener):
    """Interrupts the training after a number of epochs."""

    def __init__(self, after: int) -> None:
        self.left = after

    def epoch_done(self, progress: FitProgress) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_interrupted_learning_is_resumed(tmp_path: Path) -> None:
    config = config_of(method="icarl").model_copy(update={"checkpoint_seconds": 0.0})
    first, second, _ = parts(coloured_images([10] * 6, 1))
    test = coloured_images([4] * 6, 2)
    whole = Classifier(config, "cpu")
    for step in (first, second):
        whole.learn(step)

    teach(tmp_path / "a", [first], config, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        teach(tmp_path / "a", [second], device="cpu", listener=Breaks(after=3))
    assert (tmp_path / "a" / LEARNING).exists()
    assert Classifier.load(tmp_path / "a", "cpu").class_names == first.class_names  # not changed
    epochs: list[int] = []

    class Counts(Listener):
        def epoch_done(self, progress: FitProgress) -> None:
            epochs.append(progress.epoch)

    taught, _ = teach(tmp_path / "a", [first, second], config, device="cpu", listener=Counts())
    assert epochs == [3, 4]  # the second epoch was the last one saved
    assert not (tmp_path / "a" / LEARNING).exists()
    assert torch.equal(taught._scores(test.images), whole._scores(test.images))


def interrupted(config: RunConfig, first: ImageSet, second: ImageSet, folder: Path) -> Classifier:
    """A classifier that learned `first`. Its progress with `second` is in `folder`."""
    classifier = Classifier(config, "cpu")
    classifier.learn(first)
    with pytest.raises(KeyboardInterrupt):
        classifier.learn(second, folder, Breaks(after=3))
    assert (folder / LEARNING).exists()
    return classifier


def test_progress_of_other_images_is_not_resumed(tmp_path: Path) -> None:
    config = config_of(method="replay").model_copy(update={"checkpoint_seconds": 0.0})
    first, second, third = parts(coloured_images([10] * 6, 1))
    classifier = interrupted(config, first, second, tmp_path)
    untouched = Classifier(config, "cpu")
    for step in (first, third):
        untouched.learn(step)
    classifier.learn(third, tmp_path)
    test = coloured_images([4] * 6, 2).images
    assert torch.equal(classifier._scores(test), untouched._scores(test))


def test_failed_learning_changes_nothing() -> None:
    first, second, third = parts(coloured_images([10] * 6, 1))
    classifier = Classifier(config_of(method="icarl"), "cpu")
    classifier.learn(first)
    test = coloured_images([4] * 6, 2).images
    before = classifier._scores(test)
    with pytest.raises(KeyboardInterrupt):
        classifier.learn(second, listener=Breaks(after=2))
    assert classifier.class_names == first.class_names
    assert torch.equal(classifier._scores(test), before)
    with pytest.raises(InputError, match="Class 'colour 0' is already known"):
        classifier.learn(first)
    classifier.learn(third)
    assert classifier.class_names == first.class_names + third.class_names


def test_files_pil_images_and_tensors_give_the_same_predictions(tmp_path: Path) -> None:
    write_colours(tmp_path / "all", classes=3, images=10)
    classifier = Classifier(config_of(method="simplecil"), "cpu")
    classifier.learn(tmp_path / "all")
    assert classifier.class_names == ("colour 0", "colour 1", "colour 2")
    files = sorted((tmp_path / "all").rglob("*.png"))
    opened = [Image.open(file) for file in files]
    tensors = [torch.frombuffer(bytearray(i.tobytes()), dtype=torch.uint8).view(16, 16, 3) for i in opened]
    by_file = classifier.predict(map(str, files), top=2)
    assert by_file == classifier.predict(opened, top=2)
    assert by_file == classifier.predict([t.permute(2, 0, 1) for t in tensors], top=2)
    assert all(best.score >= second.score for best, second in by_file)


def test_accuracy_equals_counted_predictions(tmp_path: Path) -> None:
    write_colours(tmp_path / "all", classes=5, images=8)
    classifier = Classifier(config_of(method="simplecil"), "cpu")
    for names in (["colour 3"], ["colour 0", "colour 1", "colour 4"]):
        folder = tmp_path / names[0].replace("colour", "step")
        folder.mkdir()
        for name in names:
            (tmp_path / "all" / name).rename(folder / name)
        classifier.learn(folder)
        folder.rename(tmp_path / f"learned {folder.name}")
    both = tmp_path / "both"
    both.mkdir()
    right: dict[str, list[bool]] = {}
    for folder in sorted(tmp_path.glob("learned */*")):
        guesses = classifier.predict(sorted(folder.iterdir()))
        right[folder.name] = [guess.name == folder.name for (guess,) in guesses]
        folder.rename(both / folder.name)
    tested = classifier.test(both)

    def percent(names: list[str]) -> float:
        answers = [answer for name in names for answer in right[name]]
        return pytest.approx(100 * sum(answers) / len(answers))  # type: ignore[no-any-return]

    assert tested["images"] == 32
    assert tested["accuracy"] == percent(list(right))
    assert tested["by_step"] == [percent(["colour 3"]), percent(["colour 0", "colour 1", "colour 4"])]
    assert tested["by_class"] == {name: percent([name]) for name in classifier.class_names}
    assert 0 < sum(map(sum, right.values())) < 32  # some predictions are wrong


def test_exemplars_keep_their_full_frame(tmp_path: Path) -> None:
    """From 96 pixels on, exemplars keep their own shape, also after saving and loading."""
    made = torch.Generator().manual_seed(0)
    for k, name in enumerate(["wide", "tall", "square"]):
        (tmp_path / name).mkdir()
        for number in range(4):
            shape = {"wide": (90, 120), "tall": (140, 100), "square": (99, 99)}[name]
            pixels = torch.randint(60 * k, 60 * k + 60, (*shape, 3), generator=made, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(tmp_path / name / f"{number}.png")
    phase = {"epochs": 1, "learning_rate": 0.01}
    train = {"batch": 8, "first": phase, "later": phase}
    config = small_config(method="replay", memory={"budget": None, "per_class": 2}, train=train).model_copy(
        update={"image_size": 96}
    )
    classifier = Classifier(config, "cpu")
    classifier.learn(tmp_path)
    classifier.save(tmp_path / "model")
    images = Classifier.load(tmp_path / "model", "cpu")._kept.images
    assert isinstance(images, RaggedImages)
    assert len(images) == 6
    kept = classifier._kept.images
    assert isinstance(kept, RaggedImages)
    assert torch.equal(images.pixels, kept.pixels)
    assert images.sizes.tolist() == [[110, 110]] * 2 + [[154, 110]] * 2 + [[110, 146]] * 2  # classes by name


def test_invalid_input_is_an_error() -> None:
    classifier = Classifier(config_of(method="replay", memory={"budget": 3}), "cpu")
    with pytest.raises(InputError, match="knows no classes yet"):
        classifier.predict([torch.zeros(3, 8, 8)])
    images = coloured_images([4] * 5, 1)
    with pytest.raises(InputError, match="less than one exemplar"):
        classifier.learn(images)
    with pytest.raises(InputError, match="no images to learn: add some"):
        classifier.learn(ImageSet(images.images[:0], images.labels[:0], ()))
    with pytest.raises(InputError, match="Two classes of a, a have the same name"):
        classifier.learn(ImageSet(images.images[:8], images.labels[:8], ("a", "a")))
    with pytest.raises(InputError, match="not stored for an input of 16 pixels"):
        classifier.learn(ImageSet(images.images[:, :, :8, :8], images.labels, images.class_names))
    classifier.learn(parts(images, [2, 1, 2])[0])
    with pytest.raises(InputError, match="Input 2 has an image of type int"):
        classifier.predict([torch.zeros(3, 8, 8), 3])  # type: ignore[list-item]
    with pytest.raises(InputError, match="'colour 2' is not known"):
        classifier.test(images)
    with pytest.raises(InputError, match=r"must be given as a list"):
        classifier.predict("a.png")
    with pytest.raises(InputError, match="top is 0"):
        classifier.predict([torch.zeros(3, 8, 8)], top=0)


def test_unreadable_files_are_named_or_skipped(tmp_path: Path) -> None:
    write_colours(tmp_path / "all", classes=2, images=4)
    classifier = Classifier(config_of(method="simplecil"), "cpu")
    classifier.learn(tmp_path / "all")
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no image")
    good = next((tmp_path / "all").rglob("*.png"))
    with pytest.raises(InputError, match=r"1 image\(s\) cannot be read.*bad\.png"):
        classifier.predict([good, bad])
    first, second = classifier.predict([bad, good], skip_bad=True)
    assert first == []
    assert second == classifier.predict([good])[0]


def test_labelled_files_that_cannot_be_read_are_skipped_if_asked(tmp_path: Path) -> None:
    """The classifier is then the one that never met them."""
    whole, damaged = (write_colours(tmp_path / name, classes=2, images=4) for name in ("whole", "damaged"))
    bad = damaged / "colour 0" / "0001 half.png"
    bad.write_bytes(b"no image")
    one, other = (Classifier(config_of(method="anyarrival"), "cpu") for _ in range(2))
    with pytest.raises(InputError, match=r"1 image\(s\) cannot be read, repair them, or skip them with --skip-bad"):
        one.learn(damaged)
    one.learn(one.read(damaged, skip_bad=True))
    other.learn(whole)
    photos = sorted(whole.rglob("*.png"))
    assert one.answer(photos, top=2) == other.answer(photos, top=2)
    assert one.test(damaged, skip_bad=True) == other.test(whole)
    assert skipped(damaged, one.size) == [str(bad)]
    assert names_read(damaged, one.size) == [str(damaged / photo.relative_to(whole)) for photo in photos]


def test_an_image_to_correct_is_named_although_others_are_skipped(tmp_path: Path) -> None:
    root = write_colours(tmp_path / "all", classes=2, images=4)
    classifier = Classifier(config_of(method="anyarrival"), "cpu")
    classifier.learn(root)
    (root / "colour 0" / "0000 half.png").write_bytes(b"no image")
    Image.new("RGB", (16, 16)).save(root / "colour 0" / "0002 new.png")
    with pytest.raises(InputError, match=r"1 of 9 images were never learned, such as .*0002 new\.png"):
        classifier.correct(root, skip_bad=True)


def test_a_class_of_which_no_image_can_be_read_is_not_skipped(tmp_path: Path) -> None:
    root = write_colours(tmp_path / "all", classes=2, images=4)
    (root / "broken").mkdir()
    (root / "broken" / "1.png").write_bytes(b"no image")
    with pytest.raises(InputError, match="No image of class 'broken' can be read: repair them, or remove the class"):
        Classifier(config_of(method="anyarrival"), "cpu").read(root, skip_bad=True)


def test_files_of_the_next_batch_are_read_while_the_caller_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(write_colours(tmp_path / "all", classes=1, images=5).rglob("*.png"))
    expected = [frame for batch in frames(files, 16, 5, False) for frame in batch]
    third, read = threading.Event(), pictures.try_decode

    def noted(path: Path, size: int) -> Any:
        if path == files[2]:
            third.set()
        return read(path, size)

    monkeypatch.setattr(pictures, "try_decode", noted)
    (bad := tmp_path / "bad.png").write_bytes(b"no image")
    batches = frames([*files, bad], 16, 2, skip_bad=False)
    found = next(batches)
    assert third.wait(10)  # a file of the second batch, before that is asked for
    found += next(batches)
    with pytest.raises(InputError, match=r"bad\.png"):
        next(batches)
    assert all(map(torch.equal, found, expected))


def test_progress_is_reported() -> None:
    started: list[tuple[int, int, int, int]] = []

    class RecordsSteps(Listener):
        def step_started(self, step: int, new: int, seen: int, epochs: int) -> None:
            started.append((step, new, seen, epochs))

    classifier = Classifier(config_of(method="replay"), "cpu")
    notes = [classifier.learn(step, listener=RecordsSteps()) for step in parts(coloured_images([6] * 6, 1))]
    assert started == [(1, 2, 2, 4), (2, 1, 3, 4), (3, 3, 6, 4)]
    assert all(note["training_images"] for note in notes)


# --- special cases ------------------------------------------------------------------------------------------------


def test_a_subset_adds_only_the_classes_of_its_images() -> None:
    """Other class names, such as those of a torch Subset's data set, are ignored, and so are images labelled -1."""
    images = coloured_images([4] * 5, 1)
    classifier = Classifier(config_of(method="simplecil"), "cpu")
    some = replace(images, labels=torch.where(images.labels < 2, images.labels, -1))
    classifier.learn(some)
    assert classifier.class_names == images.class_names[:2]
    assert classifier.learner.statistics.means.shape[0] == 2  # type: ignore[union-attr]

    class Whole(Dataset[Any]):
        classes = images.class_names

        def __len__(self) -> int:
            return len(images)

        def __getitem__(self, row: int) -> Any:
            return images.images[row], int(images.labels[row])

    rows = (images.labels >= 3).nonzero().flatten().tolist()
    notes = classifier.learn(Subset(Whole(), rows))
    assert classifier.class_names == images.class_names[:2] + images.class_names[3:]
    assert notes["new_images"] == 8
    other = Classifier(config_of(method="simplecil"), "cpu")
    first, last = images.subset((images.labels < 2).nonzero().flatten()), images.subset(torch.tensor(rows))
    other.learn(replace(first, class_names=images.class_names[:2]))
    other.learn(replace(last, labels=last.labels - 3, class_names=images.class_names[3:]))
    assert torch.equal(classifier._scores(images.images), other._scores(images.images))


def test_a_method_without_kept_rows_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Keeper(METHODS["finetune"]):  # type: ignore[misc]
        def training_rows(self, increment: Increment) -> torch.Tensor:
            return increment.rows

    monkeypatch.setitem(METHODS, "keeper", Keeper)
    with pytest.raises(InputError, match=r"'keeper' trains on images of earlier steps without kept_rows and renumber"):
        Classifier(config_of(method="keeper"), "cpu")


def test_progress_of_another_classifier_is_not_resumed(tmp_path: Path) -> None:
    """The other classifier has the same classes, but learned them from other images."""
    config = config_of(method="replay").model_copy(update={"checkpoint_seconds": 0.0})
    first, second, _ = parts(coloured_images([10] * 6, 1))
    others, _, _ = parts(coloured_images([10] * 6, 5))
    interrupted(config, first, second, tmp_path)
    whole = Classifier(config, "cpu")
    whole.learn(others)
    untouched = Classifier(config, "cpu")
    for step in (others, second):
        untouched.learn(step)
    whole.learn(second, tmp_path)
    test = coloured_images([4] * 6, 2).images
    assert torch.equal(whole._scores(test), untouched._scores(test))


def test_a_step_that_was_learned_before_is_skipped(tmp_path: Path) -> None:
    """The same command can be repeated, also when it is done."""
    config = config_of(method="replay")
    first, second, third = parts(coloured_images([6] * 6, 1))
    teach(tmp_path, [first], config, device="cpu")
    taught, notes = teach(tmp_path, [first, second], config, device="cpu")
    assert [note is None for note in notes] == [True, False]
    content = (tmp_path / MODEL).read_bytes()
    assert teach(tmp_path, [first, second], config, device="cpu")[1] == [None, None]
    assert (tmp_path / MODEL).read_bytes() == content
    with pytest.raises(InputError, match="The method of the classifier"):
        teach(tmp_path, [third], config_of(method="icarl"), device="cpu")
    assert Classifier.load(tmp_path, "cpu").class_names == taught.class_names


def test_a_step_is_learned_again_if_any_of_its_images_has_changed(tmp_path: Path) -> None:
    images = coloured_images([50, 50], 1)
    config = config_of(method="anyarrival", options={"blocks": 0})
    teach(tmp_path, [images], config, device="cpu")
    taught = Classifier.load(tmp_path, "cpu")
    for row in range(len(images)):
        changed = images.images.clone()
        changed[row] = 255 - changed[row]
        assert not taught.learned(replace(images, images=changed))
    classifier, notes = teach(tmp_path, [replace(images, images=changed)], config, device="cpu")
    assert notes != [None]
    assert classifier.kept()["features"]["images"] == len(images) + 1


def test_a_step_of_an_earlier_version_is_not_learned_twice() -> None:
    images = coloured_images([5, 5], 1)
    classifier = Classifier(config_of(method="anyarrival", options={"blocks": 0}), "cpu")
    classifier.learn(images)
    sampled = hashlib.sha256(repr(images.class_names).encode() + images.sample()).hexdigest()
    classifier.steps = [replace(step, digest=sampled) for step in classifier.steps]
    assert classifier.learned(images)


def test_settings_that_may_change_between_steps(tmp_path: Path) -> None:
    first, second, _ = parts(coloured_images([6] * 6, 1))
    teach(tmp_path, [first], config_of(method="replay", memory={"budget": 2}), device="cpu")
    with pytest.raises(InputError, match="less than one exemplar for each of 3 classes"):
        teach(tmp_path, [second], device="cpu")
    teach(tmp_path, [second], changes={"memory": {"budget": 9}}, device="cpu")
    taught = Classifier.load(tmp_path, "cpu")
    assert taught.config.memory.budget == 9
    assert taught._kept.counts().tolist() == [1, 1, 3]  # removed exemplars do not come back
    with pytest.raises(InputError, match=r"The image_size of the classifier in .* is 16 and cannot change"):
        Classifier.load(tmp_path, "cpu", {"image_size": 32})
    with pytest.raises(InputError, match=r"The flow.adjust of the classifier in .* is null and cannot change"):
        Classifier.load(tmp_path, "cpu", {"flow": {"adjust": 0.5}})


def test_changed_settings_are_kept_although_nothing_is_new(tmp_path: Path) -> None:
    weights = Path(shutil.copy(glyph_vit_weights(), tmp_path / "weights.safetensors"))
    model, (first, *_) = tmp_path / "model", parts(coloured_images([6] * 6, 1))
    teach(model, [first], config_of(method="simplecil", weights=str(weights)), device="cpu")
    moved = os.path.relpath(weights.rename(tmp_path / "moved.safetensors"))
    for _ in range(2):  # the second time, nothing changes any more
        assert teach(model, [first], changes={"weights": moved}, device="cpu")[1] == [None]
        assert Classifier.load(model, "cpu").version == 2


@pytest.mark.parametrize("method", ["icarl", "ranpac"])
def test_a_classifier_of_the_version_with_robust_goes_on(tmp_path: Path, method: str) -> None:
    """Its configuration had `robust`, a true or false identity term, and neither `flow` nor `ha.guard`."""
    first, second, _ = parts(coloured_images([6] * 6, 1))
    config = config_of(method=method, framework="paper")
    teach(tmp_path, [first], config, device="cpu")
    state = load_state(tmp_path / MODEL, "")
    earlier = {**state["config"], "robust": True, "ha": {**state["config"]["ha"], "identity": True}}
    del earlier["framework"], earlier["flow"], earlier["ha"]["guard"]
    save_state(tmp_path / MODEL, {**state, "config": earlier})
    teach(tmp_path, [second], changes={"train": {"batch": 8}}, device="cpu")
    taught = Classifier.load(tmp_path, "cpu")
    assert (taught.config.framework, taught.config.ha, taught.config.train.batch) == ("paper", config.ha, 8)
    assert len(taught.class_names) == 3


def test_a_classifier_from_before_an_option_was_added_goes_on_with_its_own_configuration(tmp_path: Path) -> None:
    """As `ffcil learn MODEL IMAGES --recipe own-images` does, also with a folder that has a classifier."""
    first, second, _ = parts(coloured_images([6] * 6, 1))
    config = config_of(method="anyarrival")
    teach(tmp_path, [first], config, device="cpu")
    state = load_state(tmp_path / MODEL, "")
    options = {name: value for name, value in state["config"]["options"].items() if name != "rank"}
    save_state(tmp_path / MODEL, {**state, "config": {**state["config"], "options": options}})
    taught, _ = teach(tmp_path, [second], config, device="cpu")
    assert len(taught.class_names) == 3
    with pytest.raises(InputError, match=r"The options.rank of the classifier in .* is 16 and"):
        teach(tmp_path, [second], config_of(method="anyarrival", options={"rank": 3}), device="cpu")


def test_another_classifier_is_not_overwritten(tmp_path: Path) -> None:
    first, second, _ = parts(coloured_images([6] * 6, 1))
    one, other = (Classifier(config_of(method="simplecil"), "cpu") for _ in range(2))
    one.learn(first)
    one.save(tmp_path)
    other.learn(second)
    with pytest.raises(InputError, match="There is another classifier in"):
        other.save(tmp_path)
    one.learn(second)
    one.save(tmp_path)
    again = Classifier.load(tmp_path, "cpu")
    assert again.class_names == first.class_names + second.class_names
    again.save(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file: name a folder"):
        teach(tmp_path / "file", [first], config_of(method="simplecil"), device="cpu")


def test_data_with_one_split(tmp_path: Path) -> None:
    write_colours(tmp_path / "only" / "train", classes=2, images=4)
    write_colours(tmp_path / "also" / "test", classes=2, images=3)
    classifier = Classifier(config_of(method="simplecil"), "cpu")
    assert classifier.learn(tmp_path / "only")["new_images"] == 8
    assert classifier.test(tmp_path / "also")["images"] == 6
    with pytest.raises(InputError, match="no images to test on"):
        classifier.test(tmp_path / "only")
    with pytest.raises(InputError, match="no images to learn"):
        classifier.learn(tmp_path / "also")
    lines = ["path,label,split"]
    for file in sorted((tmp_path / "only" / "train").rglob("*.png")):
        lines.append(f"{file.relative_to(tmp_path)},new {file.parent.name},train")
    (tmp_path / "list.csv").write_text("\n".join(lines))
    assert classifier.learn(tmp_path / "list.csv")["new_images"] == 8


def test_a_folder_with_other_files_is_not_used(tmp_path: Path) -> None:
    write_colours(tmp_path / "images", classes=2, images=4)
    with pytest.raises(InputError, match=r"contains other files"):
        teach(tmp_path / "images", [tmp_path / "images"], config_of(method="simplecil"), device="cpu")
    with pytest.raises(InputError, match="Unknown method"):
        teach(tmp_path / "new", [tmp_path / "images"], config_of(method="simplecl"), device="cpu")
    with pytest.raises(InputError, match="There is no classifier in"):
        teach(tmp_path / "new", [tmp_path / "images"], device="cpu")
    assert not (tmp_path / "new").exists()
    with pytest.raises(InputError, match="is inside the image folder"):
        teach(tmp_path / "images" / "model", [tmp_path / "images"], config_of(method="simplecil"), device="cpu")


def test_damaged_files_and_unknown_methods_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = parts(coloured_images([6] * 6, 1))
    monkeypatch.setitem(METHODS, "mine", METHODS["simplecil"])
    config = config_of(method="simplecil").model_copy(update={"method": "mine"})
    teach(tmp_path, [first], config, device="cpu")
    (tmp_path / LEARNING).write_bytes(b"half")
    with pytest.raises(InputError, match="remove this file to restart the step"):
        teach(tmp_path, [second], device="cpu")
    monkeypatch.delitem(METHODS, "mine")
    with pytest.raises(InputError, match="uses method 'mine', which is not registered: add --import"):
        Classifier.load(tmp_path, "cpu")
    (tmp_path / MODEL).write_bytes(b"half")
    with pytest.raises(InputError, match="restore a copy of it"):
        Classifier.load(tmp_path, "cpu")


def test_one_pil_image_used_many_times_and_an_image_that_is_too_long(tmp_path: Path) -> None:
    """A PIL image is loaded by one thread only. An image that is too long is reported like an unreadable one."""
    write_colours(tmp_path / "all", classes=2, images=4)
    classifier = Classifier(config_of(method="simplecil"), "cpu")
    classifier.learn(tmp_path / "all")
    file = next((tmp_path / "all").rglob("*.png"))
    many = classifier.predict([Image.open(file)] * 40 + [file])
    assert {guess.name for (guess,) in many} == {many[-1][0].name}
    assert [guess.score for (guess,) in many] == pytest.approx([many[-1][0].score] * 41, rel=1e-4)
    strip = Image.new("RGB", (2000, 10))
    strip.save(tmp_path / "strip.png")
    config = small_config(method="replay", image_size=96, train={"first": {"epochs": 1}, "later": {"epochs": 1}})
    large = Classifier(config, "cpu")
    large.learn(tmp_path / "all")
    with pytest.raises(
        InputError, match=r"Input 1 cannot be used \(its long side is more than 16 times its short side\)"
    ):
        large.predict([strip])
    with pytest.raises(InputError, match=r"strip\.png \(its long side is more than 16 times its short side\)"):
        large.predict([tmp_path / "strip.png"])


def test_too_little_memory_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, _ = parts(coloured_images([6] * 6, 1))
    teach(tmp_path, [first], config_of(method="replay"), device="cpu")

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(METHODS["replay"], "loss", full)
    with pytest.raises(InputError, match="The GPU's memory is not enough"):
        teach(tmp_path, [second], device="cpu")
