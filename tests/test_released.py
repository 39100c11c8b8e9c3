"""The departures of the released code of MoAL and CL-LoRA, compared with plain loops and numpy."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import SHORT, Make, OnEpoch, seeded, small_config, small_stream
from ffcil.errors import InputError
from ffcil.methods.cllora import CLLoRA, assumed_spans
from ffcil.methods.parts import sgd_map
from ffcil.methods.parts.sgd_map import fit_map
from ffcil.models.analytic import RIDGES, AnalyticHead
from ffcil.models.recursive import RecursiveHead, single_precision_errors
from ffcil.runs.run import Run, evaluate
from ffcil.training.engine import Engine
from ffcil.training.progress import FitProgress
from ffcil.training.seeds import derive_seed
from oracles import accuracy, predicted_samples
from test_methods import STREAMS, assert_floors

RELEASED = {
    "moal": {"released": True, "hidden": 300},
    "cllora": {"released": True},
    "cllora in steps of two": {"released": True, "released_increment": 2},
    "cllora in steps like the newest": {"released": True, "released_increment": "newest"},
}


@pytest.fixture
def short_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """MoAL's map is fitted in 100 epochs instead of 1,000."""
    monkeypatch.setattr(sgd_map, "OPTIMISATION", replace(sgd_map.OPTIMISATION, epochs=100))


@pytest.mark.usefixtures("short_map")
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("code", "robust"), [*((code, False) for code in RELEASED), ("moal", True), ("cllora", True)])
def test_hard_streams(make_learner: Make, code: str, stream: str, robust: bool) -> None:
    """CL-LoRA collapses in the step after a first step with a single class, and from then on predicts one class. The
    other streams keep the floors, except where classes are scored in spaces of other steps."""
    learner = make_learner(method=code.split()[0], robust=robust, options=RELEASED[code])
    sizes, increments = STREAMS[stream][0], small_stream(*STREAMS[stream])
    for increment in increments:
        notes = learner.learn(increment)
        assert notes["collapsed"] == ("cllora" in code and sizes[0] == 1 and increment.step > 1)
        assert json.loads(json.dumps(notes, allow_nan=False)) is not None
        (name,) = learner.classifiers
        counts, samples = evaluate(learner, increment)[name], predicted_samples(learner, increment)[name]
        assert (counts.classes, counts.values.sum()) == (increment.seen_now, len(increment.test_rows))
        if notes["collapsed"]:
            assert {predicted for _, predicted in samples} == {0}
        elif code in ("moal", "cllora"):
            assert_floors(type(learner), increments, increment, samples)


def test_without_released_a_loss_that_is_not_finite_is_an_error(
    make_learner: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    for released in (False, True):
        learner = make_learner(method="cllora", options={"released": released}, train=SHORT)
        own = learner.loss
        monkeypatch.setattr(learner, "loss", lambda images, targets, own=own: own(images, targets) * torch.nan)
        if released:
            assert learner.learn(small_stream([2])[0])["loss"] is None
        else:
            with pytest.raises(InputError, match="Training diverged"):
                learner.learn(small_stream([2])[0])


@pytest.mark.usefixtures("short_map")
@pytest.mark.parametrize("method", ["moal", "cllora"])
def test_a_run_that_collapses_is_recorded_and_resumed(tmp_path: Path, colours: Path, method: str) -> None:
    settings = small_config(
        dataset="folder",
        image_size=16,
        arrivals={"sizes": [1, 2, 1]},
        method=method,
        robust=True,
        options={"released": True},
        checkpoint_seconds=0,
        train=SHORT,
    )
    Run(settings, tmp_path / "whole", data=colours, device="cpu", threads=1).execute()

    epochs: list[int] = []

    def interrupt(progress: FitProgress) -> None:
        epochs.append(progress.epoch)
        if len(epochs) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):  # in the second step
        Run(settings, tmp_path / "part", data=colours, device="cpu", threads=1, listener=OnEpoch(interrupt)).execute()
    Run(settings, tmp_path / "part", data=colours, device="cpu", threads=1).execute()
    lines = [
        [json.loads(line, parse_constant=pytest.fail) for line in (tmp_path / run / "records.jsonl").open()]
        for run in ("whole", "part")
    ]
    for one, other in zip(*lines, strict=True):
        timing = {"seconds", "images_per_second"}
        assert {k: v for k, v in one.items() if k not in timing} == {k: v for k, v in other.items() if k not in timing}
    assert [record["collapsed"] for record in lines[0]] == [False, *[method == "cllora"] * 2]


