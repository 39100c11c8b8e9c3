"""TagFex: DER with a task-agnostic network, trained by self-supervision, from which new extractors learn.

Zheng et al., CVPR 2025, with the weights and the gate of the authors' code where it departs from the paper's text.
"""

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ffcil.errors import InputError
from ffcil.losses import cross_entropy, distillation
from ffcil.methods.conventional import REHEARSAL, Conventional
from ffcil.methods.learner import LearnerSettings, MethodConfig
from ffcil.methods.parts.expansion import AuxiliaryHead, FrozenExtractors, apply_frozen
from ffcil.methods.registry import register
from ffcil.models.heads import GrowingLinear
from ffcil.models.resnet import Backbone, pool
from ffcil.stream import Increment
from ffcil.training.fit import Training


class TagFexConfig(MethodConfig):
    """Fields of TagFex."""

    auxiliary_weight: float = Field(2.0, ge=0)
    """Weight of DER's auxiliary loss."""
    contrastive_weight: float = Field(1.0, ge=0)
    """Weight of the contrastive loss between two views of an image."""
    contrastive_distillation_weight: float = Field(2.0, ge=0)
    """Weight of the contrastive loss between the task-agnostic network and its state at the end of the previous step.
    Unlike in the authors' code, it is not multiplied by `contrastive_weight`."""
    contrastive_temperature: float = Field(0.2, gt=0)
    """Temperature of both contrastive losses."""
    transfer_temperature: float = Field(2.0, gt=0)
    """Temperature of the transfer from the merged features to the new extractor."""
    projector_hidden: PositiveInt = 2048
    """Width of the projector's hidden layer."""
    projector_features: PositiveInt = 1024
    """Width of the embeddings that the contrastive losses compare."""
    heads: PositiveInt = 8
    """Number of heads of the merge attention. It must divide the number of the backbone's features."""
    agnostic_share: float = Field(0.05, ge=0, le=1)
    """Weight of the task-agnostic network in the initialisation of a new extractor."""


def _projection(features: int) -> nn.Linear:
    """A projection of the merge attention, without bias."""
    linear = nn.Linear(features, features, bias=False)
    nn.init.xavier_normal_(linear.weight)
    return linear


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer with the initialisation of a head."""
    linear = nn.Linear(inputs, outputs)
    nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")
    nn.init.zeros_(linear.bias)
    return linear


class MergeAttention(nn.Module):
    """Task-specific tokens attend to themselves and to task-agnostic tokens. The output is the mean over tokens."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_specific, self.norm_agnostic = nn.LayerNorm(features), nn.LayerNorm(features)
        self.query = _projection(features)
        self.key_specific, self.value_specific = _projection(features), _projection(features)
        self.key_agnostic, self.value_agnostic = _projection(features), _projection(features)

    def forward(self, specific: Tensor, agnostic: Tensor) -> Tensor:
        """Maps [B, D, h, w] of both networks -> [B, D]. There is no output projection and no residual."""
        specific = self.norm_specific(specific.flatten(2).mT)  # [B, n, D], n = h w
        agnostic = self.norm_agnostic(agnostic.flatten(2).mT)
        query = self.by_head(self.query(specific))  # [B, heads, n, D / heads]
        key = torch.cat([self.key_specific(specific), self.key_agnostic(agnostic)], dim=1)
        value = torch.cat([self.value_specific(specific), self.value_agnostic(agnostic)], dim=1)
        merged: Tensor = F.scaled_dot_product_attention(query, self.by_head(key), self.by_head(value))
        return merged.mean(dim=2).flatten(1)  # over tokens; heads side by side

    def by_head(self, tokens: Tensor) -> Tensor:
        """[B, n, D] -> [B, heads, n, D / heads]"""
        batch, count, _ = tokens.shape
        return tokens.view(batch, count, self.heads, -1).transpose(1, 2)


