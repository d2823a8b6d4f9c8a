"""First weights that don't depend on the layout.

megatron-core draws each rank's shard from the rank's own generator, so that every TP and PP size starts elsewhere.
Here each matrix is drawn whole, from a generator seeded by the run's seed and the matrix's name in the whole model, and
a rank keeps its part. The distributions are Megatron-LM's: normal with `init_method_std`, divided by sqrt(2 x layers)
for the projections that write into the residual stream.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.trainer.sharding import Shard

_INTO_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")
GATED = "linear_fc1."
_LAYER = re.compile(r"^(encoder|decoder)\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


@torch.no_grad()
def initialize(
    chunks: list[torch.nn.Module], config: TransformerConfig, seed: int, *, depths: Mapping[str, int]
) -> None:
    """Fill every matrix; vectors (norms: ones, biases: zeros) stay as megatron-core sets them. `depths`: layers of each
    stack of the whole model."""
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter.dim() >= 2:
                parameter.copy_(_drawn(whole_name(name, chunk, config), parameter, config, seed, depths))


def whole_name(name: str, chunk: torch.nn.Module, config: TransformerConfig) -> str:
    """The parameter's name in a model that is not split: layers and experts by their global numbers."""
    if name == "output_layer.weight" and chunk.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"
    layer = _LAYER.match(name)
    if layer:
        stack: Any = getattr(chunk, layer[1])
        number = stack.layers[int(layer[2])].layer_number - 1
        name = f"{layer[1]}.layers.{number}.{name[layer.end() :]}"
    expert = _EXPERT.search(name)
    if expert:
        first = parallel_state.get_expert_model_parallel_rank() * (
            config.num_moe_experts // config.expert_model_parallel_size
        )
        name = f"{name[: expert.start()]}.experts.{first + int(expert[1])}.{name[expert.end() :]}"
    return name


def _drawn(
    name: str, parameter: torch.Tensor, config: TransformerConfig, seed: int, depths: Mapping[str, int]
) -> torch.Tensor:
    """This tensor rank's part of the named matrix."""
    shard = shard_of(name, parameter, config)
    shape = list(parameter.shape)
    shape[shard.axis] = shard.whole
    std = config.init_method_std
    if name.endswith(_INTO_RESIDUAL):
        std /= math.sqrt(2 * depths[name.partition(".")[0]])
    whole = torch.randn(shape, generator=_generator(name, seed, parameter.device), device=parameter.device) * std
    return torch.cat([whole.narrow(shard.axis, start, length) for _, start, length in shard.spans()], shard.axis)


def shard_of(name: str, parameter: torch.Tensor, config: TransformerConfig) -> Shard:
    """Which part of the named parameter, a name in the whole model, this rank holds."""
    if not getattr(parameter, "tensor_model_parallel", False):
        return Shard(length=parameter.shape[0])
    rank, size = tensor_ranks(name)
    axis = parameter.partition_dim  # type: ignore[attr-defined]
    blocks = 2 if config.gated_linear_unit and GATED in name else 1
    return Shard(length=parameter.shape[axis], axis=axis, blocks=blocks, rank=rank, size=size)


def tensor_ranks(name: str) -> tuple[int, int]:
    """(this rank's part, of how many) of a matrix that is split over tensor ranks."""
    if ".experts." in name:
        return parallel_state.get_expert_tensor_parallel_rank(), parallel_state.get_expert_tensor_parallel_world_size()
    return parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()


def _generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "little"))
