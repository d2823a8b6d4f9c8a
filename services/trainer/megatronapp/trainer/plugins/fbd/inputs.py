"""What a backward rank receives of activations between layers: [s, b, h], or its slice of s."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from megatronapp.core.pipeline.partition import Partition
from megatronapp.trainer.plugins.fbd.link import Link, twins_of
from megatronapp.trainer.plugins.fbd.pending import Kind, Pending
from megatronapp.trainer.plugins.fbd.slices import Sequence as TokenSequence
from megatronapp.trainer.plugins.fbd.slices import slices


class Inputs:
    """From the forward world, for this rank's parts."""

    def __init__(
        self, link: Link, partition: Partition, forward: TokenSequence, backward: TokenSequence, slots: int
    ) -> None:
        self._link = link
        self._partition = partition
        self._slices = slices(forward, backward, link.place.tensor)
        self.slots = slots
        """Of each chunk: inputs that are received, or may be, and have not had their B."""

    def post(self, tensor: torch.Tensor, part: int, microbatch: int) -> list[Pending]:
        """A part's input, which the layer before it makes."""
        _, chunk = self._partition.backward.place(part)
        return self._post(tensor, part * self._partition.part_layers - 1, Kind.INPUT, microbatch, chunk)

    def post_layer(self, tensor: torch.Tensor, layer: int, microbatch: int) -> list[Pending]:
        """What a layer of a part makes."""
        return self._post(tensor, layer, Kind.LAYER, microbatch, layer)

    def wait(self, handles: Sequence[Pending]) -> None:
        for handle in handles:
            self._link.wait_received(handle)

    def _post(self, tensor: torch.Tensor, layer: int, kind: Kind, microbatch: int, chunk: int) -> list[Pending]:
        twins = twins_of(self._link, stage=self._partition.forward_stage(layer))
        return [
            self._link.receive(
                tensor.detach().narrow(0, piece.target, piece.length),
                twins[piece.sender],
                kind,
                microbatch=microbatch,
                chunk=chunk,
            )
            for piece in self._slices
        ]
