"""TagFex: DER whose new extractors also learn from one task-agnostic network, trained by self-supervision all along.

Zheng et al., CVPR 2025, with the weights and the gate of the authors' code, where it departs from the paper's text.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from pydantic import Field, PositiveInt
from torch import Tensor, nn

from ffcil.errors import InputError
from ffcil.losses import cross_entropy, distillation
from ffcil.methods.der import DER, DERConfig
from ffcil.methods.learner import LearnerSettings, MethodConfig, register
from ffcil.models.heads import GrowingLinear
from ffcil.models.resnet import Backbone, pool
from ffcil.stream import Increment


class TagFexConfig(DERConfig):
    """TagFex's own fields."""

    auxiliary_weight: float = Field(2.0, ge=0)
    """of DER's auxiliary loss"""
    contrastive_weight: float = Field(1.0, ge=0)
    """of the contrastive term between two views of an image"""
    contrastive_distillation_weight: float = Field(2.0, ge=0)
    """of the contrastive term between the task-agnostic network and what it was a step before; on its own, where the
    authors' code multiplies it with the weight of the other term"""
    contrastive_temperature: float = Field(0.2, gt=0)
    """of both contrastive terms"""
    transfer_temperature: float = Field(2.0, gt=0)
    """of the transfer from the merged features to the new extractor"""
    projector_hidden: PositiveInt = 2048
    """width of the projector's hidden layer"""
    projector_features: PositiveInt = 1024
    """width of the embeddings that the contrastive terms compare"""
    heads: PositiveInt = 8
    """of the merge attention; they divide the backbone's features among them"""
    agnostic_share: float = Field(0.05, ge=0, le=1)
    """of the task-agnostic network in the initialisation of a new extractor"""


