"""The check of matrix products under a portion of a GPU. A CPU stands in for the GPU."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from ffcil.errors import InputError
from ffcil.training import arithmetic
from ffcil.training.arithmetic import PORTION, check_products, products_are_wrong

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small shapes. Without oneDNN: some virtual machines announce AMX, which it uses for bfloat16, and lack it."""
    monkeypatch.setattr(arithmetic, "SHAPES", ((64, 192, 96), (250, 32, 192)))
    with torch.backends.mkldnn.flags(enabled=False):
        yield


def spoil_products(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Leave one tile of the products in bfloat16 unwritten, as the GPU does."""
    right = F.linear

    def partly_unwritten(left: Tensor, weight: Tensor) -> Tensor:
        product = right(left, weight)
        if product.dtype == torch.bfloat16 and len(product) == 250:
            product[64:128, :8] = value
        return product

    monkeypatch.setattr(F, "linear", partly_unwritten)


def test_right_products_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not products_are_wrong(CPU)
    monkeypatch.setenv(PORTION, "22")
    check_products(CPU)


@pytest.mark.parametrize("value", [float("nan"), 0.0, 1e30])
def test_an_unwritten_tile_is_an_error_under_a_portion(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    spoil_products(monkeypatch, value)
    assert products_are_wrong(CPU)
    monkeypatch.delenv(PORTION, raising=False)
    check_products(CPU)  # a process that may use the whole GPU does not spend time on it
    monkeypatch.setenv(PORTION, "22")
    with pytest.raises(InputError, match=rf"{PORTION} is 22: set it to 25, 50 or 100\.$"):
        check_products(CPU)
