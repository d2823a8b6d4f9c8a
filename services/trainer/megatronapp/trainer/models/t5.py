"""T5: the spans of words that were cut out of a text."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from megatron.core.models.T5.t5_model import T5Model
from megatron.core.models.T5.t5_spec import (
    decoder_model_with_local_spec,
    encoder_model_with_local_spec,
    get_t5_decoder_with_transformer_engine_block_spec,
    get_t5_encoder_with_transformer_engine_block_spec,
)
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data.datasets import DatasetKind
from megatronapp.trainer.data.masked import t5_dataset
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models import sizes
from megatronapp.trainer.models.attention import with_own_attention
from megatronapp.trainer.models.losses import masked_loss, to_device
from megatronapp.trainer.models.norm import Norm, with_own_norm
from megatronapp.trainer.models.protocol import ChunkPlace, ModelFamily
from megatronapp.trainer.models.sizes import decoder_layers, decoder_length
from megatronapp.trainer.models.train_step import TrainStep

_TENSORS = ("text_enc", "text_dec", "labels", "loss_mask", "enc_mask", "dec_mask")


class T5TrainStep(TrainStep):
    """The loss of the spans that were cut out."""

    def get_batch(self, iterator: Iterator[Mapping[str, Any]]) -> Any:
        return to_device(next(iterator), _TENSORS, self.settings.device)

    def loss_func(self, batch: Any, output: Any) -> Any:
        return masked_loss(batch["loss_mask"], output)

    def forward_step(self, iterator: Iterator[Mapping[str, Any]], model: torch.nn.Module) -> tuple[Any, Any]:
        batch = self.get_batch(iterator)
        masks = attention_masks(batch, self.settings.config.model.transformer_impl)
        output = model(batch["text_enc"], batch["text_dec"], *masks, lm_labels=batch["labels"])
        return output, partial(self.loss_func, batch)


class _Model(T5Model):
    """Its head is stored under two names, of which megatron-core lets one alone have other rows of padding."""

    def sharded_state_dict(self, prefix: str = "", *places: Any, **options: Any) -> Any:
        found = super().sharded_state_dict(prefix, *places, **options)
        for name in ("weight", "bias"):
            if (tensor := found.get(f"{prefix}lm_head.output_layer.{name}")) is not None:
                tensor.allow_shape_mismatch = True
        return found


class T5:
    """megatron-core's T5Model, whole on each pipeline stage as there is one alone."""

    train_step = T5TrainStep
    counts = "loss_mask"

    def losses(self, model: ModelConfig) -> tuple[str, ...]:
        return ("lm loss",)

    def build(self, config: TrainerConfig, transformer: TransformerConfig, place: ChunkPlace) -> torch.nn.Module:
        model = config.model
        of_encoder = copy.copy(transformer)
        of_encoder.num_layers = model.num_layers
        encoder, decoder = _block_specs(config)
        return _Model(
            config=transformer,
            encoder_config=of_encoder,
            transformer_encoder_layer_spec=encoder,
            transformer_decoder_layer_spec=decoder,
            vocab_size=place.vocabulary,
            max_sequence_length=place.positions,
            pre_process=place.first,
            post_process=place.last,
            share_embeddings_and_output_weights=place.tied,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            relative_attention_num_buckets=model.relative_attention_num_buckets,
            relative_attention_max_distance=model.relative_attention_max_distance,
        )

    def reads(self, chunk: torch.nn.Module, config: TrainerConfig) -> bool:
        return True

    def dataset(self, config: TrainerConfig) -> DatasetKind:
        return t5_dataset(config.data, config.training.seq_length, decoder_length(config.training))

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        batch: dict[str, Any] = {
            name: torch.from_numpy(np.stack([np.asarray(sample[name]) for sample in samples])) for name in _TENSORS
        }
        rows, encoded = batch["text_enc"].shape
        decoded = batch["text_dec"].shape[1]
        pairs = encoded * encoded + decoded * decoded + decoded * encoded
        return {**batch, "work": (rows * (encoded + decoded), rows * pairs)}

    def depths(self, model: ModelConfig) -> Mapping[str, int]:
        return {"encoder": model.num_layers, "decoder": decoder_layers(model)}

    def parameters(self, model: ModelConfig, vocabulary: int, positions: int) -> int:
        attention, mlp = sizes.attention_parameters(model), sizes.mlp_parameters(model)
        layers = model.num_layers * (attention + mlp) + decoder_layers(model) * (2 * attention + mlp)
        return layers + sizes.embedding_parameters(model, vocabulary, positions)

    def flops_per_sequence(self, config: TrainerConfig, vocabulary: int) -> float:
        model = config.model
        encoded, decoded = config.training.seq_length, decoder_length(config.training)
        encoder_layer = (
            sizes.projection_flops(model, encoded, encoded)
            + sizes.score_flops(model, encoded * encoded)
            + sizes.mlp_flops(model, encoded)
        )
        decoder_layer = (
            sizes.projection_flops(model, decoded, decoded)
            + sizes.projection_flops(model, decoded, encoded)
            + sizes.score_flops(model, decoded * decoded / 2 + decoded * encoded)
            + sizes.mlp_flops(model, decoded)
        )
        logits = 2 * decoded * model.hidden_size * vocabulary
        return 3.0 * (model.num_layers * encoder_layer + decoder_layers(model) * decoder_layer + logits)


def attention_masks(batch: Mapping[str, torch.Tensor], implementation: str = "local") -> tuple[Any, Any, Any]:
    """Where the encoder, the decoder and the decoder to the encoder must not look: each [rows, 1, queries, keys].
    Transformer Engine's attention takes what is padding, [rows, 1, 1, keys], of queries and keys where they are not the
    same, and knows by itself that the decoder looks at nothing that follows."""
    encoder, decoder = batch["enc_mask"].bool(), batch["dec_mask"].bool()
    if implementation == "transformer_engine":
        of_encoder, of_decoder = (~words[:, None, None, :] for words in (encoder, decoder))
        return of_encoder, None, (of_decoder, of_encoder)
    length = decoder.shape[1]
    before = torch.ones(length, length, dtype=torch.bool, device=decoder.device).tril()
    return (
        ~_pairs(encoder, encoder),
        ~(_pairs(decoder, decoder) & before),
        ~_pairs(decoder, encoder),
    )


def _pairs(queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
    """Where both are words, from [rows, queries] and [rows, keys]."""
    return queries[:, None, :, None] & keys[:, None, None, :]


def _block_specs(config: TrainerConfig) -> tuple[Any, Any]:
    """Of the encoder and of the decoder."""
    model = config.model
    layers, decoding = model.num_layers, decoder_layers(model)
    if model.transformer_impl == "transformer_engine":
        return (
            get_t5_encoder_with_transformer_engine_block_spec(layers),
            get_t5_decoder_with_transformer_engine_block_spec(decoding),
        )
    # megatron-core's own local blocks end without a norm where Transformer Engine is not installed.
    norms = ("input_layernorm", "pre_mlp_layernorm")
    encoder = with_own_attention(with_own_norm(encoder_model_with_local_spec(), *norms), config)
    decoder = with_own_norm(decoder_model_with_local_spec(), *norms, "pre_cross_attn_layernorm")
    decoder = with_own_attention(decoder, config)
    return (
        TransformerBlockSubmodules(layer_specs=[encoder] * layers, layer_norm=Norm),
        TransformerBlockSubmodules(layer_specs=[decoder] * decoding, layer_norm=Norm),
    )


FAMILY: ModelFamily = T5()
