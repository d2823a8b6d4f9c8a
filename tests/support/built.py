"""A model of any family from a checkpoint, in a rank of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from megatronapp.trainer import checkpoint_folder, cpu, parallel
from megatronapp.trainer.config import ParallelConfig
from megatronapp.trainer.data import build_tokenizer
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.saved_model import SavedModel
from megatronapp.trainer.worlds import World


@contextmanager
def built(checkpoint: Path, layout: ParallelConfig | None = None) -> Iterator[list[torch.nn.Module]]:
    """Its chunks on this rank; the files of its tokenizer are where they were."""
    folder = checkpoint_folder.find_complete(checkpoint)
    recipe = checkpoint_folder.read_recipe(folder)
    config = replace(recipe.to_config(), parallel=layout or ParallelConfig())
    saved = SavedModel(folder, config, build_tokenizer(config.data), recipe)
    environment = Environment.read()
    cut = saved.layout(environment.world_size)
    cpu.install()
    device, _ = parallel.start(environment, config.parallel, cut, World.whole(environment))
    chunks, _ = saved.build(cut, device, PluginChain())
    yield chunks
    parallel.stop()
