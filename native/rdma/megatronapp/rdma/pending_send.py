"""What a peer has to send."""

from __future__ import annotations

from typing import NamedTuple

import torch

from megatronapp.rdma import _native, tensors
from megatronapp.rdma.tag import Tag, tag_filter

ANY_PEER = -1


class PendingSend(NamedTuple):
    """A message that a peer has posted, and for which no receive was posted here.

    Its tensor may be received with `spec`, on any device. On a GPU the work that fills it may still be running.
    """

    peer: int
    tag: Tag
    shape: tuple[int, ...]
    dtype: torch.dtype
    on_gpu: bool
    nbytes: int
    t_ns: int
    """When this rank learnt of it, on the monotonic clock."""

    def spec(self, device: torch.device | str) -> tensors.Spec:
        return tensors.Spec(self.shape, self.dtype, device)


def probe(
    native: _native.Engine, peer: int | None, kind: int | None, chunk: int | None, in_round: int | None, timeout: float
) -> list[PendingSend]:
    mask, value = tag_filter(kind, chunk, in_round)
    found = native.probe(ANY_PEER if peer is None else peer, mask, value, timeout)
    return [
        PendingSend(source, Tag.unpack(tag), shape, tensors.DTYPES[dtype], on_gpu, nbytes, t_ns)
        for source, tag, (dtype, shape, on_gpu), nbytes, t_ns in found
    ]
