"""A model, with its tokenizer, from a checkpoint's folder alone, under any tensor and pipeline sizes.

The recipe (recipe.py) has every flag that decides what the model computes; the tokenizer's files lie in the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from megatron.core.transformer.transformer_config import TransformerConfig

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.trainer import checkpoint, checkpoint_folder, model, parallel
from megatronapp.trainer.config import DataConfig, ParallelConfig, TrainerConfig
from megatronapp.trainer.data import Tokenizer, build_tokenizer
from megatronapp.trainer.data.tokenizers import FILE_FLAGS
from megatronapp.trainer.layout import Layout
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.recipe import RunRecipe

_RUN_ALONE: dict[str, Any] = {
    "recompute_granularity": None,
    "recompute_method": None,
    "recompute_num_layers": None,
    "save": None,
    "load": None,
}
"""What belongs to the training run alone."""


@dataclass(frozen=True)
class SavedModel:
    """What is needed to build it and load its weights; `folder` is one checkpoint's."""

    folder: Path
    config: TrainerConfig
    tokenizer: Tokenizer
    recipe: RunRecipe

    @property
    def max_positions(self) -> int:
        """The longest sequence that the model was trained for."""
        return model.positions(self.config)

    def layout(self, world_size: int) -> Layout:
        """Raises UsageError. No step is trained: any batch that every layout can cut will do."""
        training = replace(self.config.training, micro_batch_size=1, global_batch_size=world_size)
        return Layout.of(replace(self.config, training=training), world_size)

    def build(
        self, layout: Layout, device: torch.device, plugins: PluginChain
    ) -> tuple[list[torch.nn.Module], TransformerConfig]:
        """This rank's chunks with their weights, not wrapped; process groups exist. All ranks call it. Raises
        UsageError for plug-ins that would change the model, and DataError."""
        parallel.seed_everything(self.config.training.seed)
        transformer = model.transformer_config(self.config, layout, device)
        changes = {name: changed for name, changed in plugins.configure(transformer).items() if changed}
        if changes:
            raise UsageError(f"the plug-in {next(iter(changes))} would change the model of {self.folder}: leave it off")
        chunks = model.build_chunks(self.config, transformer, layout, self.tokenizer.vocab_size, device)
        if transformer.bf16 or transformer.fp16:
            chunks = [chunk.to(transformer.params_dtype) for chunk in chunks]
        checkpoint.load_weights(chunks, self.folder)
        plugins.models(chunks)
        return chunks, transformer

    @classmethod
    def find(
        cls, folder: Path, parallel: ParallelConfig, tokenizer_files: Mapping[str, str] | None = None
    ) -> SavedModel:
        """Of the newest complete checkpoint in `folder`, or of the one that it is, under another layout.

        `tokenizer_files`: paths by setting (`vocab_file`, …), for a checkpoint that does not hold them. Raises
        NotFoundError, DataError and UsageError.
        """
        saved = checkpoint_folder.find_complete(folder)
        recipe = checkpoint_folder.read_recipe(saved)
        if recipe.changed_by_plugins:
            raise UsageError(
                f"{saved} was trained with the plug-in {recipe.changed_by_plugins[0]}, which changed the "
                "model: it can't be rebuilt from the checkpoint alone"
            )
        config = replace(recipe.to_config(**_RUN_ALONE), parallel=_with_experts(parallel, recipe))
        tokenizer = _tokenizer(saved, config.data, recipe, tokenizer_files or {})
        return cls(saved, config, tokenizer, recipe)


def _with_experts(parallel: ParallelConfig, recipe: RunRecipe) -> ParallelConfig:
    """megatron-core builds experts that are split over tensor ranks for sequence parallelism alone."""
    split = parallel.tensor_model_parallel_size > 1 and recipe.settings.get("num_experts") is not None
    return replace(parallel, sequence_parallel=True) if split else parallel


def _tokenizer(folder: Path, data: DataConfig, recipe: RunRecipe, given: Mapping[str, str]) -> Tokenizer:
    kept = ((flag, folder / checkpoint_folder.TOKENIZER / name) for name, flag in FILE_FLAGS.items())
    paths: dict[str, Any] = {flag: str(path) for flag, path in kept if path.is_file()} | dict(given)
    try:
        tokenizer = build_tokenizer(replace(data, **paths))
    except ConfigError as error:
        raise ConfigError(
            f"{folder} does not hold its tokenizer, and {error}: give --tokenizer-model, or --vocab-file and "
            "--merge-file"
        ) from error
    differing = [
        part
        for part, now in (("vocab_size", tokenizer.vocab_size), ("sha256", tokenizer.sha256))
        if part in recipe.tokenizer and recipe.tokenizer[part] != now
    ]
    if differing:
        raise DataError(f"{folder} was trained with another tokenizer than this ({differing[0]} differs): give its own")
    return tokenizer
