"""The centre loss of pre-trained methods: on features of length 1, compared with plain computations."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import SHORT, Make, begin_second_step, seeded, small_stream
from ffcil.methods import METHODS
from oracles import class_means

METHODS_WITH_CENTRES = ["aper", "cllora", "ease", "tuna"]


def trained_features(learner: object, images: Tensor) -> Tensor:
    """Features of the network that a step trains; those of APER come after the untuned ones."""
    return learner.features(images)[:, -learner.vit.feature_dim :]  # type: ignore[attr-defined]


def test_which_methods_have_it() -> None:
    assert sorted(name for name, method in METHODS.items() if method.trains_prototypes) == METHODS_WITH_CENTRES


@pytest.mark.parametrize("method", METHODS_WITH_CENTRES)
def test_the_loss_of_two_batches(make_learner: Make, method: str) -> None:
    """In the first batch a centre is the mean of its class; then it moves halfway to the mean of the batch."""
    batches = [(torch.tensor([0, 1, 1, 2, 0]), 1), (torch.tensor([1, 1, 0, 1, 1]), 2)]
    losses = []
    for weight in (0.0, 0.7):
        learner = make_learner(method=method, centre_weight=weight, reduction="class_wise_mean").eval()
        learner.begin(small_stream([3])[0])
        with torch.no_grad():
            images = [torch.randn(5, 3, 16, 16, generator=seeded(seed)) for _, seed in batches]
            losses.append([learner.loss(rows, y).item() for rows, (y, _) in zip(images, batches, strict=True)])
    centres: dict[int, Tensor] = {}
    for rows, (targets, _), plain, with_centres in zip(images, batches, *losses, strict=True):
        with torch.no_grad():
            unit = [f / f.norm() for f in trained_features(learner, rows)]
        for label in set(targets.tolist()):
            mean = torch.stack([f for f, y in zip(unit, targets.tolist(), strict=True) if y == label]).mean(0)
            centres[label] = (centres[label] + mean) / 2 if label in centres else mean
        apart = [(f - centres[y]).square().sum().item() for f, y in zip(unit, targets.tolist(), strict=True)]
        assert sum(apart) > 1e-6
        assert with_centres - plain == pytest.approx(0.7 * sum(apart) / 5, rel=1e-3)  # a mean also under CWM


@pytest.mark.parametrize("method", METHODS_WITH_CENTRES)
def test_it_makes_classes_compact(make_learner: Make, method: str) -> None:
    increment = small_stream([5])[0]

    def spread(weight: float) -> float:
        six = {"epochs": 6, "learning_rate": 0.05}
        learner = make_learner(method=method, centre_weight=weight, train={"first": six})
        learner.learn(increment)
        with torch.no_grad():
            images = learner.settings.augmentation.plain(increment.train.images)
            unit = F.normalize(trained_features(learner, images), dim=1)
        labels = increment.train.labels
        return (unit - class_means(unit, labels, range(5))[labels]).square().sum(1).mean().item()

    assert spread(50.0) < 0.8 * spread(0.0)  # the length of the features divides its gradient


@pytest.mark.parametrize("method", METHODS_WITH_CENTRES)
def test_centres_start_again_at_every_step_and_belong_to_the_state(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, centre_weight=1.0, train=SHORT)
    stream = begin_second_step(learner, (2, 3))
    assert learner.centres.centres.shape == (5, learner.vit.feature_dim)
    assert not learner.centres.seen.any()
    if method != "aper":  # which trains in the first step only
        learner.loss(torch.randn(3, 3, 16, 16), torch.tensor([2, 4, 4]))
        assert learner.centres.seen.tolist() == [False, False, True, False, True]
    resumed = make_learner(method=method, centre_weight=1.0, train=SHORT)
    for increment in stream:
        resumed.begin(increment)
    resumed.restore(learner.state())
    for part in ("centres", "seen"):
        assert torch.equal(getattr(resumed.centres, part), getattr(learner.centres, part))
    plain = make_learner(method=method)
    assert not any("centres" in key for key in plain.state_dict())  # states of earlier versions fit
