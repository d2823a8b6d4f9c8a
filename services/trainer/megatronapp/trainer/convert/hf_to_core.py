"""Hugging Face's weights, config and tokenizer as a checkpoint of the trainer, one tensor in memory at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from megatronapp.core.errors import ConfigError, DataError, UnavailableError, UsageError
from megatronapp.trainer import arguments, checkpoint_folder, torch_dist, versions
from megatronapp.trainer.checkpoint_folder import Claim
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert import families, output_folder, tokenizer_files
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.convert.family import Family, Sizes, Weight
from megatronapp.trainer.convert.fields import CONFIG, Fields
from megatronapp.trainer.data import Tokenizer, build_tokenizer
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.recipe import RunRecipe
from megatronapp.trainer.safetensors_folder import TensorFolder

STEP = 0
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PRECISION: dict[torch.dtype, list[str]] = {torch.float32: [], torch.bfloat16: ["--bf16"], torch.float16: ["--fp16"]}
_OF_NO_RUN = ("--micro-batch-size", "1", "--train-iters", "1", "--lr", "0")
"""Flags that every run must give, and that a run which goes on from here gives anew."""


@dataclass(frozen=True)
class Model:
    """What is known before the first byte is written."""

    folder: TensorFolder
    family: Family
    config: TrainerConfig
    layout: Layout
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
        config = _config([*flags, "--padded-vocab-size", str(rows), *_PRECISION[dtype]], tokens, options)
        tokenizer = _tokenizer(config, options.source)
        if tokenizer.vocab_size > rows:
            raise DataError(
                f"{options.source}: the tokenizer has {tokenizer.vocab_size} tokens, but the model only {rows} rows "
                "for them: give the tokenizer that it was trained with, or enlarge its embedding first"
            )
        sizes = Sizes.of(config.model, rows, config.training.seq_length)
        _check(folder, family.weights(config.model, sizes), family)  # before a list is made of them
        weights = list(family.weights(config.model, sizes))
        return cls(folder, family, config, Layout.of(config, _ranks(config)), tokenizer, weights, dtype)


def convert(options: Options) -> None:
    """Raises MegatronAppError; then there is nothing at the target."""
    model = Model.read(options)
    with output_folder.whole(options.target) as folder:
        claim = Claim(folder, run="convert", attempt=1)
        claim.take()
        final = folder / checkpoint_folder.folder_name(STEP)
        partial = folder / f".{final.name}.partial"
        checkpoint_folder.prepare(claim, partial)
        _write_weights(partial, model)
        tokenizer_files.keep(options.source, partial, model.tokenizer)
        recipe = RunRecipe.of(
            model.config, model.layout, model.tokenizer, versions.library_versions(torch.device("cpu")), {}
        )
        checkpoint_folder.publish(
            claim, partial, final, step=STEP, recipe=recipe, tokenizer_files=model.tokenizer.files
        )


def _write_weights(folder: Path, model: Model) -> None:
    by_place = {(weight.key, weight.layer): weight for weight in model.weights}
    entries = [torch_dist.Entry(each.key, each.layer, each.shape, model.dtype) for each in model.weights]

    def tensor_of(block: torch_dist.Block) -> torch.Tensor:
        weight = by_place[block.entry.key, block.entry.layer]
        return weight.join([model.folder.read(name, block.rows) for name in weight.sources])

    try:
        torch_dist.write(folder, entries, model.config.model.num_layers, tensor_of, _common(model.layout))
    except torch.distributed.checkpoint.api.CheckpointException as error:
        raise UnavailableError(f"the checkpoint could not be written: {error}") from error


def _common(layout: Layout) -> dict[str, Any]:
    """What checkpoint.py loads on each rank. Without a scheduler: the weights are of no run."""
    return {
        "step": STEP,
        "consumed_samples": 0,
        "layout": f"tp{layout.tensor}-pp{layout.pipeline}",
        "distributed_optimizer": False,
        "has_optimizer": False,
        "has_random": False,
    }


def _config(flags: Sequence[str], tokens: Mapping[str, str], options: Options) -> TrainerConfig:
    positions = flags[flags.index("--max-position-embeddings") + 1]
    config, _ = arguments.parse([*flags, *_OF_NO_RUN, "--seq-length", positions])
    parallel = replace(
        config.parallel,
        tensor_model_parallel_size=options.tensor,
        pipeline_model_parallel_size=options.pipeline,
    )
    settings: dict[str, Any] = {name: int(v) if name == "vocab_size" else v for name, v in tokens.items()}
    return replace(config, parallel=parallel, data=dataclasses.replace(config.data, **settings))


def _ranks(config: TrainerConfig) -> int:
    return config.parallel.tensor_model_parallel_size * config.parallel.pipeline_model_parallel_size


def _tokenizer(config: TrainerConfig, source: Path) -> Tokenizer:
    try:
        return build_tokenizer(config.data)
    except (ConfigError, UsageError) as error:
        raise type(error)(f"{source}: its tokenizer can't be used, {error}") from error


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
    left.discard("lm_head.weight")  # tied to the embedding, where it is no weight of its own
    if left:
        raise DataError(
            f"{folder.folder} holds {min(left)!r:.200}, which no {family.name} has ({len(left)} such tensors)"
        )
