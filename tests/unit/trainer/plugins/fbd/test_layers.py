"""Layers whose outputs are known are run in the backward pass alone, one at a time."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from megatronapp.core.pipeline.partition import Mode, Partition
from megatronapp.core.pipeline.placement import Layout
from megatronapp.trainer.plugins.fbd.layers import ReceivedLayers

LAYERS, HIDDEN, TOKENS, BATCH = 4, 8, 3, 2
LINK: Any = SimpleNamespace(wait_received=lambda _: None)
"""On which all has come."""


class Layer(torch.nn.Module):
    """Notes when it is run, and which activations are alive then."""

    def __init__(self, number: int, ran: list[tuple[int, int]], kept: list[weakref.ref[torch.Tensor]]) -> None:
        super().__init__()
        self.layer_number = number + 1
        self.config = SimpleNamespace(hidden_size=HIDDEN)
        self.linear = torch.nn.Linear(HIDDEN, HIDDEN)
        self._ran, self._kept = ran, kept

    def forward(self, hidden_states: torch.Tensor, *, scale: float) -> tuple[torch.Tensor, None]:
        gc.collect()
        self._ran.append((self.layer_number - 1, sum(each() is not None for each in self._kept)))
        product = self.linear(hidden_states)
        self._kept.append(weakref.ref(product))
        return hidden_states + scale * torch.tanh(product), None


class Sent:
    """In place of messages: what the forward ranks made."""

    def __init__(self, outputs: list[torch.Tensor]) -> None:
        self._outputs = outputs

    def post_layer(self, tensor: torch.Tensor, layer: int, microbatch: int) -> list[Any]:
        tensor.copy_(self._outputs[layer])
        return [SimpleNamespace(done=lambda: True)]


def through(layers: list[Layer], hidden: torch.Tensor) -> list[torch.Tensor]:
    made = []
    for layer in layers:
        hidden, _ = layer(hidden_states=hidden, scale=0.5)
        made.append(hidden)
    return made


@pytest.mark.parametrize("stage", [0, 1])
def test_a_part_is_run_again_layer_by_layer_in_the_backward_pass_to_the_bit(stage: int) -> None:
    ran: list[tuple[int, int]] = []
    kept: list[weakref.ref[torch.Tensor]] = []
    every = [Layer(number, ran, kept) for number in range(LAYERS)]
    own = every[2 * stage : 2 * stage + 2]
    first = torch.randn(TOKENS, BATCH, HIDDEN)
    with torch.no_grad():
        sent = through(every, first)
    given = (sent[1] if stage else first).clone().requires_grad_()
    torch.autograd.backward(through(own, given)[-1].sum())
    stock = [given.grad, *(each.linear.weight.grad for each in own)]
    given.grad = None
    for each in own:
        each.zero_grad()
    ran.clear()
    partition = Partition(layers=LAYERS, backward=Layout(stages=2, microbatches=1), forward_stages=1, mode=Mode.LAYERS)
    chunk = SimpleNamespace(decoder=SimpleNamespace(layers=own))
    received = ReceivedLayers(LINK, Sent(sent), partition, [chunk], TOKENS)  # type: ignore[arg-type]

    received.post(0, 0, BATCH)
    assert received.arrived == 1
    with received.of(0, 0):
        output = through(own, given)[-1]
    assert ran == []
    assert received.arrived == 0
    torch.autograd.backward(output.sum())

    assert ran == [(own[1].layer_number - 1, 0), (own[0].layer_number - 1, 0)]  # nothing of another layer is alive
    assert stage == 0 or torch.equal(output, sent[-1])
    again = [given.grad, *(each.linear.weight.grad for each in own)]
    assert all(torch.equal(one, other) for one, other in zip(stock, again, strict=True))  # type: ignore[arg-type]


def test_outside_of_what_was_sent_layers_are_themselves() -> None:
    ran: list[tuple[int, int]] = []
    layers = [Layer(number, ran, []) for number in range(2)]
    partition = Partition(layers=2, backward=Layout(stages=1, microbatches=1), forward_stages=1, mode=Mode.LAYERS)
    chunk = SimpleNamespace(decoder=SimpleNamespace(layers=layers))
    ReceivedLayers(LINK, Sent([]), partition, [chunk], TOKENS)  # type: ignore[arg-type]

    through(layers, torch.randn(TOKENS, BATCH, HIDDEN))

    assert [number for number, _ in ran] == [0, 1]
