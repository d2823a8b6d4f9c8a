"""The weights' way from the backward world, which trains them, to the forward world, which uses them.

Each parameter goes as messages of its own, without a copy where both hold the same part of it. Both ends name it alike:
by its layer, 1 to all, the embedding being 0, and by its place among the layer's sorted names. A rank receives from
those that hold a part of what it needs; what is not split over tensor ranks, from one of them.

They are sent piece by piece while the optimizer still steps others, and received from the end of the forward passes
on: the rest of the optimizer, and what comes between two steps, hide their way.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.pipeline.partition import Partition
from megatronapp.trainer.initialize import shard_of, whole_name
from megatronapp.trainer.plugins.fbd.link import PATIENCE_SECONDS, Link, twins_of
from megatronapp.trainer.plugins.fbd.pending import Kind, Pending
from megatronapp.trainer.plugins.fbd.roles import Place
from megatronapp.trainer.plugins.fbd.slices import nearest
from megatronapp.trainer.sharding import Shard, pieces

EMBEDDING = 0
AHEAD_BYTES = 512 << 20
"""Of weights that a forward rank receives at once: as much as the engine keeps memory for."""
MOST_OF_LAYER = 1024
"""Parameters of a layer, on one rank."""
_LAYER = re.compile(r"decoder\.layers\.(\d+)\.")


class Parameter(NamedTuple):
    """One that both worlds hold."""

    layer: int
    """From 1; EMBEDDING."""
    number: int
    """In messages' names."""
    name: str
    tensor: torch.Tensor
    shard: Shard
    split: bool
    """Over the tensor ranks of a role, which the other one may have more or fewer of. Experts' are not: both split them
    alike."""


def shared_parameters(
    chunks: Sequence[torch.nn.Module], config: TransformerConfig, partition: Partition
) -> list[Parameter]:
    """Those of this rank's chunks, in the order of their first use. A tied embedding's copy on the last stage is left
    out, with all else of the last part."""
    by_layer: defaultdict[int, list[tuple[str, torch.Tensor, bool]]] = defaultdict(list)
    for chunk in chunks:
        for local, parameter in chunk.named_parameters():
            name = whole_name(local, chunk, config)
            layer = int(found[1]) + 1 if (found := _LAYER.match(name)) else EMBEDDING
            if layer > partition.forward_layers or (layer == EMBEDDING and not local.startswith("embedding.")):
                continue
            split = getattr(parameter, "tensor_model_parallel", False) and ".experts." not in name
            by_layer[layer].append((name, parameter, split))
    return [
        Parameter(layer, layer * MOST_OF_LAYER + number, name, tensor.data, shard_of(name, tensor, config), split)
        for layer in sorted(by_layer)
        for number, (name, tensor, split) in enumerate(sorted(by_layer[layer], key=lambda each: each[0]))
    ]


class Sending:
    """The backward rank's side. From `begin` to `rest` each parameter is sent once; it is read until the next `begin`
    has returned."""

    def __init__(self, link: Link, partition: Partition, parameters: Sequence[Parameter]) -> None:
        self._link = link
        self._partition = partition
        self._parameters = {parameter.tensor.data_ptr(): parameter for parameter in parameters}
        self._due: set[int] = set()
        self._sent: list[Pending] = []

    def layer_of(self, weight: torch.Tensor) -> int | None:
        """None for one that is not sent."""
        parameter = self._parameters.get(weight.data_ptr())
        return parameter.layer if parameter is not None else None

    def begin(self) -> None:
        """Parameters may change from here on."""
        for handle in self._sent:
            self._link.wait_sent(handle)
        self._sent, self._due = [], set(self._parameters)

    def final(self, weights: Iterable[torch.Tensor]) -> None:
        """These won't change until the next `begin`."""
        self._send({weight.data_ptr() for weight in weights})

    def rest(self) -> None:
        """None will."""
        self._send(self._due)

    def _send(self, some: set[int]) -> None:
        due = some & self._due
        for place, parameter in self._parameters.items():
            if place in due:
                self._sent += self.send(parameter)
        self._due -= due

    def send(self, parameter: Parameter) -> list[Pending]:
        return [
            self._link.send(
                rows.contiguous(),
                twin,
                Kind.WEIGHTS,
                patience_seconds=PATIENCE_SECONDS,
                microbatch=parameter.number,
                chunk=index,
            )
            for twin in self._receivers(parameter)
            for index, rows in enumerate(self._rows(parameter, twin))
        ]

    def _receivers(self, parameter: Parameter) -> Iterator[Place]:
        here, size = self._link.place.tensor, self._link.roles.backward.tensor
        twins = twins_of(self._link, stage=self._partition.forward_stage(max(parameter.layer - 1, 0)))
        for twin in twins:
            if parameter.split or nearest(twin.tensor, len(twins), size) == here:
                yield twin

    def _rows(self, parameter: Parameter, twin: Place) -> Iterator[torch.Tensor]:
        shard = parameter.shard
        theirs = other_split(parameter, self._link.roles.forward.tensor, twin.tensor)
        for piece in pieces(shard, theirs):
            yield parameter.tensor.narrow(shard.axis, piece.source, piece.length)


