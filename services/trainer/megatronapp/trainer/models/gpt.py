"""GPT and models like it: the next word, from those before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import get_batch_on_this_cp_rank, unwrap_model

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data.datasets import DatasetKind, gpt_dataset
from megatronapp.trainer.data.sampler import collate
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models import sizes
from megatronapp.trainer.models.attention import with_own_attention
from megatronapp.trainer.models.grouped_experts import with_grouped_experts
from megatronapp.trainer.models.losses import masked_loss, to_device
from megatronapp.trainer.models.norm import Norm
from megatronapp.trainer.models.protocol import ChunkPlace, ModelFamily
from megatronapp.trainer.models.train_step import TrainStep

_TENSORS = ("tokens", "labels", "loss_mask", "position_ids")


class GPTTrainStep(TrainStep):
    """The loss of the next word."""

    def get_batch(self, iterator: Iterator[Mapping[str, Any]]) -> Any:
        data = self.settings.config.data
        batch = to_device(next(iterator), _TENSORS, self.settings.device)
        if data.reset_attention_mask:
            batch["attention_mask"] = document_mask(batch["position_ids"])
            if not data.reset_position_ids:
                batch["position_ids"] = (
                    torch.arange(batch["tokens"].size(1)).to(batch["tokens"]).expand_as(batch["tokens"])
                )
        shared: dict[str, torch.Tensor] = get_batch_on_this_cp_rank(batch)
        return shared

    def loss_func(self, batch: Any, output: Any) -> Any:
        return masked_loss(batch["loss_mask"], output)

    def forward_step(self, iterator: Iterator[Mapping[str, Any]], model: torch.nn.Module) -> tuple[Any, Any]:
        if not FAMILY.reads(unwrap_model(model), self.settings.config):
            return model(None, None, None), None
        batch = self.get_batch(iterator)
        output = model(batch["tokens"], batch["position_ids"], batch.get("attention_mask"), labels=batch["labels"])
        return output, partial(self.loss_func, batch)


def document_mask(position_ids: torch.Tensor) -> torch.Tensor:
    """True where a token must not see another, of the future or another document: [rows, 1, tokens, tokens]. Each
    document's positions, [rows, tokens], start at 0."""
    document = (position_ids == 0).cumsum(1)
    future = torch.ones(document.size(1), document.size(1), dtype=torch.bool, device=document.device).triu(1)
    return (future | (document[:, :, None] != document[:, None, :]))[:, None]


class Gpt:
    """megatron-core's GPTModel."""

    collate = staticmethod(collate)
    counts = "loss_mask"  # no token sees a later one
    train_step = GPTTrainStep

    def losses(self, model: ModelConfig) -> tuple[str, ...]:
        return ("lm loss",)

    def build(self, config: TrainerConfig, transformer: TransformerConfig, place: ChunkPlace) -> torch.nn.Module:
        model = config.model
        return GPTModel(
            config=transformer,
            transformer_layer_spec=_layer_spec(config, transformer, place.stage),
            vocab_size=place.vocabulary,
            max_sequence_length=place.positions,
            pre_process=place.first,
            post_process=place.last,
            position_embedding_type=_embedded(model),
            rotary_percent=model.rotary_percent,
            rotary_base=model.rotary_base,
            rope_scaling=model.use_rope_scaling,
            rope_scaling_factor=model.rope_scaling_factor,
            share_embeddings_and_output_weights=place.tied,
            vp_stage=place.stage,
        )

    def reads(self, chunk: torch.nn.Module, config: TrainerConfig) -> bool:
        return bool(chunk.pre_process or chunk.post_process or config.data.reset_attention_mask)

    def dataset(self, config: TrainerConfig) -> DatasetKind:
        return gpt_dataset(config.data, config.training.seq_length)

    def depths(self, model: ModelConfig) -> Mapping[str, int]:
        return {"decoder": model.num_layers}

    def parameters(self, model: ModelConfig, vocabulary: int, positions: int) -> int:
        layer = sizes.attention_parameters(model) + sizes.mlp_parameters(model)
        return model.num_layers * layer + sizes.embedding_parameters(model, vocabulary, positions)

    def flops_per_sequence(self, config: TrainerConfig, vocabulary: int) -> float:
        model, length = config.model, config.training.seq_length
        attention = sizes.projection_flops(model, length, length) + sizes.score_flops(model, length * length / 2)
        logits = 2 * length * model.hidden_size * vocabulary
        return 3.0 * (model.num_layers * (attention + sizes.mlp_flops(model, length)) + logits)


def _embedded(model: ModelConfig) -> str:
    """Of ALiBi megatron-core's models know nothing: it is their attention's."""
    return "none" if model.position_embedding_type == "alibi" else model.position_embedding_type


def _layer_spec(config: TrainerConfig, transformer: TransformerConfig, stage: int | None) -> Any:
    model = config.model
    if model.transformer_impl == "transformer_engine":
        return get_gpt_layer_with_transformer_engine_spec(
            num_experts=model.num_experts, moe_grouped_gemm=model.moe_grouped_gemm, qk_layernorm=model.qk_layernorm
        )
    spec = get_gpt_layer_local_spec(
        num_experts=model.num_experts,
        moe_grouped_gemm=False,
        qk_layernorm=model.qk_layernorm,
        normalization=model.normalization,
    )
    if transformer.sequence_parallel:
        spec.submodules.input_layernorm = Norm
        spec.submodules.pre_mlp_layernorm = Norm
    spec = with_own_attention(spec, config)
    if model.moe_grouped_gemm:
        spec = with_grouped_experts(spec)
    layers = get_num_layers_to_build(transformer, stage)
    return TransformerBlockSubmodules(layer_specs=[spec] * layers, layer_norm=Norm)


FAMILY: ModelFamily = Gpt()
