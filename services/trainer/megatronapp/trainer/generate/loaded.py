"""A Generator over a checkpoint, in a world of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import megatronapp.trainer.lean_imports  # noqa: F401  before anything of megatron-core

# isort: split
from megatronapp.core.errors import UsageError
from megatronapp.trainer import cpu, parallel
from megatronapp.trainer.environment import Environment
from megatronapp.trainer.generate.arguments import Source
from megatronapp.trainer.generate.generator import Generator
from megatronapp.trainer.plugins.chain import PluginChain
from megatronapp.trainer.saved_model import SavedModel
from megatronapp.trainer.worlds import World


@contextmanager
def loaded(source: Source) -> Iterator[Generator]:
    """On all ranks that torchrun started, or in this process alone. Ready to generate. Raises MegatronAppError."""
    saved = SavedModel.find(source.folder, source.parallel, source.tokenizer_files)
    environment = Environment.read()
    layout = saved.layout(environment.world_size)
    cpu.install()
    device, _ = parallel.start(environment, saved.config.parallel, layout, World.whole(environment))
    chunks, transformer = saved.build(layout, device, PluginChain())
    generator = Generator(chunks, transformer, saved.tokenizer, positions(source, saved), device)
    with generator.ready():
        yield generator
    generator.close()
    parallel.stop()


def positions(source: Source, saved: SavedModel) -> int:
    """Raises UsageError for more than the model has embeddings for."""
    asked, trained = source.max_positions, saved.max_positions
    if asked is None:
        return trained
    if asked > trained and saved.config.model.position_embedding_type == "learned_absolute":
        raise UsageError(f"--max-positions {asked}: the model has embeddings for {trained}")
    return asked