def contrast(anchors: Tensor, others: Tensor, temperature: float) -> Tensor:
    """Mean InfoNCE loss between embeddings of two views, [2B, E] each, view 1 before view 2. The positive of a row is
    the other view of its image, its negatives are all other images, and the row itself is left out.

    It uses no labels, so the class-wise mean does not apply to it.
    """
    similarity = F.normalize(anchors, dim=1) @ F.normalize(others, dim=1).T / temperature
    similarity = similarity.masked_fill(torch.eye(len(anchors), dtype=torch.bool, device=anchors.device), -torch.inf)
    other_view = torch.arange(len(anchors), device=anchors.device).roll(len(anchors) // 2)
    return F.cross_entropy(similarity, other_view)


@register("tagfex")
class TagFex(Conventional):
    """DER's extractors and auxiliary head, and `agnostic`, the task-agnostic network, which the contrastive losses
    train at every step and which is never deployed."""

    title = "TagFex"
    paper = "https://arxiv.org/abs/2503.00823"
    classifiers = REHEARSAL
    uses_memory = True
    own_alignment = "wa"
    Config = TagFexConfig
    config: TagFexConfig

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        self.frozen = FrozenExtractors(self.engine)
        self.auxiliary = AuxiliaryHead(self.backbone.feature_dim)
        width, device = self.backbone.feature_dim, self.engine.device
        if width % self.config.heads:
            raise InputError(f"options.heads={self.config.heads} does not divide the backbone's {width} features.")
        hidden, embedded = self.config.projector_hidden, self.config.projector_features
        self.agnostic = self.build_backbone()
        self.projector = nn.Sequential(_linear(width, hidden), nn.ReLU(), _linear(hidden, embedded)).to(device)
        self.predictor = _linear(width, width).to(device).requires_grad_(False)  # idle until the second step
        # copies from the end of the previous step; each step overwrites their values, so that they are compiled once
        self.old_agnostic = self.frozen_copy(self.agnostic)
        self.old_projector = copy.deepcopy(self.projector).requires_grad_(False)
        self.merge = nn.Module()
        self.merge_head = GrowingLinear(width)

    # --- growing --------------------------------------------------------------------------------------------------

    def grow(self, increment: Increment) -> None:
        width, device = self.backbone.feature_dim, self.engine.device
        if increment.seen_before:
            self.frozen.append(self.frozen_copy(self.backbone))
            self._mix_in_agnostic()
            self.auxiliary = AuxiliaryHead.for_step(increment, width, device)
        # as in the authors' code, the old classes' weights on a new extractor start at zero
        self.head.grow(increment.seen_now, width * (len(self.frozen) + 1), blind=True)
        self.reset_centres(increment)
        if not increment.seen_before:
            return
        self.old_agnostic.load_state_dict(self.agnostic.state_dict())
        self.old_projector.load_state_dict(self.projector.state_dict())
        self.predictor.requires_grad_(True)
        self.merge = MergeAttention(width, self.config.heads).to(device)
        self.merge_head = GrowingLinear(width).to(device)
        self.merge_head.grow(len(increment.classes))

    @torch.no_grad()
    def _mix_in_agnostic(self) -> None:
        """Mix a share of the task-agnostic network into the new extractor, which is still a copy of the previous one,
        and reset its batch-norm statistics."""
        for new, agnostic in zip(self.backbone.parameters(), self.agnostic.parameters(), strict=True):
            new.lerp_(agnostic, self.config.agnostic_share)
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()

    # --- training -------------------------------------------------------------------------------------------------

    def training_plan(self, increment: Increment) -> Training:
        return self.train_on_images(increment, views=2)

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        frozen, before = self.frozen.start(images), self.old_embedding(images)
        specific, agnostic = self.maps(self.backbone, images), self.maps(self.agnostic, images)
        features = torch.cat([*frozen(), pool(specific).float()], dim=1)
        logits = self.head(features)
        classification = self.reduce(cross_entropy(logits, targets, self.prior), targets)
        total = classification + self.centre_loss(features, targets)
        agnostic_features = pool(agnostic).float()
        if not len(self.frozen):
            return total + self.config.contrastive_weight * self.contrastive(agnostic_features)
        auxiliary = self.auxiliary.loss(features, targets, self.prior_of_groups)
        total = total + self.config.auxiliary_weight * self.reduce(auxiliary, targets)
        total = total + self.continual_contrast(agnostic_features, before)
        return total + self.merging(specific, agnostic, logits, targets, classification)

    def maps(self, network: Backbone, images: Tensor) -> Tensor:
        """Feature maps before pooling, [B, D, h, w]."""
        with self.engine.autocast():
            maps: Tensor = network.upper(network.lower(images))
        return maps

    def old_embedding(self, images: Tensor) -> Callable[[], Tensor]:
        """Start the task-agnostic network and the projector of the previous step in parallel to what follows. The
        returned function waits for the embedding, [2B, E]; it is empty in the first step."""
        if not len(self.frozen):
            return lambda: images.new_empty(0)

        def embedding() -> Tensor:
            return self.old_projector(apply_frozen(self.old_agnostic, self.engine, images))  # type: ignore[no-any-return]

        return self.engine.aside(embedding, lane=len(self.frozen))

    def contrastive(self, agnostic_features: Tensor) -> Tensor:
        """Contrastive loss between the two views of each image."""
        embedding = self.engine.parallel.gather(self.projector(agnostic_features))
        return contrast(embedding, embedding, self.config.contrastive_temperature)

    def continual_contrast(self, agnostic_features: Tensor, before: Callable[[], Tensor]) -> Tensor:
        """Contrastive loss between views, and with the network of the previous step. The share of old classes is the
        weight of the latter."""
        old_share = self.auxiliary.old_classes / self.head.classes
        # the gradient passes through the frozen projector into predictor and network
        predicted = self.old_projector(self.predictor(agnostic_features))
        gather = self.engine.parallel.gather  # every sample is contrasted with all others of the batch
        kept = contrast(gather(predicted), gather(before()), self.config.contrastive_temperature)
        return (1 - old_share) * self.config.contrastive_weight * self.contrastive(
            agnostic_features
        ) + old_share * self.config.contrastive_distillation_weight * kept

    def merging(
        self, specific: Tensor, agnostic: Tensor, logits: Tensor, targets: Tensor, classification: Tensor
    ) -> Tensor:
        """Classify samples of new classes by the merged features, and transfer these scores to the new extractor if the
        merged features have the smaller loss.

        A batch without a sample of a new class gives 0, where the reference code divides by zero.
        """
        with self.engine.autocast():
            merged = self.merge(specific, agnostic.detach())
        merged_logits = self.merge_head(merged.float())
        new = targets >= self.auxiliary.old_classes
        among_new = (targets - self.auxiliary.old_classes).clamp_min(0)
        merge_loss = self.reduce(cross_entropy(merged_logits, among_new, self.prior_of_new), targets, weights=new)
        transfer = self.reduce(self.transfer(logits, merged_logits), targets, weights=new)
        better = (merge_loss < classification).detach()
        return merge_loss + better * transfer

    def transfer(self, logits: Tensor, merged_logits: Tensor) -> Tensor:
        """KL divergence between the softened scores of new classes and the merged scores, [2B]; no factor T^2."""
        temperature, teacher = self.config.transfer_temperature, merged_logits.detach()
        entropy = distillation(teacher, teacher, temperature)  # a constant: it changes the value, not the gradient
        return distillation(logits[:, self.auxiliary.old_classes :], teacher, temperature) - entropy

    # --- prediction -----------------------------------------------------------------------------------------------

    def features(self, images: Tensor) -> Tensor:
        """Features of all extractors, oldest first, [B, D * extractors]."""
        frozen = self.frozen.start(images)
        return torch.cat([*frozen(), self.newest_features(images)], dim=1)

    def newest_features(self, images: Tensor) -> Tensor:
        """Features of the newest extractor, [B, D]."""
        return self.through(self.backbone, images)

    def deployed(self) -> Iterable[nn.Module]:
        return [self.backbone, self.head, self.frozen]

    def test_scores(self, increment: Increment) -> Iterator[dict[str, Tensor]]:
        yield from map(self.scores, self.test_features(increment, self.frozen.networks(), self.newest_features))
