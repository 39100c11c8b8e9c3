"""The analytic classifier as the released code of MoAL computes it: by recursion, in single precision.

In exact arithmetic, `AnalyticHead` has the same weights. Here rounding errors determine how large the ridge must be:
they affect the choice of lambda, the inverse of the first sums, and every later update.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ffcil.models.analytic import RIDGES, RandomFeatureHead


class RecursiveHead(RandomFeatureHead):
    """R, the inverse of the sums plus lambda, and W are updated batch by batch:

        R <- R - R Phi^T (I + Phi R Phi^T)^+ Phi R        W <- W + R Phi^T (Y - Phi W)

    The first call of `add` inverts the sums. Where numbers overflow, R and W become NaN, and so does every score; the
    released code stops there, because a singular value decomposition fails.
    """

    inverse: Tensor

    def __init__(
        self, features: int, hidden: int, draw: Callable[[Tensor], Tensor], batch: int, balanced: bool = False
    ) -> None:
        """`draw` fills the fixed projection [hidden, features] in place, and `batch` is the number of rows of an
        update. With `balanced`, all classes in a call of `add` or `choose` have equal weights."""
        super().__init__(features, hidden, draw, torch.float32, balanced)
        self.batch = batch
        self.register_buffer("inverse", torch.zeros(hidden, hidden))
        """R, [H, H]"""

    @property
    def collapsed(self) -> bool:
        """Whether the weights are no longer finite."""
        return not bool(self.weight.isfinite().all())

    @torch.no_grad()
    def choose(
        self, features: Tensor, targets: Tensor, generator: torch.Generator, weights: Tensor | None = None
    ) -> None:
        """Choose lambda: the first 80 % of the rows are fitted, and the others are predicted. The rows must be in
        random order; `generator` is not used."""
        rows, wanted = self._scaled(features, targets, weights)
        self.ridge.fill_(RIDGES[int(single_precision_errors(rows, wanted, int(0.8 * len(rows))).argmin())])

    @torch.no_grad()
    def add(self, features: Tensor, targets: Tensor, weights: Tensor | None = None) -> None:
        """Memorise features [N, D] and their classes [N], with weights [N]; default: `row_weights`."""
        rows, wanted = self._scaled(features, targets, weights)
        batches = list(zip(rows.split(self.batch), wanted.split(self.batch), strict=True))
        if self.inverse.any():
            for batch in batches:
                self._update(*batch)
            return
        gram, moments = torch.zeros_like(self.inverse), torch.zeros_like(self.weight)
        for phi, values in batches:
            gram.addmm_(phi.mT, phi)
            moments.addmm_(phi.mT, values)
        damped = gram.double()  # only the inversion is in double precision
        damped.diagonal().add_(self.ridge.item())
        self.inverse.copy_(torch.linalg.inv_ex(damped).inverse)
        self.weight.copy_(self.inverse @ moments)

    def _update(self, phi: Tensor, wanted: Tensor) -> None:
        if not len(phi):
            return
        inner = torch.eye(len(phi), device=phi.device) + phi @ self.inverse @ phi.mT
        if not inner.isfinite().all():
            self.inverse.fill_(torch.nan)
            self.weight.fill_(torch.nan)
            return
        middle = torch.linalg.pinv(inner, rtol=1e-15)
        self.inverse.sub_(self.inverse @ phi.mT @ middle @ phi @ self.inverse)
        self.weight.add_(self.inverse @ phi.mT @ (wanted - phi @ self.weight))

    def scale_targets(self, factor: float) -> None:
        """Scale the regression targets of all images so far, and with them the weights."""
        self.weight.mul_(factor)

    def solve(self) -> None:
        """Do nothing, because `add` has updated the weights."""

    def _scaled(self, features: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
        """Random features and regression targets, scaled by the square roots of the weights: the squared errors of
        scaled rows are the weighted squared errors."""
        rows, wanted = self.expand(features), self._wanted(targets)
        if weights is None:
            if not self.balanced:
                return rows, wanted
            weights = self.row_weights(targets)
        scale = weights.sqrt().to(rows.dtype)[:, None]
        return rows * scale, wanted * scale


def single_precision_errors(rows: Tensor, wanted: Tensor, fitted: int) -> Tensor:
    """Mean squared error of each of `RIDGES`, [ridges], if the first `fitted` rows predict the others.

    Each ridge is solved from the sums [H, H] in the precision of `rows`. Rounding makes the errors of small ridges
    large."""
    known, to_fit = rows[:fitted], wanted[:fitted]
    gram, moments = known.mT @ known, known.mT @ to_fit
    errors = []
    for ridge in RIDGES:
        damped = gram.clone()
        damped.diagonal().add_(ridge)
        weight = torch.linalg.solve_ex(damped, moments).result
        errors.append((rows[fitted:] @ weight - wanted[fitted:]).square().mean())
    return torch.stack(errors)
