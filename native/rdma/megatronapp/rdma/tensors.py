"""What the engine must know of a tensor, and buffers for those who bring none."""

from __future__ import annotations

from typing import NamedTuple

import torch

from megatronapp.rdma import _native
from megatronapp.rdma.errors import MismatchError

DTYPES: tuple[torch.dtype, ...] = tuple(getattr(torch, name) for name in _native.dtype_names())
"""In this order on the wire."""
MAX_DIMENSIONS = 8


class Spec(NamedTuple):
    """A tensor to be received, whose memory the engine brings."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | str = "cpu"


def refusal(tensor: torch.Tensor) -> str:
    """Why a tensor can't be moved: it is not one plain piece of CPU or CUDA memory."""
    if tensor.layout is not torch.strided or not (tensor.is_cuda or tensor.is_cpu):
        return f"a {tensor.layout} tensor on {tensor.device} can't be moved: only dense ones on cpu or cuda"
    if not tensor.is_contiguous():
        return "the tensor is not contiguous: send tensor.contiguous(), or receive into a contiguous one"
    if tensor.is_conj() or tensor.is_neg():
        return "the tensor is a lazy conjugate or negative: send tensor.resolve_conj().resolve_neg()"
    if tensor.dim() > MAX_DIMENSIONS:
        return f"a tensor of {tensor.dim()} dimensions; at most {MAX_DIMENSIONS}: send tensor.flatten()"
    return f"tensors of {tensor.dtype} can't be moved: send tensor.view(torch.uint8)"


def current_stream(device: int) -> int:
    """The current stream's handle, without an object around it: this is asked for each message."""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


def text(described: tuple[int, tuple[int, ...], bool]) -> str:
    """A tensor in words, from the native engine's description: dtype, shape, whether on a GPU."""
    dtype, shape, cuda = described
    return f"{str(DTYPES[dtype]).removeprefix('torch.')} {list(shape)} on {'cuda' if cuda else 'cpu'}"


def mismatch(tag: str, sender: str, sent: str, receiver: str, expected: str) -> MismatchError:
    return MismatchError(f"{tag}: {sender} sends {sent}, but {receiver} receives {expected}")


def allocate(spec: Spec) -> torch.Tensor:
    """Uninitialised memory. Raises ValueError for a shape that is none."""
    if any(size < 0 for size in spec.shape):
        raise ValueError(f"{list(spec.shape)} is no shape: a dimension is negative")
    return torch.empty(spec.shape, dtype=spec.dtype, device=spec.device)
