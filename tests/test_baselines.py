"""WA, LwF, BiC and EWC compared with plain loops."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from conftest import AUGMENTATION, Make, OnEpoch, begin_second_step, seeded, small_config, small_stream
from ffcil.config.resolve import resolve
from ffcil.data.augment import Augmentation
from ffcil.methods import Learner, build_learner
from ffcil.methods.bic import BiC
from ffcil.methods.ewc import EWC
from ffcil.methods.lwf import LwF
from ffcil.methods.wa import WA
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.stream import Stream
from ffcil.training.batches import ImageSource
from ffcil.training.engine import Engine
from ffcil.training.fit import Optimisation, Training, fit
from ffcil.training.progress import FitProgress
from oracles import cross_entropy, distillation, reduced

REDUCTIONS = ["mean", "class_wise_mean"]
STILL = Augmentation(mean=AUGMENTATION.mean, std=AUGMENTATION.std, padding=0, flip=False, brightness=0.0)


def begin_and_move(learner: Learner) -> None:
    """Prepare a learner for its second step and change its parameters a little, so that it differs from its teacher."""
    begin_second_step(learner)
    with torch.no_grad():
        for parameter in learner.parameters():
            if parameter.requires_grad:
                parameter += 0.02 * torch.randn(parameter.shape, generator=seeded(5))


def assert_loss(
    learner: WA | LwF | EWC, targets: list[int], reduction: str, loss_of_sample: Callable[[Tensor, Tensor, int], Tensor]
) -> None:
    """Compare the loss of a batch with that of its samples: (logits, logits of the teacher, target) -> loss."""
    images = torch.randn(6, 3, 16, 16)
    with torch.no_grad():
        logits = learner.head(learner.backbone(images))
        teacher = logits if isinstance(learner, EWC) else learner.teacher(images)
        losses = [loss_of_sample(*sample) for sample in zip(logits, teacher, targets, strict=True)]
        expected = float(reduced(losses, targets, reduction))
        if isinstance(learner, EWC):
            expected += learner.penalty().item()
        assert learner.loss(images, torch.tensor(targets)).item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_wa_weights_its_losses_by_the_share_of_old_classes(make_learner: Make, reduction: str) -> None:
    learner = make_learner(method="wa", reduction=reduction)
    begin_and_move(learner)

    def loss(logits: Tensor, teacher: Tensor, target: int) -> Tensor:
        return 3 / 5 * cross_entropy(logits, target) + 2 / 5 * distillation(logits[:2], teacher)

    assert_loss(learner, [0, 2, 2, 4, 1, 2], reduction, loss)


@pytest.mark.parametrize(("fields", "eta"), [({}, 1.0), ({"framework": "paper"}, 0.1)])
def test_diwa_replaces_the_alignment_of_wa(make_learner: Make, fields: dict[str, Any], eta: float) -> None:
    learner = make_learner(method="wa", **fields)
    stream = small_stream([2, 1])
    assert learner.learn(stream[0])["alignment"] is None
    assert learner.learn(stream[1])["alignment"]["eta"] == pytest.approx(eta)
    assert learner.scored == "linear"


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_of_lwf(make_learner: Make, reduction: str) -> None:
    learner = make_learner(method="lwf", reduction=reduction)
    begin_and_move(learner)

    def loss(logits: Tensor, teacher: Tensor, target: int) -> Tensor:
        return cross_entropy(logits[2:], target - 2) + 3 * distillation(logits[:2], teacher)

    assert_loss(learner, [3, 2, 2, 4, 4, 2], reduction, loss)


def test_only_distillation_changes_the_old_rows_of_lwf(make_learner: Make) -> None:
    images, targets = torch.randn(6, 3, 16, 16), torch.tensor([3, 2, 2, 4, 4, 2])
    for weight in (0.0, 3.0):
        learner = make_learner(method="lwf", options={"distillation_weight": weight})
        begin_and_move(learner)
        learner.loss(images, targets).backward()
        moved = learner.head.weight.grad.abs().sum(dim=1) > 0
        assert moved.tolist() == [weight > 0] * 2 + [True] * 3


@pytest.mark.parametrize("method", ["lwf", "ewc"])
def test_the_row_of_a_single_new_class_keeps_its_initial_values(make_learner: Make, method: str) -> None:
    """Cross-entropy over one class has no gradient. The network still classifies the old classes."""
    learner = make_learner(method=method, train={"later": {"epochs": 2, "learning_rate": 0.05, "weight_decay": 0.0}})
    stream = small_stream([3, 1])
    learner.learn(stream[0])
    learner.begin(stream[1])
    drawn = learner.head.weight[3].detach().clone()
    learner.learn(stream[1], resume=FitProgress())
    assert torch.equal(learner.head.weight[3], drawn)
    assert (learner.predictions(stream[0])["linear"] < 3).float().mean() > 0.5


# --- BiC ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_of_bic_uses_corrected_scores_of_student_and_teacher(make_learner: Make, reduction: str) -> None:
    learner = make_learner(method="bic", reduction=reduction)
    stream = small_stream([2, 1, 2])
    for position in (0, 1):
        learner.learn(stream[position])
    with torch.no_grad():
        learner.head.pairs[1].copy_(torch.tensor([0.7, -0.3]))
    learner.begin(stream[2])
    learner.eval()
    images, targets = torch.randn(6, 3, 16, 16), [0, 2, 2, 4, 1, 3]

    def corrected(backbone: torch.nn.Module, head: Any) -> Tensor:
        scores: Tensor = backbone(images) @ head.weight.T + head.bias
        scores[:, 2] = 0.7 * scores[:, 2] - 0.3  # of step 2; step 1 is never corrected, step 3 not yet
        return scores

    with torch.no_grad():
        logits = corrected(learner.backbone, learner.head)
        teacher = corrected(learner.teacher.backbone, learner.teacher.head)
        losses = [
            2 / 5 * cross_entropy(own, target) + 3 / 5 * distillation(own[:3], soft)
            for own, soft, target in zip(logits, teacher, targets, strict=True)
        ]
        loss = learner.loss(images, torch.tensor(targets)).item()
    assert loss == pytest.approx(float(reduced(losses, targets, reduction)), rel=1e-5)


def held_out_losses(learner: BiC, stream: Stream, rows: Tensor) -> Callable[[Tensor], Tensor]:
    """Mean cross-entropy of the held-out images as a function of the newest (alpha, beta), from raw scores."""
    old, labels = learner.teacher.classes, stream.train.labels[rows]
    with torch.no_grad():
        features = learner.backbone(AUGMENTATION.plain(stream.train.images[rows]))
        scores = (features @ learner.head.weight.T + learner.head.bias).double()

    def loss(pair: Tensor) -> Tensor:
        corrected = torch.cat([scores[:, :old], pair[0] * scores[:, old:] + pair[1]], dim=1)
        return -corrected.log_softmax(dim=1)[torch.arange(len(rows)), labels].mean()

    return loss


def test_correction_of_bic_is_the_optimum(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small steps without augmentation reach the optimum of LBFGS. Wrong labels keep the optimum finite."""
    phase = {"epochs": 150, "learning_rate": 0.05, "schedule": "cosine", "weight_decay": 0.0}
    settings = small_config(method="bic", memory={"budget": 120}, options={"held_out": 0.25})
    learner = build_learner(settings, STILL, Engine.create("cpu", settings.train))
    stream = small_stream([2, 3], per_class=[32] * 5)
    wrong = torch.where(
        torch.arange(160) % 4 == 0, (stream.train.labels + torch.arange(160) // 4) % 5, stream.train.labels
    )
    stream.train = replace(stream.train, labels=wrong)
    learner.learn(stream[0])
    held_out = torch.cat(learner.held_out(stream[1]))
    assert len(held_out) == 5 * 8

    def whole_set(training: Training, engine: Engine) -> FitProgress:
        assert isinstance(training.source, ImageSource)
        assert sorted(training.source.rows.tolist()) == sorted(held_out.tolist())
        longer = Optimisation.of_phase(settings.train.later.model_copy(update=phase), settings.train.momentum)
        return fit(replace(training, optimisation=longer, source=replace(training.source, batch=40)), engine)

    monkeypatch.setattr("ffcil.methods.bic.fit", whole_set)
    notes = learner.learn(stream[1])
    loss = held_out_losses(learner, stream, held_out)
    best = torch.tensor([1.0, 0.0], dtype=torch.float64, requires_grad=True)
    solver = torch.optim.LBFGS([best], max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        value = loss(best)
        value.backward()
        return value

    solver.step(closure)  # type: ignore[no-untyped-call]
    assert notes["bias"][0] == [1.0, 0.0]  # the first step is not corrected
    assert notes["bias"][1] == pytest.approx(best.tolist(), abs=0.02)
    assert notes["bias"][1] != pytest.approx([1.0, 0.0], abs=0.02)  # the initial value


@pytest.mark.parametrize("sizes", [[3, 3], [1, 1], [2, 1]])
def test_correction_of_bic_lowers_the_loss_on_held_out_images(make_learner: Make, sizes: list[int]) -> None:
    learner = make_learner(method="bic")
    stream = small_stream(sizes)
    assert learner.learn(stream[0])["bias"] == [[1.0, 0.0]]
    held_out = torch.cat(learner.held_out(stream[1]))
    notes = learner.learn(stream[1])
    loss = held_out_losses(learner, stream, held_out)
    assert loss(torch.tensor(notes["bias"][1])) <= loss(torch.tensor([1.0, 0.0])) + 1e-3
    assert notes["held_out"] == len(held_out)


def test_bic_does_not_train_on_held_out_images(make_learner: Make) -> None:
    per_class = [40, 1, 40, 2, 40, 1, 40]
    learner = make_learner(method="bic", memory={"budget": 100})
    stream = small_stream([3, 1, 3], per_class)
    for increment in stream:
        rows, before = learner.training_rows(increment), set(learner.exemplars.rows().tolist())
        if increment.step == 1:
            assert torch.equal(rows, increment.rows)
        else:
            held = learner.held_out(increment)
            assert [set(stream.train.labels[rows].tolist()) for rows in held] == [{c} for c in range(len(held))]
            alone = {c for c in range(len(held)) if per_class[c] == 1}  # their only image is used twice
            assert {int(stream.train.labels[r]) for h in held for r in h if r in rows} == alone
            everything = before | set(increment.rows.tolist())
            assert sorted({*rows.tolist(), *torch.cat(held).tolist()}) == sorted(everything)
            assert len(rows) == len(set(rows.tolist()))
        learner.learn(increment)
    # The quota after step 2 is 100 / 4 = 25, of which a tenth is 2. Classes with one or two images give one.
    assert [len(rows) for rows in held] == [2, 1, 2, 1, 2, 1, 2]


def test_validation_set_of_bic_is_balanced(make_learner: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def watch(training: Training, engine: Engine) -> FitProgress:
        assert isinstance(training.source, ImageSource)
        seen.append(training.source.images.labels[training.source.rows])
        assert [list(p.shape) for group in training.groups for p in group.parameters] == [[2]]
        return fit(training, engine)

    monkeypatch.setattr("ffcil.methods.bic.fit", watch)
    learner = make_learner(method="bic", memory={"budget": 100})
    for increment in small_stream([2, 2], [40, 1, 3, 40]):
        learner.learn(increment)
    assert [torch.bincount(labels).tolist() for labels in seen] == [[4, 4, 4, 4]]  # a tenth of 40; the quota is 50


def test_correction_of_bic_changes_only_its_newest_parameters(make_learner: Make) -> None:
    learner = make_learner(method="bic")
    stream = small_stream([2, 2, 1])
    for increment in stream:
        learner.learn(increment)
    assert not any(pair.requires_grad for pair in learner.head.pairs)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    with torch.no_grad():
        learner.correct(stream[2], learner.held_out(stream[2]))
    changed = {name for name, tensor in learner.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed == {"head.pairs.2"}


# --- EWC ------------------------------------------------------------------------------------------------------------


def naive_fisher(learner: EWC, stream: Stream, position: int) -> dict[str, Tensor]:
    """Squared gradients of the mean cross-entropy over one batch of all images, by parameter, at most 1e-4."""
    increment = stream[position]
    learner.zero_grad()
    logits = learner.head(learner.backbone(AUGMENTATION.plain(stream.train.images[increment.rows])))
    picked = logits.softmax(dim=1)[torch.arange(len(logits)), stream.train.labels[increment.rows]]
    (-picked.log().mean()).backward()
    return {n: p.grad.square().clamp(max=1e-4) for n, p in learner.named_parameters() if p.grad is not None}


def test_fisher_and_penalty_of_ewc(make_learner: Make) -> None:
    learner = make_learner(method="ewc", train={"batch": 64})  # one batch holds all images
    stream = small_stream([2, 2, 1])
    assert learner.penalty() == 0
    assert learner.fisher.numel() == 0
    images, targets = torch.randn(5, 3, 16, 16), torch.tensor([4, 4, 4, 4, 4])
    fisher: dict[str, Tensor] = {}
    for position, share in ((0, 0.0), (1, 0.5)):
        learner.learn(stream[position])
        new = naive_fisher(learner, stream, position)
        for name, old in fisher.items():
            new[name][: len(old)] = share * old + (1 - share) * new[name][: len(old)]
        fisher = new
    anchor = {name: parameter.detach().clone() for name, parameter in learner.named_parameters()}
    assert len(learner.fisher) == sum(parameter.numel() for parameter in learner.parameters())
    assert learner.penalty() == 0
    learner.begin(stream[2])
    learner.eval()
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=seeded(3))
        expected = 0.0
        for name, parameter in learner.named_parameters():
            moved = parameter[: len(anchor[name])] - anchor[name]
            expected += float((fisher[name].double() * moved.double() ** 2).sum())
        assert expected > 0
        assert learner.penalty().item() == pytest.approx(1000 / 2 * expected, rel=1e-4)
        # The cross-entropy of a single new class is 0.
        assert learner.loss(images, targets).item() == pytest.approx(learner.penalty().item(), rel=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_loss_of_ewc(make_learner: Make, reduction: str) -> None:
    learner = make_learner(method="ewc", reduction=reduction)
    begin_and_move(learner)
    assert learner.penalty() > 0

    def loss(logits: Tensor, _: Tensor, target: int) -> Tensor:
        return cross_entropy(logits[2:], target - 2)

    assert_loss(learner, [3, 2, 2, 4, 4, 2], reduction, loss)


def test_fisher_of_ewc_is_the_mean_over_batches(make_learner: Make) -> None:
    learner = make_learner(method="ewc", options={"fisher_max": 1e9})
    increment = small_stream([2])[0]
    learner.learn(increment)  # 32 images in batches of 16
    seen: list[Tensor] = []
    plain = learner.features

    def watch(images: Tensor) -> Tensor:
        seen.append(images)
        return plain(images)

    learner.features = watch  # type: ignore[method-assign]
    fisher = learner.fisher_diagonal(increment)
    assert [len(batch) for batch in seen] == [16, 16]
    every = AUGMENTATION.plain(increment.train.images)
    rows = [(every == image).flatten(1).all(dim=1).nonzero()[0, 0] for image in torch.cat(seen)]
    assert sorted(int(row) for row in rows) == sorted(increment.rows.tolist())  # each image once
    total = torch.zeros_like(fisher)
    for batch, chosen in zip(seen, torch.stack(rows).split(16), strict=True):
        losses = torch.nn.functional.cross_entropy(learner.head(plain(batch)), increment.train.labels[chosen])
        *backbone, weight, bias = torch.autograd.grad(losses, learner.held())
        by_row = [torch.cat([weight[c], bias[c : c + 1]]) for c in range(2)]
        total += torch.cat([g.flatten() for g in (*backbone, *by_row)]) ** 2 / 2
    torch.testing.assert_close(fisher, total)


# --- all ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["wa", "lwf", "bic", "ewc"])
def test_a_restored_learner_ends_bit_equal(make_learner: Make, tmp_path: Path, method: str) -> None:
    """All tensors are compared. Epoch 4 of 4 is before the correction, the Fisher information and the memory."""
    stream, whole = small_stream([2, 1, 3]), make_learner(method=method)

    def save(progress: FitProgress) -> None:
        save_state(tmp_path / str(progress.epoch), {"learner": whole.state(), "progress": vars(progress)})

    for position in (0, 1):
        whole.learn(stream[position])
    whole.learn(stream[2], OnEpoch(save))
    save_state(tmp_path / "whole", whole.state())
    for epoch in ("1", "4"):
        again, state = make_learner(method=method), load_state(tmp_path / epoch)
        for increment in stream:
            again.begin(increment)
        again.restore(state["learner"])
        again.learn(stream[2], resume=FitProgress(**state["progress"]))
        save_state(tmp_path / "again", again.state())
        assert (tmp_path / "whole").read_bytes() == (tmp_path / "again").read_bytes(), epoch


def test_schedules_are_the_published_ones() -> None:
    expected = {
        "wa": ((200, (60, 120, 170), 5e-4), (170, (60, 100, 140), 2e-4)),
        "bic": ((170, (60, 100, 140), 2e-4), (170, (60, 100, 140), 2e-4)),
        "lwf": ((200, (60, 120, 160), 5e-4), (250, (60, 120, 180, 220), 2e-4)),
        "ewc": ((200, (60, 120, 170), 5e-4), (180, (70, 120, 150), 2e-4)),
    }
    for method, phases in expected.items():
        train = resolve("cifar100", {"method": method}).train
        assert tuple((p.epochs, p.milestones, p.weight_decay) for p in (train.first, train.later)) == phases, method
