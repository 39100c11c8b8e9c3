"""All registered methods on hard streams, with and without the framework, and what they have in common."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from conftest import SHORT, Make, begin_second_step, seeded, small_config, small_stream
from ffcil.alignment import row_norms
from ffcil.errors import InputError
from ffcil.methods import METHODS, register
from ffcil.methods.conventional import Conventional
from ffcil.methods.framework import Framework
from ffcil.methods.icarl import ICaRL
from ffcil.methods.learner import Learner
from ffcil.runs.run import evaluate
from ffcil.stream import Increment, Stream
from oracles import Samples, accuracy, cross_entropy, distillation, predicted_samples, reduced

STREAMS: dict[str, tuple[list[int], list[int] | None]] = {
    "one class at every step": ([1, 1, 1, 1], None),
    "one class first": ([1, 4], None),
    "all at once": ([5], None),
    "classes with one image": ([3, 1, 2], [32, 1, 32, 32, 1, 32]),
}


def assert_floors(method: type[Learner], stream: Stream, increment: Increment, samples: Samples) -> None:
    """Compare the accuracy after a step with a floor that depends on the kind of method only.

    - A method with exemplars, a pre-trained method and the upper bound know all classes at the end of the stream.
    - The lower bound knows the new classes after every step.
    - Other methods distinguish the classes of the first step that has several. Later classes may be mistaken for old
      ones, and cross-entropy over a single class teaches nothing.

    Classes with one training image are left out. A constant or an untrained classifier of n classes has an accuracy of
    about 1 / n. Each floor is a share of the way from there to 1, about half of the lowest share over three seeds.
    """
    counts = stream.train.counts()
    new = {step.step: [label for label in step.classes if counts[label] > 1] for step in stream}

    def check(classes: list[int], share: float) -> None:
        chance, reached = 1 / max(2, len(classes)), (accuracy(samples, classes) or 0.0) / 100
        message = f"accuracy {reached:.2f} on classes {classes} after step {increment.step}"
        assert reached > chance + share * (1 - chance), message

    if method.uses_memory or method.pretrained or method.bound == "upper":
        share = 0.5 if method.bound == "upper" else 0.2 if method.pretrained else 0.35
        if increment.step == len(stream):
            check([label for labels in new.values() for label in labels], share)
    elif method.bound == "lower" or increment.step == next((k for k, labels in new.items() if len(labels) > 1), None):
        check(new[increment.step], 0.5)


HARDEST = ("one class at every step", "one class first", "classes with one image")
"""Streams in which the parts of the frameworks have the least to work with."""
CASES = [
    *(("none", stream) for stream in STREAMS),
    *(("paper", stream) for stream in HARDEST),
    *(("flow", stream) for stream in (*HARDEST, "all at once")),  # the one step with enough classes to tune a network
]


@pytest.mark.parametrize(("framework", "stream"), CASES)
@pytest.mark.parametrize("method", sorted(METHODS))
def test_hard_streams(make_learner: Make, method: str, stream: str, framework: str) -> None:
    learner, increments = make_learner(method=method, framework=framework), small_stream(*STREAMS[stream])
    for increment in increments:
        assert np.isfinite(learner.learn(increment)["loss"])
        counts, samples = evaluate(learner, increment), predicted_samples(learner, increment)
        assert set(counts) == set(samples) == set(learner.classifiers)
        for name, table in counts.items():
            assert (table.classes, table.values.sum()) == (increment.seen_now, len(increment.test_rows))
            assert table.diagonal.sum() == sum(true == predicted for true, predicted in samples[name])
            assert_floors(type(learner), increments, increment, samples[name])
    for tensor in learner.state_dict().values():
        assert tensor.isfinite().all()


@pytest.mark.parametrize("method", ["replay", "joint", "finetune", "lwf"])
def test_untrained_learners_are_below_the_floors(make_learner: Make, method: str) -> None:
    phase = {"epochs": 1, "learning_rate": 1e-9}
    learner, stream = make_learner(method=method, train={"first": phase, "later": phase}), small_stream([6])
    learner.learn(stream[0])
    samples = predicted_samples(learner, stream[0])["linear"]
    with pytest.raises(AssertionError, match="accuracy"):
        assert_floors(type(learner), stream, stream[0], samples)


@pytest.mark.parametrize("method", sorted(METHODS))
def test_constant_predictions_are_below_the_floors(method: str) -> None:
    stream = small_stream([1, 3])
    labels = stream.test.labels[stream[1].test_rows].tolist()
    for constant in range(4):
        with pytest.raises(AssertionError, match="accuracy"):
            assert_floors(METHODS[method], stream, stream[1], [(true, constant) for true in labels])


def test_the_lower_bound_forgets(make_learner: Make) -> None:
    learner, stream = make_learner(method="finetune"), small_stream([3, 3])
    for increment in stream:
        learner.learn(increment)
    assert (accuracy(predicted_samples(learner, stream[1])["linear"]) or 0) <= 55


@pytest.mark.parametrize("method", sorted(METHODS))
def test_predicting_changes_nothing(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train=SHORT)
    increment = small_stream([3])[0]
    learner.learn(increment)
    before = copy.deepcopy(learner.state())
    first, second = learner.predictions(increment), learner.predictions(increment)
    for name in learner.classifiers:
        assert torch.equal(first[name], second[name])
    learner.logits(torch.randn(4, 3, 16, 16))
    for name, tensor in learner.state()["modules"].items():
        assert torch.equal(tensor, before["modules"][name]), name


def test_the_upper_bound_is_not_aligned(make_learner: Make) -> None:
    learner = make_learner(method="joint", framework="paper")
    assert [learner.learn(increment)["alignment"] for increment in small_stream([2, 2])] == [None, None]


def test_a_budget_below_one_exemplar_per_class_is_an_error(make_learner: Make) -> None:
    learner = make_learner(method="replay", memory={"budget": 3})
    with pytest.raises(InputError, match="less than one exemplar for each of 4 classes"):
        learner.learn(small_stream([4])[0])


def test_the_teacher_is_the_network_of_the_previous_step(make_learner: Make) -> None:
    learner = make_learner(method="icarl")
    stream = small_stream([2, 3])
    learner.learn(stream[0])
    backbone, head = copy.deepcopy(learner.backbone.state_dict()), learner.head.weight.detach().clone()
    learner.learn(stream[1])
    for name, tensor in learner.teacher.backbone.state_dict().items():
        assert torch.equal(tensor, backbone[name]), name  # also batch-norm statistics
    assert torch.equal(learner.teacher.head.weight, head)
    assert not any(p.requires_grad for p in learner.teacher.parameters())


def test_loss_of_icarl(make_learner: Make) -> None:
    learner = make_learner(method="icarl", options={"temperature": 2.0}, reduction="class_wise_mean")
    begin_second_step(learner, (2, 2))
    images, targets = torch.randn(5, 3, 16, 16), [0, 2, 2, 3, 2]
    with torch.no_grad():
        values = [
            cross_entropy(logits, target) + distillation(logits[:2], teacher)
            for logits, teacher, target in zip(
                learner.head(learner.features(images)), learner.teacher(images), targets, strict=True
            )
        ]
        expected = float(reduced(values, targets, "class_wise_mean"))
        assert learner.loss(images, torch.tensor(targets)).item() == pytest.approx(expected, rel=1e-5)


def test_nearest_mean_classifier(make_learner: Make) -> None:
    learner = make_learner(method="icarl", memory={"budget": 12})
    stream = small_stream([2, 2])
    for increment in stream:
        learner.learn(increment)
    assert [len(rows) for rows in learner.exemplars.by_class] == [3, 3, 3, 3]
    learner.eval()
    plain = learner.settings.augmentation.plain
    with torch.no_grad():
        means = []
        for rows in learner.exemplars.by_class:  # of exemplars only, with the current network
            assert len(set(stream.train.labels[rows].tolist())) == 1
            features = learner.features(plain(stream.train.images[rows]))
            mean = (features / features.norm(dim=1, keepdim=True)).mean(0)
            means.append(mean / mean.norm())
        features = learner.features(plain(stream.test.images))
        unit = features / features.norm(dim=1, keepdim=True)
        distances = torch.stack([(unit - mean).norm(dim=1) for mean in means], dim=1)[stream[1].test_rows]
    predicted = learner.predictions(stream[1])["nearest-mean"]
    torch.testing.assert_close(distances.gather(1, predicted[:, None])[:, 0], distances.amin(1), rtol=0, atol=1e-4)
    assert distances.std(dim=1).min() > 1e-3  # the nearest mean is not a matter of rounding


@pytest.mark.parametrize(("alignment", "aligned"), [("none", False), ("wa", True)])
def test_alignment_is_applied_once_after_training(make_learner: Make, alignment: str, aligned: bool) -> None:
    learner = make_learner(method="icarl", alignment=alignment)
    stream = small_stream([3, 2])
    first = learner.learn(stream[0])
    assert first["alignment"] is None
    assert first["row_norms"] is None
    second = learner.learn(stream[1])
    note = second["alignment"]
    assert (note is not None) == aligned
    if aligned:  # norms before the alignment
        assert second["row_norms"] == (note["old_norm"], note["new_norm"])
    else:
        assert second["row_norms"] == row_norms(learner.head.weight, 3)
    old, new = row_norms(learner.head.weight, 3)
    assert (abs(old - new) < 1e-5) == aligned


@pytest.mark.parametrize(
    ("fields", "reduction", "alignment"),
    [
        ({}, "mean", "wa"),
        ({"framework": "paper"}, "class_wise_mean", "diwa"),
        ({"framework": "paper", "alignment": "none"}, "class_wise_mean", "none"),
        ({"framework": "paper", "reduction": "mean"}, "mean", "diwa"),
        ({"reduction": "class_wise_mean"}, "class_wise_mean", "wa"),
    ],
)
def test_the_framework_sets_both_parts_and_each_can_be_set_alone(
    fields: dict[str, object], reduction: str, alignment: str
) -> None:
    resolved = Framework.resolve(small_config(**fields), ICaRL.own_alignment)
    assert (resolved.reduction_name, resolved.alignment) == (reduction, alignment)


def test_a_learner_is_determined_by_its_seed(make_learner: Make) -> None:
    def trained(seed: int) -> torch.Tensor:
        learner = make_learner(method="icarl", train_seed=seed)
        for increment in small_stream([2, 2]):
            learner.learn(increment)
        return learner.head.weight.detach()

    assert torch.equal(trained(1), trained(1))
    assert not torch.equal(trained(1), trained(2))


def test_two_methods_with_one_name_are_an_error() -> None:
    with pytest.raises(ValueError, match="Two methods"):
        register("icarl")(ICaRL)


def test_a_method_without_a_title_or_of_another_class_is_an_error() -> None:
    class Untitled(Conventional):
        pass

    for wrong, message in ((Untitled, "no title: give its class Untitled"), (torch.nn.Linear, "Linear, .* no Learner")):
        with pytest.raises(InputError, match=message):
            register("mine")(wrong)  # type: ignore[type-var]
    assert "mine" not in METHODS


def test_an_unknown_field_of_a_method_is_an_error(make_learner: Make) -> None:
    with pytest.raises(InputError, match=r"did you mean 'options.temperature'"):
        make_learner(method="icarl", options={"temprature": 3})
    with pytest.raises(InputError, match=r"^Bad value for options.temperature: Input should be greater than 0"):
        make_learner(method="icarl", options={"temperature": -3})
    with pytest.raises(InputError, match=r"^Bad value for options: adapt=first moves kept features: set "):
        make_learner(method="anyarrival", options={"adapt": "first", "keep": "statistics"})


def plain_icarl(learner: Learner, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The loss without the framework, with means of torch."""
    logits, old = learner.head(learner.features(images)), learner.teacher.classes
    loss = F.cross_entropy(logits, targets)
    if old:
        loss = loss + F.cross_entropy(logits[:, :old] / 2, (learner.teacher(images) / 2).softmax(1))
    return loss


