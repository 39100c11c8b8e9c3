"""MOS and TUNA compared with plain loops: Gaussians, the head's second training, merging, fusion, retrieval."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import SHORT, Make, begin_second_step, seeded, small_stream
from ffcil.config.resolve import resolve
from ffcil.losses import REDUCTIONS
from ffcil.methods.mos import MOS, retrieve
from ffcil.methods.parts.gaussians import HeadTraining, class_gaussians
from ffcil.methods.tuna import TUNA, cosface, decay_of_means, fuse, mean_directions
from ffcil.models.heads import GrowingLinear
from ffcil.models.tuners import Adapters
from ffcil.training.engine import Engine
from ffcil.training.fit import Optimisation, ParameterGroup, cosine_rate
from oracles import accuracy, class_means, cross_entropy, predicted_samples, reduced


def learned(make: Make, method: str, sizes: Sequence[int] = (2, 1, 2), **fields: Any) -> MOS | TUNA:
    learner = make(method=method, **{"train": SHORT, **fields})
    for increment in small_stream(sizes):
        learner.learn(increment)
    return learner


def spread_out(learner: MOS | TUNA) -> None:
    """Make the adapters of the steps differ much; after a short training they are nearly equal."""
    with torch.no_grad():
        for k, parameter in enumerate([*learner.steps.kept.parameters(), *learner.steps.newest.parameters()]):
            parameter.add_(torch.randn(parameter.shape, generator=seeded(k)) * 0.3)
    learner._test_cache = type(learner._test_cache)()


# --- Gaussians ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("diagonal", [False, True])
@pytest.mark.parametrize("images", [1, 2, 5, 40])
def test_factors_reproduce_numpys_covariance(images: int, diagonal: bool) -> None:
    features = torch.randn(images + 7, 6, generator=seeded()) * 3
    targets = torch.tensor([1] * images + [0] * 7)
    gaussians = class_gaussians(6, diagonal)
    gaussians.grow(2)
    gaussians.remember(features, targets)
    for label in (0, 1):
        of_class = features[targets == label].numpy()
        expected = np.cov(of_class.T) if len(of_class) > 1 else np.zeros((6, 6))
        expected = expected + 1e-4 * np.eye(6)
        factor = gaussians.spreads[label]
        got = factor.square().diag() if diagonal else factor @ factor.T
        np.testing.assert_allclose(got, np.diag(np.diag(expected)) if diagonal else expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(gaussians.means[label], of_class.mean(0), rtol=1e-5, atol=1e-6)


def test_far_more_features_than_images() -> None:
    gaussians = class_gaussians(300, diagonal=False)
    gaussians.grow(1)
    gaussians.remember(torch.randn(4, 300, generator=seeded()) * 100, torch.zeros(4, dtype=torch.int64))
    assert gaussians.spreads.isfinite().all()


def test_growing_keeps_stored_statistics() -> None:
    gaussians = class_gaussians(4, diagonal=False)
    gaussians.grow(2)
    gaussians.remember(torch.randn(9, 4), torch.arange(9) % 2)
    before = copy.deepcopy(gaussians.state_dict())
    gaussians.grow(5)
    assert gaussians.spreads.shape == (5, 4, 4)
    assert torch.equal(gaussians.means[:2], before["means"])
    assert torch.equal(gaussians.spreads[:2], before["spreads"])


@pytest.mark.parametrize("diagonal", [False, True])
def test_drawn_features_have_the_stored_moments(diagonal: bool) -> None:
    mixing = torch.tensor([[1.0, 0.0, 0.0], [2.0, 0.5, 0.0], [-1.0, 1.0, 0.2]])
    features = torch.randn(500, 3, generator=seeded()) @ mixing.T + torch.tensor([5.0, 0.0, -3.0])
    gaussians = class_gaussians(3, diagonal)
    gaussians.grow(2)
    gaussians.remember(features, torch.arange(500) % 2)
    drawn = gaussians.draw(torch.randn(2, 40_000, 3, generator=seeded(1)), torch.tensor([1.0, 0.5]))
    assert drawn.shape == (2, 40_000, 3)
    for label in (0, 1):
        covariance = torch.cov(features[label::2].T)
        expected = covariance.diag().diag() if diagonal else covariance
        torch.testing.assert_close(torch.cov(drawn[label].T), expected, atol=0.1, rtol=0.05)
        torch.testing.assert_close(
            drawn[label].mean(0), features[label::2].mean(0) * (1, 0.5)[label], atol=0.05, rtol=0
        )


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_the_second_training_of_the_head(reduction: str) -> None:
    torch.manual_seed(0)
    gaussians = class_gaussians(4, diagonal=False)
    gaussians.grow(3)
    gaussians.remember(torch.randn(30, 4, generator=seeded()), torch.arange(30) % 3)
    head = GrowingLinear(4)
    head.grow(3)
    weights = [head.weight.detach().clone().requires_grad_(), head.bias.detach().clone().requires_grad_()]
    velocity = [torch.zeros_like(w) for w in weights]
    generator = seeded(3)
    for epoch in range(2):
        drawn = gaussians.draw(torch.randn(3, 5, 4, generator=generator)).reshape(15, 4)
        order = torch.randperm(15, generator=generator)
        for batch in range(3):
            rows = order[5 * batch : 5 * batch + 5]
            values = [cross_entropy(weights[0] @ drawn[k] + weights[1], int(k) // 5) for k in rows]
            reduced(values, [int(k) // 5 for k in rows], reduction).backward()
            for w, v in zip(weights, velocity, strict=True):
                v.mul_(0.9).add_(w.grad + 0.01 * w.detach())
                w.data -= 0.5 * (1 + math.cos(math.pi * epoch / 2)) / 2 * v
                w.grad = None
    engine = Engine.create("cpu", resolve("glyphs").train)
    optimisation = Optimisation(2, partial(cosine_rate, 0.5, 2), weight_decay=0.01)
    HeadTraining(5, optimisation, REDUCTIONS[reduction], engine).train(head, gaussians, seeded(3))
    torch.testing.assert_close(head.weight, weights[0], check_layout=False)
    torch.testing.assert_close(head.bias, weights[1])
    assert head.weight.grad is None


def test_the_rate_rises_again_after_its_period() -> None:
    rates = [cosine_rate(0.01, 5, epoch) for epoch in range(11)]
    expected = [0.01, 0.009, 0.0065, 0.0035, 0.001, 0, 0.001, 0.0035, 0.0065, 0.009, 0.01]
    assert rates == pytest.approx(expected, abs=1e-4)


# --- both methods ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("method", ["mos", "tuna"])
def test_stored_adapters_never_change(make_learner: Make, method: str, released: bool) -> None:
    learner = make_learner(method=method, train=SHORT, options={"released": released})
    at_end: list[dict[str, Tensor]] = []
    for increment in small_stream([2, 1, 2]):
        learner.learn(increment)
        at_end.append(copy.deepcopy(learner.steps.newest.state_dict()))
        for _ in range(2):
            learner.predictions(increment)
        for expected, stored in zip(at_end, learner.steps, strict=True):
            for name, tensor in stored.state_dict().items():
                assert torch.equal(tensor, expected[name]), name
    assert not any(parameter.requires_grad for parameter in learner.steps.kept.parameters())


@pytest.mark.parametrize("framework", ["none", "paper"])
@pytest.mark.parametrize("method", ["mos", "tuna"])
def test_predictions_do_not_depend_on_the_batch(make_learner: Make, method: str, framework: str) -> None:
    """Predictions from cached features also equal those from images."""
    learner = learned(make_learner, method, framework=framework)
    increment = small_stream([2, 1, 2])[2]
    predicted = learner.predictions(increment)["ensemble"]
    images = learner.settings.augmentation.plain(increment.test.images[increment.test_rows])
    with torch.no_grad():
        fresh = torch.cat([learner.logits(batch)["ensemble"] for batch in images.split(7)])
        scores = torch.cat([batch["ensemble"] for batch in learner.test_scores(increment)])
    torch.testing.assert_close(scores, fresh, atol=1e-4, rtol=1e-4)
    assert torch.equal(predicted, scores.argmax(1))


@pytest.mark.parametrize("method", ["ease", "mos", "tuna"])
def test_cached_features_are_computed_once(make_learner: Make, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once per adapters and image; only TUNA's universal adapters process all images at every step."""
    learner = make_learner(method=method, train=SHORT)
    seen, adapted = [0, 0], learner.adapted

    def counting(by: Any, images: Tensor) -> Tensor:
        seen[by is getattr(learner, "universal", None)] += len(images)
        return adapted(by, images)

    for increment in small_stream([2, 1, 2]):
        learner.learn(increment)
        with monkeypatch.context() as patch:
            patch.setattr(learner, "adapted", counting)
            learner.predictions(increment)
    assert seen[0] == 3 * 40  # all pairs, once: three sets of adapters, five classes of eight images
    assert seen[1] == (24 + 40 if method == "tuna" else 0)


