"""Pre-trained methods under `flow`: which steps tune the network, classes that wait for the first tuning, resuming."""

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import Make, OnEpoch, coloured_images, small_config, small_stream
from ffcil.arrivals import given_arrivals
from ffcil.classifier.classifier import LEARNING, Classifier
from ffcil.config.flow import FLOW_PARTS
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import own_augmentation
from ffcil.methods import METHODS, build_learner
from ffcil.methods.fecam import unit
from ffcil.methods.parts.spaces import tuning_steps
from ffcil.models.analytic import AnalyticHead, fit_drift
from ffcil.runs.checkpoint import load_state
from ffcil.runs.folder import checkpoints
from ffcil.runs.run import Run, augmentation_of
from ffcil.stream import Stream
from ffcil.training.engine import Engine
from oracles import class_means
from test_classifier import Breaks
from test_run import Bomb, counts, records

TRAINED = sorted(name for name, method in METHODS.items() if method.pretrained and method.trains)
TUNED_ONCE = ("aper", "fecam", "ranpac")
OTHER_PARTS_OFF = {"min_steps": 1, "comparable": False, "shared_ridge": False, "whiten": False}


def fields(method: str, epochs: int = 1, **flow: Any) -> dict[str, Any]:
    """Fields of a quick learner under `flow`."""
    quick = {"moal": {"hidden": 30}, "ranpac": {"hidden": 30}, "mos": {"head_epochs": 1}, "tuna": {"head_epochs": 1}}
    train = {phase: {"epochs": epochs, "learning_rate": 0.05} for phase in ("first", "later")}
    flow = {"min_steps": 1, **flow}
    return {"method": method, "framework": "flow", "train": train, "options": quick.get(method, {}), "flow": flow}


def plain_features(learner: Any, increment: Any, network: Any) -> Tensor:
    with torch.no_grad():
        return torch.cat(list(learner.over(increment.train.images, increment.rows, network)))


# --- which steps train ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRAINED)
def test_steps_with_few_classes_do_not_tune_the_network(make_learner: Make, method: str) -> None:
    learner, stream = make_learner(**fields(method)), small_stream([2, 1, 6, 1, 5], [4] * 15)
    tunes = [False, False, True, False, method not in TUNED_ONCE]
    spaces = [[2], [3], [9], [10], [10, 15]]
    before = plain_features(learner, stream[0], learner.vit_features)
    if method == "aper":
        before = before.repeat(1, 2)
    for increment, tuned, expected in zip(stream, tunes, spaces, strict=True):
        epochs: list[int] = []
        notes = learner.learn(increment, OnEpoch(lambda progress: epochs.append(progress.epoch)))  # noqa: B023
        assert bool(epochs) == tuned
        assert learner.spaces == expected
        assert len(learner.waiting) == (0 if learner.is_tuned else 4 * increment.seen_now)
        of_head = sum(part.numel() for part in learner.head.parameters() if part.requires_grad)
        # MOS and TUNA train the head at every step, on drawn features
        assert (
            (notes["trained_parameters"] > of_head)
            if tuned
            else (notes["trained_parameters"] == (of_head if method in ("mos", "tuna") else 0))
        )
        features = plain_features(learner, stream[0], learner.features)
        moved = (features - before).abs().max() > 1e-6
        assert bool(moved) == tuned
        before = features
        assert learner.predictions(increment)[learner.scored].max() < increment.seen_now


@pytest.mark.parametrize("method", FLOW_PARTS["share"].methods)
def test_a_step_with_a_small_share_of_the_classes_opens_no_space(make_learner: Make, method: str) -> None:
    learner = make_learner(**fields(method, enough=2, share=0.5))
    tunes = [True, False, True, False]  # with 6, 2, 4 and 3 new classes, at least 0, 3, 4 and 6 are needed
    for increment, tuned, spaces in zip(
        small_stream([6, 2, 4, 3], [4] * 15), tunes, ([6], [8], [8, 12], [8, 15]), strict=True
    ):
        epochs: list[int] = []
        learner.learn(increment, OnEpoch(lambda progress: epochs.append(progress.epoch)))  # noqa: B023
        assert bool(epochs) == learner.tunes == tuned
        assert learner.spaces == spaces
        assert learner.predictions(increment)[learner.scored].max() < increment.seen_now


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 4), st.integers(0, 100))
@example([100, 7], 1, 7)  # 0.07 * 100 > 7 in floating point
def test_which_steps_tune(sizes: list[int], enough: int, percent: int) -> None:
    seen, boundaries, expected = 0, [], []
    for size in sizes:
        expected.append(size >= enough and 100 * size >= percent * seen)
        seen += size
        boundaries.append(seen)
    assert tuning_steps(boundaries, enough, percent / 100) == expected