def plain_der(learner: Learner, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    features = learner.features(images)
    loss = F.cross_entropy(learner.head(features), targets)
    if learner.frozen:
        newest, old = features[:, 64 * len(learner.frozen) :], learner.boundaries[-2]
        among_new = torch.where(targets < old, 0, targets - old + 1)
        loss = loss + F.cross_entropy(learner.auxiliary(newest), among_new)
    return loss


@pytest.mark.parametrize(("method", "plain"), [("icarl", plain_icarl), ("der", plain_der)])
def test_training_without_the_framework_equals_plain_losses(
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
def test_class_wise_mean_equals_mean_on_balanced_batches(make_learner: Make, method: str) -> None:
    stream = small_stream([2, 2])
    losses = []
    for reduction in ("mean", "class_wise_mean"):
        learner = make_learner(method=method, reduction=reduction)
        for increment in stream:
            learner.begin(increment)
        images = torch.randn(8, 3, 16, 16, generator=seeded(1))
        losses.append(learner.eval().loss(images, torch.tensor([0, 1, 2, 3] * 2)).item())  # type: ignore[operator]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.parametrize("method", ["icarl", "der", "memo", "tagfex"])
def test_diwa_at_full_strength_equals_weight_alignment(make_learner: Make, method: str) -> None:
    heads = []
    for fields in ({"alignment": "wa"}, {"alignment": "diwa", "diwa": {"eta_min": 1.0}}):
        learner = make_learner(method=method, train=SHORT, **fields)
        for increment in small_stream([2, 1]):
            learner.learn(increment)
        heads.append(learner.head.weight.detach())  # type: ignore[union-attr]
    assert torch.equal(*heads)
