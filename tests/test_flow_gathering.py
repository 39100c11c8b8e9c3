"""`flow.growth`: small steps fit rows of the head and leave the network as it is, until enough classes have come."""

import copy
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from conftest import SHORT, Make, OnEpoch, seeded, small_config, small_stream
from ffcil.config.flow import FLOW_PARTS
from ffcil.methods.finetune import Finetune
from ffcil.methods.parts.spaces import gathering_steps
from ffcil.models.new_rows import fit_new_rows
from ffcil.runs.run import Run
from test_run import Bomb, counts, records

RETRAINING = FLOW_PARTS["growth"].methods
SIZES = [6, 1, 1, 2, 3]
"""With a growth of 0.5: the first step trains, then 1 + 1 and 2 more classes wait for 3 of 6, and 3 for 5 of 10."""
TRAINS = [True, False, False, True, False]


def fields(method: str, **flow: Any) -> dict[str, Any]:
    quick = {"bic": {"correction_steps": 2}}
    flow = {"growth": 0.5, **flow}
    return {
        "method": method, "framework": "flow", "flow": flow, "train": SHORT, "memory": {"budget": 26},
        "options": quick.get(method, {}),
    }  # fmt: skip


# --- which steps train ----------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(0, 200))
@example([100, 7], 7)  # 0.07 * 100 > 7 in floating point
def test_a_step_trains_when_enough_classes_have_come(sizes: list[int], percent: int) -> None:
    boundaries = torch.tensor(sizes).cumsum(0).tolist()
    trained, gathered, expected = 0, 0, []
    for size in sizes:
        gathered += size
        expected.append(100 * gathered >= percent * trained)
        if expected[-1]:
            trained, gathered = trained + gathered, 0
    assert gathering_steps(boundaries, growth=percent / 100) == expected


def test_ten_equal_steps_train_at_each_step_under_flow() -> None:
    on = FLOW_PARTS["growth"].on
    assert all(gathering_steps(range(10, 101, 10), growth=on))
    trickle = gathering_steps([10, 20, 30, 40, 50, *range(51, 101)], growth=on)
    assert [step for step, trains in enumerate(trickle) if trains] == [0, 1, 2, 3, 4, 9, 15, 22, 29, 37, 46]