@pytest.mark.parametrize("method", ["mos", "tuna"])
def test_a_class_with_one_image_has_finite_statistics(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train=SHORT)
    for increment in small_stream([2, 2], [16, 1, 1, 16]):
        learner.learn(increment)
    identity = torch.eye(learner.feature_dim) * 0.01
    torch.testing.assert_close(learner.gaussians.spreads[[1, 2]], identity.expand(2, -1, -1))
    assert learner.head.weight.isfinite().all()


@pytest.mark.parametrize("method", ["mos", "tuna"])
def test_the_second_training_starts_at_the_second_step(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train=SHORT)
    notes = [learner.learn(increment) for increment in small_stream([2, 2])]
    assert "head_loss" not in notes[0]
    assert math.isfinite(notes[1]["head_loss"])


def test_both_learn_easy_images(make_learner: Make) -> None:
    """Chance is 1/6; the network has random weights."""
    for method in ("mos", "tuna"):
        stream = small_stream([2, 2, 2])
        learner = make_learner(method=method, train={"batch": 16})
        for increment in stream:
            learner.learn(increment)
        assert (accuracy(predicted_samples(learner, stream[2])["ensemble"]) or 0) > 50, method


# --- MOS ------------------------------------------------------------------------------------------------------------


def retrieved(first: int, following: Sequence[int], cap: int) -> int:
    """A loop over the evaluations of one image."""
    adapter = first
    for evaluation in range(1, cap + 1):
        named = following[adapter]
        if named == adapter or evaluation == cap:
            break
        adapter = named
    return adapter


