"""A faster form of frozen networks, in which each batch norm is folded into the convolution before it."""

import copy
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_weights


class Folded:
    """A frozen network without its batch norms, as a function. `renew` changes weights in place, so that compiled code
    remains valid."""

    def __init__(self, network: nn.Module, dtype: torch.dtype = torch.float32) -> None:
        self.network, self.dtype = copy.deepcopy(network).requires_grad_(False).eval(), dtype
        self.convolutions: list[nn.Conv2d] = []
        for parent, name, convolution, norm in list(_folding(self.network)):
            convolution.bias = nn.Parameter(torch.zeros_like(norm.running_mean), requires_grad=False)
            setattr(parent, name, nn.Identity())
            self.convolutions.append(convolution)
        self.network.to(dtype)
        self.renew(network)

    def __call__(self, values: Tensor) -> Any:
        return self.network(values.to(self.dtype))

    @torch.no_grad()
    def renew(self, network: nn.Module) -> None:
        """Compute the folded weights from the present weights and statistics of `network`."""
        self.network.load_state_dict(network.state_dict(), strict=False)  # for modules without a batch norm
        for folded, (_, _, convolution, norm) in zip(self.convolutions, _folding(network), strict=True):
            statistics = norm.running_mean, norm.running_var, norm.eps, norm.weight, norm.bias
            weight, bias = fuse_conv_bn_weights(convolution.weight, convolution.bias, *statistics)
            folded.weight.copy_(weight)
            folded.bias.copy_(bias)  # type: ignore[union-attr]


def compute_folded(network: nn.Module, dtype: torch.dtype, place: Callable[[nn.Module], None]) -> None:
    """Let a frozen network compute with its folded form, which is renewed whenever a state is loaded into the network.

    The modules and the state of the network do not change. `place` prepares the folded form for the device.
    """
    folded = Folded(network, dtype)
    place(folded.network)
    network.forward = folded
    network.register_load_state_dict_post_hook(lambda module, _: folded.renew(module))


def _folding(network: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Conv2d, Any]]:
    """Each convolution that a batch norm follows: their parent, the name of the norm in it, the convolution, the
    norm."""
    for parent in network.modules():
        for (_, before), (name, module) in pairwise(list(parent.named_children())):
            if isinstance(before, nn.Conv2d) and isinstance(module, nn.BatchNorm2d):
                yield parent, name, before, module
