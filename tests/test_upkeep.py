"""A classifier through its changes: more images, forgetting, correcting, renaming, returning, and versions on disk."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import coloured_images, forked, seeded, small_config, status_of
from ffcil.classifier import versions
from ffcil.classifier.changing import changing, undo
from ffcil.classifier.classifier import Classifier
from ffcil.classifier.history import Change, names_today
from ffcil.classifier.teaching import teach
from ffcil.classifier.versions import FOLDER, MODEL, Versions
from ffcil.commands.upkeep import describe_change
from ffcil.config.settings import RunConfig
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.runs.checkpoint import load_state, save_state

pytestmark = pytest.mark.usefixtures("pixel_features")
CLASSES = 4
IMAGES = 24
NAMES = tuple(f"colour {k}" for k in range(CLASSES))


def config_of(**options: Any) -> RunConfig:
    return small_config(method="anyarrival", image_size=16, options={"blocks": 0, **options})


def pictures(seed: int = 1) -> ImageSet:
    """Images of overlapping classes, so that not everything is right."""
    made = coloured_images([3, 5, 7, 9], seed)
    noise = torch.randn(len(made), 3, 1, 1, generator=seeded(seed + 10)) * 60
    return replace(made, images=(made.images + noise).clamp(0, 255).to(torch.uint8))


def some(rows: list[int], labels: dict[int, int] | None = None) -> ImageSet:
    """Some of the pictures, with other labels for some of them."""
    images = pictures()
    changed = images.labels.clone()
    for row, label in (labels or {}).items():
        changed[row] = label
    return replace(images, labels=changed).subset(torch.tensor(rows))


def scores(classifier: Classifier, names: tuple[str, ...] = NAMES) -> Tensor:
    """Probabilities of test images, with the classes in the order of `names`; NaN for classes that are not known."""
    found = classifier._scores(pictures(seed=5).images).softmax(dim=1)
    known = classifier.class_names
    missing = torch.full((len(found),), torch.nan)
    return torch.stack([found[:, known.index(name)] if name in known else missing for name in names], dim=1)


def learned(rows: list[int], labels: dict[int, int] | None = None) -> Classifier:
    """A classifier that learned some of the pictures at once."""
    classifier = Classifier(config_of(), "cpu")
    classifier.learn(some(rows, labels))
    return classifier


def assert_same(first: Tensor, second: Tensor) -> None:
    assert first.nan_to_num(-1).argmax(1).equal(second.nan_to_num(-1).argmax(1))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4, equal_nan=True)


def cut(order: list[int], cuts: set[int]) -> list[list[int]]:
    edges = [0, *sorted(cuts), len(order)]
    return [order[start:stop] for start, stop in pairwise(edges)]


quick = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
orders = st.permutations(range(IMAGES))
cuts = st.sets(st.integers(1, IMAGES - 1), max_size=4)


# --- exactness ----------------------------------------------------------------------------------------------------


@quick
@given(
    orders,
    cuts,
    st.sets(st.integers(0, CLASSES - 1), max_size=2),
    st.dictionaries(st.integers(0, 23), st.integers(0, 3), max_size=4),
)
def test_any_order_of_changes_gives_what_is_learned_at_once(
    order: list[int], where: set[int], gone: set[int], right: dict[int, int]
) -> None:
    """Images in any order and steps, known classes again, then corrected labels, forgotten classes and a new name."""
    classifier = Classifier(config_of(), "cpu")
    for rows in cut(order, where):
        classifier.learn(some(rows))
    truth = {row: int(label) for row, label in enumerate(pictures().labels)} | right
    if right:
        classifier.correct(some(list(right), right))
    forgotten = [NAMES[k] for k in sorted(gone) if NAMES[k] in classifier.class_names]
    if forgotten:
        classifier.forget(forgotten)
    stay = [row for row in range(IMAGES) if NAMES[truth[row]] not in forgotten]
    first = next(name for name in classifier.class_names if any(NAMES[truth[row]] == name for row in stay))
    classifier.rename(first, "another name")
    expected = learned(stay, right)
    known = set(expected.class_names)
    found = scores(classifier, tuple("another name" if name == first else name for name in NAMES))
    # a class that lost all its images to corrections stays known and is never predicted
    found[:, [k for k, name in enumerate(NAMES) if name not in known]] = torch.nan
    assert_same(found, scores(expected))


def test_the_only_class_that_still_has_images_is_certain() -> None:
    """Of two classes, one has lost all its images to corrections."""
    classifier = learned(list(range(8)))
    classifier.correct(some([0, 1, 2], dict.fromkeys(range(3), 1)))
    assert classifier.class_names == NAMES[:2]
    for first, second in classifier.predict(list(pictures(seed=5).images), top=2):
        assert (first.name, first.score, second.score) == (NAMES[1], 1, pytest.approx(0))


def test_saving_and_loading_between_changes_changes_nothing(tmp_path: Path) -> None:
    direct = Classifier(config_of(), "cpu")
    rows = torch.randperm(IMAGES, generator=seeded(3)).tolist()
    for part in (rows[:9], rows[9:]):
        direct.learn(some(part))
        teach(tmp_path, [some(part)], config_of(), device="cpu")
    direct.forget([NAMES[2]])
    direct.correct(some([0, 1], {0: 3, 1: 3}))
    direct.rename(NAMES[0], "first")
    with changing(tmp_path, "cpu") as classifier:
        classifier.forget([NAMES[2]])
    with changing(tmp_path, "cpu") as classifier:
        classifier.correct(some([0, 1], {0: 3, 1: 3}))
    with changing(tmp_path, "cpu") as classifier:
        classifier.rename(NAMES[0], "first")
    loaded = Classifier.load(tmp_path, "cpu")
    assert loaded.class_names == direct.class_names
    test = pictures(seed=5).images
    assert torch.equal(loaded._scores(test), direct._scores(test))
    assert loaded.answer([test[0]]) == direct.answer([test[0]])


def test_undo_gives_the_model_before_the_change_and_learning_goes_on(tmp_path: Path) -> None:
    first, second = list(range(0, IMAGES, 2)), list(range(1, IMAGES, 2))
    teach(tmp_path, [some(first)], config_of(), device="cpu")
    before = scores(Classifier.load(tmp_path, "cpu"))
    with changing(tmp_path, "cpu") as classifier:
        classifier.forget([NAMES[1]])
    assert undo(tmp_path) == 1
    assert torch.equal(scores(Classifier.load(tmp_path, "cpu")), before)
    teach(tmp_path, [some(second)], device="cpu")
    taught = Classifier.load(tmp_path, "cpu")
    assert_same(scores(taught), scores(learned(list(range(IMAGES)))))
    assert (taught.version, Versions(tmp_path).numbers()) == (3, [1, 2, 3])
    assert undo(tmp_path) == 1  # version 3 was made from version 1, not from version 2
    assert undo(tmp_path, 2) == 2
    assert NAMES[1] not in Classifier.load(tmp_path, "cpu").class_names
    with pytest.raises(InputError, match=r"has no version 9: choose one of those that are kept \(1, 2, 3\)"):
        undo(tmp_path, 9)
    undo(tmp_path, 1)
    with pytest.raises(InputError, match="is at its first version: there is nothing to undo"):
        undo(tmp_path)


def test_nothing_is_left_of_what_is_forgotten_everywhere(tmp_path: Path) -> None:
    teach(tmp_path, [some(list(range(IMAGES)))], config_of(), device="cpu")
    with changing(tmp_path, "cpu") as classifier:
        classifier.rename(NAMES[1], "second")
    with changing(tmp_path, "cpu", keep_earlier=False) as classifier:
        classifier.forget([NAMES[0]])
    assert Versions(tmp_path).numbers() == [3]
    files = [path for path in tmp_path.rglob("*") if path.suffix == ".safetensors"]
    assert len(files) == 2
    for path in files:
        assert len(load_state(path, "")["learner"]["kept_features"]["features"]) == IMAGES - 3
    with changing(tmp_path, "cpu") as classifier:
        classifier.rename("second", "first")
    assert Versions(tmp_path).numbers() == [3, 4]


def test_a_failed_change_leaves_classifier_and_folder_as_they_were(tmp_path: Path) -> None:
    teach(tmp_path, [some(list(range(0, IMAGES, 2)))], config_of(), device="cpu")
    content = (tmp_path / MODEL).read_bytes()
    classifier = Classifier.load(tmp_path, "cpu")
    before, history = scores(classifier), classifier.history()
    for mistake, message in (
        (lambda model: model.forget(["colour 0", "colour 9"]), "Unknown class 'colour 9'"),
        (lambda model: model.forget("colour 0"), r"must be given as a list: use \['colour 0'\] for a single class"),
        (lambda model: model.forget([]), "No class is named: name at least one class to forget"),
        (lambda model: model.rename("colour 0", "colour 1"), "Class 'colour 1' is already known"),
        (lambda model: model.rename("colour 0", " "), "choose a name that is not blank"),
        (lambda model: model.rename("colour 9", "x"), "Unknown class 'colour 9'"),
        (lambda model: model.correct(some([0, 1], {0: 3})), "1 of 2 images were never learned"),
    ):
        with pytest.raises(InputError, match=message):
            mistake(classifier)  # type: ignore[no-untyped-call]
        with pytest.raises(InputError, match=message), changing(tmp_path, "cpu") as loaded:
            mistake(loaded)  # type: ignore[no-untyped-call]
    assert torch.equal(scores(classifier), before)
    assert classifier.history() == history
    assert (tmp_path / MODEL).read_bytes() == content
    assert Versions(tmp_path).numbers() == [1]


@pytest.mark.parametrize("change", [lambda c: c.forget(["colour 0"]), lambda c: c.correct(some([0]))])
def test_methods_that_cannot_change_say_so(change: Callable[[Classifier], None]) -> None:
    classifier = Classifier(small_config(method="simplecil", image_size=16), "cpu")
    classifier.learn(pictures())
    with pytest.raises(InputError, match=r"SimpleCIL cannot .*: use a classifier with method=anyarrival"):
        change(classifier)
    classifier.rename("colour 0", "red")  # every method can
    assert classifier.class_names[0] == "red"
    assert classifier.usual_false_alarms is None


# --- images that come twice ---------------------------------------------------------------------------------------


def test_copies_and_images_in_two_classes_are_counted() -> None:
    classifier = Classifier(config_of(), "cpu")
    notes = classifier.learn(some([0, 3, 4, 9, 9]))
    assert (notes["copies"], notes["in_two_classes"]) == (1, {"images": 0, "such_as": []})
    # two copies of learned images, a new image twice, and a learned image with another label
    notes = classifier.learn(some([0, 3, 12, 12, 9, 13], {9: 0}))
    assert (notes["new_images"], notes["copies"]) == (6, 3)
    assert notes["in_two_classes"] == {"images": 1, "such_as": ["colour 2", "colour 0"]}
    assert classifier.learn(some([14]))["in_two_classes"]["images"] == 0  # those of before are not counted again
    assert classifier.correct(some([9]))["in_two_classes"]["images"] == 0
    assert classifier.learn(some([9]))["copies"] == 1


@pytest.mark.parametrize("config", [config_of(keep="statistics"), small_config(method="simplecil", image_size=16)])
def test_who_keeps_no_features_cannot_count_copies(config: RunConfig) -> None:
    notes = Classifier(config, "cpu").learn(some([0, 0, 9]))
    assert notes["new_images"] == 3
    assert {"copies", "in_two_classes"}.isdisjoint(notes)


# --- history ------------------------------------------------------------------------------------------------------


def test_a_change_of_many_classes_names_some_of_them() -> None:
    names = [f"class {k}" for k in range(9)]
    change = {"kind": "learn", "new": names[:3], "gone": [], "images": dict.fromkeys(names, 2)}
    assert describe_change(change) == (
        "learn class 0, class 1, class 2; more of class 3, class 4, class 5, class 6 and 2 more"
    )
    assert describe_change({**change, "kind": "forget", "gone": names[:4]}) == (
        "forget class 0, class 1, class 2, class 3"
    )


def test_the_history_counts_images_and_accuracies_of_left_out_images(tmp_path: Path) -> None:
    classifier = learned(list(range(8)))  # two classes
    classifier.learn(some(list(range(6, IMAGES))))
    classifier.forget([NAMES[2]])
    classifier.rename(NAMES[0], "first")
    classifier.save(tmp_path)
    changes = Classifier.load(tmp_path, "cpu").history()
    assert [change["kind"] for change in changes] == ["learn", "learn", "forget", "rename"]
    assert [change["version"] for change in changes] == [1, 1, 1, 1]
    assert changes[0]["images"] == {NAMES[0]: 3, NAMES[1]: 5}
    assert changes[1]["images"] == {NAMES[1]: 2, NAMES[2]: 7, NAMES[3]: 9}
    assert changes[1]["new"] == [NAMES[2], NAMES[3]]
    assert changes[2]["images"] == {NAMES[2]: -7}
    # an independent count: one classifier for each left-out image of the two first classes
    right = 0
    for row in range(8):
        without = learned([other for other in range(8) if other != row])
        picture = pictures().images[row]
        right += without.predict([picture])[0][0].name == NAMES[int(pictures().labels[row])]
    assert changes[0]["accuracy"] == changes[0]["new_accuracy"] == pytest.approx(100 * right / 8)
    counts = classifier.learner.left_out_counts()
    assert counts is not None
    now = 100 * float(counts[0][:2].sum() / counts[1][:2].sum())
    assert changes[0]["accuracy_now"] == pytest.approx(now)  # although a class has another name
    assert changes[2]["accuracy_now"] is changes[3]["accuracy_now"] is None


def test_names_are_followed_through_changes() -> None:
    changes = [
        Change(1, "learn", new=("a", "b", "c")),
        Change(2, "rename", new=("x",), gone=("a",)),
        Change(3, "forget", gone=("b",)),
        Change(4, "learn", new=("a", "b")),
        Change(5, "rename", new=("y",), gone=("x",)),
    ]
    assert names_today(changes) == [["y", "c"], [], [], ["a", "b"], []]


def test_what_is_kept_of_the_images() -> None:
    kept = learned(list(range(IMAGES))).kept()
    assert kept["exemplars"] == {"images": 0, "megabytes": 0}
    assert kept["features"]["images"] == IMAGES
    statistics = Classifier(config_of(keep="statistics"), "cpu")
    statistics.learn(pictures())
    assert statistics.kept()["features"]["images"] == 0
    assert statistics.usual_false_alarms is None
    replay = Classifier(small_config(method="replay", image_size=16, memory={"budget": 8}), "cpu")
    replay.learn(pictures())
    assert replay.kept()["exemplars"] == {"images": 8, "megabytes": 8 * 3 * 16 * 16 / 1e6}


# --- versions -----------------------------------------------------------------------------------------------------


def test_versions_are_pruned_by_count_and_age_and_the_choice_is_remembered(tmp_path: Path) -> None:
    classifier = learned(list(range(IMAGES)))
    for number in range(7):
        classifier.rename(classifier.class_names[0], f"name {number}")
        classifier.save(tmp_path)
    versions = Versions(tmp_path)
    assert versions.numbers() == [3, 4, 5, 6, 7]
    classifier.rename("name 6", "x")
    classifier.save(tmp_path, versions=3)
    assert versions.numbers() == [6, 7, 8]
    again = Classifier.load(tmp_path, "cpu")
    again.rename("x", "y")
    again.save(tmp_path)
    assert versions.numbers() == [7, 8, 9]
    day_before_yesterday = time.time() - 2 * 86400
    os.utime(versions.path(7), (day_before_yesterday, day_before_yesterday))
    os.utime(versions.path(9), (day_before_yesterday, day_before_yesterday))
    again.save(tmp_path, days=1)
    assert versions.numbers() == [8, 9]  # the current one stays
    with pytest.raises(InputError, match="versions is 0"):
        again.save(tmp_path, versions=0)
    with pytest.raises(InputError, match="days is -1"):
        again.save(tmp_path, days=-1)


def test_a_folder_of_a_release_without_versions_continues(tmp_path: Path) -> None:
    """It has one file, without a version, a history and rules for versions; its steps have no `again`."""
    teach(tmp_path, [some(list(range(0, IMAGES, 2)))], config_of(), device="cpu")
    state = load_state(tmp_path / MODEL, "")
    for key in ("version", "changes", "retention"):
        del state[key]
    state["steps"] = [{key: step[key] for key in ("names", "digest")} for step in state["steps"]]
    Versions(tmp_path).path(1).unlink()
    (tmp_path / FOLDER).rmdir()
    save_state(tmp_path / MODEL, state)
    before = Classifier.load(tmp_path, "cpu")
    assert before.history() == []
    with pytest.raises(InputError, match="at its first version"):
        undo(tmp_path)
    teach(tmp_path, [some(list(range(1, IMAGES, 2)))], device="cpu")
    assert Versions(tmp_path).numbers() == [1, 2]
    assert_same(scores(Classifier.load(tmp_path, "cpu")), scores(learned(list(range(IMAGES)))))
    assert undo(tmp_path) == 1
    assert torch.equal(scores(Classifier.load(tmp_path, "cpu")), scores(before))


def test_a_damaged_version_is_not_switched_to(tmp_path: Path) -> None:
    classifier = learned(list(range(IMAGES)))
    classifier.save(tmp_path)
    classifier.rename(NAMES[0], "x")
    classifier.save(tmp_path)
    Versions(tmp_path).path(1).write_bytes(b"half")
    with pytest.raises(InputError, match=r"000001.safetensors is damaged"):
        undo(tmp_path)
    assert Classifier.load(tmp_path, "cpu").class_names[0] == "x"
    Versions(tmp_path).path(1).unlink()
    Versions(tmp_path).current.unlink()
    Versions(tmp_path).current.write_bytes(b"half")
    with pytest.raises(InputError, match="return to a version with `ffcil undo MODEL --to VERSION`"):
        Classifier.load(tmp_path, "cpu")
    assert undo(tmp_path, 2) == 2
    assert Classifier.load(tmp_path, "cpu").class_names[0] == "x"


def test_one_process_at_a_time_changes_a_folder(tmp_path: Path) -> None:
    teach(tmp_path, [some(list(range(IMAGES)))], config_of(), device="cpu")
    with changing(tmp_path, "cpu"), pytest.raises(InputError, match="Another process is running"):
        undo(tmp_path)
    with pytest.raises(InputError, match="There is no classifier in"), changing(tmp_path / "nothing"):
        pass
    assert not (tmp_path / "nothing").exists()


# --- kills --------------------------------------------------------------------------------------------------------


def forgetting(folder: Path, moment: str) -> None:
    """Forget a class, and die at a moment."""

    def die(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if moment == "before the switch":
        Versions.switch = die  # type: ignore[method-assign]
    else:
        before = versions._another_name
        versions._another_name = lambda *names: (before(*names), die())  # type: ignore[assignment, func-returns-value]
    with changing(folder, "cpu") as classifier:
        classifier.forget(["colour 1"])


@pytest.mark.parametrize("moment", ["before the switch", "before the rename"])
def test_a_kill_leaves_the_old_version_and_the_next_change_works(tmp_path: Path, moment: str) -> None:
    teach(tmp_path, [pictures()], config_of(), device="cpu")
    before = (tmp_path / MODEL).read_bytes()
    assert status_of(forked(lambda: forgetting(tmp_path, moment))) == -signal.SIGKILL
    assert (tmp_path / MODEL).read_bytes() == before
    assert Versions(tmp_path).numbers() == [1, 2]  # the new version is complete, but not the current one
    with changing(tmp_path, "cpu") as classifier:
        classifier.forget(["colour 2"])
    assert Classifier.load(tmp_path, "cpu").class_names == ("colour 0", "colour 1", "colour 3")
    assert not list(tmp_path.rglob(".*.draft"))
