"""Every registered method through the same table of hard streams, with and without the framework."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import Make, begin_second_step, seeded, small_config, small_stream
from ffcil.alignment import row_norms
from ffcil.errors import InputError
from ffcil.methods import METHODS, register
from ffcil.methods.der import DER
from ffcil.methods.framework import Framework
from ffcil.methods.icarl import ICaRL
from ffcil.methods.learner import Learner
from ffcil.runs.run import evaluate

STREAMS: dict[str, tuple[list[int], list[int] | None]] = {
    "one class at every step": ([1, 1, 1, 1], None),
    "one class first": ([1, 4], None),
    "all at once": ([5], None),
    "growing": ([1, 2, 3], None),
    "shrinking": ([3, 2, 1], None),
    "a class with one image": ([2, 1, 2], [16, 1, 16, 1, 16]),
}


def final_accuracy(learner: Learner, sizes: Sequence[int], per_class: Sequence[int] | None = None) -> dict[str, float]:
    counts = {}
    for increment in small_stream(sizes, per_class):
        notes = learner.learn(increment)
        assert np.isfinite(notes["loss"])
        counts = evaluate(learner, increment)
        for table in counts.values():
            assert table.classes == increment.seen_now
            assert table.values.sum() == len(increment.test_rows)
    for tensor in learner.state_dict().values():
        assert tensor.isfinite().all()
    return {name: table.diagonal.sum() / table.values.sum() for name, table in counts.items()}


@pytest.mark.parametrize("robust", [False, True], ids=["original", "robust"])
@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_hard_streams(make_learner: Make, method: str, stream: str, robust: bool) -> None:
    sizes, per_class = STREAMS[stream]
    learner = make_learner(method=method, robust=robust)
    accuracy = final_accuracy(learner, sizes, per_class)
    assert set(accuracy) == set(learner.classifiers)
    if METHODS[method].uses_memory or method == "joint":  # what remembers is well above chance on these easy images
        assert max(accuracy.values()) > 1.5 / sum(sizes)


def test_finetune_forgets_and_joint_does_not(make_learner: Make) -> None:
    sizes = [3, 3]
    forgetful = final_accuracy(make_learner(method="finetune"), sizes)["linear"]
    upper = final_accuracy(make_learner(method="joint"), sizes)["linear"]
    assert forgetful <= 0.55
    assert upper >= 0.9


@pytest.mark.parametrize("method", sorted(METHODS))
def test_predicting_changes_nothing(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method)
    increment = next(iter(small_stream([3])))
    learner.learn(increment)
    before = copy.deepcopy(learner.state())
    first, second = learner.predictions(increment), learner.predictions(increment)
    for name in learner.classifiers:
        assert torch.equal(first[name], second[name])
    for name, tensor in learner.state()["modules"].items():
        assert torch.equal(tensor, before["modules"][name]), name


@pytest.mark.parametrize("method", sorted(METHODS))
def test_logits_may_be_asked_for_at_any_time(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method)
    learner.learn(next(iter(small_stream([3]))))
    before = copy.deepcopy(learner.state_dict())
    learner.logits(torch.randn(4, 3, 16, 16))
    for name, tensor in learner.state_dict().items():
        assert torch.equal(tensor, before[name]), name


def test_the_upper_bound_is_not_aligned(make_learner: Make) -> None:
    learner = make_learner(method="joint", robust=True)
    assert [learner.learn(increment)["alignment"] for increment in small_stream([2, 2])] == [None, None]


def test_a_budget_below_one_exemplar_a_class(make_learner: Make) -> None:
    learner = make_learner(method="replay", memory={"budget": 3})
    with pytest.raises(InputError, match="less than one exemplar for each of 4 classes"):
        learner.learn(small_stream([4])[0])


def test_the_teacher_is_the_network_of_the_step_before(make_learner: Make) -> None:
    learner = make_learner(method="icarl")
    assert isinstance(learner, ICaRL)
    stream = small_stream([2, 3])
    learner.learn(stream[0])
    backbone, head = copy.deepcopy(learner.backbone.state_dict()), learner.head.weight.detach().clone()
    learner.learn(stream[1])
    for name, tensor in learner.teacher.backbone.state_dict().items():
        assert torch.equal(tensor, backbone[name]), name  # batch-norm buffers too
    assert torch.equal(learner.teacher.head.weight, head)
    assert not any(p.requires_grad for p in learner.teacher.parameters())


def test_icarls_loss_by_hand(make_learner: Make) -> None:
    learner = make_learner(method="icarl", options={"temperature": 2.0}, reduction="class_wise_mean")
    assert isinstance(learner, ICaRL)
    stream = small_stream([2, 2])
    learner.learn(stream[0])
    learner.begin(stream[1])
    learner.eval()
    images, targets = torch.randn(5, 3, 16, 16), torch.tensor([0, 2, 2, 3, 2])
    with torch.no_grad():
        logits = (
            learner.logits(images)["linear"] if len(learner.exemplars.means) else learner.head(learner.features(images))
        )
        soft = (learner.teacher(images) / 2).softmax(1)
        of_class: dict[int, list[float]] = {}
        for k in range(5):
            ce = -logits[k].log_softmax(0)[targets[k]].item()
            kd = -(soft[k] * (logits[k, :2] / 2).log_softmax(0)).sum().item()
            of_class.setdefault(int(targets[k]), []).append(ce + kd)
        expected = sum(sum(v) / len(v) for v in of_class.values()) / len(of_class)
        assert learner.loss(images, targets).item() == pytest.approx(expected, rel=1e-5)


def test_nearest_mean_by_hand(make_learner: Make) -> None:
    learner = make_learner(method="icarl", memory={"budget": 12})
    assert isinstance(learner, ICaRL)
    stream = small_stream([2, 2])
    for increment in stream:
        learner.learn(increment)
    assert [len(rows) for rows in learner.exemplars.by_class] == [3, 3, 3, 3]
    learner.eval()
    plain = learner.settings.augmentation.plain
    with torch.no_grad():
        means = []
        for rows in learner.exemplars.by_class:  # exemplars only, with the network of now
            assert len(set(stream.train.labels[rows].tolist())) == 1
            features = learner.features(plain(stream.train.images[rows]))
            mean = (features / features.norm(dim=1, keepdim=True)).mean(0)
            means.append(mean / mean.norm())
        features = learner.features(plain(stream.test.images))
        unit = features / features.norm(dim=1, keepdim=True)
        distances = torch.cdist(unit, torch.stack(means))
    predicted = learner.predictions(stream[1])["nearest-mean"]
    assert torch.equal(predicted, distances.argmin(1)[stream[1].test_rows])


@pytest.mark.parametrize(("alignment", "aligned"), [("none", False), ("wa", True)])
def test_alignment_is_applied_once_after_training(make_learner: Make, alignment: str, aligned: bool) -> None:
    learner = make_learner(method="icarl", alignment=alignment)
    assert isinstance(learner, ICaRL)
    stream = small_stream([3, 2])
    first = learner.learn(stream[0])
    assert first["alignment"] is None
    assert first["row_norms"] is None
    second = learner.learn(stream[1])
    note = second["alignment"]
    assert (note is not None) == aligned
    if aligned:  # the norms are those before
        assert second["row_norms"] == (note["old_norm"], note["new_norm"])
    else:
        assert second["row_norms"] == row_norms(learner.head.weight, 3)
    old, new = row_norms(learner.head.weight, 3)
    assert (abs(old - new) < 1e-5) == aligned


@pytest.mark.parametrize(
    ("fields", "reduction", "alignment"),
    [
        ({}, "mean", "wa"),
        ({"robust": True}, "class_wise_mean", "diwa"),
        ({"robust": True, "alignment": "none"}, "class_wise_mean", "none"),
        ({"robust": True, "reduction": "mean"}, "mean", "diwa"),
        ({"reduction": "class_wise_mean"}, "class_wise_mean", "wa"),
    ],
)
def test_robust_is_both_parts_and_each_can_be_set_alone(
    fields: dict[str, object], reduction: str, alignment: str
) -> None:
    resolved = Framework.resolve(small_config(**fields), ICaRL.own_alignment)
    assert (resolved.reduction_name, resolved.alignment) == (reduction, alignment)


def test_the_same_seed_gives_the_same_learner_and_another_does_not(make_learner: Make) -> None:
    def trained(seed: int) -> torch.Tensor:
        learner = make_learner(method="icarl", train_seed=seed)
        assert isinstance(learner, ICaRL)
        for increment in small_stream([2, 2]):
            learner.learn(increment)
        return learner.head.weight.detach()

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_two_methods_of_one_name() -> None:
    with pytest.raises(ValueError, match="Two methods"):
        register("icarl")(ICaRL)


def test_a_field_that_a_method_does_not_have(make_learner: Make) -> None:
    with pytest.raises(InputError, match=r"did you mean 'options.temperature'"):
        make_learner(method="icarl", options={"temprature": 3})
    with pytest.raises(InputError, match=r"temperature.*greater than 0"):
        make_learner(method="icarl", options={"temperature": -3})


def plain_icarl(learner: Learner, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """As a method without the framework would write it, with torch's own means."""
    assert isinstance(learner, ICaRL)
    logits, old = learner.head(learner.features(images)), learner.teacher.classes
    loss = F.cross_entropy(logits, targets)
    if old:
        loss = loss + F.cross_entropy(logits[:, :old] / 2, (learner.teacher(images) / 2).softmax(1))
    return loss


