"""Batches of a loop of one's own as the trainer's microbatches: the trainer's names or Hugging Face's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from megatronapp.core.errors import UsageError
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.data.lengths import Cut
from megatronapp.trainer.models import family_of
from megatronapp.trainer.models.sizes import decoder_length

IGNORED = -100
"""Of Hugging Face's labels: no loss here."""
Batch = Mapping[str, torch.Tensor]


def microbatches(batch: Batch, config: TrainerConfig) -> list[Batch]:
    """One data rank's rows of a global batch. Raises UsageError for what the model does not take."""
    tensors = {name: value for name, value in batch.items() if isinstance(value, torch.Tensor)}
    if "input_ids" in tensors:
        tensors = dict(_FROM_HUGGING_FACE[config.model.model_type](tensors, config))
    size = config.training.micro_batch_size
    rows = {value.shape[0] for value in tensors.values()}
    if len(rows) != 1 or (count := rows.pop()) % size or not count:
        raise UsageError(
            f"a batch needs tensors of equally many rows, a multiple of --micro-batch-size {size}: it has "
            f"{ {name: list(value.shape) for name, value in tensors.items()} }"
        )
    parts: list[Batch] = [
        {name: value[start : start + size] for name, value in tensors.items()} | _work(tensors, size)
        for start in range(0, count, size)
    ]
    if not config.training.variable_seq_lengths:
        return parts
    return list(map(Cut.of(config.parallel, family_of(config.model).counts), parts))


def counted(microbatches: Iterable[Batch], count: int) -> list[Batch]:
    """The next `count` of them. Raises UsageError where there are less."""
    iterator = iter(microbatches)
    taken = [each for each, _ in zip(iterator, range(count), strict=False)]
    if len(taken) < count:
        raise UsageError(f"the data gave {len(taken)} microbatches, a step takes {count}")
    return taken


def _work(tensors: Batch, size: int) -> dict[str, Any]:
    length = next(iter(tensors.values())).shape[-1]
    return {"work": (size * length, size * length * length)}


def _gpt(batch: Batch, config: TrainerConfig) -> Batch:
    """The next word of each; none is asked for after the last one, in padding, and where `labels` are ignored."""
    length, ids = config.training.seq_length, batch["input_ids"]
    real = batch.get("attention_mask", torch.ones_like(ids)).bool()
    wanted = torch.where(real, batch.get("labels", ids), IGNORED)
    labels = _fitted(F.pad(wanted, (0, 1), value=IGNORED)[:, 1:], length, IGNORED, "input_ids")
    tokens = _fitted(ids, length, 0, "input_ids")
    return {
        "tokens": tokens,
        "labels": labels.clamp(min=0),
        "loss_mask": (labels != IGNORED).float(),
        "position_ids": torch.arange(length, device=ids.device).expand_as(tokens),
    }


def _bert(batch: Batch, config: TrainerConfig) -> Batch:
    length, ids = config.training.seq_length, batch["input_ids"]
    labels = _fitted(_given(batch, "labels"), length, IGNORED, "labels")
    real = batch.get("attention_mask", torch.ones_like(ids)).long()
    return {
        "text": _fitted(ids, length, 0, "input_ids"),
        "types": _fitted(batch.get("token_type_ids", torch.zeros_like(ids)), length, 0, "token_type_ids"),
        "labels": labels.clamp(min=0),
        "is_random": batch.get("next_sentence_label", ids.new_zeros(len(ids))).long().flatten(),
        "padding_mask": _fitted(real, length, 0, "attention_mask"),
        "loss_mask": (labels != IGNORED).long(),
    }


def _t5(batch: Batch, config: TrainerConfig) -> Batch:
    """The decoder reads the labels, moved on by one word."""
    encoded, decoded = config.training.seq_length, decoder_length(config.training)
    ids, labels = batch["input_ids"], _fitted(_given(batch, "labels"), decoded, IGNORED, "labels")
    real = batch.get("attention_mask", torch.ones_like(ids)).long()
    before = F.pad(labels.clamp(min=0), (1, 0))[:, :-1]
    mask = (labels != IGNORED).long()
    return {
        "text_enc": _fitted(ids, encoded, 0, "input_ids"),
        "text_dec": _fitted(batch.get("decoder_input_ids", before), decoded, 0, "decoder_input_ids"),
        "labels": labels.clamp(min=0),
        "loss_mask": mask,
        "enc_mask": _fitted(real, encoded, 0, "attention_mask"),
        "dec_mask": _fitted(batch.get("decoder_attention_mask", mask), decoded, 0, "decoder_attention_mask"),
    }


_FROM_HUGGING_FACE: Mapping[str, Callable[[Batch, TrainerConfig], Batch]] = {"gpt": _gpt, "bert": _bert, "t5": _t5}


def _given(batch: Batch, name: str) -> torch.Tensor:
    if name not in batch:
        raise UsageError(f"the batch has no {name}, only {', '.join(sorted(batch))}")
    return batch[name]


def _fitted(values: torch.Tensor, length: int, padding: int, name: str) -> torch.Tensor:
    """Padded on the right. One token more than the sequence is what the last one's label comes from."""
    found = values.shape[1]
    if found > length + 1:
        raise UsageError(f"{name} has rows of {found} tokens: cut them to --seq-length {length}, or raise it")
    return F.pad(values[:, :length], (0, max(length - found, 0)), value=padding)
