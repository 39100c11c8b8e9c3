"""`fit_map`: a linear map between feature spaces, fitted by SGD as in MoAL's released code."""

import copy
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ffcil.training.batches import FeatureSource
from ffcil.training.engine import Engine
from ffcil.training.fit import Optimisation, ParameterGroup, Training, cosine_rate, fit

EPOCHS = 1000
OPTIMISATION = Optimisation(EPOCHS, partial(cosine_rate, 0.01, 10), weight_decay=5e-4)
"""A cosine schedule, in which the learning rate falls to zero in ten epochs and rises again in the next ten."""
BATCH = 32


def fit_map(old: Tensor, new: Tensor, generator: torch.Generator, engine: Engine) -> nn.Linear:
    """Fit a linear map with bias from old to new features of the same images, [N, D] each, and return it.

    The map starts with the random initialisation of a linear layer of torch, not as the identity. SGD changes it only
    in the directions that these images span. In all others, such as those in which classes of other steps differ, the
    map stays random, and weight decay shrinks it. A tenth of the images is held out, and the map of the epoch with the
    smallest error on them is kept. A single image is both fitted and held out; the released code stops with an error
    there.
    """
    order = torch.randperm(len(old), generator=generator, device=old.device)
    old, new, fitted = old[order], new[order], max(1, int(0.9 * len(order)))
    held_out = slice(fitted, None) if fitted < len(order) else slice(None)
    linear = nn.Linear(old.shape[1], new.shape[1]).to(old.device)
    bound = old.shape[1] ** -0.5
    for parameter in linear.parameters():
        nn.init.uniform_(parameter, -bound, bound, generator=generator)
    best, smallest = copy.deepcopy(linear), torch.inf

    @torch.no_grad()
    def keep_the_best() -> None:
        nonlocal smallest
        error = F.mse_loss(linear(old[held_out]), new[held_out]).item()
        if error < smallest:
            best.load_state_dict(linear.state_dict())
            smallest = error

    def loss(inputs: Tensor, wanted: Tensor) -> Tensor:
        return F.mse_loss(linear(inputs), wanted)

    source = FeatureSource(lambda: (old[:fitted], new[:fitted]), fitted, BATCH, generator)
    group = ParameterGroup(list(linear.parameters()))
    seed = generator.initial_seed()
    fit(Training(loss, [group], source, OPTIMISATION, seed, keep_the_best, may_diverge=True), engine)
    return best
