"""Placement of pixels: in GPU memory if they fit, otherwise in pinned host memory."""

import weakref

import torch
from torch import Tensor

from ffcil.errors import InputError

SHARE = 0.6
"""Fraction of the free GPU memory that a store may use; the rest is for training."""
_BLOCK = 2**28  # bytes copied at a time


def place(pixels: Tensor, device: torch.device, room: int | None = None) -> Tensor:
    """Make `pixels` available on `device`.

    A store larger than `room` bytes (default: a fraction of the free memory) stays in page-locked host memory. Kernels
    read it across the bus, through a tensor that appears to be on the device.
    """
    if device.type != "cuda" or pixels.device.type == "cuda":
        return pixels.to(device)
    if room is None:
        room = int(SHARE * torch.cuda.mem_get_info(device)[0])
    if pixels.nbytes <= room:
        return pixels.to(device)
    locked = _HostMemory(_page_locked(pixels))
    with torch.cuda.device(device):
        return torch.as_tensor(locked, device=device)


def _page_locked(pixels: Tensor) -> Tensor:
    """A page-locked copy. Pinned memory of torch is not used, because its size is rounded up to a power of two."""
    locked = torch.empty_like(pixels, memory_format=torch.contiguous_format)
    for source, target in zip(pixels.view(-1).split(_BLOCK), locked.view(-1).split(_BLOCK), strict=True):
        target.copy_(source)
    error = torch.cuda.cudart().cudaHostRegister(locked.data_ptr(), locked.nbytes, 0)
    if int(error) != 0:
        raise InputError(
            f"{locked.nbytes / 2**30:.1f} GiB of images do not fit on the GPU and cannot be pinned on the host (CUDA "
            f"error {int(error)}): lower image_size, or raise the limit on locked memory."
        )
    return locked


class _HostMemory:
    """Page-locked memory with the CUDA array interface. The tensor made from it keeps it alive."""

    def __init__(self, pixels: Tensor) -> None:
        self.pixels = pixels
        self.__cuda_array_interface__ = {
            "shape": tuple(pixels.shape),
            "typestr": "|u1",
            "data": (pixels.data_ptr(), False),
            "version": 3,
        }
        weakref.finalize(self, torch.cuda.cudart().cudaHostUnregister, pixels.data_ptr()).atexit = False