def plain_der(learner: Learner, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    assert isinstance(learner, DER)
    features = learner.features(images)
    loss = F.cross_entropy(learner.head(features), targets)
    if learner.frozen:
        newest, old = features[:, 64 * len(learner.frozen) :], learner.boundaries[-2]
        among_new = torch.where(targets < old, 0, targets - old + 1)
        loss = loss + F.cross_entropy(learner.auxiliary(newest), among_new)
    return loss


@pytest.mark.parametrize(("method", "plain"), [("icarl", plain_icarl), ("der", plain_der)])
def test_with_the_framework_off_a_method_is_what_it_is_without(
    make_learner: Make, monkeypatch: pytest.MonkeyPatch, method: str, plain: Callable[..., torch.Tensor]
) -> None:
    short = {"epochs": 2, "learning_rate": 0.02}

    def trained(own_loss: bool) -> dict[str, torch.Tensor]:
        learner = make_learner(method=method, alignment="none", train={"first": short, "later": short})
        if not own_loss:
            monkeypatch.setattr(learner, "loss", lambda images, targets: plain(learner, images, targets))
        for increment in small_stream([2, 2]):
            learner.learn(increment)
        return learner.state_dict()

    ours, theirs = trained(True), trained(False)
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("method", ["icarl", "der", "memo", "tagfex"])
def test_on_balanced_batches_the_class_wise_mean_is_the_mean(make_learner: Make, method: str) -> None:
    stream = small_stream([2, 2])
    losses = []
    for reduction in ("mean", "class_wise_mean"):
        learner = make_learner(method=method, reduction=reduction)
        for increment in stream:
            learner.begin(increment)
        images = torch.randn(8, 3, 16, 16, generator=seeded(1))
        losses.append(learner.eval().loss(images, torch.tensor([0, 1, 2, 3] * 2)).item())  # type: ignore[operator]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("method", ["icarl", "der", "memo", "tagfex"])
def test_diwa_at_full_strength_is_weight_alignment(make_learner: Make, method: str) -> None:
    heads = []
    for fields in ({"alignment": "wa"}, {"alignment": "diwa", "diwa": {"eta_min": 1.0}}):
        learner = make_learner(method=method, **fields)
        for increment in small_stream([2, 1]):
            learner.learn(increment)
        heads.append(learner.head.weight.detach())  # type: ignore[union-attr]
    assert torch.equal(*heads)
