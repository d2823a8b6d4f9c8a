"""What the engine must know of a tensor, and buffers for those who bring none."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from megatronapp.rdma import _native
from megatronapp.rdma.errors import MismatchError

# In this order on the wire.
DTYPES: tuple[torch.dtype, ...] = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
_NUMBERS = {dtype: number for number, dtype in enumerate(DTYPES)}
MOST_DIMENSIONS = 8
_made = tuple.__new__


class Spec(NamedTuple):
    """A tensor to be received, whose memory the engine brings."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | str = "cpu"


class Described(NamedTuple):
    """As the native engine takes it."""

    address: int
    bytes: int
    dtype: int
    shape: tuple[int, ...]
    cuda: bool


def describe(tensor: torch.Tensor) -> Described:
    """Raises ValueError for a tensor that is not one plain piece of CPU or CUDA memory, TypeError for none at all."""
    try:
        cuda = tensor.is_cuda
        plain = tensor.layout is torch.strided and (cuda or tensor.is_cpu) and tensor.is_contiguous()
        number = _NUMBERS.get(tensor.dtype)
        if not plain or number is None or tensor.is_conj() or tensor.is_neg() or tensor.dim() > MOST_DIMENSIONS:
            raise ValueError(_refusal(tensor))
        # Made without the class's own constructor, which takes as long as all the questions: this is asked each time.
        return _made(Described, (tensor.data_ptr(), tensor.nbytes, number, tensor.shape, cuda))
    except AttributeError:
        raise TypeError(f"a {type(tensor).__name__} can't be moved: only tensors can") from None


def _refusal(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided or not (tensor.is_cuda or tensor.is_cpu):
        return f"a {tensor.layout} tensor on {tensor.device} can't be moved: only dense ones on cpu or cuda"
    if not tensor.is_contiguous():
        return "the tensor is not contiguous: send tensor.contiguous(), or receive into a contiguous one"
    if tensor.is_conj() or tensor.is_neg():
        return "the tensor is a lazy conjugate or negative: send tensor.resolve_conj().resolve_neg()"
    if tensor.dim() > MOST_DIMENSIONS:
        return f"a tensor of {tensor.dim()} dimensions; at most {MOST_DIMENSIONS}: send tensor.flatten()"
    return f"tensors of {tensor.dtype} can't be moved: send tensor.view(torch.uint8)"


def current_stream(device: int) -> int:
    """The current stream's handle, without an object around it: this is asked for each message."""
    handle: int = torch._C._cuda_getCurrentRawStream(device)
    return handle


def text(described: tuple[int, tuple[int, ...], bool, int]) -> str:
    """A tensor in words, from the native engine's description."""
    dtype, shape, cuda, _ = described
    return f"{str(DTYPES[dtype]).removeprefix('torch.')} {list(shape)} on {'cuda' if cuda else 'cpu'}"


def mismatch(tag: str, sender: str, sent: str, receiver: str, expected: str) -> MismatchError:
    return MismatchError(f"{tag}: {sender} sends {sent}, but {receiver} receives {expected}")


def allocate(spec: Spec) -> torch.Tensor:
    """Uninitialised memory that the lanes can move. GPU memory is from PyTorch's allocator, or from a pool that other
    processes can open where that one gives expandable segments. Raises ValueError for a shape that is none."""
    if any(size < 0 for size in spec.shape):
        raise ValueError(f"{list(spec.shape)} is no shape: a dimension is negative")
    tensor = torch.empty(spec.shape, dtype=spec.dtype, device=spec.device)
    if not tensor.is_cuda or tensor.nbytes == 0 or _native.is_shareable(tensor.data_ptr()):
        return tensor
    with torch.cuda.use_mem_pool(_shareable_pool(), device=tensor.device):
        return torch.empty(spec.shape, dtype=spec.dtype, device=tensor.device)


@cache
def _shareable_pool() -> Any:
    library = str(Path(_native.__file__))
    allocator = torch.cuda.memory.CUDAPluggableAllocator(
        library, "megatronapp_rdma_allocate", "megatronapp_rdma_release"
    )
    return torch.cuda.MemPool(allocator.allocator())  # type: ignore[no-untyped-call]
