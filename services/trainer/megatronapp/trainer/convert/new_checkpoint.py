"""A checkpoint of the trainer from weights of elsewhere: its settings, its tokenizer, and how it is written."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from megatronapp.core.errors import ConfigError, DataError, UnavailableError, UsageError
from megatronapp.trainer import arguments, checkpoint_folder, torch_dist, versions
from megatronapp.trainer.checkpoint_folder import Claim
from megatronapp.trainer.config import TrainerConfig
from megatronapp.trainer.convert import output_folder
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.data import Tokenizer, build_tokenizer
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.models import family_of
from megatronapp.trainer.recipe import RunRecipe

STEP = 0
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_PRECISION: dict[torch.dtype, list[str]] = {torch.float32: [], torch.bfloat16: ["--bf16"], torch.float16: ["--fp16"]}
_NUMBERS = ("vocab_size", "vocab_extra_ids")
_OF_NO_RUN = ("--micro-batch-size", "1", "--train-iters", "1", "--lr", "0")
"""Flags that every run must give, and that a run which goes on from here gives anew."""


def settings(
    flags: Sequence[str], rows: int, dtype: torch.dtype, tokens: Mapping[str, str], options: Options
) -> TrainerConfig:
    """`rows`: of the embedding. `tokens`: settings of the tokenizer, by name. Raises UsageError."""
    positions = flags[flags.index("--max-position-embeddings") + 1]
    given = [*flags, "--padded-vocab-size", str(rows), *_PRECISION[dtype], *_OF_NO_RUN, "--seq-length", positions]
    config, _ = arguments.parse(given)
    parallel = replace(
        config.parallel,
        tensor_model_parallel_size=options.tensor,
        pipeline_model_parallel_size=options.pipeline,
    )
    named: dict[str, Any] = {name: int(v) if name in _NUMBERS else v for name, v in tokens.items()}
    return replace(config, parallel=parallel, data=dataclasses.replace(config.data, **named))


def layout(config: TrainerConfig) -> Layout:
    """Raises UsageError where the model can't be cut so."""
    parallel = config.parallel
    return Layout.of(config, parallel.tensor_model_parallel_size * parallel.pipeline_model_parallel_size)


def tokenizer(config: TrainerConfig, source: Path, rows: int) -> Tokenizer:
    """Raises MegatronAppError where it can't be read or has more tokens than the embedding has rows."""
    try:
        found = build_tokenizer(config.data)
    except (ConfigError, UsageError) as error:
        raise type(error)(f"{source}: its tokenizer can't be used, {error}") from error
    if found.vocab_size > rows:
        raise DataError(
            f"{source}: the tokenizer has {found.vocab_size} tokens, but the model only {rows} rows "
            "for them: give the tokenizer that it was trained with, or enlarge its embedding first"
        )
    return found


def write(
    target: Path,
    config: TrainerConfig,
    tokens: Tokenizer,
    entries: Sequence[torch_dist.Entry],
    tensor_of: Callable[[torch_dist.Block], torch.Tensor],
    keep: Callable[[Path], None] = lambda _: None,
) -> None:
    """`keep` puts more files into the checkpoint. Raises MegatronAppError; then there is nothing at the target."""
    cut = layout(config)
    with output_folder.whole(target) as folder:
        claim = Claim(folder, run="convert", attempt=1)
        claim.take()
        final = folder / checkpoint_folder.folder_name(STEP)
        partial = folder / f".{final.name}.partial"
        checkpoint_folder.prepare(claim, partial)
        try:
            depths = family_of(config.model).depths(config.model)
            torch_dist.write(partial, entries, depths, tensor_of, _common(cut))
        except torch.distributed.checkpoint.api.CheckpointException as error:
            raise UnavailableError(f"the checkpoint could not be written: {error}") from error
        keep(partial)
        recipe = RunRecipe.of(config, cut, tokens, versions.library_versions(torch.device("cpu")), {})
        checkpoint_folder.publish(claim, partial, final, step=STEP, recipe=recipe, tokenizer_files=tokens.files)


def _common(cut: Layout) -> dict[str, Any]:
    """What checkpoint.py loads on each rank. Without a scheduler: the weights are of no run."""
    return {
        "step": STEP,
        "consumed_samples": 0,
        "layout": f"tp{cut.tensor}-pp{cut.pipeline}",
        "distributed_optimizer": False,
        "has_optimizer": False,
        "has_random": False,
    }
