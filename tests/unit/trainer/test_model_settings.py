"""What of a configuration is the model's, and what is where and how it runs."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.trainer.model_settings import model_settings


def config(**changed: Any) -> TransformerConfig:
    made = TransformerConfig(num_layers=2, hidden_size=32, num_attention_heads=4)
    for name, value in changed.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention_softmax_in_fp32", False),
        ("hidden_dropout", 0.7),
        ("activation_func", F.silu),
        ("activation_func", torch.nn.GELU()),
        ("window_size", (8, 0)),
        ("params_dtype", torch.bfloat16),
    ],
)
def test_what_changes_the_model_is_seen(name: str, value: Any) -> None:
    stock, changed = model_settings(config()), model_settings(config(**{name: value}))

    assert [each for each in stock if stock[each] != changed[each]] == [name]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tensor_model_parallel_size", 2),
        ("timers", print),
        ("overlap_p2p_comm", True),
        ("recompute_granularity", "full"),
        ("moe_token_dispatcher_type", "alltoall"),
        ("init_method", torch.nn.init.zeros_),
    ],
)
def test_what_runs_it_otherwise_is_not(name: str, value: Any) -> None:
    assert model_settings(config(**{name: value})) == model_settings(config())


@pytest.mark.parametrize("make", [object, lambda: functools.partial(F.gelu, approximate="tanh"), lambda: [object()]])
def test_a_value_is_told_the_same_in_every_process(make: Any) -> None:
    assert model_settings(config(activation_func=make())) == model_settings(config(activation_func=make()))
