"""A checkpoint of the trainer as a folder of Hugging Face, one tensor in memory at a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from megatronapp.core.durable_file import replace_file
from megatronapp.core.errors import DataError, UsageError
from megatronapp.trainer import checkpoint_folder, safetensors_folder
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert import families, output_folder
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.convert.family import Family, Sizes, Weight
from megatronapp.trainer.convert.fields import CONFIG, Fields
from megatronapp.trainer.convert.new_checkpoint import DTYPES
from megatronapp.trainer.convert.tokenizer_files import KEPT
from megatronapp.trainer.safetensors_folder import Planned
from megatronapp.trainer.torch_dist import StoredWeights

EMBEDDING = "embedding.word_embeddings.weight"
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class Checkpoint:
    """What is known before the first byte is written."""

    folder: Path
    stored: StoredWeights
    family: Family
    config: TrainerConfig
    sizes: Sizes
    weights: Sequence[Weight]
    dtype: torch.dtype

    @classmethod
    def read(cls, options: Options) -> Checkpoint:
        """Raises MegatronAppError for whatever does not fit."""
        folder = checkpoint_folder.find_complete(options.source)
        recipe = checkpoint_folder.read_recipe(folder)
        if recipe.changed_by_plugins:
            raise UsageError(
                f"{folder} was trained with the plug-in {recipe.changed_by_plugins[0]}, which changed the model: no "
                "family of Hugging Face has it"
            )
        config = recipe.to_config()
        family = _family(folder, config, options)
        stored = StoredWeights(folder)
        if EMBEDDING not in stored.tensors:
            raise DataError(f"{folder}: {EMBEDDING} is missing, which every model has")
        rows = config.model.padded_vocab_size or int(stored.tensors[EMBEDDING].size[0])
        sizes = Sizes.of(config.model, rows, config.training.seq_length)
        for weight in family.weights(config.model, sizes):
            stored.entry(weight.key, weight.layer, weight.shape)
        dtype = DTYPES[options.dtype] if options.dtype else stored.tensors[EMBEDDING].properties.dtype
        return cls(folder, stored, family, config, sizes, list(family.weights(config.model, sizes)), dtype)


def _family(folder: Path, config: TrainerConfig, options: Options) -> Family:
    if options.model_type is None and (folder / KEPT / CONFIG).is_file():
        return families.of_config(Fields.read(folder / KEPT / CONFIG))
    if options.model_type is None:
        return families.of_model(config.model)
    family = families.named(options.model_type)
    if not family.matches(config.model):
        raise UsageError(f"the model of {folder} is no {family.name}; leave --model-type away to have one that fits")
    return family


def convert(options: Options) -> None:
    """Raises MegatronAppError; then there is nothing at the target."""
    model = Checkpoint.read(options)
    planned = [Planned(name, shape, model.dtype) for weight in model.weights for name, shape in weight.sources.items()]
    with output_folder.whole(options.target) as folder:
        safetensors_folder.write(folder, planned, _tensors(model), options.max_shard_bytes)
        for name in (KEPT, checkpoint_folder.TOKENIZER):
            if (model.folder / name).is_dir():
                shutil.copytree(model.folder / name, folder, dirs_exist_ok=True)
        replace_file(folder / CONFIG, json.dumps(_config(model), indent=2).encode())


def _tensors(model: Checkpoint) -> Iterator[torch.Tensor]:
    for weight in model.weights:
        yield from (
            part.to(model.dtype) for part in weight.split(model.stored.read(weight.key, weight.layer, weight.shape))
        )


def _config(model: Checkpoint) -> dict[str, Any]:
    """Of the settings; as it came where the model was converted from one, but for the type of the weights."""
    file = model.folder / KEPT / CONFIG
    kept = dict(Fields.read(file).values) if file.is_file() else {}
    is_same = kept.get("model_type") == model.family.name
    found = kept if is_same else model.family.config(model.config, model.sizes)
    name = "dtype" if "dtype" in found else "torch_dtype"
    return {**found, name: _NAMES[model.dtype]}
