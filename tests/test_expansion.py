"""DER, MEMO and TagFex against naive computation, and what may never move."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from conftest import AUGMENTATION, small_config, small_stream
from ffcil.alignment import row_norms
from ffcil.losses import ClassCentres
from ffcil.methods import Learner, build_learner
from ffcil.methods.der import DER
from ffcil.methods.memo import MEMO
from ffcil.methods.tagfex import MergeAttention, TagFex, contrast
from ffcil.stream import Increment, Stream
from ffcil.training.engine import Engine, evaluating

Make = Callable[..., Learner]
EXPANDING = ["der", "memo", "tagfex"]
SHORT = {"epochs": 2, "learning_rate": 0.05}


def at_second_step(make: Make, method: str, sizes: tuple[int, int] = (2, 3), **overrides: Any) -> DER | MEMO | TagFex:
    """A learner that was trained on the first step and made ready for the second, in evaluation mode: what a batch
    gives then does not depend on the others in it."""
    learner = make(method=method, train={"first": SHORT, "later": SHORT}, **overrides)
    assert isinstance(learner, DER | MEMO | TagFex)
    stream = small_stream(sizes)
    learner.learn(stream[0])
    learner.begin(stream[1])
    return learner.eval()


def reduced(per_sample: list[float], targets: list[int], reduction: str) -> float:
    """By a loop over classes."""
    if not per_sample:
        return 0.0
    if reduction == "mean":
        return sum(per_sample) / len(per_sample)
    by_class: dict[int, list[float]] = {}
    for value, target in zip(per_sample, targets, strict=True):
        by_class.setdefault(target, []).append(value)
    return sum(sum(values) / len(values) for values in by_class.values()) / len(by_class)


def ce(logits: Tensor, target: int) -> float:
    return -logits.double().log_softmax(0)[target].item()


@pytest.mark.parametrize("method", EXPANDING)
def test_their_own_alignment_is_weight_alignment(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train={"first": SHORT, "later": SHORT})
    notes = [learner.learn(increment)["alignment"] for increment in small_stream([2, 2])]
    assert notes[0] is None
    assert notes[1]["eta"] == 1
    old, new = row_norms(learner.head.weight, 2)  # type: ignore[arg-type, union-attr]
    assert old == pytest.approx(new, rel=1e-4)


@pytest.mark.parametrize("method", EXPANDING)
def test_frozen_extractors_never_move(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, train={"first": SHORT, "later": SHORT})
    assert isinstance(learner, DER | MEMO | TagFex)
    seen: list[dict[str, Tensor]] = []
    for increment in small_stream([2, 1, 2]):
        learner.learn(increment)
        assert len(learner.frozen) == increment.step - 1
        for frozen, before in zip(learner.frozen, seen, strict=True):
            for name, tensor in frozen.state_dict().items():
                assert torch.equal(tensor, before[name]), name  # batch-norm statistics too
        part = learner.backbone.upper if method == "memo" else learner.backbone
        seen.append(copy.deepcopy(part.state_dict()))
    assert not any(parameter.requires_grad for parameter in learner.frozen.parameters())
    assert any((seen[0][name] != seen[1][name]).any() for name in seen[0])


@pytest.mark.parametrize("method", ["der", "memo"])
def test_a_new_extractor_starts_as_the_one_before(make_learner: Make, method: str) -> None:
    learner = at_second_step(make_learner, method)
    part = learner.backbone.upper if isinstance(learner, MEMO) else learner.backbone
    for name, tensor in part.state_dict().items():
        assert torch.equal(tensor, learner.frozen[0].state_dict()[name]), name


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
@pytest.mark.parametrize("method", ["der", "memo"])
def test_ders_and_memos_loss_by_hand(make_learner: Make, method: str, reduction: str) -> None:
    learner = at_second_step(make_learner, method, reduction=reduction, options={"auxiliary_weight": 0.7})
    with torch.no_grad():  # so that frozen and trained extractor differ
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
            values.append(ce(logits, target) + 0.7 * ce(among_new, 0 if target < 2 else target - 1))
        got = learner.loss(images, torch.tensor(targets)).item()
    assert got == pytest.approx(reduced(values, targets, reduction), rel=1e-4)


def test_memo_trains_the_shared_network_through_frozen_stages(make_learner: Make) -> None:
    learner = at_second_step(make_learner, "memo", options={"auxiliary_weight": 0.0})
    width = learner.backbone.feature_dim
    learner.head.weight.data[:, width:] = 0  # the head looks at the frozen stage alone
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 1, 2, 3, 4, 0, 1, 2])).backward()
    of_lower = [parameter.grad for parameter in learner.backbone.lower.parameters()]
    assert all(grad is not None for grad in of_lower)
    assert sum(grad.abs().sum().item() for grad in of_lower if grad is not None) > 0
    assert all(parameter.grad is None for parameter in learner.frozen.parameters())


def test_memo_can_keep_the_shared_network(make_learner: Make) -> None:
    learner = make_learner(method="memo", options={"train_base": False}, train={"first": SHORT, "later": SHORT})
    assert isinstance(learner, MEMO)
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


def test_contrast_by_hand() -> None:
    anchors, others = torch.randn(10, 6), torch.randn(10, 6)
    assert contrast(anchors, others, 0.2).item() == pytest.approx(naive_contrast(anchors, others, 0.2), rel=1e-4)
    assert contrast(anchors, anchors, 0.2).item() == pytest.approx(naive_contrast(anchors, anchors, 0.2), rel=1e-4)


def naive_merge(merge: MergeAttention, specific: Tensor, agnostic: Tensor) -> Tensor:
    """One image, [D, h, w] each, token by token and head by head."""
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


def test_merge_attention_by_hand() -> None:
    merge = MergeAttention(16, heads=4)
    specific, agnostic = torch.randn(3, 16, 2, 3), torch.randn(3, 16, 2, 3)
    expected = torch.stack([naive_merge(merge, s, a) for s, a in zip(specific, agnostic, strict=True)])
    torch.testing.assert_close(merge(specific, agnostic), expected)


@pytest.mark.parametrize("targets", [[0, 2, 4, 3, 2, 2], [1, 0, 1, 1, 0, 0], [4, 4, 4, 4, 4, 4]], ids=str)
@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_tagfexs_loss_by_hand(make_learner: Make, reduction: str, targets: list[int]) -> None:
    """Also for a batch without a new class, and with nothing else."""
    learner = at_second_step(make_learner, "tagfex", reduction=reduction)
    assert isinstance(learner, TagFex)
    with torch.no_grad():
        learner.merge_head.weight.mul_(4)
        for network in (learner.agnostic, learner.projector):
            for parameter in network.parameters():
                parameter.mul_(1.05)  # so that now and before differ
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
        main = reduced([ce(z, y) for z, y in zip(logits, both, strict=True)], both, reduction)
        aux = reduced([ce(z, max(0, y - old + 1)) for z, y in zip(auxiliary, both, strict=True)], both, reduction)
        embedding = learner.projector(of_agnostic)
        nce = naive_contrast(embedding, embedding, 0.2)
        before = learner.old_projector(learner.old_agnostic(views))
        kept = naive_contrast(learner.old_projector(learner.predictor(of_agnostic)), before, 0.2)
        fresh = [i for i, y in enumerate(both) if y >= old]
        of_fresh = [both[i] for i in fresh]
        trans = reduced([ce(merged_logits[i], both[i] - old) for i in fresh], of_fresh, reduction)
        divergences = [
            F.kl_div((logits[i, old:] / 2).log_softmax(0), (merged_logits[i] / 2).softmax(0), reduction="sum").item()
            for i in fresh
        ]
        transfer = reduced(divergences, of_fresh, reduction) if trans < main else 0.0
        expected = main + 2 * aux + (1 - 2 / 5) * nce + 2 * (2 / 5) * kept + trans + transfer
        assert learner.loss(views, torch.tensor(both)).item() == pytest.approx(expected, rel=1e-4)


def test_a_batch_without_new_classes_gives_finite_gradients(make_learner: Make) -> None:
    """The references divide by zero there, and their weights are lost."""
    learner = at_second_step(make_learner, "tagfex").train()
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 1, 0, 1] * 2)).backward()
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name


def test_what_trains_what_in_tagfex(make_learner: Make) -> None:
    """The task-agnostic network learns from the contrastive terms alone; what it was before learns nothing."""
    learner = at_second_step(
        make_learner, "tagfex", options={"contrastive_weight": 0.0, "contrastive_distillation_weight": 0.0}
    ).train()
    assert isinstance(learner, TagFex)
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 2, 3, 4] * 2)).backward()
    assert all(p.grad is None or p.grad.eq(0).all() for p in learner.agnostic.parameters())
    assert all(p.grad is not None and p.grad.ne(0).any() for p in learner.merge.parameters())
    for part in (learner.old_agnostic, learner.old_projector, learner.frozen):
        assert not any(parameter.requires_grad for parameter in part.parameters())


def gradients(part: nn.Module) -> list[bool]:
    """Whether each parameter got a gradient that is not zero."""
    return [p.grad is not None and bool(p.grad.ne(0).any()) for p in part.parameters()]


def test_the_contrastive_distillation_trains_predictor_and_network(make_learner: Make) -> None:
    """Through the frozen projector of the step before; without the other contrastive term the projector rests."""
    learner = at_second_step(make_learner, "tagfex", options={"contrastive_weight": 0.0}).train()
    assert isinstance(learner, TagFex)
    learner.loss(torch.randn(8, 3, 16, 16), torch.tensor([0, 2, 3, 4] * 2)).backward()
    assert all(gradients(learner.predictor))
    assert all(gradients(learner.agnostic))
    assert not any(gradients(learner.projector))


def test_the_transfer_teaches_the_extractor_and_not_its_teacher(make_learner: Make) -> None:
    learner = at_second_step(make_learner, "tagfex")
    assert isinstance(learner, TagFex)
    logits, merged_logits = (torch.randn(6, n, requires_grad=True) for n in (5, 3))
    learner.transfer(logits, merged_logits).sum().backward()
    assert merged_logits.grad is None
    assert logits.grad is not None
    assert logits.grad[:, :2].eq(0).all()  # the old classes are not taught
    assert logits.grad[:, 2:].ne(0).all()


def test_tagfexs_new_extractor_and_head(make_learner: Make) -> None:
    learner = make_learner(method="tagfex", train={"first": SHORT, "later": SHORT})
    assert isinstance(learner, TagFex)
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
    # the old classes' logits are what they were
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
def test_cached_test_features_predict_as_fresh_ones(make_learner: Make, method: str, options: dict[str, Any]) -> None:
    """On test images whose classes are mixed up, in another order than they arrive in."""
    learner = make_learner(method=method, options=options, train={"first": SHORT, "later": SHORT}, evaluate_batch=7)
    for increment in mixed_stream([2, 1, 3]):
        learner.learn(increment)
        assert_as_fresh(learner, increment)


def mixed_stream(sizes: list[int]) -> Stream:
    plain = small_stream(sizes)
    rows = torch.randperm(len(plain.test), generator=torch.Generator().manual_seed(4))
    test = replace(plain.test, images=plain.test.images[rows], labels=plain.test.labels[rows])
    return Stream(plain.train, test, plain.arrivals, class_seed=3)


def assert_as_fresh(learner: Learner, increment: Increment) -> None:
    with evaluating(learner):
        scores = list(learner.test_scores(increment))
        fresh = learner.logits(AUGMENTATION.plain(increment.test.images[increment.test_rows]))
    for name, expected in fresh.items():
        cached = torch.cat([batch[name] for batch in scores])
        torch.testing.assert_close(cached, expected, rtol=1e-4, atol=1e-4, msg=name)


def test_the_cache_at_an_earlier_step_after_a_restore_and_of_another_order(make_learner: Make) -> None:
    learner = make_learner(method="der", train={"first": SHORT, "later": SHORT})
    stream = mixed_stream([2, 1, 3])
    states = []
    for increment in stream:
        learner.learn(increment)
        states.append(copy.deepcopy(learner.state()))
    first, _, last = stream
    for increment in (last, first, last):  # whose scores have more classes than it has: that is the learner's affair
        assert_as_fresh(learner, increment)
    other = Stream(stream.train, stream.test, stream.arrivals, class_seed=9)  # the same images under other labels
    assert_as_fresh(learner, other[2])
    assert_as_fresh(learner, mixed_stream([4, 2])[0])  # of steps that the learner did not have
    changed = copy.deepcopy(states[-1])
    changed["modules"]["frozen.0.lower.0.weight"] *= 2
    learner.restore(changed)
    assert_as_fresh(learner, last)


def test_a_frozen_extractor_sees_each_test_image_once(make_learner: Make) -> None:
    learner = make_learner(method="der", train={"first": SHORT, "later": SHORT}, evaluate_batch=7)
    assert isinstance(learner, DER)
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


def test_other_test_images_are_not_taken_for_the_cached_ones(make_learner: Make) -> None:
    learner = make_learner(method="der", train={"first": SHORT, "later": SHORT})
    one = small_stream([2, 2])
    for increment in one:
        learner.learn(increment)
    learner.predictions(one[1])
    other = small_stream([2, 2])
    other.test.images.copy_(other.test.images.flip(0))
    expected = learner.logits(AUGMENTATION.plain(other.test.images))["linear"].argmax(1)
    assert torch.equal(learner.predictions(other[1])["linear"], expected)


def test_parameters_are_reported(make_learner: Make) -> None:
    width, backbone = 64, 74_640  # of resnet8
    for method, each in (("der", backbone), ("tagfex", backbone), ("icarl", None)):
        learner = make_learner(method=method, train={"first": SHORT, "later": SHORT})
        for increment in small_stream([2, 1, 2]):
            notes = learner.learn(increment)
            extractors = increment.step if each else 1
            head = increment.seen_now * (width * extractors + 1)
            assert notes["parameters"] == backbone * extractors + head
            if method == "der" and increment.step > 1:
                auxiliary = (len(increment.classes) + 1) * (width + 1)
                assert notes["trained_parameters"] == backbone + head + auxiliary
            assert notes["peak_memory_bytes"] is None  # this is not a GPU


def test_steps_share_their_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further frozen extractor costs no further compilation."""
    counter = CompileCounter()
    monkeypatch.setattr(Engine, "place", lambda self, module: module.compile(dynamic=False, backend=counter))
    config = small_config(method="der", train={"first": {"epochs": 1}, "later": {"epochs": 1}})
    learner = build_learner(config, AUGMENTATION, Engine.create("cpu", config.train))
    compiled = []
    for increment in small_stream([1, 1, 1, 1]):
        learner.learn(increment)
        compiled.append(counter.frame_count)
    torch.compiler.reset()
    trained = compiled[0]
    assert trained >= 2  # both halves of a backbone
    assert compiled == [trained, 2 * trained, 2 * trained, 2 * trained]  # once trained and once frozen


