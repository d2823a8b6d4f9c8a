"""*Linears* mode: what linear layers make in the forward world stands in place of their products in the backward one.

Both worlds route each linear through a port (trainer/pipeline/linears.py). A forward rank sends the product to the
backward rank of the same tensor rank that holds the layer; that one takes it where it runs the layer again, so that
only attention and small operations are computed twice. Products are those before any collective of tensor parallelism,
which both run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear

from megatronapp.core.pipeline.partition import Partition
from megatronapp.core.pipeline.recompute import ON_THE_WAY
from megatronapp.trainer.pipeline.linears import Product, Wgrad, route_linears
from megatronapp.trainer.pipeline.wgrad import DeferredWgrad
from megatronapp.trainer.plugins.fbd.beside import Arriving, Beside
from megatronapp.trainer.plugins.fbd.held import Held
from megatronapp.trainer.plugins.fbd.link import Link, twins_of
from megatronapp.trainer.plugins.fbd.pending import Kind, Pending


@dataclass(frozen=True, slots=True)
class Linear:
    """One that both worlds hold."""

    layer: int
    """From 0 over the whole model."""
    number: int
    """Among its layer's."""
    module: Any


def linears_of(chunk: torch.nn.Module) -> list[Linear]:
    """Those of its transformer layers, by layer; both worlds number them alike."""
    found = [
        (layer.layer_number - 1, number, module)
        for layer in chunk.decoder.layers  # type: ignore[union-attr]
        for number, (_, module) in enumerate(
            sorted((name, each) for name, each in layer.named_modules() if _is_linear(each))
        )
    ]
    return [Linear(*each) for each in found]


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, ColumnParallelLinear | RowParallelLinear)


class SentLinears:
    """The forward rank's side. `begin` comes before each microbatch."""

    def __init__(self, link: Link, partition: Partition, chunk: torch.nn.Module, held: Held) -> None:
        self._link, self._partition, self._held = link, partition, held
        self._microbatch = 0
        self._on_the_way: defaultdict[tuple[int, int], deque[Pending]] = defaultdict(deque)
        for linear in linears_of(chunk):
            route_linears([linear.module], _Sender(self, linear))

    def begin(self, microbatch: int) -> None:
        self._microbatch = microbatch

    def send(self, linear: Linear, product: torch.Tensor) -> None:
        if isinstance(linear.module, RowParallelLinear):
            product = product.clone()  # which is summed over tensor ranks in place
        self._held.send(partial(self._send, linear, product.contiguous(), self._microbatch))

    def _send(self, linear: Linear, product: torch.Tensor, microbatch: int) -> None:
        sent = self._on_the_way[linear.layer, linear.number]
        while len(sent) >= ON_THE_WAY:
            self._link.wait_sent(sent.popleft())
        stage, _ = self._partition.backward.place(self._partition.part(linear.layer))
        twin = twins_of(self._link, stage=stage)[self._link.place.tensor]
        tag = {"microbatch": microbatch, "chunk": linear.layer, "slot": linear.number}
        sent.append(self._link.send(product, twin, Kind.LINEARS, **tag))

    def finish(self) -> None:
        """Wait until all are received."""
        for sent in self._on_the_way.values():
            while sent:
                self._link.wait_sent(sent.popleft())


class _Sender:
    def __init__(self, linears: SentLinears, linear: Linear) -> None:
        self._linears, self._linear = linears, linear

    def takes_part(self) -> bool:
        return True

    def output(self, product: Product) -> torch.Tensor:
        made = product()
        self._linears.send(self._linear, made)
        return made

    def take(self, wgrad: Wgrad, *, hides: bool) -> Sequence[Wgrad]:
        return [wgrad]


class ReceivedLinears(Beside):
    """The backward rank's side; what is received is numbered by the linear's module (its id)."""

    def __init__(
        self,
        link: Link,
        partition: Partition,
        chunks: Sequence[torch.nn.Module],
        tokens: int,
        wgrad: DeferredWgrad | None,
    ) -> None:
        """tokens: of the sequence, whole over the tensor ranks. wgrad: what puts off weight gradients, if they are."""
        super().__init__(link)
        self.wgrad = wgrad
        self._partition, self._tokens = partition, tokens
        self._by_chunk = [linears_of(chunk) for chunk in chunks]
        for linear in (each for linears in self._by_chunk for each in linears):
            route_linears([linear.module], _Receiver(self, linear))

    def _room(self, chunk: int, microbatch: int, batch: int) -> Arriving:
        return {id(linear.module): self._receive(linear, microbatch, batch) for linear in self._by_chunk[chunk]}

    def _receive(self, linear: Linear, microbatch: int, batch: int) -> tuple[list[Pending], torch.Tensor]:
        weight = linear.module.weight
        tensor = weight.new_empty((self._tokens, batch, weight.shape[0]), requires_grad=False)
        stage = self._partition.forward_stage(linear.layer)
        twin = twins_of(self._link, stage=stage)[self._link.place.tensor]
        tag = {"microbatch": microbatch, "chunk": linear.layer, "slot": linear.number}
        return [self._link.receive(tensor, twin, Kind.LINEARS, **tag)], tensor


class _Receiver:
    def __init__(self, linears: ReceivedLinears, linear: Linear) -> None:
        self._linears, self._linear = linears, linear

    def takes_part(self) -> bool:
        return self._linears.active

    def output(self, product: Product) -> torch.Tensor:
        return self._linears.received(id(self._linear.module))

    def take(self, wgrad: Wgrad, *, hides: bool) -> Sequence[Wgrad]:
        put_off = self._linears.wgrad
        return [wgrad] if put_off is None else put_off.take(wgrad, hides=hides)