@pytest.mark.parametrize("cap", [1, 2, 4, 7])
def test_batched_retrieval_equals_a_loop_over_images(cap: int) -> None:
    following = torch.randint(0, 9, (500, 9), generator=seeded())
    first = torch.randint(0, 9, (500,), generator=seeded(1))
    expected = [retrieved(int(k), row.tolist(), cap) for k, row in zip(first, following, strict=True)]
    assert retrieve(first, following, cap).tolist() == expected


def test_retrieval_ends_at_the_fourth_evaluation() -> None:
    chain = torch.tensor([[1, 2, 3, 4, 5, 5]])
    assert retrieve(torch.tensor([0]), chain).item() == 3


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_loss_of_mos(make_learner: Make, reduction: str) -> None:
    learner = make_learner(method="mos", reduction=reduction, train=SHORT)
    begin_second_step(learner)
    images, targets = torch.randn(5, 3, 16, 16, generator=seeded()), torch.tensor([2, 4, 4, 3, 4])
    with torch.no_grad():
        features = learner.features(images)
        logits = features @ learner.head.weight.T + learner.head.bias
        logits[:, :2] = -torch.inf
        values = [cross_entropy(logits[k], int(targets[k])) for k in range(5)]
        rows = [*learner.gaussians.means[:2], *features]
        similarity = torch.tensor([[float(a @ b) / 0.8 for b in rows] for a in rows])
        contrast = [cross_entropy(similarity[k], k) for k in range(7)]
        expected = reduced(values, targets.tolist(), reduction)
        expected = expected + 0.1 * reduced(contrast, [0, 1, *targets.tolist()], reduction)
        torch.testing.assert_close(learner.loss(images, targets), expected.float(), rtol=1e-4, atol=1e-5)


def test_the_head_learns_at_a_tenth_of_the_rate(make_learner: Make) -> None:
    learner, increment = make_learner(method="mos"), small_stream([2])[0]
    learner.begin(increment)
    training = learner.training_plan(increment)
    assert training is not None
    of_adapters, of_head = training.groups
    assert (of_adapters.factor, of_head.factor) == (1.0, 0.1)
    assert sum(p.numel() for p in of_head.parameters) == 2 * learner.feature_dim + 2


