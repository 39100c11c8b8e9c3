"""DER, MEMO and TagFex compared with plain computations; frozen parts do not change."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from conftest import AUGMENTATION, SHORT, Make, begin_second_step, seeded, small_stream
from ffcil.alignment import row_norms
from ffcil.losses import ClassCentres
from ffcil.methods import Learner
from ffcil.methods.der import DER
from ffcil.methods.memo import MEMO
from ffcil.methods.tagfex import MergeAttention, TagFex, contrast
from ffcil.stream import Increment, Stream
from ffcil.training.engine import evaluating
from oracles import class_means, cross_entropy, reduced

EXPANDING = ["der", "memo", "tagfex"]


def at_second_step(make: Make, method: str, **overrides: Any) -> DER | MEMO | TagFex:
    learner = make(method=method, train=SHORT, **overrides)
    begin_second_step(learner)
    return learner


@pytest.mark.parametrize("method", EXPANDING)
def test_the_default_alignment_is_weight_alignment(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train=SHORT)
    notes = [learner.learn(increment)["alignment"] for increment in small_stream([2, 2])]
    assert notes[0] is None
    assert notes[1]["eta"] == 1
    old, new = row_norms(learner.head.weight, 2)  # type: ignore[arg-type, union-attr]
    assert old == pytest.approx(new, rel=1e-4)


@pytest.mark.parametrize("method", EXPANDING)
def test_frozen_extractors_do_not_change(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train=SHORT)
    seen: list[dict[str, Tensor]] = []
    for increment in small_stream([2, 1, 2]):
        learner.learn(increment)
        assert len(learner.frozen) == increment.step - 1
        for frozen, before in zip(learner.frozen, seen, strict=True):
            for name, tensor in frozen.state_dict().items():
                assert torch.equal(tensor, before[name]), name  # also batch-norm statistics
        part = learner.backbone.upper if method == "memo" else learner.backbone
        seen.append(copy.deepcopy(part.state_dict()))
    assert not any(parameter.requires_grad for parameter in learner.frozen.parameters())
    assert any((seen[0][name] != seen[1][name]).any() for name in seen[0])


@pytest.mark.parametrize("method", ["der", "memo"])
def test_a_new_extractor_starts_as_a_copy_of_the_previous_one(make_learner: Make, method: str) -> None:
    learner = at_second_step(make_learner, method)
    part = learner.backbone.upper if isinstance(learner, MEMO) else learner.backbone
    for name, tensor in part.state_dict().items():
        assert torch.equal(tensor, learner.frozen[0].state_dict()[name]), name


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
@pytest.mark.parametrize("method", ["der", "memo"])
def test_losses_of_der_and_memo(make_learner: Make, method: str, reduction: str) -> None:
    learner = at_second_step(make_learner, method, reduction=reduction, options={"auxiliary_weight": 0.7})
    with torch.no_grad():  # make the frozen and the trained extractor differ
        for parameter in learner.backbone.parameters():
            parameter.mul_(1.1)
    images, targets = torch.randn(7, 3, 16, 16), [0, 2, 4, 4, 3, 2, 2]
    values = []
    with torch.no_grad():
        for image, target in zip(images, targets, strict=True):
            x = image[None]
            if isinstance(learner, MEMO):
                maps = learner.backbone.lower(x)
                old, new = (stage(maps).mean((2, 3))[0] for stage in (learner.frozen[0], learner.backbone.upper))
            else:
                old, new = learner.frozen[0](x)[0], learner.backbone(x)[0]
            logits = learner.head.weight @ torch.cat([old, new]) + learner.head.bias
            among_new = learner.auxiliary.weight @ new + learner.auxiliary.bias
            values.append(cross_entropy(logits, target) + 0.7 * cross_entropy(among_new, max(0, target - 1)))
        got = learner.loss(images, torch.tensor(targets)).item()
    assert got == pytest.approx(float(reduced(values, targets, reduction)), rel=1e-4)


def test_memo_trains_the_shared_network_through_frozen_stages(make_learner: Make) -> None:
    learner = at_second_step(make_learner, "memo", options={"auxiliary_weight": 0.0})
    width = learner.backbone.feature_dim
    learner.head.weight.data[:, width:] = 0  # the head uses the frozen stage only
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])).backward()
    of_lower = [parameter.grad for parameter in learner.backbone.lower.parameters()]
    assert all(grad is not None for grad in of_lower)
    assert sum(grad.abs().sum().item() for grad in of_lower if grad is not None) > 0
    assert all(parameter.grad is None for parameter in learner.frozen.parameters())


def test_memo_can_freeze_the_shared_network(make_learner: Make) -> None:
    learner = make_learner(method="memo", options={"train_base": False}, train=SHORT)
    stream = small_stream([2, 2])
    learner.learn(stream[0])
    before = copy.deepcopy(learner.backbone.lower.state_dict())
    learner.learn(stream[1])
    for name, tensor in learner.backbone.lower.state_dict().items():
        assert torch.equal(tensor, before[name]), name


# --- TagFex ---------------------------------------------------------------------------------------------------------


def naive_contrast(anchors: Tensor, others: Tensor, temperature: float) -> float:
    rows, half = len(anchors), len(anchors) // 2
    total = 0.0
    for i in range(rows):
        scores = {
            j: F.cosine_similarity(anchors[i].double(), others[j].double(), dim=0).item() / temperature
            for j in range(rows)
            if j != i
        }
        positive = i + half if i < half else i - half
        total += torch.tensor(list(scores.values())).logsumexp(0).item() - scores[positive]
    return total / rows


def test_contrastive_loss() -> None:
    anchors, others = torch.randn(10, 6), torch.randn(10, 6)
    assert contrast(anchors, others, 0.2).item() == pytest.approx(naive_contrast(anchors, others, 0.2), rel=1e-4)
    assert contrast(anchors, anchors, 0.2).item() == pytest.approx(naive_contrast(anchors, anchors, 0.2), rel=1e-4)


def naive_merge(merge: MergeAttention, specific: Tensor, agnostic: Tensor) -> Tensor:
    """Merged features of one image, from two maps [D, h, w], head by head."""
    width = len(specific)
    ours = F.layer_norm(specific.flatten(1).T, (width,))
    theirs = F.layer_norm(agnostic.flatten(1).T, (width,))
    query = ours @ merge.query.weight.T
    key = torch.cat([ours @ merge.key_specific.weight.T, theirs @ merge.key_agnostic.weight.T])
    value = torch.cat([ours @ merge.value_specific.weight.T, theirs @ merge.value_agnostic.weight.T])
    size = width // merge.heads
    heads = []
    for head in range(merge.heads):
        columns = slice(head * size, (head + 1) * size)
        attention = (query[:, columns] @ key[:, columns].T / size**0.5).softmax(dim=1)
        heads.append((attention @ value[:, columns]).mean(0))
    return torch.cat(heads)


def test_merge_attention() -> None:
    merge = MergeAttention(16, heads=4)
    specific, agnostic = torch.randn(3, 16, 2, 3), torch.randn(3, 16, 2, 3)
    expected = torch.stack([naive_merge(merge, s, a) for s, a in zip(specific, agnostic, strict=True)])
    torch.testing.assert_close(merge(specific, agnostic), expected)


@pytest.mark.parametrize("targets", [[0, 2, 4, 3, 2, 2], [1, 0, 1, 1, 0, 0], [4, 4, 4, 4, 4, 4]], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_loss_of_tagfex(make_learner: Make, reduction: str, targets: list[int]) -> None:
    """For batches with old and new classes, with old classes only, and with new classes only."""
    learner = at_second_step(make_learner, "tagfex", reduction=reduction)
    with torch.no_grad():
        learner.merge_head.weight.mul_(4)
        for network in (learner.agnostic, learner.projector):
            for parameter in network.parameters():
                parameter.mul_(1.05)  # make them differ from their copies of the previous step
    views, both = torch.randn(12, 3, 16, 16), [*targets, *targets]
    old = 2
    with torch.no_grad():
        maps = learner.backbone.upper(learner.backbone.lower(views))
        of_agnostic_maps = learner.agnostic.upper(learner.agnostic.lower(views))
        new, of_agnostic = maps.mean((2, 3)), of_agnostic_maps.mean((2, 3))
        logits = torch.cat([learner.frozen[0](views), new], 1) @ learner.head.weight.T + learner.head.bias
        merged = torch.stack([naive_merge(learner.merge, m, a) for m, a in zip(maps, of_agnostic_maps, strict=True)])  # type: ignore[arg-type]
        merged_logits = merged @ learner.merge_head.weight.T + learner.merge_head.bias
        auxiliary = new @ learner.auxiliary.weight.T + learner.auxiliary.bias
        main = reduced([cross_entropy(z, y) for z, y in zip(logits, both, strict=True)], both, reduction)
        among_new = [cross_entropy(z, max(0, y - old + 1)) for z, y in zip(auxiliary, both, strict=True)]
        aux = reduced(among_new, both, reduction)
        embedding = learner.projector(of_agnostic)
        nce = naive_contrast(embedding, embedding, 0.2)
        before = learner.old_projector(learner.old_agnostic(views))
        kept = naive_contrast(learner.old_projector(learner.predictor(of_agnostic)), before, 0.2)
        fresh = [i for i, y in enumerate(both) if y >= old]
        of_fresh = [both[i] for i in fresh]
        trans = reduced([cross_entropy(merged_logits[i], both[i] - old) for i in fresh], of_fresh, reduction)
        divergences = [
            F.kl_div((logits[i, old:] / 2).log_softmax(0), (merged_logits[i] / 2).softmax(0), reduction="sum").item()
            for i in fresh
        ]
        transfer = reduced(divergences, of_fresh, reduction) if trans < main else 0.0
        expected = main + 2 * aux + (1 - 2 / 5) * nce + 2 * (2 / 5) * kept + trans + transfer
        assert learner.loss(views, torch.tensor(both)).item() == pytest.approx(float(expected), rel=1e-4)


def test_a_batch_without_new_classes_gives_finite_gradients(make_learner: Make) -> None:
    """The reference implementations divide by zero there."""
    learner = at_second_step(make_learner, "tagfex").train()
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 1, 0, 1] * 2)).backward()
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_only_the_contrastive_terms_train_the_task_agnostic_network(make_learner: Make) -> None:
    """Its copy of the previous step and the frozen extractors are not trained."""
    learner = at_second_step(
        make_learner, "tagfex", options={"contrastive_weight": 0.0, "contrastive_distillation_weight": 0.0}
    ).train()
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 2, 3, 4] * 2)).backward()
    assert all(p.grad is None or p.grad.eq(0).all() for p in learner.agnostic.parameters())
    assert all(p.grad is not None and p.grad.ne(0).any() for p in learner.merge.parameters())
    for part in (learner.old_agnostic, learner.old_projector, learner.frozen):
        assert not any(parameter.requires_grad for parameter in part.parameters())


def gradients(part: nn.Module) -> list[bool]:
    """Whether each parameter has a gradient other than zero."""
    return [p.grad is not None and bool(p.grad.ne(0).any()) for p in part.parameters()]


def test_the_contrastive_distillation_trains_predictor_and_network(make_learner: Make) -> None:
    """It uses the frozen projector of the previous step. The current projector is trained by the other term only."""
    learner = at_second_step(make_learner, "tagfex", options={"contrastive_weight": 0.0}).train()
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 2, 3, 4] * 2)).backward()
    assert all(gradients(learner.predictor))
    assert all(gradients(learner.agnostic))
    assert not any(gradients(learner.projector))


def test_the_transfer_trains_the_extractor_and_not_its_teacher(make_learner: Make) -> None:
    learner = at_second_step(make_learner, "tagfex")
    logits, merged_logits = (torch.randn(6, n, requires_grad=True) for n in (5, 3))
    learner.transfer(logits, merged_logits).sum().backward()
    assert merged_logits.grad is None
    assert logits.grad[:, :2].eq(0).all()  # old classes have no part in it
    assert logits.grad[:, 2:].ne(0).all()


def test_initial_values_of_a_new_extractor_and_head_of_tagfex(make_learner: Make) -> None:
    learner = make_learner(method="tagfex", train=SHORT)
    stream = small_stream([2, 3])
    learner.learn(stream[0])
    before, agnostic = copy.deepcopy(learner.backbone), copy.deepcopy(learner.agnostic)
    head = copy.deepcopy(learner.head)
    learner.begin(stream[1])
    for new, old, other in zip(learner.backbone.parameters(), before.parameters(), agnostic.parameters(), strict=True):
        torch.testing.assert_close(new, 0.95 * old + 0.05 * other)
    for module in learner.backbone.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            assert module.running_mean.eq(0).all()
            assert module.running_var.eq(1).all()
    # The logits of the old classes do not change.
    width = learner.backbone.feature_dim
    assert torch.equal(learner.head.weight[:2, :width], head.weight)
    assert learner.head.weight[:2, width:].eq(0).all()
    assert learner.head.weight[2:].ne(0).all()


# --- prediction, cost -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "options"),
    [("der", {}), ("memo", {"train_base": True}), ("memo", {"train_base": False}), ("tagfex", {})],
    ids=str,
)
def test_cached_test_features_give_the_same_scores(make_learner: Make, method: str, options: dict[str, Any]) -> None:
    """The test images are shuffled and the class order is not the order of the labels."""
    learner = make_learner(method=method, options=options, train=SHORT, evaluate_batch=7)
    for increment in mixed_stream([2, 1, 3]):
        learner.learn(increment)
        assert_as_fresh(learner, increment)


def mixed_stream(sizes: list[int]) -> Stream:
    plain = small_stream(sizes)
    rows = torch.randperm(len(plain.test), generator=seeded(4))
    test = replace(plain.test, images=plain.test.images[rows], labels=plain.test.labels[rows])
    return Stream(plain.train, test, plain.arrivals, class_seed=3)


def assert_as_fresh(learner: Learner, increment: Increment) -> None:
    with evaluating(learner):
        scores = list(learner.test_scores(increment))
        fresh = learner.logits(AUGMENTATION.plain(increment.test.images[increment.test_rows]))
    for name, expected in fresh.items():
        cached = torch.cat([batch[name] for batch in scores])
        torch.testing.assert_close(cached, expected, rtol=1e-4, atol=1e-4, msg=name)


def test_the_cache_at_earlier_steps_for_other_orders_and_after_restoring(make_learner: Make) -> None:
    learner = make_learner(method="der", train=SHORT)
    stream = mixed_stream([2, 1, 3])
    states = []
    for increment in stream:
        learner.learn(increment)
        states.append(copy.deepcopy(learner.state()))
    first, _, last = stream
    for increment in (last, first, last):  # the scores of an earlier step have all classes of the learner
        assert_as_fresh(learner, increment)
    other = Stream(stream.train, stream.test, stream.arrivals, class_seed=9)  # the same images with other labels
    assert_as_fresh(learner, other[2])
    assert_as_fresh(learner, mixed_stream([4, 2])[0])  # other steps than the learner had
    changed = copy.deepcopy(states[-1])
    changed["modules"]["frozen.0.lower.0.weight"] *= 2
    learner.restore(changed)
    assert_as_fresh(learner, last)


def test_a_frozen_extractor_processes_each_test_image_once(make_learner: Make) -> None:
    learner = make_learner(method="der", train=SHORT, evaluate_batch=7)
    seen: dict[int, int] = {}
    for increment in small_stream([2, 1, 3]):
        learner.learn(increment)
        handles = [
            extractor.register_forward_hook(
                lambda module, args, output, k=k: seen.update({k: seen.get(k, 0) + len(output)})  # type: ignore[misc]
            )
            for k, extractor in enumerate(learner.frozen)
        ]
        learner.predictions(increment)
        for handle in handles:
            handle.remove()
    assert seen == {0: 6 * 8, 1: 6 * 8}  # the test images of all six classes


def test_other_test_images_are_not_confused_with_cached_ones(make_learner: Make) -> None:
    learner = make_learner(method="der", train=SHORT)
    one = small_stream([2, 2])
    for increment in one:
        learner.learn(increment)
    learner.predictions(one[1])
    other = small_stream([2, 2])
    other.test.images.copy_(other.test.images.flip(0))
    assert_as_fresh(learner, other[1])


def test_parameters_are_reported(make_learner: Make) -> None:
    width, backbone = 64, 74_640  # features and parameters of resnet8
    for method, each in (("der", backbone), ("tagfex", backbone), ("icarl", None)):
        learner = make_learner(method=method, train=SHORT)
        for increment in small_stream([2, 1, 2]):
            notes = learner.learn(increment)
            extractors = increment.step if each else 1
            head = increment.seen_now * (width * extractors + 1)
            assert notes["parameters"] == backbone * extractors + head
            if method == "der" and increment.step > 1:
                auxiliary = (len(increment.classes) + 1) * (width + 1)
                assert notes["trained_parameters"] == backbone + head + auxiliary
            assert notes["peak_memory_bytes"] is None  # on a CPU


# --- the centre loss ------------------------------------------------------------------------------------------------


def test_running_centres() -> None:
    centres = ClassCentres(3, 2, rate=0.25)
    first, targets = torch.tensor([[1.0, 0.0], [3.0, 4.0], [10.0, 10.0]]), torch.tensor([0, 0, 2])
    torch.testing.assert_close(centres(first, targets), torch.tensor([5.0, 5.0, 0.0]))  # the centre is (2, 2)
    second = torch.tensor([[6.0, 2.0], [1.0, 1.0]], requires_grad=True)
    loss = centres(second, torch.tensor([0, 1])).sum()
    torch.testing.assert_close(centres.centres, torch.tensor([[3.0, 2.0], [1.0, 1.0], [10.0, 10.0]]))
    loss.backward()
    torch.testing.assert_close(second.grad, torch.tensor([[6.0, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("method", ["replay", "icarl", *EXPANDING])
def test_the_centre_loss_reduces_the_spread_of_features(make_learner: Make, method: str) -> None:
    def spread(weight: float) -> float:
        """Mean squared distance of training features to the mean of their class."""
        learner = make_learner(method=method, centre_weight=weight)
        increment = small_stream([5])[0]
        learner.learn(increment)
        learner.train()  # use statistics of the batch: running ones lag behind in such a short training
        with torch.no_grad():
            features = learner.features(AUGMENTATION.plain(increment.train.images))  # type: ignore[operator]
        labels = increment.train.labels
        return (features - class_means(features, labels, range(5))[labels]).square().sum(1).mean().item()

    assert spread(0.1) < 0.8 * spread(0.0)