# --- MoAL -----------------------------------------------------------------------------------------------------------


def features_and_targets(count: int, classes: range, seed: int) -> tuple[Tensor, Tensor]:
    return torch.randn(count, 6, generator=seeded(seed)), torch.randint(
        classes.start, classes.stop, (count,), generator=seeded(seed + 50)
    )


def recursive(hidden: int = 40, classes: int = 3, batch: int = 7) -> RecursiveHead:
    made = RecursiveHead(6, hidden, lambda empty: empty.normal_(generator=seeded(9)), batch)
    made.grow(classes)
    return made


@pytest.mark.parametrize("weighted", [False, True])
def test_the_recursion_in_numpy(weighted: bool) -> None:
    """In float32, batch by batch; only the first inverse is computed in float64."""
    head = recursive()
    steps = [features_and_targets(30, range(3), 0), features_and_targets(25, range(3, 5), 1)]
    weights = [torch.rand(len(y), generator=seeded(4)) + 0.5 if weighted else torch.ones(len(y)) for _, y in steps]
    head.choose(*steps[0], seeded(), weights[0])
    ridge = head.ridge.item()

    def rows(step: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
        x, y = steps[step]
        scale = weights[step].sqrt().numpy()[:, None]
        phi = np.maximum(x.numpy() @ head.projection.numpy().T, 0) * scale
        return phi.astype(np.float32), (np.eye(classes, dtype=np.float32)[y.numpy()] * scale).astype(np.float32)

    phi, wanted = rows(0, 3)
    R = np.linalg.inv((phi.T @ phi).astype(np.float64) + ridge * np.eye(40)).astype(np.float32)
    W = np.float32(0.9) * (R @ (phi.T @ wanted))
    head.add(*steps[0], weights[0] if weighted else None)
    head.scale_targets(0.9)
    np.testing.assert_allclose(head.weight, W, rtol=2e-3, atol=2e-5)

    head.grow(5)
    W = np.concatenate([W, np.zeros((40, 2), np.float32)], axis=1)
    phi, wanted = rows(1, 5)
    for first in range(0, 25, 7):
        a, y = phi[first : first + 7], wanted[first : first + 7]
        R = R - R @ a.T @ np.linalg.pinv(np.eye(len(a), dtype=np.float32) + a @ R @ a.T) @ a @ R
        W = W + R @ a.T @ (y - a @ W)
    head.add(*steps[1], weights[1] if weighted else None)
    assert head.weight.dtype == head.inverse.dtype == torch.float32
    np.testing.assert_allclose(head.weight, W, rtol=2e-2, atol=2e-4)


def test_with_a_large_ridge_it_equals_the_sums() -> None:
    heads: list[Any] = [recursive(), AnalyticHead(6, 40, lambda empty: empty.normal_(generator=seeded(9)))]
    heads[1].grow(3)
    for head in heads:
        head.ridge.fill_(10.0)
        head.add(*features_and_targets(30, range(3), 0))
        head.scale_targets(0.9)
        head.grow(5)
        head.add(*features_and_targets(30, range(3, 5), 1))
        head.solve()
    torch.testing.assert_close(heads[0].weight.double(), heads[1].weight, rtol=0, atol=1e-5)


def test_single_precision_protects_from_small_ridges() -> None:
    """Few images, many long random features: in float64 the smallest ridge is as good as others, in float32 it is not,
    so that the released code does not choose it."""
    phi = (40 * torch.randn(30, 1, generator=seeded(1)).abs() + torch.randn(30, 400, generator=seeded(2))).relu()
    wanted = F.one_hot(torch.arange(30) % 2, 2)
    single = single_precision_errors(phi, wanted.float(), 24)
    double = single_precision_errors(phi.double(), wanted.double(), 24)
    naive = []
    for ridge in RIDGES:
        known = phi[:24].double().numpy()
        weight = np.linalg.solve(known.T @ known + ridge * np.eye(400), known.T @ wanted[:24].double().numpy())
        naive.append(((phi[24:].double().numpy() @ weight - wanted[24:].numpy()) ** 2).mean())
    np.testing.assert_allclose(double[4:], naive[4:], rtol=1e-3)
    assert double[0] < 1.1 * double.min()
    assert single[0] > 3 * double[0]
    assert RIDGES[int(single.argmin())] >= 1e-2


def test_numbers_that_overflow_become_nan() -> None:
    head = recursive()
    head.ridge.fill_(1e-8)
    features, targets = features_and_targets(30, range(3), 0)
    head.add(features, targets)
    head.add(features * 1e30, targets)
    assert head.collapsed
    assert head(features).isnan().all()
    assert head.predict(features).eq(0).all()
    head.add(features, targets)  # goes on


def test_the_map_is_that_of_a_plain_loop() -> None:
    """torch's own schedule and optimiser over the same batches; the best epoch on a tenth of the images is kept."""
    old = torch.randn(47, 5, generator=seeded(1)) * 2
    new = old @ torch.randn(5, 5, generator=seeded(2)) + 0.5 * torch.randn(47, 5, generator=seeded(3))
    found = fit_map(old, new, seeded(7), Engine.create("cpu", small_config().train))

    generator = seeded(7)
    rows = torch.randperm(47, generator=generator)
    x, y = old[rows], new[rows]
    linear = torch.nn.Linear(5, 5)
    with torch.no_grad():
        for parameter in linear.parameters():
            parameter.uniform_(-(5**-0.5), 5**-0.5, generator=generator)
    optimiser = torch.optim.SGD(linear.parameters(), 0.01, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 10)
    best, smallest = copy.deepcopy(linear), float("inf")
    for _ in range(1000):
        for batch in torch.randperm(42, generator=generator).split(32):
            optimiser.zero_grad()
            F.mse_loss(linear(x[batch]), y[batch]).backward()
            optimiser.step()
        schedule.step()
        error = F.mse_loss(linear(x[42:]), y[42:]).item()
        if error < smallest:
            best, smallest = copy.deepcopy(linear), error
    others = torch.randn(8, 5, generator=seeded(4))
    torch.testing.assert_close(found(others), best(others), rtol=1e-3, atol=1e-3)


def test_the_map_of_one_class_loses_what_tells_others_apart() -> None:
    """Features did not move at all. Differences in a direction that the images do not have are not carried over."""
    old = torch.randn(40, 16, generator=seeded(1))
    old[:, 0], old[:, 8:] = 6, 0
    moved = fit_map(old, old, seeded(), Engine.create("cpu", small_config().train))
    means = torch.zeros(2, 16)
    means[:, 0], means[0, 12] = 6, 3.0
    with torch.no_grad():
        kept = (moved(means)[0] - moved(means)[1])[12] / 3
        torch.testing.assert_close(moved(old), old, rtol=0, atol=0.2)
    assert kept < 0.5


@pytest.mark.parametrize("images", [1, 2])
def test_the_map_of_very_few_images(images: int) -> None:
    old = torch.randn(images, 4, generator=seeded(1))
    moved = fit_map(old, old + 1, seeded(), Engine.create("cpu", small_config().train))
    assert moved(old).isfinite().all()


def test_the_training_head_is_drawn_again_and_new_rows_start_at_zero(make_learner: Make) -> None:
    learner, stream = make_learner(method="moal", options=RELEASED["moal"], train=SHORT), small_stream([2, 3, 1])
    learner.learn(stream[0])
    trained = learner.head.weight.detach().clone()
    learner.begin(stream[1])
    assert (learner.head.weight[:2] - trained).abs().max() > 1e-3
    assert learner.head.weight[:2].ne(0).all()
    assert learner.head.weight[2:].eq(0).all()
    assert learner.head.scale.item() == 1
    learner.head.weight.data.fill_(0.25)
    learner.begin(stream[2])
    assert learner.head.weight.tolist() == [[0.25] * learner.feature_dim] * 5 + [[0.0] * learner.feature_dim]


def test_augmented_images_are_memorised(make_learner: Make) -> None:
    learner, increment = make_learner(method="moal", options=RELEASED["moal"], train=SHORT), small_stream([3])[0]
    learner.learn(increment)
    with torch.no_grad():
        (augmented, again), targets = learner.augmented_features(increment, "a", learner.features, learner.features)
        _, others = learner.augmented_features(increment, "b", learner.features)
        plain, labels = learner.extract_features(increment)
        without_randomness = learner.settings.augmentation.without_randomness()
        learner.settings = replace(learner.settings, augmentation=without_randomness)
        (unchanged,), _ = learner.augmented_features(increment, "a", learner.features)
    assert torch.equal(augmented, again)
    assert sorted(targets.tolist()) == sorted(others.tolist()) == labels.tolist()
    assert not torch.equal(targets, others)
    apart = (unchanged[:, None] - plain).norm(dim=-1)  # every image is there once, with its class
    nearest = apart.argmin(1)
    assert sorted(nearest.tolist()) == list(range(48))
    assert apart.amin(1).max() < 1e-3
    assert torch.equal(labels[nearest], targets)
    assert (augmented - unchanged).norm(dim=1).median() > 0.1


def test_the_ridge_of_the_recursion_cannot_be_chosen_again(make_learner: Make) -> None:
    with pytest.raises(InputError, match="keeps the first step's ridge: set ridge_from=published"):
        make_learner(method="moal", options={"released": True, "ridge_from": "largest"})


# --- CL-LoRA --------------------------------------------------------------------------------------------------------


def test_two_optimiser_steps_on_every_batch(make_learner: Make) -> None:
    """Against a loop with torch's optimiser: distillation, reassigned by hand, then cross-entropy and separation."""
    learner = make_learner(method="cllora", options={"released": True}, train=SHORT)
    stream = small_stream([2, 3])
    learner.learn(stream[0])
    naive = cast(CLLoRA, copy.deepcopy(learner))
    learner.learn(stream[1])

    naive.begin(stream[1])
    naive.train()
    plan = naive.training_plan(stream[1])
    assert plan is not None
    parameters = [p for p in naive.parameters() if p.requires_grad]
    optimiser = torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=plan.optimisation.weight_decay)
    batches = plan.source.batches(torch.device("cpu"))
    ups = [lora.up for lora in naive.shared]  # type: ignore[union-attr]
    teacher_ups = [up.detach().clone() for up in ups]
    for epoch in range(2):
        torch.manual_seed(derive_seed(plan.seed, epoch, "inside the network"))
        batches.start_epoch(derive_seed(plan.seed, epoch, "batches"))
        for group in optimiser.param_groups:
            group["lr"] = plan.optimisation.rate(epoch)
        for _ in range(batches.count):
            images, targets = batches.next()
            student = naive.head(naive.early(images, ups)) / 2
            teacher = naive.head(naive.early(images, teacher_ups)) / 2  # its gradient reaches the head
            distilled = 5 * -(teacher.softmax(1) * student.log_softmax(1)).sum() / len(images)
            optimiser.zero_grad()
            distilled.backward()
            for up, old in zip(ups, teacher_ups, strict=True):
                norms = old.norm(dim=1, keepdim=True)
                up.grad *= old.shape[2] * norms / norms.sum(dim=2, keepdim=True)
            optimiser.step()
            loss = F.cross_entropy(naive.head(naive.features(images)), targets - 2)
            optimiser.zero_grad()
            (loss + 1e-4 * naive.block_similarity()).backward()
            optimiser.step()
    now, expected = learner.state_dict(), naive.state_dict()
    for name in [n for n, p in learner.named_parameters() if p.requires_grad]:
        torch.testing.assert_close(now[name], expected[name], rtol=1e-3, atol=1e-5, msg=name)


