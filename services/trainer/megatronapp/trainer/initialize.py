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

import torch
from megatron.core import parallel_state
from megatron.core.transformer.transformer_config import TransformerConfig

_INTO_RESIDUAL = ("linear_proj.weight", "linear_fc2.weight")
GATED = "linear_fc1.weight"
_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")
_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


@torch.no_grad()
def initialize(chunks: list[torch.nn.Module], config: TransformerConfig, seed: int) -> None:
    """Fill every matrix; vectors (norms: ones, biases: zeros) stay as megatron-core sets them."""
    for chunk in chunks:
        for name, parameter in chunk.named_parameters():
            if parameter.dim() >= 2:
                parameter.copy_(_shard(whole_name(name, chunk, config), parameter, config, seed))


def whole_name(name: str, chunk: torch.nn.Module, config: TransformerConfig) -> str:
    """The parameter's name in a model that is not split: layers and experts by their global numbers."""
    if name == "output_layer.weight" and chunk.share_embeddings_and_output_weights:
        return "embedding.word_embeddings.weight"
    layer = _LAYER.match(name)
    if layer:
        number = chunk.decoder.layers[int(layer[1])].layer_number - 1  # type: ignore[union-attr, index]
        name = f"decoder.layers.{number}.{name[layer.end() :]}"
    expert = _EXPERT.search(name)
    if expert:
        first = parallel_state.get_expert_model_parallel_rank() * (
            config.num_moe_experts // config.expert_model_parallel_size
        )
        name = f"{name[: expert.start()]}.experts.{first + int(expert[1])}.{name[expert.end() :]}"
    return name


def _shard(name: str, parameter: torch.Tensor, config: TransformerConfig, seed: int) -> torch.Tensor:
    """This tensor rank's part of the named matrix. A gated fc1 is two matrices, and each is split for itself."""
    rank, size = tensor_ranks(name) if getattr(parameter, "tensor_model_parallel", False) else (0, 1)
    axis = getattr(parameter, "partition_dim", 0)
    shape = list(parameter.shape)
    shape[axis] *= size
    std = config.init_method_std
    if name.endswith(_INTO_RESIDUAL):
        std /= math.sqrt(2 * config.num_layers)
    whole = torch.randn(shape, generator=_generator(name, seed, parameter.device), device=parameter.device) * std
    parts = 2 if config.gated_linear_unit and name.endswith(GATED) else 1
    return torch.cat([part.chunk(size, axis)[rank] for part in whole.chunk(parts, axis)], axis)


def tensor_ranks(name: str) -> tuple[int, int]:
    """(this rank's part, of how many) of a matrix that is split over tensor ranks."""
    if ".experts." in name:
        return parallel_state.get_expert_tensor_parallel_rank(), parallel_state.get_expert_tensor_parallel_world_size()
    return parallel_state.get_tensor_model_parallel_rank(), parallel_state.get_tensor_model_parallel_world_size()


def _generator(name: str, seed: int, device: torch.device) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:7], "little"))
