"""The framework `flow` for methods that train from scratch, the length of a training, and the study of its table.

The count-aware cross-entropy is compared with plain formulas that add tau * log(N_c / N) by hand.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from typer.testing import CliRunner

from conftest import SHORT, Make, OnEpoch, seeded, small_stream
from ffcil.cli import app
from ffcil.config.settings import Phase
from ffcil.errors import InputError
from ffcil.losses import cross_entropy, log_prior
from ffcil.methods import METHODS
from ffcil.methods.bic import BiC
from ffcil.runs.checkpoint import load_state, save_state
from ffcil.stream import Increment, Stream
from ffcil.studies.study import jobs_of, load_study, narrow
from ffcil.training.progress import FitProgress
from oracles import cross_entropy as plain_cross_entropy
from oracles import distillation

CONVENTIONAL = sorted(name for name, method in METHODS.items() if not method.pretrained)
COUNTS = [40, 3, 0, 17, 1]
PER_CLASS = [16, 2, 12, 3, 8]
"""Training images of each class of the unbalanced stream, of 2 and 3 classes."""


def unbalanced() -> Stream:
    return small_stream([2, 3], PER_CLASS)


# --- the loss -------------------------------------------------------------------------------------------------------


def balanced_softmax(logits: list[float], target: int, counts: list[int], strength: float) -> float:
    """-log of N_y^tau e^z_y / sum over classes of N_c^tau e^z_c."""
    masses = [count**strength * math.exp(logit) for logit, count in zip(logits, counts, strict=True)]
    return -math.log(masses[target] / sum(masses))


@pytest.mark.parametrize("strength", [0.5, 1.0, 1.5])
def test_the_count_aware_cross_entropy(strength: float) -> None:
    logits, targets = 3 * torch.randn(6, 5, generator=seeded()), torch.tensor([0, 1, 3, 4, 0, 3])
    prior = log_prior(torch.tensor(COUNTS), strength)
    got = cross_entropy(logits, targets, prior)
    expected = [
        balanced_softmax(row, target, COUNTS, strength)
        for row, target in zip(logits.tolist(), targets.tolist(), strict=True)
    ]
    torch.testing.assert_close(got, torch.tensor(expected))
    shifted = cross_entropy(logits + 7 * torch.randn(6, 1, generator=seeded(1)), targets, prior)
    torch.testing.assert_close(shifted, got)
    torch.testing.assert_close(log_prior(10 * torch.tensor(COUNTS), strength), prior)  # shares count, not numbers


def test_a_class_without_images_takes_no_part() -> None:
    logits = torch.randn(6, 5, generator=seeded(), requires_grad=True)
    targets = torch.tensor([0, 1, 3, 4, 0, 3])
    prior = log_prior(torch.tensor(COUNTS))
    loss = cross_entropy(logits, targets, prior)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert gradient.isfinite().all()
    assert gradient[:, 2].eq(0).all()
    assert gradient[:, [0, 1, 3, 4]].ne(0).all()
    present = [0, 1, 3, 4]
    without = cross_entropy(logits[:, present], torch.tensor([0, 1, 2, 3, 0, 2]), prior[present])
    torch.testing.assert_close(without, loss)


def test_balanced_counts_give_the_plain_cross_entropy() -> None:
    logits, targets = torch.randn(6, 4, generator=seeded()), torch.tensor([0, 1, 3, 2, 0, 3])
    torch.testing.assert_close(
        cross_entropy(logits, targets, log_prior(torch.full((4,), 9))), cross_entropy(logits, targets)
    )


@pytest.mark.parametrize("strength", [0.0, -1.0])
def test_a_strength_of_zero_or_less_is_refused(strength: float) -> None:
    with pytest.raises(ValueError, match="strength must be above 0"):
        log_prior(torch.tensor([1, 2]), strength)


# --- the losses of the methods --------------------------------------------------------------------------------------


def by_hand(counts: list[float], strength: float) -> Tensor:
    return torch.tensor([strength * math.log(count / sum(counts)) for count in counts], dtype=torch.float64)


def counted(learner: Any, increment: Increment) -> list[float]:
    """Images of each class in the training set of a step, counted by a loop before the step is learned."""
    labels, kept = increment.train.labels, learner.kept_rows().tolist()
    of_class = Counter(int(labels[row]) for row in [*kept, *increment.rows.tolist()])
    if isinstance(learner, BiC) and increment.seen_before:
        for held_out in learner.held_out(increment):
            label = int(labels[held_out[0]])
            if of_class[label] > 1:  # the only image of a class is used for training, too
                of_class[label] -= len(held_out)
    new = [float(of_class[label]) for label in increment.classes]
    old = [float(of_class[label]) for label in range(increment.seen_before)]
    return [*(old if kept else [sum(new) / len(new)] * len(old)), *new]


def at_second_step(make: Make, method: str, strength: float) -> tuple[Any, list[float]]:
    """A learner in evaluation mode whose second step is about to be trained, and the counts of that step.

    Its parameters have moved since the first step, so that they differ from those of teachers and frozen parts."""
    learner = make(method=method, framework="flow", flow={"adjust": strength}, train=SHORT, memory={"budget": 6})
    stream = unbalanced()
    learner.learn(stream[0])
    counts = counted(learner, stream[1])
    learner.begin(stream[1])
    learner.training_plan(stream[1])
    with torch.no_grad():
        for parameter in learner.parameters():
            if parameter.requires_grad:
                parameter.mul_(1.1)
    return learner.eval(), counts


def newest_features(learner: Any, images: Tensor) -> Tensor:
    return learner.features(images)[:, -learner.backbone.feature_dim :]  # type: ignore[no-any-return]


def loss_of_a_sample(learner: Any, image: Tensor, target: int, prior: Tensor, groups: Tensor) -> Tensor:
    """The loss of one image in a second step of 3 classes after 2, with `prior` and `groups` added by hand."""
    method, images = type(learner).__name__.lower(), image[None]
    logits = learner.head(learner.features(images))[0].double()
    whole = plain_cross_entropy(logits + prior, target)
    if method in ("finetune", "replay", "joint"):
        return whole
    if method in ("der", "memo"):
        among_new = learner.auxiliary(newest_features(learner, images))[0].double()
        return whole + plain_cross_entropy(among_new + groups, max(0, target - 1))
    of_new = plain_cross_entropy(logits[2:] + prior[2:], target - 2) if target >= 2 else whole
    if method == "ewc":
        return of_new + learner.penalty()
    taught = distillation(logits[:2], learner.teacher(images)[0])
    if method == "icarl":
        return whole + taught
    return of_new + 3 * taught if method == "lwf" else 3 / 5 * whole + 2 / 5 * taught


@pytest.mark.parametrize("method", [name for name in CONVENTIONAL if name != "tagfex"])
def test_losses_with_a_prior_by_hand(make_learner: Make, method: str) -> None:
    learner, counts = at_second_step(make_learner, method, strength := 1.3)
    prior, groups = by_hand(counts, strength), by_hand([sum(counts[:2]), *counts[2:]], strength)
    targets = [0, 1, 2, 2, 3, 4, 4] if learner.uses_memory or method == "joint" else [2, 2, 3, 4, 4]
    images = torch.randn(len(targets), 3, 16, 16, generator=seeded(1))
    with torch.no_grad():
        values = [
            loss_of_a_sample(learner, image, y, prior, groups).item() for image, y in zip(images, targets, strict=True)
        ]
        got = learner.loss(images, torch.tensor(targets)).item()
        learner.prior = learner.prior_of_groups = None
        without = learner.loss(images, torch.tensor(targets)).item()
    assert got == pytest.approx(sum(values) / len(values), rel=1e-5)
    assert abs(got - without) > 1e-3


def test_the_prior_changes_no_other_term_of_tagfex(make_learner: Make) -> None:
    """The loss of the extractors, of the auxiliary head (weight 2) and of the merge change; the transfer may begin."""
    learner, counts = at_second_step(make_learner, "tagfex", 1.3)
    prior, groups = by_hand(counts, 1.3), by_hand([sum(counts[:2]), *counts[2:]], 1.3)
    targets = [0, 1, 2, 2, 3, 4, 4] * 2  # two views
    views, fresh = torch.randn(14, 3, 16, 16, generator=seeded(1)), [k for k, y in enumerate(targets) if y >= 2]
    with torch.no_grad():
        maps = [network.upper(network.lower(views)) for network in (learner.backbone, learner.agnostic)]
        logits = learner.head(learner.features(views)).double()
        merged = learner.merge_head(learner.merge(*maps)).double()
        auxiliary = learner.auxiliary(newest_features(learner, views)).double()

        def terms(prior: Tensor, groups: Tensor) -> Tensor:
            main = sum(plain_cross_entropy(logits[k] + prior, y) for k, y in enumerate(targets)) / 14
            grouped = sum(plain_cross_entropy(auxiliary[k] + groups, max(0, y - 1)) for k, y in enumerate(targets)) / 14
            merge = sum(plain_cross_entropy(merged[k] + prior[2:], targets[k] - 2) for k in fresh) / len(fresh)
            apart = [distillation(logits[k, 2:], merged[k]) - distillation(merged[k], merged[k]) for k in fresh]
            return main + 2 * grouped + merge + (merge < main) * sum(apart) / len(fresh)

        expected = (terms(prior, groups) - terms(torch.zeros(5), torch.zeros(4))).item()
        with_prior = learner.loss(views, torch.tensor(targets)).item()
        learner.prior = learner.prior_of_groups = None
        assert with_prior - learner.loss(views, torch.tensor(targets)).item() == pytest.approx(expected, abs=1e-4)
    assert abs(expected) > 1e-2


@pytest.mark.parametrize("method", ["finetune", "joint", "replay", "bic"])
def test_every_step_counts_its_own_training_set(make_learner: Make, method: str) -> None:
    learner = make_learner(method=method, framework="flow", train=SHORT, memory={"budget": 12})
    for increment in small_stream([1, 3, 1], [9, 16, 2, 1, 7]):
        counts = counted(learner, increment)
        learner.learn(increment)
        torch.testing.assert_close(learner.prior.double(), by_hand(counts, 1.0))
        assert len(counts) == increment.seen_now


@pytest.mark.parametrize("method", ["finetune", "replay"])
@pytest.mark.parametrize("per_class", [[5] * 5, [5, 5, 5, 1, 5]], ids=str)
def test_only_unbalanced_classes_train_differently(make_learner: Make, method: str, per_class: list[int]) -> None:
    """The memory holds all images, so that old and new classes are balanced, too."""

    def trained(framework: str) -> Tensor:
        learner = make_learner(method=method, framework=framework, train=SHORT)
        for increment in small_stream([2, 2, 1], per_class):
            learner.learn(increment)
        return learner.head.weight.detach()  # type: ignore[no-any-return]

    apart = (trained("flow") - trained("none")).abs().max()
    assert apart < 1e-4 if len(set(per_class)) == 1 else apart > 1e-3


@pytest.mark.parametrize("method", ["icarl", "bic", "der", "tagfex"])
def test_a_resumed_step_has_the_same_prior(make_learner: Make, tmp_path: Path, method: str) -> None:
    fields = {"method": method, "framework": "flow", "train": SHORT, "memory": {"budget": 6}}
    stream, whole, again = unbalanced(), make_learner(**fields), make_learner(**fields)

    def save(progress: FitProgress) -> None:
        if progress.epoch == 1:
            save_state(tmp_path / "x", {"learner": whole.state(), "progress": vars(progress)})

    whole.learn(stream[0])
    whole.learn(stream[1], OnEpoch(save))
    for increment in stream:
        again.begin(increment)
    state = load_state(tmp_path / "x")
    again.restore(state["learner"])
    again.learn(stream[1], resume=FitProgress(**state["progress"]))
    assert torch.equal(again.prior, whole.prior)
    for name, tensor in whole.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


# --- the length of a training ---------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(1, 40), st.integers(1, 200))
def test_a_training_is_prolonged_by_whole_epochs(epochs: int, batches: int, least: int) -> None:
    phase = Phase(epochs=epochs, milestones=(1, epochs))
    made = phase.lasting(batches, least)
    if epochs * batches >= least:
        assert made == phase
        return
    wanted = least / batches  # epochs, not a whole number
    assert abs(made.epochs - wanted) <= 0.5 + 1e-9
    factor = wanted / epochs
    assert made.milestones == tuple(max(1, round(milestone * factor)) for milestone in (1, epochs))
    assert made.model_copy(update={"epochs": epochs, "milestones": phase.milestones}) == phase


# --- the study ------------------------------------------------------------------------------------------------------


def dry_run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["study", "table-flow", "--dry-run", "--device", "cpu", *arguments])


def labels(**changes: Any) -> set[str]:
    return {job.label for job in jobs_of(narrow(load_study("table-flow"), **changes), Path("out"))}


def test_every_job_of_the_table_of_flow() -> None:
    made = jobs_of(load_study("table-flow"), Path("out"))
    frameworks = Counter((job.config.framework, job.config.arrivals.kind) for job in made)
    each = (7 + 9) * 9  # methods and seeds
    assert frameworks == {
        ("none", "equal"): each,
        ("none", "free-flow"): each,
        ("paper", "free-flow"): each,
        ("flow", "free-flow"): each,
        ("flow", "equal"): each,
    }
    recipes = {job.recipe: METHODS[job.config.method].pretrained for job in made}
    assert recipes == {"cifar100": False, "cars-vit-tiny": True}
    assert {job.config.train_seed for job in made} == {0, 1, 2, 3, 4, 18, 20, 22, 23}


def test_settings_select() -> None:
    some = {"methods": ["icarl"], "seeds": [0]}
    assert labels(**some, settings=["FF.flow", "Equ.T"]) == {"Equ.T", "FF.flow"}
    assert len(labels(**some)) == 5
    with pytest.raises(InputError, match=r"Unknown setting 'FF.flw': did you mean 'FF.flow'\?"):
        labels(**some, settings=["FF.flw"])
    with pytest.raises(InputError, match="No runs are left"):
        labels(methods=["cllora"], datasets=["cifar100"], settings=["FF.flow"])


@pytest.mark.parametrize(
    ("text", "seeds"), [("3", [0, 1, 2]), ("2-4", [2, 3, 4]), ("0,3,7-9", [0, 3, 7, 8, 9]), ("7, 7,1-1", [7, 1])]
)
def test_seeds_of_the_command_line(monkeypatch: pytest.MonkeyPatch, text: str, seeds: list[int]) -> None:
    planned: list[Any] = []
    monkeypatch.setattr("ffcil.studies.plan.print_plan", lambda plan, executor: planned.append(plan))
    done = dry_run("--methods", "icarl", "--settings", "FF.flow", "--seeds", text)
    assert done.exit_code == 0, done.output
    assert [job.config.train_seed for job in planned[0].jobs] == seeds


@pytest.mark.parametrize("text", ["4-2", "1-", "-1", "1,a", ","])
def test_seeds_that_cannot_be_read(text: str) -> None:
    assert f"Cannot read --seeds {text!r}: give" in str(dry_run(f"--seeds={text}").exception)
