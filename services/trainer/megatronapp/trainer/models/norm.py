"""The norm of all families' layers where Transformer Engine is not asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig


class Norm:
    """torch's norm, for sequence parallelism too: its parameters are marked, so that their gradients, of which each
    tensor rank has only its part of the sequence, are summed. megatron-core's own wrapper refuses that case."""

    def __new__(cls, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> Any:
        kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
        module = kind(hidden_size, eps=eps)
        for parameter in module.parameters():
            parameter.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]
        return module


def with_own_norm(spec: ModuleSpec, *names: str) -> ModuleSpec:
    """A layer's spec with this norm in these places."""
    return replace(spec, submodules=replace(spec.submodules, **dict.fromkeys(names, Norm)))
