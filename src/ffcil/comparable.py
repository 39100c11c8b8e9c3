"""Scores of classes that different networks learned, for example one per step, made comparable.

This module needs torch and nothing else of ffcil. In your own loop, after each step, with `scores` [N, C] of the step's
training images for all classes seen, each by the network of its own step, and `space_of` [C], the step of each class:

    comparable.grow(steps)
    comparable.observe(scores, targets, space_of)

with `comparable = ComparableScores()`, made once. Predict with `comparable(scores, space_of).argmax(dim=1)`.
"""

import torch
from torch import Tensor, nn


class ComparableScores(nn.Module):
    """Standardises scores, so that those of classes in different spaces can be compared.

    The features of a network that was tuned on few classes, or not at all, are similar for all images: the cosines of
    an image with the classes of such a space are high whether it belongs to them or not. So the scores of a space are
    shifted and scaled by the mean and the standard deviation of its scores for wrong classes, over all training images
    seen since the space was opened. This needs three numbers per space and no images of earlier steps. (It is the
    Z-norm of speaker verification.)
    """

    sums: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sums", torch.zeros(0, 3, dtype=torch.float64))
        """Number, sum and sum of squares of the scores of each space for wrong classes, [spaces, 3]"""

    def grow(self, spaces: int) -> None:
        """Add spaces without scores up to `spaces`."""
        self.sums = torch.cat([self.sums, self.sums.new_zeros(spaces - len(self.sums), 3)])

    @torch.no_grad()
    def observe(self, scores: Tensor, targets: Tensor, space_of: Tensor) -> None:
        """Add the scores [N, C] of images of the classes `targets` [N] to the sums.

        Args:
            space_of: Space of each class, [C].
        """
        wrong = (targets[:, None] != torch.arange(scores.shape[1], device=scores.device)).double()
        values = wrong * scores.double()
        by_class = torch.stack([wrong.sum(dim=0), values.sum(dim=0), values.square().sum(dim=0)], dim=1)  # [C, 3]
        members = space_of == torch.arange(len(self.sums), device=space_of.device)[:, None]  # [spaces, C]
        self.sums += members.double() @ by_class  # unlike `index_add_`, the same to the bit every time on a GPU

    def forward(self, scores: Tensor, space_of: Tensor) -> Tensor:
        """Standardise scores: [..., C] -> [..., C]. The results have the mean standard deviation of all spaces.

        A space without two different scores gets the mean statistics of the others. Nothing synchronises with the
        device.

        Args:
            space_of: Space of each class, [C].
        """
        count, total, squares = self.sums.unbind(dim=1)
        mean = total / count.clamp_min(1)
        deviation = (squares / count.clamp_min(1) - mean.square()).clamp_min(0).sqrt()
        known = deviation > 1e-6 * mean.abs()
        spaces = known.sum().clamp_min(1)
        common = torch.where(known, mean, 0.0).sum() / spaces
        level = torch.where(known, deviation, 0.0).sum() / spaces
        level = torch.where(known.any(), level, 1.0)  # without any statistics, scores stay as they are
        shift = torch.where(known, mean, common)[space_of].to(scores.dtype)
        scale = (level / torch.where(known, deviation, level))[space_of].to(scores.dtype)
        return (scores - shift) * scale