@pytest.mark.parametrize("released", [False, True])
def test_one_merge_per_optimiser_step(make_learner: Make, monkeypatch: pytest.MonkeyPatch, released: bool) -> None:
    """Against a loop that merges right after the optimiser, with its own mean; the released code also merges in every
    block."""
    learner = learned(make_learner, "mos", (2, 2, 2), options={"released": released})
    naive = make_learner(method="mos", train=SHORT)  # without `released`, whose last pull is written out below
    trained: list[list[Tensor]] = []
    current = list(naive.steps.newest.parameters())
    pulls = {"forward": 0, "optimiser": 0}

    @torch.no_grad()
    def pull(times: int, where: str) -> None:
        for _ in range(times if trained else 0):
            pulls[where] += 1
            for k, parameter in enumerate(current):
                earlier = sum(values[k] for values in trained) / len(trained)
                parameter.copy_(0.9 * parameter + 0.1 * earlier)

    build, own_loss = Optimisation.build, naive.loss

    def merging_optimiser(
        optimisation: Optimisation, groups: Sequence[ParameterGroup], *arguments: Any, **named: Any
    ) -> torch.optim.Optimizer:
        optimiser = build(optimisation, groups, *arguments, **named)
        if groups[0].parameters[0] is current[0]:  # not the head's second training
            optimiser.register_step_post_hook(lambda *_: pull(1, "optimiser"))
        return optimiser

    def loss(images: Tensor, targets: Tensor) -> Tensor:
        pull(naive.vit.depth if released else 0, "forward")
        return own_loss(images, targets)

    monkeypatch.setattr(Optimisation, "build", merging_optimiser)
    monkeypatch.setattr(naive, "loss", loss)
    monkeypatch.setattr(naive, "merge", lambda times: None)
    remember = naive.remember_adapters

    @torch.no_grad()
    def remember_and_pull() -> None:
        remember()
        trained.append([parameter.detach().clone() for parameter in current])
        if released and len(trained) > 1:
            for k, parameter in enumerate(current):
                parameter.copy_(sum(values[k] for values in trained[:-1]) / (len(trained) - 1))  # type: ignore[arg-type]

    monkeypatch.setattr(naive, "remember_adapters", remember_and_pull)
    for increment in small_stream([2, 2, 2]):
        naive.learn(increment)
    steps = 2 * 2 * 2  # two later steps, two epochs, two batches
    assert pulls == {"forward": steps * naive.vit.depth * released, "optimiser": steps}
    for ours, theirs in zip(learner.steps.newest.parameters(), current, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-5)
    for ours, *values in zip(learner.earlier.parameters(), *trained, strict=True):
        torch.testing.assert_close(ours, sum(values) / 3, rtol=1e-3, atol=1e-5)


def test_merging_keeps_adapters_near_earlier_ones(make_learner: Make) -> None:
    def moved(**options: Any) -> float:
        learner = learned(make_learner, "mos", (2, 2), options=options)
        pairs = zip(learner.steps.newest.parameters(), learner.steps.kept[0].parameters(), strict=True)
        return sum((a - b).square().sum().item() for a, b in pairs)

    free, merged, released = moved(merge_rate=0), moved(), moved(released=True)
    assert free > merged > released == 0  # released: the second adapters end as the first