def test_steps_that_the_released_code_assumes() -> None:
    assert assumed_spans([2, 5, 6, 10], 3) == [(0, 2), (2, 5), (5, 8), (8, 10)]
    assert assumed_spans([2, 5, 6, 10], 1) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert assumed_spans([4], 3) == [(0, 4)]
    assert assumed_spans([2, 3, 4], 5) == [(0, 2), (2, 4), (4, 4)]


@pytest.mark.parametrize(("increment", "size"), [(1, 1), (2, 2), (9, 9), ("newest", 2)])
@pytest.mark.parametrize("ha", [False, True])
def test_scores_in_spaces_of_assumed_steps(make_learner: Make, increment: int | str, size: int, ha: bool) -> None:
    """Class by class: the mean in a space exists in the class's own step and in earlier ones; later ones score 0."""
    options = {"released": True, "released_increment": increment}
    learner = make_learner(method="cllora", options=options, ha={"use": ha}, train=SHORT)
    own_step, stream = [0, 0, 1, 1, 1, 2, 2], small_stream([2, 3, 2])
    rows, means, plain = [], {}, learner.settings.augmentation.plain
    for step in stream:
        learner.learn(step)
        rows.append(learner.head.classes)
        with torch.no_grad():
            by_step = learner.features_by_step(plain(stream.train.images)).split(learner.feature_dim, dim=1)
        for label in step.classes:
            for space, features in enumerate(by_step):
                means[label, space] = features[stream.train.labels == label].mean(0)
    assert rows == ([2, 3, 2] if increment == "newest" else [2, max(3, size), max(2, size)])
    images = plain(stream.test.images)[:5]
    with torch.no_grad():
        spaces = learner.features_by_step(images).split(learner.feature_dim, dim=1)
        spaces = [features if learner.ha is None else learner.ha(features) for features in spaces]
        scores = learner.logits(images)["prototype"]
    assert scores.shape == (5, 7)
    for label in range(7):
        space = 0 if label < 2 else 1 + (label - 2) // size
        if space > 2:
            assert scores[:, label].eq(-torch.inf).all()
        elif space > own_step[label]:
            assert scores[:, label].eq(0).all()
        else:
            expected = 20 * F.cosine_similarity(spaces[space], means[label, space], dim=1)
            torch.testing.assert_close(scores[:, label], expected, rtol=1e-3, atol=1e-3)