@pytest.mark.parametrize("method", TRAINED)
def test_steps_with_enough_classes_are_learned_as_without_flow(make_learner: Make, method: str) -> None:
    learners = [make_learner(**fields(method, **OTHER_PARTS_OFF, enough=enough)) for enough in (1, 5)]
    for increment in small_stream([5, 6], [4] * 11):
        for learner in learners:
            learner.learn(increment)
        first, second = (learner.predictions(increment) for learner in learners)
        for name in first:
            assert torch.equal(first[name], second[name])
    state, other = (learner.state_dict() for learner in learners)
    for name, tensor in state.items():
        assert torch.equal(tensor, other[name]), name


@pytest.mark.parametrize(("method", "sizes"), [("aper", (5, 3)), ("ease", (5, 3)), ("tuna", (2, 5)), ("moal", (2, 5))])
def test_min_steps_prolongs_the_training(make_learner: Make, method: str, sizes: tuple[int, int]) -> None:
    """Of 5 classes with 6 images: 2 batches of 16, so that 3 epochs have 6 of 10 steps and 5 epochs have all."""
    phases = {"first": {"epochs": 3, "learning_rate": 0.05}, "later": {"epochs": 4, "learning_rate": 0.05}}
    for least, expected in ((10, 5), (6, 3), (1, 3)):
        learner = make_learner(**{**fields(method, min_steps=least), "train": phases})
        epochs: list[int] = []
        for increment in small_stream(sizes, [6] * sum(sizes)):
            learner.learn(increment, OnEpoch(lambda progress: epochs.append(progress.epoch)))  # noqa: B023
        assert epochs == list(range(1, expected + 1))  # those of the first tuning, also if it is the second step
    second = make_learner(**{**fields(method, min_steps=13), "train": phases})
    for increment in small_stream([6, 5], [6] * 11):
        second.begin(increment)
    assert second.phase(increment).epochs == 6  # 13 of 4 * 2 steps: 6.5 epochs, rounded to the even number


# --- classes that waited --------------------------------------------------------------------------------------------


def waited(make: Make, method: str, **flow: Any) -> tuple[Any, Tensor, Tensor, Stream]:
    """A learner of 2, 1 and 5 classes; the features of all images in the space of the tuned network, and classes.

    Those of the first three classes are moved as the tuning moves the other five."""
    learner, stream = make(**fields(method, epochs=4, **flow)), small_stream([2, 1, 5], [6] * 8)
    early = [
        plain_features(learner, increment, learner.vit_features).repeat(
            1, learner.feature_dim // learner.vit.feature_dim
        )
        for increment in stream
    ]
    for increment in stream:
        learner.learn(increment)
    late = plain_features(learner, stream[2], learner.features)
    moved = fit_drift(early[2], late, learner.generator(stream[2], "waiting"))(torch.cat(early[:2]))
    truth = torch.cat([plain_features(learner, increment, learner.features) for increment in list(stream)[:2]])
    # it is meant to follow the network
    assert (moved - truth).norm() < (torch.cat(early[:2]) - truth).norm()
    return learner, torch.cat([moved, late]), torch.arange(8).repeat_interleave(6), stream


@pytest.mark.parametrize("method", ["aper", "cllora", "ease", "fecam", "mos", "tuna"])
def test_means_of_waiting_classes_move_with_the_network(make_learner: Make, method: str) -> None:
    learner, features, targets, _ = waited(make_learner, method)
    expected = class_means(features, targets, range(8))
    torch.testing.assert_close(learner.statistics.means, expected, rtol=1e-4, atol=1e-4)
    if method == "fecam":
        of_units = class_means(unit(features, 1.0), targets, range(8))
        torch.testing.assert_close(learner.metrics.means, of_units, rtol=1e-4, atol=1e-5)
        return
    means = learner.prototypes[:, 0] if method == "ease" else learner.gaussians.means if method == "tuna" else None
    means = learner.prototypes.means if means is None else means
    torch.testing.assert_close(means, expected, rtol=1e-4, atol=1e-4)
    if method == "mos":
        torch.testing.assert_close(learner.gaussians.means, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["ranpac", "moal"])
