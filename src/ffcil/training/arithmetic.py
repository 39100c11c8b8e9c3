"""A check that a GPU multiplies matrices correctly. Some do not if MPS limits a process to a part of the GPU.

Observed on an H200 (driver 580, CUDA 13.0, torch 2.11) with bfloat16: at 16, 22, 30, 40 and 75 percent of the
multiprocessors, parts of some products are not written and keep what was in memory before. At 10, 25, 50 and 100
percent all products are right. With wrong products, training diverges or, worse, gives plausible but wrong results.
"""

import os

import torch
import torch.nn.functional as F

from ffcil.errors import InputError

PORTION = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""Environment variable that limits a process under MPS to a part of a GPU."""
SHAPES = ((6304, 192, 576), (6304, 192, 768), (9456, 192, 576), (49250, 192, 192), (49250, 192, 768), (49250, 768, 192))
"""Rows, inputs and outputs of the products that are checked: those of a ViT-Ti, most of which were wrong."""


def portion_of_gpu() -> float:
    """Percentage of a GPU's multiprocessors that this process may use."""
    return float(os.environ.get(PORTION) or 100)


def check_products(device: torch.device) -> None:
    """Raise an error if this process may use only a part of the GPU and a product is wrong. The check takes a fraction
    of a second."""
    if portion_of_gpu() < 100 and products_are_wrong(device):
        raise InputError(
            f"The GPU multiplies matrices incorrectly if {PORTION} is {os.environ[PORTION]}: set it to 25, 50 or 100."
        )


@torch.no_grad()
def products_are_wrong(device: torch.device) -> bool:
    """Whether a product in bfloat16 differs from the product in float32 by more than rounding errors."""
    generator = torch.Generator(device).manual_seed(0)
    for rows, inputs, outputs in SHAPES:
        left, right = (torch.randn(n, inputs, generator=generator, device=device) for n in (rows, outputs))
        left, right = left.bfloat16(), right.bfloat16()
        # fill the memory that the product gets next, so that elements which are not written are NaN
        torch.full((rows, outputs), torch.nan, dtype=torch.bfloat16, device=device)
        error = F.linear(left, right).float() - F.linear(left.float(), right.float())
        # products have the standard deviation sqrt(inputs), and rounding to bfloat16 changes a value by 1/256 at most
        if not error.abs().amax() < 0.1 * inputs**0.5:  # also true for NaN
            return True
    return False
