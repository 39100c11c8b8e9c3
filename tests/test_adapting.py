"""AnyArrival with `options.adapt`: when the network is trained, what waits for it, and how kept features follow."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import SHORT, Make, coloured_images, seeded, small_config, small_stream
from ffcil.arrivals import given_arrivals
from ffcil.classifier.classifier import LEARNING, Classifier
from ffcil.data.image_set import ImageSet
from ffcil.data.own_images import own_augmentation
from ffcil.errors import InputError
from ffcil.methods import build_learner
from ffcil.methods.parts.kept_features import KeptFeatures, half
from ffcil.methods.parts.spaces import gathering_steps
from ffcil.methods.parts.waiting_images import evenly
from ffcil.models.analytic import fit_drift
from ffcil.models.discriminant import ClassSums
from ffcil.runs.run import Run, augmentation_of
from ffcil.stream import Increment, Stream
from ffcil.training.engine import Engine
from oracles import cross_entropy, predicted_samples
from test_classifier import Breaks
from test_methods import STREAMS, assert_floors
from test_run import Bomb, counts, records

ADAPTS = ("first", "gathered")


def fields(adapt: str, **options: Any) -> dict[str, Any]:
    chosen = {"adapt": adapt, "enough": 2, "rank": 4, **options}
    return {"method": "anyarrival", "train": SHORT, "options": chosen}


# --- parts ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 6), max_size=12), st.integers(1, 8))
def test_a_step_adapts_when_enough_classes_have_come(sizes: list[int], enough: int) -> None:
    boundaries, expected, since = [], [], 0
    for size in sizes:
        boundaries.append(sum(sizes[: len(boundaries) + 1]))
        since += size
        expected.append(since >= enough)
        since = 0 if expected[-1] else since
    assert gathering_steps(boundaries, enough) == expected


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 45), st.randoms(use_true_random=False))
def test_every_class_keeps_the_same_number_of_waiting_images(labels: list[int], budget: int, random: Any) -> None:
    digests = random.sample(range(-1000, 1000), len(labels))
    chosen = set(evenly(torch.tensor(labels), torch.tensor(digests), budget).tolist())
    have = Counter(labels)
    each = max(each for each in range(41) if sum(min(each, count) for count in have.values()) <= budget)
    expected = set()
    for label in have:
        rows = [row for row, other in enumerate(labels) if other == label]
        expected |= set(sorted(rows, key=lambda row: digests[row])[:each])
    assert chosen == expected


def test_only_kept_images_get_new_features() -> None:
    kept = KeptFeatures(2, torch.device("cpu"))
    kept.add(torch.zeros(3, 2).half(), torch.tensor([0, 1, 0]), torch.tensor([7, 7, 9]))
    new = torch.tensor([[1, 1], [2, 2], [3, 3]]).half()
    kept.replace(new, torch.tensor([1, 0, 1]), torch.tensor([7, 9, 9]))
    assert kept.features.tolist() == [[0, 0], [1, 1], [2, 2]]


# --- the method -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("adapt", ADAPTS)
def test_hard_streams(make_learner: Make, adapt: str, stream: str) -> None:
    learner, increments = make_learner(**fields(adapt)), small_stream(*STREAMS[stream])
    for increment in increments:
        assert math.isfinite(learner.learn(increment)["loss"])
        assert_floors(type(learner), increments, increment, predicted_samples(learner, increment)[learner.scored])
    for tensor in learner.state_dict().values():
        assert tensor.isfinite().all()


@pytest.mark.parametrize(
    ("adapt", "adapted", "waiting"),
    [
        ("never", [False, False, False, False, False], [0, 0, 0, 0, 0]),
        ("first", [False, False, True, False, False], [0, 0, 0, 0, 0]),
        ("gathered", [False, True, True, False, True], [5, 0, 0, 5, 0]),
    ],
)
def test_when_the_network_is_trained_and_what_waits(
    make_learner: Make, adapt: str, adapted: list[bool], waiting: list[int]
) -> None:
    learner, stream = make_learner(**fields(adapt)), small_stream([1, 1, 3, 1, 2], [5] * 8)
    for increment, trains, images in zip(stream, adapted, waiting, strict=True):
        before = {name: value.clone() for name, value in learner.adapters.state_dict().items()}
        notes = learner.learn(increment)
        changed = [not value.equal(before[name]) for name, value in learner.adapters.state_dict().items()]
        assert any(changed) == trains
        assert (notes["loss"] > 0) == trains
        assert len(learner.kept_rows()) == images


def features_of(learner: Any, increment: Increment, rows: Tensor, network: Any = None) -> Tensor:
    with torch.no_grad():
        return torch.cat(list(learner.over(increment.train.images, rows, network or learner.features)))


@pytest.mark.parametrize("options", [{}, {"width": 50}, {"blocks": 0}])
def test_kept_features_follow_the_network(make_learner: Make, options: dict[str, Any]) -> None:
    """Those of images at hand are exact; all others move as those of the images at hand do."""
    fast = {phase: {"epochs": 4, "learning_rate": 0.5} for phase in ("first", "later")}
    learner, stream = make_learner(**fields("gathered", **options) | {"train": fast}), small_stream([2, 1, 2], [6] * 5)
    learner.learn(stream[0])
    learner.learn(stream[1])  # its images wait
    old, at_hand = learner.kept.features[:12].float(), torch.cat([stream[1].rows, stream[2].rows])
    before = features_of(learner, stream[2], at_hand)
    learner.learn(stream[2])
    after = torch.cat([features_of(learner, stream[2], step.rows) for step in (stream[1], stream[2])])
    assert (after - before).abs().max() > 0.01  # the network has changed
    expected = fit_drift(before, after, learner.generator(stream[2], "drift"))(old)
    torch.testing.assert_close(learner.kept.features[:12], half(expected), rtol=1e-2, atol=1e-2)
    assert learner.kept.features[12:].equal(half(after))
    sums = ClassSums(learner.feature_dim, 5)
    sums.add(learner.kept.features, learner.kept.targets)
    torch.testing.assert_close(learner.sums.scatter, sums.scatter)
    torch.testing.assert_close(learner.sums.sums, sums.sums)


def test_the_network_is_trained_against_the_fixed_means_of_all_classes(make_learner: Make) -> None:
    learner, stream = make_learner(**fields("gathered")), small_stream([2, 2], [6] * 4)
    learner.learn(stream[0])
    kept, new = learner.kept.features.double(), features_of(learner, stream[1], stream[1].rows).double()
    learner.begin(stream[1])
    learner.train()
    learner.training_plan(stream[1])
    learner.eval()
    images, targets = torch.randn(3, 3, 16, 16, generator=seeded(3)), [2, 3, 3]
    groups = [*kept.split(6), *new.split(6)]  # by class
    means = torch.stack([group.mean(0) for group in groups])
    variances = sum((group - group.mean(0)).square().sum(0) for group in groups) / (24 - 4)
    # 20 degrees of freedom: the variances are shrunk by the expected square of their errors, v * sqrt(2 / 20)
    errors, differences = (variances**2 * 2 / 20).sum(), ((variances - variances.mean()) ** 2).sum()
    share = min(1.0, float(errors / differences))
    within = (1 - share) * variances + share * variances.mean()
    with torch.no_grad():
        features = learner.features(images).double()
        expected = []
        for feature, target in zip(features, targets, strict=True):
            place = (feature - means.mean(0)) / within.sqrt()
            rows = (means - means.mean(0)) / within.sqrt()
            logits = torch.stack([16 * F.cosine_similarity(place, row, dim=0) for row in rows])
            expected.append(cross_entropy(logits, target))
        found = learner.loss(images, torch.tensor(targets))
    torch.testing.assert_close(found.double(), torch.stack(expected).mean(), rtol=1e-3, atol=1e-3)


def test_a_budget_limits_the_waiting_images(make_learner: Make) -> None:
    learner, stream = make_learner(**fields("gathered", enough=4, waiting=6)), small_stream([1, 2, 1], [5] * 4)
    waiting = []
    for increment in stream:
        notes = learner.learn(increment)
        waiting.append(Counter(increment.train.labels[learner.kept_rows()].tolist()))
    assert waiting == [{0: 5}, {0: 2, 1: 2, 2: 2}, {}]
    assert notes["training_images"] == 6 + 5


def test_images_of_known_classes_wait_once_and_train_nothing_alone(make_learner: Make) -> None:
    learner, images = make_learner(**fields("gathered")), coloured_images([5, 5, 5], 1)
    none = torch.empty(0, dtype=torch.int64)
    for step, (seen, now, rows) in enumerate([(0, 2, range(8)), (2, 2, range(6, 10)), (2, 3, range(10, 12))], 1):
        notes = learner.learn(Increment(step, seen, now, images, torch.tensor(rows), images, none))
        assert (notes["loss"] > 0) == (step == 1)
    assert learner.kept_rows().tolist() == [8, 9, 10, 11]
    assert len(learner.kept) == 12


# --- refused --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapt", ADAPTS)
def test_what_the_network_has_seen_cannot_be_removed(make_learner: Make, adapt: str) -> None:
    learner, stream = make_learner(**fields(adapt)), small_stream([2])
    learner.learn(stream[0])
    with pytest.raises(InputError, match=rf"options.adapt={adapt} cannot forget classes.*options.adapt=never"):
        learner.forget([0])
    with pytest.raises(InputError, match=rf"options.adapt={adapt} cannot remove images.*options.adapt=never"):
        learner.remove(stream.train)


def test_an_image_of_each_class_must_be_able_to_wait(make_learner: Make) -> None:
    """With three classes and two images, every class would keep the same number of images: none."""
    targets = torch.arange(3)
    assert not len(evenly(targets, targets, 2))
    with pytest.raises(InputError, match=r"waiting=2 is less than one image for each of enough=3 classes: raise it"):
        make_learner(**fields("gathered", enough=3, waiting=2))
    make_learner(**fields("gathered", enough=3, waiting=3))
    make_learner(**fields("first", enough=3, waiting=2))


def test_sums_alone_cannot_follow_a_network(make_learner: Make) -> None:
    with pytest.raises(InputError, match="adapt=first moves kept features: set keep=features"):
        make_learner(**fields("first", keep="statistics"))


def test_features_of_a_changing_network_are_not_stored(make_learner: Make) -> None:
    learner, stream = make_learner(**fields("gathered"), features="stored"), small_stream([2])
    with pytest.raises(InputError, match="features=stored is not supported by AnyArrival, which tunes the network"):
        learner.learn(stream[0])


def test_a_network_without_sites_for_adapters_is_refused(make_learner: Make) -> None:
    with pytest.raises(InputError, match=r"AnyArrival tunes it: set options.adapt=never to read its features only"):
        make_learner(**fields("first"), backbone="test_convnext", weights=None)


# --- interrupted ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adapt", ADAPTS)
def test_an_interrupted_run_is_resumed(tmp_path: Path, colours: Path, adapt: str) -> None:
    """Steps of 1, 1, 3 and 1 classes, of which those with 3 seen so far or more train."""
    settings = small_config(
        **fields(adapt, enough=3),
        dataset="folder",
        image_size=16,
        arrivals={"sizes": [1, 1, 3, 1]},
        checkpoint_seconds=0,
    )
    run = partial(Run, settings, data=colours, device="cpu", threads=1)
    run(tmp_path / "whole").execute()
    for bomb in (Bomb(steps=2), Bomb(epochs=1), Bomb(steps=1)):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "part", listener=bomb).execute()
    run(tmp_path / "part").execute()
    assert records(tmp_path / "part") == records(tmp_path / "whole")
    assert counts(tmp_path / "part") == counts(tmp_path / "whole")


def test_copies_are_counted_while_images_wait_and_when_the_network_is_trained() -> None:
    classifier = Classifier(small_config(**fields("gathered", enough=3), image_size=16), "cpu")
    images = coloured_images([4, 4, 4, 4], 1)
    assert classifier.learn(images.subset(torch.arange(6)))["copies"] == 0
    assert classifier.learn(images.subset(torch.arange(2, 8)))["copies"] == 4
    assert classifier.kept()["exemplars"]["images"] == 8  # wait
    relabelled = replace(images, labels=images.labels.where(torch.arange(16) != 0, torch.tensor(3)))
    notes = classifier.learn(relabelled)
    assert classifier.kept()["exemplars"]["images"] == 0  # trained
    assert notes["copies"] == 7
    assert notes["in_two_classes"] == {"images": 1, "such_as": ["colour 0", "colour 3"]}


@pytest.mark.parametrize("adapt", ADAPTS)
def test_a_classifier_that_is_saved_and_interrupted_equals_a_run(tmp_path: Path, adapt: str) -> None:
    """Images wait in the saved classifier, and are gone once the network was trained."""
    config = small_config(**fields(adapt, enough=3), image_size=16, checkpoint_seconds=0)
    sizes, images, test = [1, 1, 3, 1], coloured_images([6] * 6, 1), coloured_images([3] * 6, 2)
    classifier = Classifier(config, "cpu")
    kept = []
    for first, last in pairwise([0, 1, 2, 5, 6]):
        part = images.subset(((images.labels >= first) & (images.labels < last)).nonzero().flatten())
        step = ImageSet(part.images, part.labels - first, images.class_names[first:last])
        if last == 5:
            with pytest.raises(KeyboardInterrupt):
                classifier.learn(step, tmp_path, Breaks(after=2))
            assert (tmp_path / LEARNING).exists()
            classifier = Classifier.load(tmp_path, "cpu")
        classifier.learn(step, tmp_path)
        classifier.save(tmp_path)
        classifier = Classifier.load(tmp_path, "cpu")
        kept.append(classifier.kept()["exemplars"]["images"])
    assert kept == ([6, 12, 0, 6] if adapt == "gathered" else [0, 0, 0, 0])
    learner = build_learner(config, augmentation_of(config, own_augmentation(16)), Engine.create("cpu", config.train))
    for increment in Stream(images, test, given_arrivals(sizes), class_seed=None):
        learner.learn(increment)
    with torch.no_grad():
        (expected,) = learner.over(test.images, torch.arange(len(test)), learner.logits)
    assert torch.equal(classifier._scores(test.images), expected[learner.scored])