def test_the_true_steps_are_scored_as_usual(make_learner: Make) -> None:
    scores = []
    for increment in (None, 3):
        options = {"released": True, "released_increment": increment}
        learner = make_learner(method="cllora", options=options, train=SHORT)
        for step in small_stream([2, 3, 3]):
            learner.learn(step)
        scores.append(learner.predictions(step)["prototype"])
    assert torch.equal(*scores)
    assert (accuracy(predicted_samples(learner, step)["prototype"]) or 0) > 30


@pytest.mark.parametrize(
    ("released_increment", "flow", "sentence"),
    [
        (None, {"whiten": True}, "released=true goes on if numbers are not finite"),
        (None, {"follow": True}, "released=true goes on if numbers are not finite"),
        (3, {"share": 0.5}, "released_increment scores as the authors' code does"),
        (3, {"enough": 2}, "released_increment scores as the authors' code does"),
        (3, {"comparable": True}, "released_increment scores as the authors' code does"),
    ],
)
def test_the_released_code_refuses_parts_of_flow_that_it_cannot_use(
    make_learner: Make, released_increment: int | None, flow: dict[str, Any], sentence: str
) -> None:
    options = {"released": True, "released_increment": released_increment}
    with pytest.raises(InputError, match=rf"^options\.{sentence}.*: set "):
        make_learner(method="cllora", options=options, flow=flow)


def test_assumed_steps_belong_to_the_released_code(make_learner: Make) -> None:
    with pytest.raises(InputError, match="belongs to the released code: set released=true"):
        make_learner(method="cllora", options={"released_increment": 4})
