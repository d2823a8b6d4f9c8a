"""*Layers* mode: what each layer makes in the forward world stands between the layers of the backward one.

A backward stage's forward pass computes no layer: it strings together what was received. Its backward pass runs each
layer again, from what was received before it, and then backward: as full recompute does, to the bit. So no more is held
than one layer's activations, and what was received.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from megatronapp.core.pipeline.partition import Partition
from megatronapp.trainer.plugins.fbd.beside import Arriving, Beside
from megatronapp.trainer.plugins.fbd.inputs import Inputs
from megatronapp.trainer.plugins.fbd.link import Link

Layer = Callable[[torch.Tensor], torch.Tensor]


class ReceivedLayers(Beside):
    """The backward rank's side; what is received is numbered by the layer, from 0 over the whole model."""

    def __init__(self, link: Link, inputs: Inputs, partition: Partition, chunks: Sequence[Any], tokens: int) -> None:
        """tokens: of the sequence, this tensor rank's."""
        super().__init__(link)
        self._inputs, self._partition, self._tokens = inputs, partition, tokens
        self._by_chunk = [list(chunk.decoder.layers) for chunk in chunks]
        for layer in (each for layers in self._by_chunk for each in layers):
            layer.forward = partial(self._run, layer.layer_number - 1, layer.forward)

    def _room(self, chunk: int, microbatch: int, batch: int) -> Arriving:
        layers = self._by_chunk[chunk]
        like = next(layers[0].parameters())
        arriving: Arriving = {}
        for layer in (each.layer_number - 1 for each in layers):
            if self._partition.is_border(layer):
                tensor = like.new_empty((self._tokens, batch, layers[0].config.hidden_size), requires_grad=False)
                arriving[layer] = self._inputs.post_layer(tensor, layer, microbatch), tensor
        return arriving

    def _run(
        self, layer: int, stock: Callable[..., Any], hidden_states: torch.Tensor, *args: Any, **others: Any
    ) -> Any:
        """In place of a layer's forward."""
        if not self.active:
            return stock(hidden_states, *args, **others)

        def again(hidden: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = stock(hidden, *args, **others)[0]
            return output

        return _Again.apply(hidden_states, again, self._take(layer, hidden_states)), None

    def _take(self, layer: int, like: torch.Tensor) -> torch.Tensor:
        """Where the part's output is another one's input, nobody here needs what it holds."""
        return self.received(layer) if self._partition.is_border(layer) else torch.empty_like(like)


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
