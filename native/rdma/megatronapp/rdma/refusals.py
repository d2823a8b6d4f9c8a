"""Why a message could not be posted, in words that say what to do."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from megatronapp.rdma import tensors
from megatronapp.rdma.errors import BackpressureError, LaneUnavailableError, TagError, TransportError
from megatronapp.rdma.lanes import Route
from megatronapp.rdma.tag import Tag


@dataclass(frozen=True)
class Refusals:
    """Of an engine: its rank, the GPU of its lanes (-1: none), its connected peers."""

    rank: int
    device: int
    routes: dict[int, Route]

    def of(self, error: Exception, peer: int, source: int, tag: Tag, tensor: torch.Tensor) -> Exception:
        """What the native engine's error means."""
        if isinstance(error, BufferError):
            return BackpressureError(f"{tag} and rank {peer}: {error}")
        if isinstance(error, IndexError):
            return self._not_connected(peer)
        if isinstance(error, ValueError):
            tag.pack(source)  # says it better, if that is what is wrong
            return TagError(f"{tag} and rank {peer}: {error}")
        if tensor.is_cuda and self.routes[peer].cuda is None:
            return self.unmovable(tensor, peer)
        return LaneUnavailableError(f"{tag} and rank {peer}: {error}")

    def unmovable(self, tensor: torch.Tensor, peer: int) -> Exception:
        if peer not in self.routes:
            return self._not_connected(peer)
        route = self.routes[peer]
        if tensor.is_cuda and route.cuda is None:
            why = route.refused.get("cuda_ipc", "no lane")
            return LaneUnavailableError(f"no lane moves GPU memory to or from rank {peer}: cuda_ipc: {why}")
        if tensor.is_cuda and tensor.get_device() != self.device:
            return ValueError(f"the tensor is on {tensor.device}, but this rank's lanes are on cuda:{self.device}")
        return ValueError(tensors.refusal(tensor))

    def _not_connected(self, peer: int) -> TransportError:
        if peer == self.rank:
            return TransportError(f"rank {peer} is this rank: copy the tensor instead")
        return TransportError(f"rank {peer} is not connected: call connect([{peer}]) on both ranks")