def _projection(features: int) -> nn.Linear:
    linear = nn.Linear(features, features, bias=False)
    nn.init.xavier_normal_(linear.weight)
    return linear


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Initialised as a head is."""
    linear = nn.Linear(inputs, outputs)
    nn.init.kaiming_uniform_(linear.weight, nonlinearity="linear")
    nn.init.zeros_(linear.bias)
    return linear


class MergeAttention(nn.Module):
    """Task-specific tokens attend to themselves and to the task-agnostic tokens; the mean over tokens comes out."""

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
        batch, count, _ = tokens.shape
        return tokens.view(batch, count, self.heads, -1).transpose(1, 2)


def contrast(anchors: Tensor, others: Tensor, temperature: float) -> Tensor:
    """InfoNCE over two views, [2B, E] each, view 1 above view 2: a row's positive is the other view of its image, its
    negatives are all other images; the row of the same view is left out. The mean over rows.

    It has no label in it: there is no class by which it could be averaged, so the class-wise mean leaves it as it is.
    """
    similarity = F.normalize(anchors, dim=1) @ F.normalize(others, dim=1).T / temperature
    similarity = similarity.masked_fill(torch.eye(len(anchors), dtype=torch.bool, device=anchors.device), -torch.inf)
    other_view = torch.arange(len(anchors), device=anchors.device).roll(len(anchors) // 2)
    return F.cross_entropy(similarity, other_view)


@register("tagfex")
class TagFex(DER):
    """`agnostic` is the task-agnostic network: trained at every step by the contrastive terms alone, never deployed."""

    title = "TagFex"
    paper = "https://arxiv.org/abs/2503.00823"
    Config = TagFexConfig
    config: TagFexConfig
    views = 2

    def __init__(self, settings: LearnerSettings, config: MethodConfig) -> None:
        super().__init__(settings, config)
        width, device = self.backbone.feature_dim, self.engine.device
        if width % self.config.heads:
            raise InputError(f"options.heads={self.config.heads} does not divide the backbone's {width} features.")
        hidden, embedded = self.config.projector_hidden, self.config.projector_features
        self.agnostic = self.build_backbone()
        self.projector = nn.Sequential(_linear(width, hidden), nn.ReLU(), _linear(hidden, embedded)).to(device)
        self.predictor = _linear(width, width).to(device).requires_grad_(False)  # idle until the second step
        # what the two were at the end of the step before; overwritten at each step, so that they are compiled once
        self.old_agnostic = self.frozen_copy(self.agnostic)
        self.old_projector = copy.deepcopy(self.projector).requires_grad_(False)
        self.merge = nn.Module()
        self.merge_head = GrowingLinear(width)

    # --- growing --------------------------------------------------------------------------------------------------

    def grow(self, increment: Increment) -> None:
        super().grow(increment)
        if not self.old_classes:
            return
        self.old_agnostic.load_state_dict(self.agnostic.state_dict())
        self.old_projector.load_state_dict(self.projector.state_dict())
        self.predictor.requires_grad_(True)
        width, device = self.backbone.feature_dim, self.engine.device
        self.merge = MergeAttention(width, self.config.heads).to(device)
        self.merge_head = GrowingLinear(width).to(device)
        self.merge_head.grow(len(increment.classes))

    def freeze(self) -> None:
        super().freeze()
        self._mix_in_agnostic()

    @torch.no_grad()
    def _mix_in_agnostic(self) -> None:
        """A new extractor is mostly the one before it; its batch-norm statistics begin anew."""
        for new, agnostic in zip(self.backbone.parameters(), self.agnostic.parameters(), strict=True):
            new.lerp_(agnostic, self.config.agnostic_share)
        for module in self.backbone.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.reset_running_stats()

    def grow_head(self, increment: Increment) -> None:
        # as the authors' code: what the old classes see of a new extractor starts at zero
        self.head.grow(increment.seen_now, self.backbone.feature_dim * (len(self.frozen) + 1), blind=True)

    # --- training -------------------------------------------------------------------------------------------------

    def loss(self, images: Tensor, targets: Tensor) -> Tensor:
        frozen, before = self.frozen_features(images), self.old_embedding(images)
        specific, agnostic = self.maps(self.backbone, images), self.maps(self.agnostic, images)
        features = torch.cat([*frozen(), pool(specific).float()], dim=1)
        logits = self.head(features)
        classification = self.reduce(cross_entropy(logits, targets), targets)
        total = classification + self.spread(features, targets)
        of_agnostic = pool(agnostic).float()
        if not self.old_classes:
            return total + self.config.contrastive_weight * self.contrastive(of_agnostic)
        total = total + self.config.auxiliary_weight * self.reduce(self.auxiliary_loss(features, targets), targets)
        total = total + self.continual_contrast(of_agnostic, before)
        return total + self.merging(specific, agnostic, logits, targets, classification)

    def maps(self, network: Backbone, images: Tensor) -> Tensor:
        """[B, D, h, w]"""
        with self.engine.autocast():
            maps: Tensor = network.upper(network.lower(images))
        return maps

    def old_embedding(self, images: Tensor) -> Callable[[], Tensor]:
        """Starts, beside what follows, the task-agnostic network and projector of the step before: [2B, E]."""
        if not self.old_classes:
            return lambda: images.new_empty(0)

        def embedding() -> Tensor:
            return self.old_projector(self.without_gradients(self.old_agnostic, images))  # type: ignore[no-any-return]

        return self.engine.aside(embedding, lane=len(self.frozen))

    def contrastive(self, of_agnostic: Tensor) -> Tensor:
        embedding = self.projector(of_agnostic)
        return contrast(embedding, embedding, self.config.contrastive_temperature)

    def continual_contrast(self, of_agnostic: Tensor, before: Callable[[], Tensor]) -> Tensor:
        """Learn what is new, and keep what the network of the step before knew: the more, the more classes are old."""
        old_share = self.old_classes / self.head.classes
        # the gradient passes through the frozen projector into predictor and network
        predicted = self.old_projector(self.predictor(of_agnostic))
        kept = contrast(predicted, before(), self.config.contrastive_temperature)
        return (1 - old_share) * self.config.contrastive_weight * self.contrastive(
            of_agnostic
        ) + old_share * self.config.contrastive_distillation_weight * kept

    def merging(
        self, specific: Tensor, agnostic: Tensor, logits: Tensor, targets: Tensor, classification: Tensor
    ) -> Tensor:
        """Classify new samples by the merged features, and teach the new extractor by that where it does better.

        A batch without a sample of a new class gives 0 (the references divide by zero there).
        """
        with self.engine.autocast():
            merged = self.merge(specific, agnostic.detach())
        merged_logits = self.merge_head(merged.float())
        new = targets >= self.old_classes
        merge_loss = self.reduce(
            cross_entropy(merged_logits, (targets - self.old_classes).clamp_min(0)), targets, weights=new
        )
        transfer = self.reduce(self.transfer(logits, merged_logits), targets, weights=new)
        better = (merge_loss < classification).detach()
        return merge_loss + better * transfer

    def transfer(self, logits: Tensor, merged_logits: Tensor) -> Tensor:
        """KL divergence of the new classes' softened scores from the merged ones', [2B]; no factor T^2."""
        temperature, teacher = self.config.transfer_temperature, merged_logits.detach()
        entropy = distillation(teacher, teacher, temperature)  # a constant: it matters for the value alone
        return distillation(logits[:, self.old_classes :], teacher, temperature) - entropy