# --- the centre loss ------------------------------------------------------------------------------------------------


def test_running_centres_by_hand() -> None:
    centres = ClassCentres(3, 2, rate=0.25)
    first, targets = torch.tensor([[1.0, 0.0], [3.0, 4.0], [10.0, 10.0]]), torch.tensor([0, 0, 2])
    torch.testing.assert_close(centres(first, targets), torch.tensor([5.0, 5.0, 0.0]))  # centre (2, 2)
    second = torch.tensor([[6.0, 2.0], [1.0, 1.0]], requires_grad=True)
    loss = centres(second, torch.tensor([0, 1])).sum()
    torch.testing.assert_close(centres.centres, torch.tensor([[3.0, 2.0], [1.0, 1.0], [10.0, 10.0]]))
    loss.backward()
    torch.testing.assert_close(second.grad, torch.tensor([[6.0, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("method", ["replay", "icarl", *EXPANDING])
def test_the_centre_loss_draws_features_together(make_learner: Make, method: str) -> None:
    def spread(weight: float) -> float:
        """Mean squared distance of training features to the mean of their class."""
        learner = make_learner(method=method, centre_weight=weight)
        increment = small_stream([5])[0]
        learner.learn(increment)
        learner.train()  # the batch's own statistics: the running ones lag behind so short a training
        with torch.no_grad():
            features = learner.features(AUGMENTATION.plain(increment.train.images))  # type: ignore[operator]
        labels = increment.train.labels
        means = torch.stack([features[labels == c].mean(0) for c in range(5)])
        return (features - means[labels]).square().sum(1).mean().item()

    assert spread(0.1) < 0.8 * spread(0.0)
