"""BERT: masked words, and whether two parts of a text stand in their order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from megatron.core.models.bert import bert_lm_head
from megatron.core.models.bert.bert_layer_specs import (
    bert_layer_local_spec,
    get_bert_layer_with_transformer_engine_spec,
)
from megatron.core.models.bert.bert_model import BertModel
from megatron.core.transformer import transformer_block
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.utils import unwrap_model

from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data.datasets import DatasetKind
from megatronapp.trainer.data.masked import bert_dataset
from megatronapp.trainer.model_config import ModelConfig
from megatronapp.trainer.models import sizes
from megatronapp.trainer.models.attention import with_own_attention
from megatronapp.trainer.models.attention_choice import has_own_attention
from megatronapp.trainer.models.losses import masked_loss, to_device
from megatronapp.trainer.models.norm import Norm, with_own_norm
from megatronapp.trainer.models.protocol import ChunkPlace, ModelFamily
from megatronapp.trainer.models.train_step import TrainStep
from megatronapp.trainer.patches import Patches

_TENSORS = ("text", "types", "labels", "is_random", "padding_mask", "loss_mask")


class BertTrainStep(TrainStep):
    """The losses of masked words and of the order of sentences."""

    def get_batch(self, iterator: Iterator[Mapping[str, Any]]) -> Any:
        return to_device(next(iterator), _TENSORS, self.settings.device)

    def loss_func(self, batch: Any, output: Any) -> Any:
        return _loss(batch, output)

    def forward_step(self, iterator: Iterator[Mapping[str, Any]], model: torch.nn.Module) -> tuple[Any, Any]:
        batch = self.get_batch(iterator)
        types = batch["types"] if unwrap_model(model).add_binary_head else None
        output = model(batch["text"], batch["padding_mask"], tokentype_ids=types, lm_labels=batch["labels"])
        return output, partial(self.loss_func, batch)


class Bert:
    """megatron-core's BertModel."""

    train_step = BertTrainStep
    counts = "padding_mask"

    def losses(self, model: ModelConfig) -> tuple[str, ...]:
        return ("lm loss",) if model.bert_no_binary_head else ("lm loss", "sop loss")

    def build(self, config: TrainerConfig, transformer: TransformerConfig, place: ChunkPlace) -> torch.nn.Module:
        model = config.model
        with _own_parts(config):
            return BertModel(
                config=transformer,
                num_tokentypes=0 if model.bert_no_binary_head else 2,
                transformer_layer_spec=_layer_spec(config),
                vocab_size=place.vocabulary,
                max_sequence_length=place.positions,
                pre_process=place.first,
                post_process=place.last,
                share_embeddings_and_output_weights=place.tied,
                position_embedding_type=model.position_embedding_type,
                rotary_percent=model.rotary_percent,
                add_binary_head=not model.bert_no_binary_head,
                vp_stage=place.stage,
            )

    def reads(self, chunk: torch.nn.Module, config: TrainerConfig) -> bool:
        return True  # what is padding, all layers must know

    def dataset(self, config: TrainerConfig) -> DatasetKind:
        order = not config.model.bert_no_binary_head
        return bert_dataset(config.data, config.training.seq_length, sentence_order=order)

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
        batch: dict[str, Any] = {
            name: torch.from_numpy(np.stack([np.asarray(sample[name]) for sample in samples])) for name in _TENSORS
        }
        rows, length = batch["text"].shape
        return {**batch, "work": (rows * length, rows * length * length)}

    def depths(self, model: ModelConfig) -> Mapping[str, int]:
        return {"encoder": model.num_layers}

    def parameters(self, model: ModelConfig, vocabulary: int, positions: int) -> int:
        hidden = model.hidden_size
        layer = sizes.attention_parameters(model) + sizes.mlp_parameters(model)
        order = 0 if model.bert_no_binary_head else hidden * hidden + 4 * hidden  # pooler, its two classes, two types
        embeddings = sizes.embedding_parameters(model, vocabulary, positions)
        return model.num_layers * layer + embeddings + hidden * hidden + order

    def flops_per_sequence(self, config: TrainerConfig, vocabulary: int) -> float:
        model, length = config.model, config.training.seq_length
        attention = sizes.projection_flops(model, length, length) + sizes.score_flops(model, length * length)
        words = 2 * length * model.hidden_size * (model.hidden_size + vocabulary)
        return 3.0 * (model.num_layers * (attention + sizes.mlp_flops(model, length)) + words)


def _loss(batch: Mapping[str, torch.Tensor], output: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of a microbatch: that of its masked words, and of the order of its rows, added up as the means of both."""
    losses, order = output
    total, tokens, logged = masked_loss(batch["loss_mask"], losses)
    if order is None:
        return total, tokens, logged
    wrong = F.cross_entropy(order.view(-1, 2).float(), batch["is_random"], reduction="sum")
    rows = batch["is_random"].numel()
    weight = tokens.clamp(min=1)  # the schedule divides by it
    of_order = torch.stack([wrong.detach(), torch.full_like(wrong, rows).detach()])
    return total + wrong / rows * weight, weight, torch.cat([logged, of_order[None]])


def _layer_spec(config: TrainerConfig) -> Any:
    if config.model.transformer_impl == "transformer_engine":
        return get_bert_layer_with_transformer_engine_spec()
    return with_own_attention(with_own_norm(bert_layer_local_spec, "input_layernorm", "pre_mlp_layernorm"), config)


@contextmanager
def _own_parts(config: TrainerConfig) -> Iterator[None]:
    """megatron-core looks up the norms of the last layer and of the head where it builds them, and takes another
    attention than its own for Transformer Engine's, of which it asks the version."""
    patches = Patches()
    patches.set(bert_lm_head, "LNImpl", Norm)
    if config.model.transformer_impl == "local":
        patches.set(transformer_block, "LayerNormImpl", Norm)
    if has_own_attention(config):
        patches.set(BertModel, "_sanity_check_attention_and_get_attn_mask_dimension", lambda _: "b1ss")
    try:
        yield
    finally:
        patches.restore()


FAMILY: ModelFamily = Bert()