def test_prototypes_use_the_first_adapters(make_learner: Make) -> None:
    learner = learned(make_learner, "mos")
    stream = small_stream([2, 1, 2])
    images = learner.settings.augmentation.plain(stream.train.images)
    with torch.no_grad():
        features = learner.adapted(next(iter(learner.steps)), images)
    expected = class_means(features, stream.train.labels, range(5))
    torch.testing.assert_close(learner.prototypes.means, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("ha", [False, True])
def test_mos_prediction_image_by_image(make_learner: Make, ha: bool) -> None:
    learner = learned(make_learner, "mos", ha={"use": ha})
    spread_out(learner)
    with torch.no_grad():
        learner.head.weight.normal_(generator=seeded(5))
    step_of, images = [0, 0, 1, 2, 2], torch.randn(40, 3, 16, 16, generator=seeded(6))
    evaluations = set()
    with torch.no_grad():
        scores = learner.logits(images)["ensemble"]
        features = [learner.adapted(by, images) for by in learner.steps]
        for k in range(40):
            own = [f[k] if learner.ha is None else learner.ha(f[k]) for f in features]
            z0 = torch.stack([torch.cosine_similarity(own[0], p, dim=0) for p in learner.prototypes.means])
            adapter, count = step_of[int(z0.argmax())], 0
            while True:
                count += 1
                z = learner.head.weight @ own[adapter] + learner.head.bias
                named = step_of[int(z.argmax())]
                if named == adapter or count == 4:
                    break
                adapter = named
            evaluations.add(count)
            torch.testing.assert_close(scores[k], z.softmax(0) + (3 * z0).softmax(0), rtol=1e-3, atol=1e-4)
    assert len(evaluations) > 1


# --- TUNA -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_cosface_sample_by_sample(margin: float) -> None:
    cosines, targets = torch.rand(9, 4, generator=seeded()) * 2 - 1, torch.arange(9) % 4
    for k, value in enumerate(cosface(cosines, targets, 20.0, margin)):
        own = math.exp(20 * (cosines[k, targets[k]].item() - margin))
        others = sum(math.exp(20 * cosines[k, j].item()) for j in range(4) if j != targets[k])
        assert value.item() == pytest.approx(-math.log(own / (own + others)), rel=1e-4, abs=1e-5)


def test_cosface_of_a_single_class_is_zero() -> None:
    cosines = torch.randn(5, 1, requires_grad=True)
    value = cosface(cosines, torch.zeros(5, dtype=torch.int64), 20.0, 0.3).sum()
    value.backward()  # type: ignore[no-untyped-call]
    assert value == 0
    assert cosines.grad.eq(0).all()


def test_a_step_with_a_single_class_keeps_the_adapters(make_learner: Make) -> None:
    phase = {"epochs": 2, "learning_rate": 0.05, "weight_decay": 0.0}
    learner = learned(
        make_learner, "tuna", (2, 1), train={"first": phase, "later": phase}, options={"orthogonality": 0.0}
    )
    for now, before in zip(learner.steps.newest.parameters(), learner.steps.kept[0].parameters(), strict=True):
        assert torch.equal(now, before)


def test_fusion_element_by_element() -> None:
    values = torch.randn(4, 6, 5, generator=seeded())
    values[:, 0, 0] = 0
    values[:, 0, 1] = torch.tensor([1.0, -1.0, 2.0, -2.0])  # a mean of 0: minus
    values[:, 0, 2] = torch.tensor([0.0, 3.0, -1.0, -1.0])
    fused = fuse(values)
    for i in range(6):
        for j in range(5):
            own = values[:, i, j].tolist()
            sign = 1 if sum(own) / 4 > 0 else -1
            expected = sign * max([abs(v) for v in own if v * sign > 0], default=0.0)
            assert fused[i, j].item() == pytest.approx(expected), own
    assert fused[0, :3].tolist() == [0, -2, 3]
    assert torch.equal(fuse(values[:1]), values[0])


def test_universal_adapters_are_fused_from_all_steps(make_learner: Make) -> None:
    learner = learned(make_learner, "tuna")
    sets = list(learner.steps)
    for name, fused in learner.universal.state_dict().items():
        own = torch.stack([by.state_dict()[name] for by in sets])
        assert torch.equal(fused, fuse(own)), name
    images = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        assert not torch.allclose(learner.adapted(learner.universal, images), learner.features(images), atol=1e-5)
    assert learner.universal in learner.deployed()


def test_overlap_is_the_mean_of_all_pairs_of_rows(make_learner: Make) -> None:
    learner = learned(make_learner, "tuna", (2, 2, 2))

    def units(adapter: nn.Module) -> Tensor:
        weight: Tensor = adapter.up.weight  # type: ignore[assignment, union-attr]
        return weight / weight.norm(dim=1, keepdim=True)

    expected = 0.0
    for kept in list(learner.steps)[:-1]:
        tables = [units(a) @ units(b).T for a, b in zip(learner.steps.newest, kept, strict=True)]
        expected += sum(table.mean().abs().item() for table in tables) / len(tables)
    assert expected > 0
    assert learner.overlap().item() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_fresh_adapters_have_no_overlap() -> None:
    fresh = Adapters(3, 8, 2)
    mean_directions(fresh).sum().backward()  # type: ignore[no-untyped-call]
    assert mean_directions(fresh).eq(0).all()


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_loss_of_tuna(make_learner: Make, reduction: str) -> None:
    options = {"margin": 0.2, "orthogonality": 0.5}
    learner = make_learner(method="tuna", reduction=reduction, train=SHORT, options=options)
    begin_second_step(learner)
    images, targets = torch.randn(5, 3, 16, 16, generator=seeded()), torch.tensor([2, 4, 4, 3, 4])
    with torch.no_grad():
        values = []
        for feature, target in zip(learner.features(images), targets.tolist(), strict=True):
            cosines = torch.cosine_similarity(feature[None], learner.head.weight)
            cosines[target] -= 0.2
            values.append(cross_entropy(20 * cosines[2:], target - 2))
        expected = reduced(values, targets.tolist(), reduction).float() + 0.5 * math.exp(-2) * learner.overlap()
        torch.testing.assert_close(learner.loss(images, targets), expected, rtol=1e-4, atol=1e-5)


def test_the_means_of_newer_classes_decay_less(make_learner: Make) -> None:
    for now in range(6):
        factors = decay_of_means(torch.arange(now + 1), now)
        assert (factors.diff() > 0).all()
        assert factors[-1] == 1
        assert factors[0] > 0.9
    sizes = [3, 1, 2]
    learner = learned(make_learner, "tuna", sizes)
    scale = learner.mean_scale()
    assert scale is not None
    torch.testing.assert_close(scale, 0.9 + 0.1 * torch.tensor([1, 1, 1, 2, 3, 3]) / 3)
    assert learned(make_learner, "tuna", (1, 1), options={"mean_decay": False}).mean_scale() is None


def test_the_released_decay_has_the_opposite_direction(make_learner: Make) -> None:
    """Ten steps of two classes: 0.91 for class 0, then 0.9 down to 0.81."""
    learner = make_learner(method="tuna", train=SHORT, options={"released": True})
    for increment in small_stream([2] * 10):
        learner.begin(increment)
    scale = learner.mean_scale()
    assert scale is not None
    expected = [0.9 + 0.1 * (-math.ceil(c / 2) + 1) / 10 for c in range(20)]
    assert scale.tolist() == pytest.approx(expected)
    assert expected[0] == pytest.approx(0.91)
    assert expected[-1] == pytest.approx(0.81)


@pytest.mark.parametrize("released", [False, True])
@pytest.mark.parametrize("ha", [False, True])
def test_tuna_prediction_image_by_image(make_learner: Make, ha: bool, released: bool) -> None:
    learner = learned(make_learner, "tuna", ha={"use": ha}, options={"released": released})
    spread_out(learner)
    learner.fuse_adapters()
    images, chosen = torch.randn(30, 3, 16, 16, generator=seeded(6)), set()
    with torch.no_grad():
        scores = learner.logits(images)["ensemble"]
        for k in range(30):

            def probabilities(by: Adapters, k: int = k) -> Tensor:
                feature = learner.adapted(by, images[k : k + 1])[0]
                feature = feature if learner.ha is None else learner.ha(feature)
                return (20 * torch.cosine_similarity(feature[None], learner.head.weight)).softmax(0)

            of_steps = [probabilities(by) for by in learner.steps]
            entropies = [-(p * p.log()).sum().item() for p in of_steps]
            surest = int(np.argmin(entropies))
            chosen.add(surest)
            other = of_steps[-1] if released else probabilities(learner.universal)
            torch.testing.assert_close(scores[k], of_steps[surest] + other, rtol=1e-3, atol=1e-4)
    assert len(chosen) > 1


def test_the_first_step_has_one_set_of_adapters(make_learner: Make) -> None:
    learner = learned(make_learner, "tuna", (3,))
    images = torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        expected = 2 * learner.classify(learner.features(images)).softmax(1)
        torch.testing.assert_close(learner.logits(images)["ensemble"], expected)
    assert learner.universal not in learner.deployed()