class Receiving:
    """The forward rank's side: a layer waits for its own, and what comes behind it moves up."""

    def __init__(self, link: Link, partition: Partition, parameters: Sequence[Parameter]) -> None:
        self._link = link
        self._partition = partition
        self._parameters = parameters
        self._left: deque[Parameter] = deque()
        self._ahead_bytes = self._turn = 0
        self.on_host = False
        """Whether the host waits, too: where it would run far ahead of what is sent."""
        self._coming: defaultdict[int, list[tuple[Pending, torch.Tensor, torch.Tensor]]] = defaultdict(list)

    def post(self, turn: int) -> None:
        """Receive all that was sent in a turn, in the order of first use. Nothing may use weights before their layer
        has waited."""
        self._left, self._turn = deque(self._parameters), turn
        self._move_up(EMBEDDING)

    def wait(self, layer: int) -> None:
        """For a layer's weights; at once when they are there."""
        self._move_up(layer)
        for handle, received, rows in self._coming.pop(layer, ()):
            if self.on_host:
                self._link.wait_there(handle)
            self._link.wait_received(handle)
            self._ahead_bytes -= received.nbytes
            if received is not rows:
                rows.copy_(received)
        self._move_up(layer)

    def wait_for_first(self) -> None:
        """On the host, until the optimizer has stepped what is used first."""
        for handle, _, _ in self._coming[min(self._coming)] if self._coming else ():
            self._link.wait_there(handle)

    def finish(self) -> None:
        """Wait for all."""
        for layer in sorted({parameter.layer for parameter in self._parameters}):
            self.wait(layer)

    def _move_up(self, layer: int) -> None:
        """Post this layer's receives, and as many more as may be ahead."""
        while self._left and (self._left[0].layer <= layer or self._ahead_bytes < AHEAD_BYTES):
            self._post(self._left.popleft())

    def _post(self, parameter: Parameter) -> None:
        for twin in self._senders(parameter):
            for index, rows in enumerate(self._rows(parameter, twin)):
                into = rows if rows.is_contiguous() else rows.new_empty(rows.shape)
                handle = self._link.receive(
                    into,
                    twin,
                    Kind.WEIGHTS,
                    turn=self._turn,
                    patience_seconds=PATIENCE_SECONDS,
                    microbatch=parameter.number,
                    chunk=index,
                )
                self._coming[parameter.layer].append((handle, into, rows))
                self._ahead_bytes += into.nbytes

    def _senders(self, parameter: Parameter) -> Sequence[Place]:
        stage, _ = self._partition.backward.place(self._partition.part(max(parameter.layer - 1, 0)))
        twins = twins_of(self._link, stage=stage)
        if parameter.split:
            return twins
        return [twins[nearest(self._link.place.tensor, self._link.roles.forward.tensor, len(twins))]]

    def _rows(self, parameter: Parameter, twin: Place) -> Iterator[torch.Tensor]:
        shard = parameter.shard
        for piece in pieces(other_split(parameter, self._link.roles.backward.tensor, twin.tensor), shard):
            yield parameter.tensor.narrow(shard.axis, piece.target, piece.length)


def other_split(parameter: Parameter, size: int, rank: int) -> Shard:
    """What a tensor rank of the other role holds of the parameter."""
    return parameter.shard.resized(size, rank) if parameter.split else parameter.shard
