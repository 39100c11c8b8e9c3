"""`flow.whiten`: cosines in the metric of the covariance within classes, beside plain formulas; methods that use it."""

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


def some_images(count: int = 300) -> tuple[Tensor, Tensor]:
    """Features whose covariance within classes is far from round, and their classes."""
    mixing = torch.randn(WIDTH, WIDTH, generator=seeded(1)) * torch.tensor([9.0, 3.0, 1.0, 0.3, 0.1])
    targets = torch.arange(count) % CLASSES
    means = torch.randn(CLASSES, WIDTH, generator=seeded(2))
    return 4 + means[targets] + torch.randn(count, WIDTH, generator=seeded(3)) @ mixing, targets


def whitening_of(features: Tensor, targets: Tensor) -> Whitening:
    made = Whitening(features.shape[1])
    made.grow(CLASSES)
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
    discriminant = Discriminant.of(made.sums)
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
@given(st.randoms(use_true_random=False), st.lists(st.integers(1, 40), min_size=1, max_size=8))
def test_steps_and_order_have_no_effect(random: Any, cuts: list[int]) -> None:
    features, targets = some_images(120)
    expected, made = whitening_of(features, targets), Whitening(WIDTH)
    order = list(range(120))
    random.shuffle(order)
    made.grow(2)
    made.grow(CLASSES)
    for start, size in zip([sum(cuts[:k]) for k in range(len(cuts))], cuts, strict=True):
        if some := order[start : start + size]:
            made.add(features[some], targets[some])
    if rest := order[sum(cuts) :]:
        made.add(features[rest], targets[rest])
    torch.testing.assert_close(made(features), expected(features), rtol=1e-4, atol=1e-4)


def test_its_state_is_enough() -> None:
    features, targets = some_images()
    made, again = whitening_of(features, targets), Whitening(WIDTH)
    assert set(made.state_dict()) == {"sums.counts", "sums.sums", "sums.scatter"}
    again.grow(CLASSES)
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(features), made(features))
    again.restart()
    assert torch.equal(again(features), features)


@pytest.mark.parametrize("labels", [[0], [0, 1], [0, 0], [0, 0, 1]])
def test_few_images_give_finite_values(labels: list[int]) -> None:
    features = torch.randn(len(labels), WIDTH, generator=seeded(4))
    made = Whitening(WIDTH)
    made.grow(2)
    made.add(features, torch.tensor(labels))
    assert made(features).isfinite().all()
    made.add(features, torch.tensor(labels))  # the same images again, so that they do not vary
    assert made(features).isfinite().all()


# --- methods --------------------------------------------------------------------------------------------------------


def fields(method: str, **flow: Any) -> dict[str, Any]:
    train = {phase: {"epochs": 2, "learning_rate": 0.05} for phase in ("first", "later")}
    return {"method": method, "framework": "flow", "train": train, "flow": {"min_steps": 1, **flow}}


def test_simplecil_does_not_depend_on_the_steps(make_learner: Make) -> None:
    scores = []
    for sizes in ([9], [1, 1, 5, 2], [4, 5]):
        learner = make_learner(**fields("simplecil"))
        for increment in small_stream(sizes, [5, 1, 4, 6, 3, 5, 2, 7, 4]):
            learner.learn(increment)
        scores.append(torch.cat([batch["prototype"] for batch in learner.test_scores(increment)]))
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0], rtol=1e-4, atol=1e-4)
    plain = make_learner(**fields("simplecil", whiten=False))
    for increment in small_stream([9], [5, 1, 4, 6, 3, 5, 2, 7, 4]):
        plain.learn(increment)
    unlike = torch.cat([batch["prototype"] for batch in plain.test_scores(increment)])
    assert (unlike - scores[0]).abs().max() > 1


@pytest.mark.parametrize("method", ["cllora", "ease"])
def test_every_space_has_a_metric_of_all_images_since_it_was_opened(make_learner: Make, method: str) -> None:
    options = {"options": {"other_weight": 0.0}} if method == "ease" else {}
    learner: Any = make_learner(**fields(method), **options)
    stream = small_stream([5, 1, 6], [6] * 12)
    seen: list[list[tuple[Tensor, Tensor]]] = [[], []]
    for increment in stream:
        learner.learn(increment)
        with torch.no_grad():
            features, targets = learner.extract_features(increment, learner.all_features)
        for space, own in enumerate(features.split(learner.feature_dim, dim=1)):
            seen[space].append((own, targets))
    assert len(learner.whitenings) == 2
    with torch.no_grad():
        images = learner.extract_features(stream[2], learner.all_features)[0]
        scores = learner.score_features(images)
    means = learner.prototypes if method == "ease" else learner.prototypes.means[:, None].expand(-1, 2, -1)
    for space, (first, last) in enumerate([(0, 6), (6, 12)]):
        own = Whitening(learner.feature_dim)
        own.grow(12)
        own.add(torch.cat([f for f, _ in seen[space]]), torch.cat([t for _, t in seen[space]]))
        here = images.split(learner.feature_dim, dim=1)[space]
        expected = 20 * cosines(own(here), own(means[first:last, space]))
        torch.testing.assert_close(scores[:, first:last], expected, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("method", ["aper", "cllora", "ease"])
def test_the_metric_follows_the_first_tuning(make_learner: Make, method: str) -> None:
    learner: Any = make_learner(**fields(method))
    for increment in small_stream([2, 1, 5], [6] * 8):
        learner.learn(increment)
    (whitening,) = learner.whitenings
    assert whitening.sums.counts.tolist() == [6.0] * 8  # of the moved features, and of each image once
    torch.testing.assert_close(whitening.sums.means.float(), learner.statistics.means, rtol=1e-4, atol=1e-4)
