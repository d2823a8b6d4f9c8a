"""Hugging Face's weights, config and tokenizer as a checkpoint of the trainer, one tensor in memory at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from megatronapp.core.errors import DataError
from megatronapp.trainer import torch_dist
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert import families, new_checkpoint, tokenizer_files
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.convert.family import Family, Sizes, Weight
from megatronapp.trainer.convert.fields import CONFIG, Fields
from megatronapp.trainer.convert.new_checkpoint import DTYPES
from megatronapp.trainer.data import Tokenizer
from megatronapp.trainer.safetensors_folder import TensorFolder


@dataclass(frozen=True)
class Model:
    """What is known before the first byte is written."""

    folder: TensorFolder
    family: Family
    config: TrainerConfig
    tokenizer: Tokenizer
    weights: Sequence[Weight]
    dtype: torch.dtype

    @classmethod
    def read(cls, options: Options) -> Model:
        """Raises MegatronAppError for whatever does not fit."""
        fields = Fields.read(options.source / CONFIG)
        family = families.of_config(fields)
        flags = family.flags(fields)
        rows = fields.whole("vocab_size")
        tokens = tokenizer_files.settings(options.source, family.name, rows, options.tokenizer)
        folder = TensorFolder(options.source)
        folder.begin_with(family.prefix)
        dtype = DTYPES[options.dtype] if options.dtype else _most(folder)
        config = new_checkpoint.settings(flags, rows, dtype, tokens, options)
        tokenizer = new_checkpoint.tokenizer(config, options.source, rows)
        sizes = Sizes.of(config.model, rows, config.training.seq_length)
        _check(folder, family.weights(config.model, sizes), family)  # before a list is made of them
        weights = list(family.weights(config.model, sizes))
        new_checkpoint.layout(config)
        return cls(folder, family, config, tokenizer, weights, dtype)


def convert(options: Options) -> None:
    """Raises MegatronAppError; then there is nothing at the target."""
    model = Model.read(options)
    by_place = {(key, weight.layer): weight for weight in model.weights for key in (weight.key, *weight.also)}
    entries = [torch_dist.Entry(key, layer, weight.shape, model.dtype) for (key, layer), weight in by_place.items()]

    def tensor_of(block: torch_dist.Block) -> torch.Tensor:
        weight = by_place[block.entry.key, block.entry.layer]
        return weight.join([model.folder.read(name, block.rows) for name in weight.sources])

    def keep(checkpoint: Path) -> None:
        tokenizer_files.keep(options.source, checkpoint, model.tokenizer)

    new_checkpoint.write(options.target, model.config, model.tokenizer, entries, tensor_of, keep)


def _most(folder: TensorFolder) -> torch.dtype:
    """The type of the most tensors."""
    dtypes = [stored.dtype for stored in folder.tensors.values()]
    return max(set(dtypes), key=dtypes.count)


def _check(folder: TensorFolder, weights: Iterable[Weight], family: Family) -> None:
    """That all tensors are there, in their shapes, and no others."""
    left = {name for name in folder.tensors if not family.passed_over.search(name)}
    for weight in weights:
        for name, shape in weight.sources.items():
            stored = folder.tensors.get(name)
            if stored is None:
                raise DataError(f"{folder.folder}: no file holds {name}, which {CONFIG} asks for")
            if stored.shape != shape:
                raise DataError(f"{stored.file}: {name} has the shape {stored.shape}; {CONFIG} asks for {shape}")
            left.discard(name)
    left -= family.tied
    if left:
        raise DataError(
            f"{folder.folder} holds {min(left)!r:.200}, which no {family.name} has ({len(left)} such tensors)"
        )
