"""CL-LoRA compared with plain computations: full forward passes, losses by sample, gradients by row."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from conftest import begin_second_step, seeded, small_stream
from ffcil.errors import InputError
from ffcil.methods.cllora import CLLoRA, gradient_shares
from ffcil.models.analytic import fit_drift
from ffcil.models.tuners import LoRA, Tuning
from ffcil.stream import Stream
from oracles import class_means, cross_entropy, reduced

Make = Callable[..., CLLoRA]
SHORT = {"epochs": 2, "learning_rate": 0.1}


@pytest.fixture
def make_cllora(make_learner: Callable[..., Any]) -> Make:
    def make(**overrides: Any) -> CLLoRA:
        learner = make_learner(method="cllora", train={"first": SHORT, "later": SHORT}, **overrides)
        return learner

    return make


def some_images(count: int = 6) -> Tensor:
    return torch.randn(count, 3, 32, 32, generator=seeded(1))


def loras(modules: torch.nn.Module) -> list[LoRA]:
    return cast(list[LoRA], list(modules.children()))


def learned(learner: CLLoRA, stream: Stream) -> CLLoRA:
    for increment in stream:
        learner.learn(increment)
    return learner


def in_the_second_step(learner: CLLoRA) -> CLLoRA:
    """Prepare a learner for a batch of classes 2 to 4 and make its shared part differ from the teacher."""
    begin_second_step(learner)
    with torch.no_grad():
        for lora in [*loras(learner.shared), *loras(learner.specific[-1])]:
            lora.up += 0.3 * torch.randn(lora.up.shape, generator=seeded(2))
    return learner


def naive_distillation(learner: CLLoRA, images: Tensor, ups: list[Tensor]) -> Tensor:
    """Distillation loss of every image, with `ups` in the shared LoRA, in a separate graph."""

    def early(values: list[Tensor]) -> Tensor:
        tokens = learner.vit.embed(images)
        for k, (lora, up) in enumerate(zip(loras(learner.shared), values, strict=True)):
            block: Any = learner.vit.net.blocks[k]
            normed = block.norm1(tokens)
            q, key, v = block.attn.qkv(normed).chunk(3, dim=-1)
            q, v = q + normed @ lora.down[0] @ up[0], v + normed @ lora.down[1] @ up[1]
            heads = [x.unflatten(-1, (block.attn.num_heads, -1)).transpose(1, 2) for x in (q, key, v)]
            mixed = (heads[0] @ heads[1].mT * block.attn.scale).softmax(-1) @ heads[2]
            tokens = tokens + block.attn.proj(mixed.transpose(1, 2).flatten(2))
            tokens = tokens + block.mlp(block.norm2(tokens))
        return learner.head(learner.vit.net.norm(tokens)[:, 0])  # type: ignore[no-any-return]

    soft = (early(list(learner.teacher)) / 2).softmax(1).detach()
    return -(soft * (early(ups) / 2).log_softmax(1)).sum(1)


def test_which_modules_exist_and_are_trained(make_cllora: Make) -> None:
    learner = learned(make_cllora(), small_stream([2, 2]))
    assert (len(learner.shared), [len(loras(s)) for s in learner.specific]) == (3, [3, 3])  # of 6 blocks
    trained = {name for name, parameter in learner.named_parameters() if parameter.requires_grad}
    shared = {f"shared.{k}.up" for k in range(3)}
    newest = {f"specific.1.{k}.{part}" for k in range(3) for part in ("down", "up", "weight")}
    assert trained == shared | newest | {"head.weight", "head.scale"}
    assert make_cllora(options={"shared_blocks": 5}).shared[4] is not None
    with pytest.raises(InputError, match=r"shared_blocks=6 leaves no other block of 6: choose 1 to 5"):
        make_cllora(options={"shared_blocks": 6})


@pytest.mark.parametrize("framework", ["none", "paper"])
def test_the_shared_trunk_equals_full_passes(make_cllora: Make, framework: str) -> None:
    """A copy of the network with LoRA added to its weights gives the same scores."""
    learner = learned(make_cllora(framework=framework), small_stream([2, 3, 1]))
    images, scores, folded_scores = some_images(), [], []
    with torch.no_grad():
        for specific, classes in zip(learner.specific, ([0, 1], [2, 3, 4], [5]), strict=True):
            attached = [*loras(learner.shared), *loras(specific)]
            folded = copy.deepcopy(learner.vit)
            for block, lora in zip(folded.net.blocks, attached, strict=True):
                cast(Any, block).attn.qkv.weight += lora.folded()
            full = learner.vit(images, [Tuning(lora=lora) for lora in attached])
            for features, into in ((full, scores), (folded(images), folded_scores)):
                aligned = features if learner.ha is None else learner.ha(features)
                into += [F.cosine_similarity(aligned, learner.prototypes.means[c], dim=1) for c in classes]
        logits = learner.logits(images)["prototype"]
    assert logits.shape == (6, 6)
    for expected in (scores, folded_scores):
        torch.testing.assert_close(logits, 20 * torch.stack(expected, dim=1), rtol=1e-4, atol=1e-4)


def test_every_step_has_its_own_features(make_cllora: Make) -> None:
    learner = learned(make_cllora(), small_stream([2, 2]))
    with torch.no_grad():
        first, second = learner.features_by_step(some_images()).chunk(2, dim=1)
        assert (first - second).abs().max() > 1e-4
        torch.testing.assert_close(second, learner.features(some_images()))


@pytest.mark.parametrize("reduction", ["mean", "class_wise_mean"])
def test_the_loss(make_cllora: Make, reduction: str) -> None:
    learner = in_the_second_step(make_cllora(reduction=reduction, options={"orthogonality": 0.5}))
    images, targets = some_images(5), torch.tensor([2, 4, 4, 3, 4])
    with torch.no_grad():
        features = learner.vit(images, [Tuning(lora=x) for x in [*learner.shared, *loras(learner.specific[1])]])
        rows = learner.head.weight
        apart = naive_distillation(learner, images, [lora.up for lora in loras(learner.shared)])
        values = []
        for k, target in enumerate(targets.tolist()):
            logits = learner.head.scale * F.cosine_similarity(features[k], rows, dim=1)
            values.append(cross_entropy(logits, target - 2).item() + 5 * apart[k].item())
        block_weights = [torch.cat([cast(Tensor, lora.weight) for lora in loras(s)]) for s in learner.specific]
        similarity = F.cosine_similarity(*block_weights, dim=0).abs().item()
        expected = reduced(values, targets.tolist(), reduction) + 0.5 * similarity
        assert learner.loss(images, targets).item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("reassign", [True, False])
def test_gradients_of_the_two_parts(make_cllora: Make, reassign: bool) -> None:
    """The gradient of cross-entropy is unchanged; that of distillation is scaled row by row by D * n_i / sum n."""
    learner = in_the_second_step(make_cllora(options={"reassign_gradient": reassign}))
    images, targets = some_images(5), torch.tensor([2, 4, 4, 3, 4])
    ups = [lora.up for lora in loras(learner.shared)]
    ours = torch.autograd.grad(learner.loss(images, targets), [*ups, learner.head.weight])

    ce = F.cross_entropy(learner.head(learner.features(images)), targets - 2)
    of_ce = torch.autograd.grad(ce, [*ups, learner.head.weight])
    *of_kd, head_kd = torch.autograd.grad(
        5 * naive_distillation(learner, images, ups).mean(), [*ups, learner.head.weight]
    )
    for block, gradient in enumerate(of_kd):
        for site in range(2):
            norms = [learner.teacher[block, site, :, i].norm().item() for i in range(learner.vit.width)]
            for i in range(learner.vit.width):
                weight = learner.vit.width * norms[i] / sum(norms) if reassign else 1.0
                expected = of_ce[block][site, :, i] + weight * gradient[site, :, i]
                torch.testing.assert_close(ours[block][site, :, i], expected, rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(ours[-1], of_ce[-1] + head_kd, rtol=1e-3, atol=1e-6)  # no gradient through the teacher
    assert max(gradient.abs().max() for gradient in of_kd) > 1e-4


def test_reassignment_changes_no_value(make_cllora: Make) -> None:
    learners = [in_the_second_step(make_cllora(options={"reassign_gradient": on})) for on in (True, False)]
    # the first step has no distillation, so that both are the same up to here
    losses = [learner.loss(some_images(), torch.tensor([2, 3, 4] * 2)) for learner in learners]
    assert torch.equal(*losses)


def test_shares_of_zero_weights_are_equal() -> None:
    ups = torch.zeros(2, 2, 3, 8)
    ups[1, 0, :, 5] = 4.0
    shares = gradient_shares(ups)
    assert shares.shape == (2, 2, 1, 8)
    assert shares[0].eq(1).all()
    assert shares[1, 1].eq(1).all()
    assert shares[1, 0, 0].tolist() == [0, 0, 0, 0, 0, 8, 0, 0]


def test_frozen_parts_stay_and_the_others_change(make_cllora: Make) -> None:
    """Frozen are `down` of the shared part, the sets of earlier steps and the teacher; evaluation changes nothing."""
    learner, stream = make_cllora(framework="paper"), small_stream([2, 3, 2])
    downs = [lora.down.clone() for lora in loras(learner.shared)]
    archived: dict[str, Tensor] = {}
    for step, increment in enumerate(stream):
        before = torch.stack([lora.up.detach().clone() for lora in loras(learner.shared)])
        learner.learn(increment)
        assert torch.equal(learner.teacher, before)
        after = torch.stack([lora.up.detach() for lora in loras(learner.shared)])
        assert (after - before).abs().max() > 0
        for lora in loras(learner.specific[step]):
            assert lora.up.abs().max() > 0
        for lora, down in zip(loras(learner.shared), downs, strict=True):
            assert torch.equal(lora.down, down)
        newest = {f"{step}.{name}": value.clone() for name, value in learner.specific[step].state_dict().items()}
        learner.predictions(increment)
        for name, value in {**archived, **newest}.items():
            assert torch.equal(learner.specific.state_dict()[name], value), name
        archived |= newest


def test_prototypes(make_cllora: Make) -> None:
    """Means of images without augmentation under the newest set; those of earlier classes stay."""
    learner, stream = make_cllora(), small_stream([2, 3])
    learner.learn(stream[0])
    early = learner.prototypes.means.clone()
    learner.learn(stream[1])
    assert torch.equal(learner.prototypes.means[:2], early)
    plain = learner.settings.augmentation.plain
    tunings = [Tuning(lora=lora) for lora in [*loras(learner.shared), *loras(learner.specific[1])]]
    with torch.no_grad():
        expected = class_means(learner.vit(plain(stream.train.images), tunings), stream.train.labels, (2, 3, 4))
    torch.testing.assert_close(learner.prototypes.means[2:], expected, rtol=1e-4, atol=1e-5)


def test_means_of_old_classes_follow_the_shared_part(make_cllora: Make) -> None:
    """They are moved by the map that leads from old to new features of the second step's images in the first space."""
    flow = {"enough": 1, "min_steps": 1, "whiten": True, "follow": True}
    learner, stream = make_cllora(flow=flow), small_stream([2, 3], [12] * 5)
    learner.learn(stream[0])
    old, centre = learner.prototypes.means.clone(), learner.whitening.sums[0] / 2
    images = learner.settings.augmentation.plain(stream.train.images, stream[1].rows)
    learner.eval()
    with torch.no_grad():
        before = learner.features_by_step(images)
    learner.learn(stream[1])
    with torch.no_grad():
        after = learner.features_by_step(images)[:, : learner.feature_dim]
    drift = fit_drift(before, after, learner.generator(stream[1], "drift of space 0"))
    assert (after - before).abs().max() > 1e-3  # the shared part has changed
    for means in (learner.prototypes.means, learner.statistics.means):
        torch.testing.assert_close(means[:2], drift(old), rtol=1e-4, atol=1e-4)
    of_new = class_means(after, stream.train.labels[stream[1].rows], (2, 3, 4)).sum(0)
    expected = 2 * drift(centre.float()) + of_new  # the metric is centred where all means are now
    torch.testing.assert_close(learner.whitening.sums[0].float(), expected, rtol=1e-4, atol=1e-3)