def test_sums_start_again_with_the_moved_features(make_learner: Make, method: str) -> None:
    learner, features, targets, stream = waited(make_learner, method)
    phi = [learner.analytic.expand(row).double() for row in features]
    gram = sum(torch.outer(p, p) for p in phi)
    moments = sum(torch.outer(p, (torch.arange(8) == y).double()) for p, y in zip(phi, targets, strict=True))
    torch.testing.assert_close(learner.analytic.gram, gram, rtol=1e-4, atol=1e-4)
    scale = 0.9 if method == "moal" else 1.0  # of the first step's targets
    torch.testing.assert_close(learner.analytic.moments, scale * moments, rtol=1e-4, atol=1e-4)
    head = AnalyticHead(learner.feature_dim, 30, lambda empty: empty.copy_(learner.analytic.projection), True)
    head.grow(8)
    head.choose(features, targets, learner.generator(stream[2], "ridge"))
    torch.testing.assert_close(learner.analytic.errors, head.errors, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(learner.statistics.means, class_means(features, targets, range(8)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("method", ["cllora", "ease"])
def test_statistics_of_scores_start_again_with_the_first_tuning(make_learner: Make, method: str) -> None:
    learner, _, _, stream = waited(make_learner, method, comparable=True, whiten=False)
    scores = []
    with torch.no_grad():
        for features in plain_features(learner, stream[2], learner.features).split(1):
            cosines = [nn.functional.cosine_similarity(features, mean[None]) for mean in learner.statistics.means]
            scores.append([20 * value.item() for value in cosines])
    labels = stream.train.labels[stream[2].rows].tolist()
    wrong = [value for row, y in zip(scores, labels, strict=True) for label, value in enumerate(row) if label != y]
    expected = [len(wrong), sum(wrong), sum(value**2 for value in wrong)]
    torch.testing.assert_close(learner.comparable.sums, torch.tensor([expected]).double(), rtol=1e-4, atol=1e-3)


# --- interrupted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", TRAINED)
def test_a_run_with_waiting_classes_is_resumed(tmp_path: Path, colours: Path, method: str) -> None:
    """Steps of 1, 1, 3 and 1 classes; the third tunes. Interrupted while classes wait, in the tuning, and after it."""
    settings = small_config(
        **fields(method, epochs=2, enough=3),
        dataset="folder",
        image_size=16,
        arrivals={"sizes": [1, 1, 3, 1]},
        checkpoint_seconds=0,
    )
    run = partial(Run, settings, data=colours, device="cpu", threads=1)
    run(tmp_path / "whole").execute()
    for bomb in (Bomb(steps=2), Bomb(epochs=2), Bomb(steps=1)):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "part", listener=bomb).execute()
    run(tmp_path / "part").execute()
    assert records(tmp_path / "part") == records(tmp_path / "whole")
    assert counts(tmp_path / "part") == counts(tmp_path / "whole")
    states = [load_state(checkpoints(tmp_path / name / "checkpoints")[-1]) for name in ("whole", "part")]
    whole, part = (state["learner"]["modules"] for state in states)
    for name, tensor in whole.items():
        assert torch.equal(part[name], tensor), name
    trained = [record["loss"] > 0 for record in records(tmp_path / "whole")]
    assert trained == [False, False, True, False]


@pytest.mark.parametrize("method", TRAINED)
def test_a_saved_classifier_with_waiting_classes_continues(tmp_path: Path, method: str) -> None:
    """It is saved and loaded at every step, and interrupted in the first tuning. The scores are bit-equal."""
    config = small_config(**fields(method, epochs=2, enough=3), image_size=16, checkpoint_seconds=0)
    sizes, images, test = [1, 1, 3, 1], coloured_images([6] * 6, 1), coloured_images([3] * 6, 2)
    classifier = Classifier(config, "cpu")
    for first, last in pairwise([0, 1, 2, 5, 6]):
        part = images.subset(((images.labels >= first) & (images.labels < last)).nonzero().flatten())
        step = ImageSet(part.images, part.labels - first, images.class_names[first:last])
        if last == 5:
            with pytest.raises(KeyboardInterrupt):
                classifier.learn(step, tmp_path, Breaks(after=2))
            assert (tmp_path / LEARNING).exists()
            classifier = Classifier.load(tmp_path, "cpu")
            assert len(classifier.class_names) == 2
        classifier.learn(step, tmp_path)
        classifier.save(tmp_path)
        classifier = Classifier.load(tmp_path, "cpu")
    augmentation = augmentation_of(config, own_augmentation(16))
    learner = build_learner(config, augmentation, Engine.create("cpu", config.train))
    for increment in Stream(images, test, given_arrivals(sizes), class_seed=None):
        learner.learn(increment)
    with torch.no_grad():
        (expected,) = learner.over(test.images, torch.arange(len(test)), learner.logits)
    assert torch.equal(classifier._scores(test.images), expected[learner.scored])
