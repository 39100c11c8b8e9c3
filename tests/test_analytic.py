"""The analytic head, RanPAC and MoAL compared with plain sums and loops, and with the recursion that they replace."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import AUGMENTATION, Make, OnEpoch, seeded, small_config, small_stream
from ffcil.arrivals import given_arrivals
from ffcil.data.glyphs import CHARACTERS, draw_glyphs
from ffcil.data.image_set import ImageSet
from ffcil.errors import InputError
from ffcil.methods.moal import pseudo_features
from ffcil.methods.registry import build_learner
from ffcil.models.analytic import (
    RIDGES,
    AnalyticHead,
    choose_ridge,
    class_balanced,
    fit_drift,
    ridge_errors,
    solve_ridge,
)
from ffcil.runs.run import evaluate
from ffcil.stream import Stream
from ffcil.training.engine import Engine
from oracles import accuracy, class_means, predicted_samples, ridge_weights


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def head(features: int = 6, hidden: int = 40, classes: int = 4, ridge: float = 0.1) -> AnalyticHead:
    made = AnalyticHead(features, hidden, lambda empty: empty.normal_(generator=seeded(9)))
    made.grow(classes)
    made.ridge.fill_(ridge)
    return made


# --- sums and solutions ---------------------------------------------------------------------------------------------


class Recursion:
    """The published form: R and W, updated batch by batch with the Woodbury identity."""

    def __init__(self, phi: Tensor, wanted: Tensor, ridge: float, scale: float) -> None:
        self.R = torch.linalg.inv(phi.T @ phi + ridge * torch.eye(phi.shape[1], dtype=phi.dtype))
        self.W = scale * self.R @ phi.T @ wanted

    def grow(self, classes: int) -> None:
        self.W = torch.cat([self.W, self.W.new_zeros(len(self.W), classes - self.W.shape[1])], dim=1)

    def update(self, phi: Tensor, wanted: Tensor, batch: int = 7) -> None:
        for rows, values in zip(phi.split(batch), wanted.split(batch), strict=True):
            inner = torch.linalg.inv(torch.eye(len(rows), dtype=rows.dtype) + rows @ self.R @ rows.T)
            self.R = self.R - self.R @ rows.T @ inner @ rows @ self.R
            self.W = self.W + self.R @ rows.T @ (values - rows @ self.W)


def one_hot(targets: Tensor, classes: int) -> Tensor:
    return (targets[:, None] == torch.arange(classes)).double()


def test_sums_equal_the_published_recursion() -> None:
    """A first step scaled by 0.9, then memorising, then rumination of what is misclassified."""
    analytic = head(classes=3)
    features = [normal(30, 6, seed=k) for k in range(3)]
    targets = [torch.randint(0, 3, (30,), generator=seeded(4)), torch.randint(3, 5, (30,), generator=seeded(5))]
    targets.append(torch.randint(0, 5, (30,), generator=seeded(6)))
    phi = [(rows @ analytic.projection.double().T).clamp_min(0) for rows in features]

    analytic.add(features[0], targets[0])
    analytic.moments.mul_(0.9)
    analytic.solve()
    expected = Recursion(phi[0], one_hot(targets[0], 3), ridge=0.1, scale=0.9)
    torch.testing.assert_close(analytic.weight, expected.W, rtol=0, atol=1e-10)

    analytic.grow(5)
    expected.grow(5)
    analytic.add(features[1], targets[1])
    analytic.solve()
    expected.update(phi[1], one_hot(targets[1], 5))
    torch.testing.assert_close(analytic.weight, expected.W, rtol=0, atol=1e-10)

    memorised = expected.W.clone()  # all batches are classified by these weights
    wrong = (phi[2] @ memorised).argmax(1) != targets[2]
    assert 0 < wrong.sum() < 30
    assert torch.equal(analytic.predict(features[2]) != targets[2], wrong)
    analytic.add(features[2][wrong], targets[2][wrong])
    analytic.solve()
    expected.update(phi[2][wrong], one_hot(targets[2][wrong], 5))
    torch.testing.assert_close(analytic.weight, expected.W, rtol=0, atol=1e-10)


def test_growing_keeps_old_columns() -> None:
    analytic = head(classes=2)
    analytic.add(normal(20, 6), torch.arange(20) % 2)
    analytic.solve()
    before = copy.deepcopy(analytic.state_dict())
    analytic.grow(5)
    for name in ("moments", "weight"):
        grown = analytic.state_dict()[name]
        assert torch.equal(grown[:, :2], before[name])
        assert grown[:, 2:].eq(0).all()
    for name in ("projection", "gram", "ridge"):
        assert torch.equal(analytic.state_dict()[name], before[name])


def test_more_rows_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    features, targets = normal(50, 6), torch.arange(50) % 4
    whole, parts = head(), head()
    whole.add(features, targets)
    monkeypatch.setattr("ffcil.models.analytic.CHUNK", 8)
    parts.add(features, targets)
    torch.testing.assert_close(parts.gram, whole.gram)
    torch.testing.assert_close(parts.moments, whole.moments)


def test_gradients_reach_the_features() -> None:
    analytic = head()
    analytic.add(normal(20, 6), torch.arange(20) % 4)
    analytic.solve()
    features = torch.randn(3, 6, requires_grad=True)
    analytic(features).sum().backward()
    assert features.grad.ne(0).any()


def test_a_ridge_below_the_rounding_still_solves() -> None:
    rows = normal(3, 50) * 1e6  # rank 3 of 50, and 1e-8 is lost beside 1e12
    gram, moments = rows.T @ rows, rows.T @ normal(3, 2, seed=1)
    weight = solve_ridge(gram, moments, 1e-8)
    assert weight.isfinite().all()
    torch.testing.assert_close(rows @ weight, normal(3, 2, seed=1), rtol=1e-2, atol=1e-2)
    with pytest.raises(FloatingPointError, match="not finite"):
        solve_ridge(gram * torch.nan, moments, 1.0)


# --- the choice of lambda -------------------------------------------------------------------------------------------


def naive_errors(rows: Tensor, wanted: Tensor, fitted: int) -> Tensor:
    """Solve once for each lambda."""
    errors = []
    for ridge in RIDGES:
        weight = ridge_weights(rows[:fitted], wanted[:fitted], ridge)
        errors.append((rows[fitted:] @ weight - wanted[fitted:]).square().mean())
    return torch.stack(errors)


@pytest.mark.parametrize("noise", [0.01, 1.0, 30.0])
@pytest.mark.parametrize(("count", "columns"), [(100, 20), (40, 60)], ids=["primal", "dual"])
def test_one_decomposition_equals_a_loop_of_solutions(count: int, columns: int, noise: float) -> None:
    rows, fitted = normal(count, columns), int(0.8 * count)
    wanted = rows @ normal(columns, 3, seed=1) + noise * normal(count, 3, seed=2)
    errors, naive = ridge_errors(rows, wanted, fitted), naive_errors(rows, wanted, fitted)
    torch.testing.assert_close(errors, naive, rtol=1e-5, atol=0)  # rounding of the loop at lambda = 1e-8
    best = RIDGES.index(choose_ridge(rows, wanted, fitted))
    assert naive[best] <= naive.min() * (1 + 1e-5)


def test_the_dual_equals_the_primal() -> None:
    """Columns of zeros change no solution, but select the dual."""
    for noise in (0.1, 3.0, 30.0):
        rows = normal(50, 20)
        wanted = rows @ normal(20, 3, seed=1) + noise * normal(50, 3, seed=2)
        wide = torch.cat([rows, torch.zeros(50, 100, dtype=rows.dtype)], dim=1)
        torch.testing.assert_close(ridge_errors(wide, wanted, 40), ridge_errors(rows, wanted, 40), rtol=1e-4, atol=0)


def test_the_head_chooses_from_a_shuffled_split() -> None:
    analytic, features, targets = head(classes=3), normal(60, 6), torch.arange(60) % 3
    analytic.choose(features, targets, seeded(3))
    order = torch.randperm(60, generator=seeded(3))
    phi = (features[order] @ analytic.projection.double().T).clamp_min(0)
    errors = naive_errors(phi, one_hot(targets[order], 3), 48)
    assert errors[RIDGES.index(analytic.ridge.item())] <= errors.min() * (
        1 + 1e-5
    )  # rounding decides between equal errors
    assert errors.max() > 1.1 * errors.min()


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_rows_of_one_class(count: int) -> None:
    analytic = head(classes=1)
    features, targets = normal(count, 6), torch.zeros(count, dtype=torch.int64)
    analytic.choose(features, targets, seeded())
    analytic.add(features, targets)
    analytic.solve()
    assert analytic.ridge.item() in RIDGES
    assert analytic.weight.isfinite().all()


# --- class-wise weights ---------------------------------------------------------------------------------------------


def test_class_wise_weights() -> None:
    weights = class_balanced(torch.tensor([5, 2, 5, 5]))
    torch.testing.assert_close(weights, torch.tensor([2 / 3, 2.0, 2 / 3, 2 / 3], dtype=torch.float64))
    assert class_balanced(torch.tensor([1, 0, 1, 0])).eq(1).all()  # balanced classes


def cut(rows: Sequence[int], first: Sequence[bool]) -> list[list[int]]:
    """Divide a list into parts; `first` says which elements start a part."""
    parts: list[list[int]] = [[]]
    for row, starts in zip(rows, first, strict=True):
        if starts and parts[-1]:
            parts.append([])
        parts[-1].append(row)
    return parts


COUNTS = [1, 2, 5, 9, 14]
"""Images of each class."""


@given(st.permutations(range(5)), st.lists(st.booleans(), min_size=5, max_size=5), st.randoms(use_true_random=False))
@pytest.mark.parametrize("balanced", [True, False])
def test_the_partition_and_the_order_do_not_matter(
    balanced: bool, order: list[int], first: list[bool], random: Random
) -> None:
    """Steps of any classes in any order have the weights of one weighted ridge regression of all images."""
    targets = torch.arange(5).repeat_interleave(torch.tensor(COUNTS))
    features, ridge = normal(len(targets), 6), 3.0
    analytic = AnalyticHead(6, 40, lambda empty: empty.normal_(generator=seeded(9)), balanced=balanced)
    analytic.ridge.fill_(ridge)
    for classes in cut(order, first):
        rows = [row for row in range(len(targets)) if targets[row] in classes]
        random.shuffle(rows)
        number = torch.tensor([order.index(label) for label in range(5)])  # by order of arrival, as in a stream
        analytic.grow(analytic.classes + len(classes))
        analytic.add(features[rows], number[targets[rows]])
        analytic.solve()
    phi = analytic.expand(features)
    weights = [31 / (5 * COUNTS[int(label)]) if balanced else 1.0 for label in targets]
    scale = torch.tensor(weights, dtype=torch.float64).sqrt()[:, None]
    expected = ridge_weights(phi * scale, one_hot(targets, 5) * scale, ridge)
    difference = (analytic.weight[:, number] - expected).norm() / expected.norm()
    assert difference < 1e-9


def test_a_head_of_an_earlier_version_predicts_but_does_not_go_on() -> None:
    """Its sums have other weights."""
    analytic = AnalyticHead(6, 40, nn.init.normal_, balanced=True)
    analytic.grow(2)
    features, targets = normal(6, 6), torch.arange(6) % 2
    analytic.add(features, targets)
    analytic.solve()
    state = analytic.state_dict()
    again = AnalyticHead(6, 40, nn.init.normal_, balanced=True)
    again.grow(2)
    again.load_state_dict(state)
    assert again.images == 6
    del state["images"]
    again.load_state_dict(state)
    assert torch.equal(again.predict(features), analytic.predict(features))
    again.add(features, targets)
    with pytest.raises(InputError, match="earlier version"):
        again.solve()
    assert "images" not in head().state_dict()


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
@pytest.mark.parametrize("method", ["ranpac", "moal"])
def test_sums_of_a_method_do_not_depend_on_the_partition(make_learner: Make, method: str, reduction: str) -> None:
    """Of images that no step tunes the network on. The rumination of MoAL depends on the partition by definition."""
    sums = []
    for sizes in ([5], [1, 3, 1], [2, 3]):
        options = {"hidden": 30} | ({"first_targets": 1.0} if method == "moal" else {})
        learner = make_learner(method=method, reduction=reduction, flow={"enough": 6}, options=options)
        with pytest.MonkeyPatch.context() as patch:
            if method == "moal":
                patch.setattr(learner, "_ruminate", lambda *_: 0)
            for increment in small_stream(sizes, [16, 4, 1, 2, 9]):
                learner.learn(increment)
        learner.analytic.ridge.fill_(100.0)
        learner.analytic.solve()
        sums.append(learner.analytic)
    for other in sums[1:]:
        for name in ("gram", "moments", "weight"):
            expected = getattr(sums[0], name)
            assert (getattr(other, name) - expected).norm() < 1e-6 * expected.norm(), name


def test_a_weight_of_two_equals_a_repeated_row() -> None:
    features, targets = normal(12, 6), torch.arange(12) % 4
    weights = torch.ones(12)
    weights[3] = 2
    weighted, doubled = head(), head()
    weighted.add(features, targets, weights)
    doubled.add(torch.cat([features, features[3:4]]), torch.cat([targets, targets[3:4]]))
    torch.testing.assert_close(weighted.gram, doubled.gram)
    torch.testing.assert_close(weighted.moments, doubled.moments)


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
@pytest.mark.parametrize("method", ["ranpac", "moal"])
def test_sums_of_the_first_step(make_learner: Make, method: str, reduction: str) -> None:
    learner = make_learner(method=method, reduction=reduction, options={"hidden": 30})
    increment = small_stream([3], [16, 4, 1])[0]
    learner.learn(increment)
    with torch.no_grad():
        features, targets = learner.extract_features(increment)
        phi = learner.analytic.expand(features).double()
    share = {0: 1 / 16, 1: 1 / 4, 2: 1.0}
    weights = [share[int(y)] if reduction == "class_wise_mean" else 1.0 for y in targets]
    gram = sum(w * torch.outer(p, p) for w, p in zip(weights, phi, strict=True))
    moments = sum(w * torch.outer(p, y) for w, p, y in zip(weights, phi, one_hot(targets, 3), strict=True))
    torch.testing.assert_close(learner.analytic.gram, gram)
    torch.testing.assert_close(learner.analytic.moments, moments * (0.9 if method == "moal" else 1.0))


@pytest.mark.parametrize(
    ("method", "ridge_from", "choosing"),
    [
        ("ranpac", "published", [1, 2, 3, 4, 5]),
        ("moal", "published", [1]),
        ("ranpac", "largest", [1, 2, 5]),
        ("moal", "largest", [1, 2, 5]),
    ],
)
def test_whose_images_choose_lambda(
    make_learner: Make, monkeypatch: pytest.MonkeyPatch, method: str, ridge_from: str, choosing: Sequence[int]
) -> None:
    learner = make_learner(method=method, options={"hidden": 30, "ridge_from": ridge_from})
    chose: list[int] = []
    choose = learner.analytic.choose

    def noted(features: Tensor, targets: Tensor, *more: Any) -> None:
        chose.append(len(learner.boundaries))
        choose(features, targets, *more)

    monkeypatch.setattr(learner.analytic, "choose", noted)
    notes = [learner.learn(increment) for increment in small_stream([1, 3, 2, 3, 4])]
    assert chose == choosing
    if ridge_from == "largest":
        ridges = [note["ridge"] for note in notes]
        assert ridges[1] == ridges[2] == ridges[3]


# --- RanPAC ---------------------------------------------------------------------------------------------------------


def test_ranpac_equals_one_ridge_regression_of_all_steps(make_learner: Make) -> None:
    learner = make_learner(method="ranpac", options={"hidden": 30})
    stream = small_stream([3, 1, 2])
    notes = [learner.learn(increment) for increment in stream]
    assert all(note["ridge"] in RIDGES for note in notes)
    assert [note["trained_parameters"] > 0 for note in notes] == [True, False, False]
    with torch.no_grad():
        features, targets = learner.extract_features(small_stream([6])[0])
        phi = learner.analytic.expand(features).double()
    ridge = max(notes[-1]["ridge"], 2.3e-16 * phi.square().sum().item())
    weight = ridge_weights(phi, one_hot(targets, 6), ridge)
    torch.testing.assert_close(phi @ learner.analytic.weight, phi @ weight, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learner.classify(features), 20 * (phi @ weight).float(), rtol=1e-3, atol=2e-2)


def test_ranpac_learns() -> None:
    def drawn(each: int, seed: int) -> ImageSet:  # glyphs, on which the embedded network was trained
        images = torch.from_numpy(draw_glyphs(CHARACTERS[:6], each, seed))
        return ImageSet(images, torch.arange(6).repeat_interleave(each), CHARACTERS[:6])

    config, as_pretrained = small_config(method="ranpac"), replace(AUGMENTATION, mean=(0.0,) * 3, std=(1.0,) * 3)
    learner = build_learner(config, as_pretrained, Engine.create("cpu", config.train))
    for increment in Stream(drawn(16, 0), drawn(8, 1), given_arrivals([1, 3, 2]), class_seed=None):
        learner.learn(increment)
    assert (accuracy(predicted_samples(learner, increment)["analytic"]) or 0) > 80


# --- MoAL -----------------------------------------------------------------------------------------------------------


def test_the_drift_is_found() -> None:
    old = normal(200, 5)
    by, bias = normal(5, 5, seed=1), normal(5, seed=2)
    drift = fit_drift(old, old @ by + bias, seeded())
    others = normal(7, 5, seed=3)
    torch.testing.assert_close(drift(others), others @ by + bias, rtol=0, atol=1e-6)


def test_features_only_shift_where_images_do_not_vary() -> None:
    """All images lie on one axis. Along the others a prototype moves by the common shift only."""
    old = torch.zeros(20, 4, dtype=torch.float64)
    old[:, 0] = torch.linspace(-1, 1, 20)
    shift = torch.tensor([0.0, 0.5, 0.0, 0.0], dtype=torch.float64)
    drift = fit_drift(old, old * 1.5 + shift, seeded())
    moved = drift(torch.tensor([[2.0, 3.0, -1.0, 4.0]], dtype=torch.float64))
    torch.testing.assert_close(moved, torch.tensor([[3.0, 3.5, -1.0, 4.0]], dtype=torch.float64), rtol=0, atol=1e-6)


def test_the_drift_of_one_image_is_a_shift() -> None:
    old, new = normal(1, 4), normal(1, 4, seed=1)
    others = normal(3, 4, seed=2)
    torch.testing.assert_close(fit_drift(old, new, seeded())(others), others + new - old)


def test_pseudo_features() -> None:
    means = torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.1, 1.0], [3.0, 0.2]])  # two old classes, two new ones
    features, targets = torch.tensor([[3.0, 1.0], [0.0, 1.0], [3.0, -0.6], [0.2, 1.0]]), torch.tensor([3, 2, 3, 2])
    synthesised, classes = pseudo_features(features, targets, means, 2)
    assert classes.tolist() == [0, 0, 1, 1]
    expected = torch.tensor([[1.0, 0.8], [1.0, -0.8], [-0.1, 2.0], [0.1, 2.0]])
    torch.testing.assert_close(synthesised, expected)


def flat(adapters: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in adapters.parameters()]).clone()


def test_the_running_mean(make_learner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    three = {"epochs": 3, "learning_rate": 0.05}
    learner = make_learner(method="moal", options={"momentum": 0.7, "hidden": 30}, train={"later": three})
    stream = small_stream([2, 2])
    learner.learn(stream[0])
    before, trail = flat(learner.adapters), []
    learner.learn(stream[1], OnEpoch(lambda _: trail.append(flat(learner.adapters))))
    expected = before
    for after_epoch in trail:
        expected = 0.7 * expected + 0.3 * after_epoch
    assert len(trail) == 3
    torch.testing.assert_close(flat(learner.adapters), expected)
    assert torch.equal(flat(learner.running), flat(learner.adapters))
    assert torch.equal(flat(learner.earlier), before)
    assert not torch.equal(before, expected)


def test_the_first_step_adapts_freely(make_learner: Make) -> None:
    learner = make_learner(method="moal", options={"hidden": 30})
    trail: list[Tensor] = []
    learner.learn(small_stream([3])[0], OnEpoch(lambda _: trail.append(flat(learner.adapters))))
    assert torch.equal(flat(learner.adapters), trail[-1])


def test_a_step_of_moal(make_learner: Make) -> None:
    """The second step's weights, from the features of both networks."""
    learner = make_learner(method="moal", options={"hidden": 30, "momentum": 0.5})
    stream = small_stream([3, 2])
    ridge = learner.learn(stream[0])["ridge"]
    gram, moments = learner.analytic.gram.clone(), learner.analytic.moments.clone()
    means = learner.statistics.means.clone()
    notes = learner.learn(stream[1])
    assert notes["ridge"] == ridge
    with torch.no_grad():
        features, targets = learner.extract_features(stream[1])
        before, _ = learner.extract_features(stream[1], partial(learner.adapted, learner.earlier))
        drift = fit_drift(before, features, learner.generator(stream[1], "drift"))
        means = torch.cat([drift(means), class_means(features, targets, (3, 4))])
        torch.testing.assert_close(learner.statistics.means, means)
        old, of_old = pseudo_features(features, targets, means, 3)

        def phi(rows: Tensor) -> Tensor:
            return learner.analytic.expand(rows).double()

        gram = gram + phi(features).T @ phi(features)
        moments = torch.cat([moments, moments.new_zeros(30, 2)], dim=1) + phi(features).T @ one_hot(targets, 5)
        memorised = solve_ridge(gram, moments, ridge)
        pool, labels = torch.cat([old, features]), torch.cat([of_old, targets])
        wrong = (phi(pool) @ memorised).argmax(1) != labels
        assert notes["ruminated"] == int(wrong.sum())
        gram = gram + phi(pool[wrong]).T @ phi(pool[wrong])
        moments = moments + phi(pool[wrong]).T @ one_hot(labels[wrong], 5)
        torch.testing.assert_close(learner.analytic.gram, gram)
        expected = phi(features) @ solve_ridge(gram, moments, ridge)
        torch.testing.assert_close(phi(features) @ learner.analytic.weight, expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("framework", ["none", "paper"])
@pytest.mark.parametrize(
    ("sizes", "per_class"), [([1, 2], [1, 16, 16]), ([2, 1], [16, 16, 1]), ([1, 1, 1], [1, 1, 1])], ids=str
)
@pytest.mark.parametrize("method", ["ranpac", "moal"])
def test_steps_with_a_single_image(
    make_learner: Make, method: str, sizes: Sequence[int], per_class: Sequence[int], framework: str
) -> None:
    learner = make_learner(method=method, framework=framework, options={"hidden": 30})
    for increment in small_stream(sizes, per_class):
        assert np.isfinite(learner.learn(increment)["loss"])
        evaluate(learner, increment)
    assert all(tensor.isfinite().all() for tensor in learner.state_dict().values())


def test_moal_remembers(make_learner: Make) -> None:
    learner = make_learner(method="moal")
    for increment in small_stream([1, 3, 2]):
        learner.learn(increment)
    assert (accuracy(predicted_samples(learner, increment)["analytic"]) or 0) > 60
