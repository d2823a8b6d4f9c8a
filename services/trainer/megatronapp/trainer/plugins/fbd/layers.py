"""*Layers* mode: what each layer makes in the forward world stands between the layers of the backward one.

A backward stage's forward pass computes no layer: it strings together what was received. Its backward pass runs each
layer again, from what was received before it, and then backward: as full recompute does, to the bit. So no more is held
than one layer's activations, and what was received.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from megatronapp.core.pipeline.partition import Partition
from megatronapp.trainer.plugins.fbd.inputs import Inputs
from megatronapp.trainer.plugins.fbd.pending import Pending

Layer = Callable[[torch.Tensor], torch.Tensor]
Arriving = dict[int, tuple[list[Pending], torch.Tensor]]
"""By the layer, from 0 over the whole model."""


class ReceivedLayers:
    """The backward rank's side. Outside `of` layers are megatron-core's own."""

    def __init__(self, inputs: Inputs, partition: Partition, chunks: Sequence[Any], tokens: int) -> None:
        """tokens: of the sequence, this tensor rank's."""
        self._inputs, self._partition, self._tokens = inputs, partition, tokens
        self._posted: dict[tuple[int, int], Arriving] = {}
        self._current: Arriving | None = None
        self._by_chunk = [list(chunk.decoder.layers) for chunk in chunks]
        for layer in (each for layers in self._by_chunk for each in layers):
            layer.forward = partial(self._run, layer.layer_number - 1, layer.forward)

    def post(self, chunk: int, microbatch: int, batch: int) -> None:
        """Room for what a chunk's layers make of a microbatch."""
        layers = self._by_chunk[chunk]
        like = next(layers[0].parameters())
        self._posted[chunk, microbatch] = arriving = {}
        for layer in (each.layer_number - 1 for each in layers):
            if self._partition.is_border(layer):
                tensor = like.new_empty((self._tokens, batch, layers[0].config.hidden_size), requires_grad=False)
                arriving[layer] = self._inputs.post_layer(tensor, layer, microbatch), tensor

    @property
    def arrived(self) -> int:
        """How many microbatches x chunks that are not taken yet have all come."""
        return sum(
            all(handle.done() for handles, _ in arriving.values() for handle in handles)
            for arriving in self._posted.values()
        )

    @contextmanager
    def of(self, chunk: int, microbatch: int) -> Iterator[None]:
        """Forward passes in it take what was sent."""
        self._current = self._posted.pop((chunk, microbatch))
        try:
            yield
        finally:
            self._current = None

    def _run(
        self, layer: int, stock: Callable[..., Any], hidden_states: torch.Tensor, *args: Any, **others: Any
    ) -> Any:
        """In place of a layer's forward."""
        if self._current is None or not torch.is_grad_enabled():
            return stock(hidden_states, *args, **others)

        def again(hidden: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = stock(hidden, *args, **others)[0]
            return output

        return _Again.apply(hidden_states, again, self._take(layer, hidden_states)), None

    def _take(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        """Where the part's output is another one's input, nobody here needs what it holds."""
        assert self._current is not None, "within `of`"  # noqa: S101
        if not self._partition.is_border(layer):
            return torch.empty_like(like)
        handles, tensor = self._current.pop(layer)
        self._inputs.wait(handles)
        return tensor


class _Again(torch.autograd.Function):
    """A layer whose output is known: it is run in the backward pass alone."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, layer: Layer, output: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(hidden)
        ctx.layer = layer
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (hidden,) = ctx.saved_tensors
        given = hidden.detach().requires_grad_()
        with torch.enable_grad():
            output = ctx.layer(given)
        torch.autograd.backward(output, gradient)
        return given.grad, None, None
