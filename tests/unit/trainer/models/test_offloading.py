"""What autograd saves in the first layers is a copy on the host; weights, and what is small, stay."""

from __future__ import annotations

import pytest
import torch
from megatron.core.transformer.transformer_layer import TransformerLayer

from megatronapp.trainer.models import offloading


def saved_and_back(tensor: torch.Tensor) -> tuple[bool, torch.Tensor]:
    """Whether a copy waits in its place, and what comes back."""
    kept = offloading._to_host(tensor)
    return isinstance(kept, tuple), offloading._back(kept)


def test_an_activation_comes_back_as_it_was_saved() -> None:
    values = torch.randn(40, 40).t()
    as_saved = values.clone()

    copied, back = saved_and_back(values)
    values.zero_()

    assert copied
    assert torch.equal(back, as_saved)
    assert back.stride() == as_saved.stride()


def test_one_that_repeats_a_row_comes_back_whole() -> None:
    values = torch.randn(1, 40).expand(40, 40)

    copied, back = saved_and_back(values)

    assert copied
    assert torch.equal(back, values)


def test_weights_and_their_views_stay() -> None:
    weight = torch.nn.Parameter(torch.randn(40, 40))

    assert not saved_and_back(weight)[0]
    assert not saved_and_back(weight.t())[0]


def test_what_is_small_stays() -> None:
    assert not saved_and_back(torch.randn(3))[0]


class Layer(TransformerLayer):
    """Saves what it squares."""

    __call__ = torch.nn.Module.__call__

    def __init__(self, number: int) -> None:
        torch.nn.Module.__init__(self)
        self.layer_number = number

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.square()


def test_only_the_first_layers_of_the_whole_model_are_offloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    chunk = torch.nn.Sequential(*(Layer(number) for number in (2, 3, 4)))
    monkeypatch.setattr(offloading, "_to_host", lambda tensor: kept.append(tensor.numel()) or tensor)
    offloading.offload_layers(chunk, 3)

    chunk(torch.ones(2000, requires_grad=True)).sum().backward()

    assert kept == [2000, 2000]