def test_means_stay_if_the_newest_step_does_not_tune(make_cllora: Make) -> None:
    learner, stream = make_cllora(framework="flow", flow={"enough": 2, "min_steps": 1}), small_stream([4, 1])
    learner.learn(stream[0])
    early = learner.prototypes.means.clone()
    learner.learn(stream[1])
    assert torch.equal(learner.prototypes.means[:4], early)


def test_steps_with_a_single_class_do_not_train_the_lora(make_cllora: Make) -> None:
    """Nothing is NaN, though the teacher of the second step is zero, and a later step trains."""
    learner = learned(make_cllora(), small_stream([1, 1, 3]))
    for alone in list(learner.specific)[:2]:
        assert all(lora.up.eq(0).all() for lora in loras(alone))
    assert learner.teacher.eq(0).all()
    assert all(lora.up.abs().max() > 0 for lora in [*loras(learner.shared), *loras(learner.specific[2])])
    assert all(value.isfinite().all() for value in learner.state_dict().values())


def test_a_single_class_after_several(make_cllora: Make) -> None:
    learner, (first, second) = make_cllora(), small_stream([3, 1])
    learner.learn(first)
    before = torch.stack([lora.up.detach().clone() for lora in loras(learner.shared)])
    learner.learn(second)
    after = torch.stack([lora.up.detach() for lora in loras(learner.shared)])
    torch.testing.assert_close(after, before, rtol=1e-2, atol=1e-6)  # weight decay alone
    assert learner.predictions(second)["prototype"].shape == (32,)


def test_a_warm_start_continues_from_the_step_before(make_cllora: Make) -> None:
    """A class that arrives alone then has tuned features, like the classes before it."""
    learner, (first, second) = make_cllora(options={"warm_start": True}), small_stream([3, 1])
    learner.learn(first)
    tuned = torch.stack([lora.up.detach().clone() for lora in loras(learner.specific[0])])
    assert tuned.abs().max() > 0
    learner.learn(second)
    assert torch.equal(torch.stack([lora.up for lora in loras(learner.specific[0])]), tuned)
    alone = torch.stack([lora.up.detach() for lora in loras(learner.specific[1])])
    torch.testing.assert_close(alone, tuned, rtol=1e-2, atol=1e-6)  # weight decay alone
    with torch.no_grad():
        images = learner.settings.augmentation.plain(first.train.images[:8])
        of_first, of_second = learner.features_by_step(images).chunk(2, dim=1)
    torch.testing.assert_close(of_second, of_first, rtol=1e-2, atol=1e-3)
