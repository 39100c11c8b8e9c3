"""`flow.whiten`: cosines in the metric of the covariance within classes, beside plain formulas; methods that use it."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from conftest import Make, seeded, small_stream
from ffcil.models.discriminant import Discriminant
from ffcil.models.whitening import Whitening

CLASSES, WIDTH = 6, 5
IMAGES = [5, 1, 4, 6, 3, 5, 2, 7, 4, 3, 5, 4]
"""Number of images of each class."""


def some_images(count: int = 300) -> tuple[Tensor, Tensor]:
    """Features whose covariance within classes is far from round, and their classes."""
    mixing = torch.randn(WIDTH, WIDTH, generator=seeded(1)) * torch.tensor([9.0, 3.0, 1.0, 0.3, 0.1])
    targets = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, WIDTH, generator=seeded(2))
    return 4 + means[targets] + torch.randn(count, WIDTH, generator=seeded(3)) @ mixing, targets


def whitening_of(features: Tensor, targets: Tensor) -> Whitening:
    made = Whitening(features.shape[1])
    made.add(features, targets)
    return made


def cosines(one: Tensor, other: Tensor) -> Tensor:
    return torch.nn.functional.cosine_similarity(one[:, None], other[None], dim=2)


def test_cosines_are_those_of_the_inverse_covariance() -> None:
    features, targets = some_images()
    made = whitening_of(features, targets)
    means = torch.stack([features[targets == label].mean(dim=0) for label in range(CLASSES)]).double()
    deviations = features.double() - means[targets]
    covariance = deviations.mT @ deviations / (len(features) - CLASSES)
    discriminant = Discriminant.of_scatter(made.scatter, float(made.freedom), torch.zeros(1, WIDTH).double())
    share = discriminant.shrinkage_from_sums()
    assert share < 0.2
    inverse = torch.linalg.inv((1 - share) * covariance + share * torch.diag(discriminant.deviations.square()))
    centred, rows = features[:7].double() - means.mean(dim=0), means - means.mean(dim=0)
    lengths = [(values @ inverse * values).sum(dim=1).sqrt() for values in (centred, rows)]
    expected = centred @ inverse @ rows.mT / lengths[0][:, None] / lengths[1]
    torch.testing.assert_close(
        cosines(made(features[:7]), made(means.float())).double(), expected, rtol=1e-4, atol=1e-4
    )


def test_the_covariance_within_classes_becomes_round() -> None:
    features, targets = some_images(60_000)
    white = whitening_of(features, targets)(features)
    means = torch.stack([white[targets == label].mean(dim=0) for label in range(CLASSES)])
    covariance = torch.cov((white - means[targets]).mT)
    torch.testing.assert_close(covariance, torch.eye(WIDTH), rtol=0, atol=0.02)
    torch.testing.assert_close(means.mean(dim=0), torch.zeros(WIDTH), rtol=0, atol=1e-3)


@settings(deadline=None)
@given(st.permutations(range(CLASSES)), st.lists(st.integers(1, CLASSES), max_size=4))
def test_steps_and_order_have_no_effect(order: list[int], cuts: list[int]) -> None:
    features, targets = some_images(120)
    expected, made = whitening_of(features, targets), Whitening(WIDTH)
    ends = sorted({0, *cuts, CLASSES})
    for first, last in pairwise(ends):
        here = torch.isin(targets, torch.tensor(order[first:last]))
        made.add(features[here], targets[here])
    torch.testing.assert_close(made(features), expected(features), rtol=1e-4, atol=1e-4)


def test_spaces_share_the_covariance_and_have_their_own_centres() -> None:
    features, targets = some_images()
    made = Whitening(WIDTH)
    made.add(features, targets)
    made.grow(3)
    half = targets < 3
    made.add(features[half] + 5, targets[half], 2)
    once = whitening_of(torch.cat([features, features[half] + 5]), torch.cat([targets, targets[half] + CLASSES]))
    made.renew()
    once.renew()
    torch.testing.assert_close(made.matrix, once.matrix)
    means = [features[targets == label].mean(dim=0) for label in range(CLASSES)]
    centres = [torch.stack(means).mean(dim=0), torch.zeros(WIDTH), torch.stack(means[:3]).mean(dim=0) + 5]
    for space, centre in enumerate(centres):
        torch.testing.assert_close(made(features, space), (features - centre) @ made.matrix, rtol=1e-4, atol=1e-3)
    stacked = torch.stack([features, features, features], dim=1)
    expected = torch.stack([made(features, space) for space in range(3)], dim=1)
    torch.testing.assert_close(made(stacked, torch.arange(3)), expected)


def test_its_state_is_enough() -> None:
    features, targets = some_images()
    made, again = whitening_of(features, targets), Whitening(WIDTH)
    assert set(made.state_dict()) == {"scatter", "freedom", "sums", "classes"}
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(features), made(features))
    again.restart()
    assert torch.equal(again(features), features)


@pytest.mark.parametrize("labels", [[0], [0, 1], [0, 0], [0, 0, 1]])
def test_few_images_give_finite_values(labels: list[int]) -> None:
    features = torch.randn(len(labels), WIDTH, generator=seeded(4))
    made = whitening_of(features, torch.tensor(labels))
    assert made(features).isfinite().all()
    same = whitening_of(features[:1].expand(len(labels), -1), torch.tensor(labels))  # images that do not vary
    assert same(features).isfinite().all()


# --- methods --------------------------------------------------------------------------------------------------------


def fields(method: str, **flow: Any) -> dict[str, Any]:
    train = {phase: {"epochs": 2, "learning_rate": 0.05} for phase in ("first", "later")}
    return {"method": method, "framework": "flow", "train": train, "flow": {"min_steps": 1, **flow}}


def test_simplecil_does_not_depend_on_the_steps(make_learner: Make) -> None:
    scores = []
    for sizes in ([12], [1, 1, 5, 5], [5, 6, 1]):
        learner = make_learner(**fields("simplecil"))
        for increment in small_stream(sizes, IMAGES):
            learner.learn(increment)
        scores.append(torch.cat([batch["prototype"] for batch in learner.test_scores(increment)]))
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=1e-4, atol=1e-4)
    plain = make_learner(**fields("simplecil", whiten=False))
    for increment in small_stream([12], IMAGES):
        plain.learn(increment)
    unlike = torch.cat([batch["prototype"] for batch in plain.test_scores(increment)])
    assert (unlike - scores[0]).abs().max() > 1


@pytest.mark.parametrize("method", ["cllora", "ease"])
def test_all_images_since_a_space_was_opened_are_in_the_metric(make_learner: Make, method: str) -> None:
    options = {"options": {"other_weight": 0.0}} if method == "ease" else {}
    learner: Any = make_learner(**fields(method, follow=False), **options)
    stream = small_stream([5, 1, 6], [6] * 12)
    expected = Whitening(learner.feature_dim)
    expected.grow(2)
    for increment in stream:
        learner.learn(increment)
        with torch.no_grad():
            features, targets = learner.extract_features(increment, learner.all_features)
        for space, own in enumerate(features.split(learner.feature_dim, dim=1)):
            expected.add(own, targets, space)
    assert expected.classes.tolist() == learner.whitening.classes.tolist() == [12, 6]
    with torch.no_grad():
        images = learner.extract_features(stream[2], learner.all_features)[0]
        scores = learner.score_features(images)
    means = learner.prototypes if method == "ease" else learner.prototypes.means[:, None].expand(-1, 2, -1)
    for space, (first, last) in enumerate([(0, 6), (6, 12)]):
        here = images.split(learner.feature_dim, dim=1)[space]
        naive = 20 * cosines(expected(here, space), expected(means[first:last, space], space))
        torch.testing.assert_close(scores[:, first:last], naive, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("method", ["aper", "cllora", "ease"])
def test_the_metric_follows_the_first_tuning(make_learner: Make, method: str) -> None:
    learner: Any = make_learner(**fields(method))
    for increment in small_stream([2, 1, 5], [6] * 8):
        learner.learn(increment)
    assert (learner.whitening.classes.tolist(), float(learner.whitening.freedom)) == ([8], 40)  # each image once
    moved = learner.statistics.means.double()  # those of the moved features
    torch.testing.assert_close(learner.whitening.sums[0], moved.sum(dim=0), rtol=1e-4, atol=1e-3)