@pytest.mark.parametrize("method", RETRAINING)
def test_small_steps_change_rows_of_new_classes_only(make_learner: Make, method: str) -> None:
    learner, stream = make_learner(**fields(method)), small_stream(SIZES, [8] * sum(SIZES))
    for increment, trains in zip(stream, TRAINS, strict=True):
        before, old = copy.deepcopy(learner.state_dict()), increment.seen_before
        epochs: list[int] = []
        notes = learner.learn(increment, OnEpoch(lambda progress: epochs.append(progress.epoch)))  # noqa: B023
        assert learner.waits == (not trains)
        assert bool(epochs) == trains
        assert bool(notes["trained_parameters"]) == trains
        assert learner.predictions(increment)["linear"].max() < increment.seen_now
        assert [len(rows) for rows in learner.exemplars.by_class] == [26 // increment.seen_now] * increment.seen_now
        after = learner.state_dict()
        network = [name for name in before if name.startswith("backbone.")]
        assert any(not torch.equal(before[name], after[name]) for name in network) == trains
        assert learner.head.weight[old:].isfinite().all()
        if not trains:
            assert after["head.weight"].shape[0] == increment.seen_now
            torch.testing.assert_close(after["head.weight"][:old], before["head.weight"], rtol=0, atol=0)
            assert notes["alignment"] is None


@pytest.mark.parametrize("method", RETRAINING)
def test_the_rows_are_those_of_exemplars_and_new_images(make_learner: Make, method: str) -> None:
    """The stored rows have the smallest regularised loss on the images of the step and the exemplars before it."""
    learner, stream = make_learner(**fields(method)), small_stream(SIZES, [8] * sum(SIZES))
    learner.learn(stream[0])
    kept = learner.kept_rows()
    learner.learn(stream[1])
    rows = torch.cat([kept, stream[1].rows])
    with torch.no_grad():
        features = torch.cat(list(learner.over(stream.train.images, rows, learner.features)))
        logits = learner.head(features).double()
    targets, weight, bias = (
        stream.train.labels[rows],
        learner.head.weight[6:].detach().double(),
        learner.head.bias[6:].detach().double(),
    )
    decay = max(learner.phase(stream[1]).weight_decay, 1e-5)
    best = regularised(features.double(), targets, logits[:, :6], weight, bias, decay)
    for noise in torch.randn(20, 1, weight.shape[1], generator=seeded(), dtype=torch.float64):
        moved = weight + 0.05 * noise
        assert regularised(features.double(), targets, logits[:, :6], moved, bias, decay) > best


@pytest.mark.parametrize("method", RETRAINING)
def test_without_small_steps_nothing_changes(make_learner: Make, method: str) -> None:
    learners = [make_learner(**fields(method, growth=growth)) for growth in (0, 0.5)]
    for increment in small_stream([4, 4], [6] * 8):
        for learner in learners:
            learner.learn(increment)
    state, other = (learner.state_dict() for learner in learners)
    assert all(torch.equal(value, other[name]) for name, value in state.items())


@pytest.mark.parametrize(("method", "growth"), [("finetune", None), ("replay", 0), ("replay", 0.5)])
def test_a_step_with_known_classes_only_trains(make_learner: Make, method: str, growth: float | None) -> None:
    """As in a method with `takes_known_classes`."""
    learner = make_learner(method=method, flow={"growth": growth}, train=SHORT)
    first = small_stream([3], [4] * 3)[0]
    learner.learn(first)
    before = copy.deepcopy(learner.backbone.state_dict())
    notes = learner.learn(replace(first, step=2, seen_before=3))
    assert notes["trained_parameters"] == sum(p.numel() for p in learner.parameters())
    assert not all(torch.equal(value, before[name]) for name, value in learner.backbone.state_dict().items())


def test_only_methods_with_exemplars_retrain(make_learner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without images of old classes, rows of new ones would win everywhere."""
    monkeypatch.setattr(Finetune, "retrains", True)
    with pytest.raises(TypeError, match="Finetune has retrains = True without exemplars: set uses_memory = True"):
        make_learner(method="finetune")


def test_a_training_learns_the_classes_that_waited(make_learner: Make) -> None:
    """The teacher of the next training knows them, and their exemplars are among its images."""
    learner, stream = make_learner(**fields("icarl")), small_stream(SIZES, [8] * sum(SIZES))
    for step in range(3):
        learner.learn(stream[step])
    row = learner.head.weight[6:8].clone()
    learner.begin(stream[3])
    assert learner.teacher.classes == 8
    assert torch.equal(learner.teacher.head.weight[6:8], row)
    labels = stream.train.labels[learner.training_rows(stream[3])]
    assert torch.bincount(labels).tolist() == [26 // 8] * 8 + [8] * 2


@pytest.mark.parametrize("method", RETRAINING)
def test_a_run_is_resumed_while_classes_wait_and_after_it(tmp_path: Path, colours: Path, method: str) -> None:
    settings = small_config(
        **fields(method), dataset="folder", image_size=16, arrivals={"sizes": [2, 1, 1, 2]}, checkpoint_seconds=0
    )
    settings = settings.model_copy(update={"flow": settings.flow.model_copy(update={"growth": 0.9})})
    run = partial(Run, settings, data=colours, device="cpu", threads=1)
    run(tmp_path / "whole").execute()
    for bomb in (Bomb(steps=2), Bomb(epochs=1), Bomb(steps=1)):
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "part", listener=bomb).execute()
    run(tmp_path / "part").execute()
    assert records(tmp_path / "part") == records(tmp_path / "whole")
    assert counts(tmp_path / "part") == counts(tmp_path / "whole")


# --- rows of new classes --------------------------------------------------------------------------------------------


def regularised(features: Tensor, targets: Tensor, logits: Tensor, weight: Tensor, bias: Tensor, decay: float) -> float:
    """Mean over classes of the mean cross-entropy of a class, plus half of `decay` times the squared weights."""
    by_class: dict[int, list[float]] = {}
    for x, y, known in zip(features, targets.tolist(), logits.tolist(), strict=True):
        scores = [*known, *(weight @ x + bias).tolist()]
        highest = max(scores)
        total = highest + math.log(sum(math.exp(score - highest) for score in scores))
        by_class.setdefault(y, []).append(total - scores[y])
    loss = sum(sum(values) / len(values) for values in by_class.values()) / len(by_class)
    return loss + decay / 2 * float(weight.square().sum())


def images(counts: list[int], width: int = 5) -> tuple[Tensor, Tensor]:
    """Overlapping clouds, one for each class with its number of images."""
    targets = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    centres = torch.randn(len(counts), width, generator=seeded(1))
    return centres[targets] + torch.randn(len(targets), width, generator=seeded(2)), targets


def test_rows_of_new_classes_have_the_smallest_loss() -> None:
    features, targets = images([9, 2, 5, 20])
    old = nn.Linear(5, 2)
    logits = old(features).detach()
    weight, bias = fit_new_rows(features, targets, logits, 4, decay=0.01)
    inputs = features.double(), targets, logits.double()
    best = regularised(*inputs, weight, bias, 0.01)
    parameters = torch.cat([weight, bias[:, None]], dim=1)
    for place in torch.cartesian_prod(torch.arange(2), torch.arange(6)).tolist():
        for step in (1e-3, -1e-3):
            moved = parameters.clone()
            moved[place[0], place[1]] += step
            assert regularised(*inputs, moved[:, :5], moved[:, 5], 0.01) > best


def test_the_number_of_images_of_a_class_does_not_matter() -> None:
    features, targets = images([6, 6, 6])
    logits = nn.Linear(5, 2)(features).detach()
    repeated = torch.cat([torch.arange(18), torch.arange(12, 18), torch.arange(12, 18)])  # the last class three times
    once, thrice = (fit_new_rows(features[r], targets[r], logits[r], 3, 0.01) for r in (torch.arange(18), repeated))
    torch.testing.assert_close(once, thrice, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counts", [[4, 4, 1], [0, 5, 3], [1, 1, 1]])
def test_few_images_give_finite_rows(counts: list[int]) -> None:
    features, targets = images(counts)
    weight, bias = fit_new_rows(1000 * features, targets, nn.Linear(5, 2)(features).detach(), 3, decay=1e-5)
    assert weight.isfinite().all()
    assert bias.isfinite().all()


@pytest.mark.parametrize(("classes", "decay"), [(2, 0.1), (1, 0.1), (3, 0.0)])
def test_rows_that_cannot_be_fitted_are_refused(classes: int, decay: float) -> None:
    features, targets = images([3, 3])
    with pytest.raises(ValueError, match=rf"classes={classes} must be above 2, and decay={decay} above 0"):
        fit_new_rows(features, targets, torch.zeros(6, 2), classes, decay)
