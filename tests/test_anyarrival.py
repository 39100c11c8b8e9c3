"""AnyArrival: the same model for any order, cut and repetition of images, and after any removal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import AUGMENTATION, Make, coloured_images, seeded, shared_network, small_config, small_stream
from ffcil.config.resolve import resolve
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.methods import build_learner, complete
from ffcil.methods.anyarrival import AnyArrival
from ffcil.models.discriminant import ClassSums
from ffcil.stream import Increment
from ffcil.training.engine import Engine

CLASSES, IMAGES = 5, 30
NOTHING = torch.empty(0, dtype=torch.int64)
Arrivals = list[list[int]]
"""Numbers of images, arrival by arrival."""


def pictures(seed: int = 1) -> ImageSet:
    """Images of classes of 2 to 10 images that overlap, so that not everything is right."""
    made = coloured_images([2, 4, 6, 8, 10], seed)
    noise = torch.randn(len(made), 3, 1, 1, generator=seeded(seed + 10)) * 60
    return ImageSet((made.images + noise).clamp(0, 255).to(torch.uint8), made.labels, made.class_names)


class Pixels(AnyArrival):
    """AnyArrival on some pixels, whose values do not depend on the batch as those of a network do in the last bit."""

    def features(self, images: Tensor) -> Tensor:
        return images[:, :, ::6, ::6].flatten(1)


@pytest.fixture(autouse=True, scope="module")
def _one_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ffcil.methods.pretrained.build_network", shared_network)
        yield


def pixels_learner(**options: Any) -> Pixels:
    config = small_config(method="anyarrival", options={"blocks": 0, "width": 27, **options})
    built = build_learner(config, AUGMENTATION, Engine.create("cpu", config.train))
    return Pixels(built.settings, built.config)


def teach(learner: AnyArrival, images: ImageSet, arrivals: Arrivals) -> list[int]:
    """Let images arrive. Returns the class at each position of the learner: classes are numbered as they arrive."""
    order: list[int] = []
    for rows in arrivals:
        before = len(order)
        order += [label for label in dict.fromkeys(images.labels[rows].tolist()) if label not in order]
        position = torch.full((CLASSES,), -1)
        position[order] = torch.arange(len(order))
        train = ImageSet(images.images, position[images.labels], tuple(map(str, order)))
        step = len(learner.boundaries) + 1
        learner.learn(Increment(step, before, len(order), train, torch.tensor(rows), train, NOTHING))
    return order


def scores(learner: AnyArrival, order: Sequence[int], test: ImageSet) -> Tensor:
    """Scores of test images, with the classes in their own order; NaN for classes that are not there."""
    with torch.no_grad():
        found = learner.logits(AUGMENTATION.plain(test.images, torch.arange(len(test))))[learner.scored]
    placed = torch.full((len(test), CLASSES), torch.nan)
    placed[:, list(order)] = found
    return placed


def assert_same(first: Tensor, second: Tensor) -> None:
    assert first.nan_to_num(-1e9).argmax(1).equal(second.nan_to_num(-1e9).argmax(1))
    torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-4, equal_nan=True)


@st.composite
def arrivals(draw: st.DrawFn, repeated: bool = True) -> Arrivals:
    """All images in any order, cut anywhere, some of them again later."""
    order = draw(st.permutations(range(IMAGES)))
    if repeated:
        order = [*order, *draw(st.lists(st.integers(0, IMAGES - 1), max_size=8))]
    cuts = sorted(draw(st.sets(st.integers(1, len(order) - 1), max_size=12)))
    return [order[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(order)], strict=True)]


def at_once(rows: Sequence[int]) -> Arrivals:
    return [sorted(rows)]


quick = settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)


@pytest.mark.parametrize("hidden", [0, 40])
@quick
@given(arrivals())
def test_any_order_cut_and_repetition_of_images_gives_the_same_model(hidden: int, stream: Arrivals) -> None:
    train, test = pictures(), pictures(seed=5)
    learner, reference = pixels_learner(hidden=hidden), pixels_learner(hidden=hidden)
    found = scores(learner, teach(learner, train, stream), test)
    assert_same(found, scores(reference, teach(reference, train, at_once(range(IMAGES))), test))
    assert learner.shrinkage == reference.shrinkage


@pytest.mark.parametrize("hidden", [0, 40])
@quick
@given(arrivals(repeated=False))
def test_statistics_alone_do_not_depend_on_arrivals_either(hidden: int, stream: Arrivals) -> None:
    train, test = pictures(), pictures(seed=5)
    learner, reference = (pixels_learner(keep="statistics", hidden=hidden) for _ in range(2))
    found = scores(learner, teach(learner, train, stream), test)
    assert_same(found, scores(reference, teach(reference, train, at_once(range(IMAGES))), test))
    assert len(learner.kept) == 0


@pytest.mark.parametrize("hidden", [0, 40])
@quick
@given(arrivals(), st.sets(st.integers(0, CLASSES - 1), min_size=1, max_size=CLASSES - 2))
def test_a_forgotten_class_leaves_the_model_that_never_saw_it(hidden: int, stream: Arrivals, gone: set[int]) -> None:
    train, test = pictures(), pictures(seed=5)
    learner, reference = pixels_learner(hidden=hidden), pixels_learner(hidden=hidden)
    order = teach(learner, train, stream)
    learner.forget([order.index(label) for label in gone])
    left = [row for row in range(IMAGES) if int(train.labels[row]) not in gone]
    remaining = [label for label in order if label not in gone]
    assert learner.boundaries[-1] == len(remaining)
    assert_same(scores(learner, remaining, test), scores(reference, teach(reference, train, at_once(left)), test))


@pytest.mark.parametrize("hidden", [0, 40])
@quick
@given(arrivals(), st.sets(st.integers(0, IMAGES - 1), min_size=1, max_size=12))
def test_removed_images_leave_the_model_that_never_saw_them(hidden: int, stream: Arrivals, gone: set[int]) -> None:
    train, test = pictures(), pictures(seed=5)
    learner, reference = pixels_learner(hidden=hidden), pixels_learner(hidden=hidden)
    order = teach(learner, train, stream)
    assert learner.remove(train.subset(torch.tensor(sorted(gone)))).all()
    left = [row for row in range(IMAGES) if row not in gone]
    expected = scores(reference, teach(reference, train, at_once(left)), test)
    found = scores(learner, order, test)
    found[:, expected.isnan().all(0)] = torch.nan  # a class without images stays known and is never predicted
    assert_same(found, expected)


@pytest.mark.parametrize("hidden", [0, 40])
@quick
@given(arrivals(), st.integers(0, IMAGES - 1), st.integers(0, CLASSES - 1))
def test_a_corrected_label_leaves_the_model_that_learned_the_right_one(
    hidden: int, stream: Arrivals, row: int, right: int
) -> None:
    train, test = pictures(), pictures(seed=5)
    learner, reference = pixels_learner(hidden=hidden), pixels_learner(hidden=hidden)
    corrected = ImageSet(train.images, train.labels.index_fill(0, torch.tensor(row), right), train.class_names)
    order = teach(learner, train, stream)
    learner.remove(train.subset(torch.tensor([row])))
    position = torch.empty(CLASSES, dtype=torch.int64)
    position[order] = torch.arange(CLASSES)
    again = ImageSet(corrected.images, position[corrected.labels], train.class_names)
    learner.learn(Increment(len(stream) + 1, CLASSES, CLASSES, again, torch.tensor([row]), again, NOTHING))
    assert_same(
        scores(learner, order, test), scores(reference, teach(reference, corrected, at_once(range(IMAGES))), test)
    )


class PixelsAndRandomFeatures(Pixels):
    """Has the random features of another learner among its own."""

    hidden_of: Pixels

    def features(self, images: Tensor) -> Tensor:
        pixels = super().features(images)
        centred = pixels - pixels.mean(dim=1, keepdim=True)
        each = centred / (centred.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        return torch.cat([pixels, (each @ self.hidden_of.hidden).clamp_min(0)], dim=1)


def test_random_features_count_as_features_of_the_network_would() -> None:
    train, test = pictures(), pictures(seed=5)
    learner, plain = pixels_learner(hidden=40), pixels_learner(width=67)
    PixelsAndRandomFeatures.hidden_of = learner
    plain.__class__ = PixelsAndRandomFeatures
    plain.sums = ClassSums(67)
    found, expected = (scores(one, teach(one, train, at_once(range(IMAGES))), test) for one in (learner, plain))
    assert learner.shrinkage == plain.shrinkage
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)  # kept features are rounded before or after


def opposites(seed: int) -> ImageSet:
    """Two classes with the same mean: each has images of a pattern and of its negative."""
    patterns = torch.randn(2, 3, 16, 16, generator=seeded(3)).sign()
    labels, generator = torch.arange(200) % 2, seeded(seed)
    signs = torch.randint(2, (200, 1, 1, 1), generator=generator) * 2 - 1
    noise = torch.randn(200, 3, 16, 16, generator=generator)
    images = 128 + 40 * signs * patterns[labels] + 10 * noise
    return ImageSet(images.clamp(0, 255).to(torch.uint8), labels, ("a", "b"))


@pytest.mark.parametrize(("hidden", "least", "most"), [(0, 0.2, 0.8), (60, 0.95, 1.0)])
def test_random_features_tell_classes_with_equal_means_apart(hidden: int, least: float, most: float) -> None:
    train, test = opposites(1), opposites(2)
    learner = pixels_learner(hidden=hidden)
    teach(learner, train, at_once(range(200)))
    with torch.no_grad():
        found = learner.logits(AUGMENTATION.plain(test.images, torch.arange(len(test))))[learner.scored]
    assert least <= float((found.argmax(1) == test.labels).float().mean()) <= most


def test_runs_of_the_version_without_random_features_keep_their_identity() -> None:
    """That version computed the literal."""
    assert complete(resolve("own-images")).identity() == "c18f881f1d56"
    assert complete(resolve("own-images", {"options": {"hidden": 9}})).identity() != "c18f881f1d56"


def test_random_features_need_a_network_that_does_not_change() -> None:
    with pytest.raises(InputError, match="options: hidden=40 needs a network that does not change: set adapt=never"):
        pixels_learner(hidden=40, adapt="gathered")


def test_equal_images_of_two_classes_count_in_both() -> None:
    images = pictures()
    learner = pixels_learner()
    teach(learner, images, at_once(range(IMAGES)))
    doubled = ImageSet(images.images, (images.labels + 1) % CLASSES, images.class_names)
    learner.learn(Increment(2, CLASSES, CLASSES, doubled, torch.arange(3), doubled, NOTHING))
    assert len(learner.kept) == IMAGES + 3
    assert learner.remove(images.subset(torch.arange(3))).all()
    assert len(learner.kept) == IMAGES - 3


def test_statistics_refuse_what_needs_features() -> None:
    learner = pixels_learner(keep="statistics")
    teach(learner, pictures(), at_once(range(IMAGES)))
    with pytest.raises(InputError, match=r"options.keep=statistics cannot forget classes"):
        learner.forget([0])
    with pytest.raises(InputError, match=r"options.keep=statistics cannot remove images"):
        learner.remove(pictures())


def test_what_ha_has_seen_cannot_be_removed(make_learner: Make) -> None:
    learner, stream = make_learner(method="anyarrival", framework="paper", ha={"epochs": 1}), small_stream([2])
    learner.learn(stream[0])
    with pytest.raises(InputError, match=r"^ha.use=true cannot forget classes, .* ha.use=false, or"):
        learner.forget([0])
    with pytest.raises(InputError, match=r"^ha.use=true cannot remove images, .* ha.use=false, or"):
        learner.remove(stream.train)


def test_all_images_can_be_removed_and_others_learned_afterwards() -> None:
    learner, images = pixels_learner(), pictures()
    order = teach(learner, images, at_once(range(IMAGES)))
    assert learner.remove(images).all()
    assert not learner.remove(images).any()
    assert scores(learner, order, images).exp().sub(1 / CLASSES).abs().max() < 1e-6
    learner.forget(range(CLASSES))
    again = teach(learner, images, at_once(range(IMAGES)))
    reference = pixels_learner()
    expected = scores(reference, teach(reference, images, at_once(range(IMAGES))), images)
    assert_same(scores(learner, again, images), expected)


@pytest.mark.parametrize("options", [{}, {"width": 50}, {"blocks": 0}, {"blocks": 2, "keep": "statistics"}])
def test_a_real_network_gives_nearly_the_same_model_for_any_cut(make_learner: Make, options: dict[str, Any]) -> None:
    """Features of a network differ in their last bits with the batch."""
    train, test = pictures(), pictures(seed=5)
    whole, parts = (make_learner(method="anyarrival", options=options) for _ in range(2))
    order = torch.randperm(IMAGES, generator=seeded(3))
    found = scores(parts, teach(parts, train, [rows.tolist() for rows in order.split([1, 4, 9, 1, 15])]), test)
    expected = scores(whole, teach(whole, train, at_once(range(IMAGES))), test)
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=5e-3)


def test_more_features_than_the_width_are_projected_onto_orthonormal_directions(make_learner: Make) -> None:
    learner = make_learner(method="anyarrival", options={"width": 60})
    torch.testing.assert_close(learner.projection.T @ learner.projection, torch.eye(60), rtol=0, atol=1e-5)
    deep = make_learner(method="anyarrival")
    images = torch.rand(2, 3, 16, 16, generator=seeded())
    with torch.no_grad():
        torch.testing.assert_close(learner.features(images), deep.features(images) @ learner.projection)


def test_it_learns_classes_one_by_one_from_a_real_network(make_learner: Make) -> None:
    learner, stream = make_learner(method="anyarrival"), small_stream([1, 3, 1, 2])
    for increment in stream:
        learner.learn(increment)
    right = learner.predictions(stream[3])[learner.scored] == stream.test.labels[stream[3].test_rows]
    assert right.float().mean() > 0.9
