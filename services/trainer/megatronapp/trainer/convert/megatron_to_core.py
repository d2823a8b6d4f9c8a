"""A checkpoint that Megatron-LM wrote as one of the trainer, one tensor in memory at a time: its distributed format
(torch_dist), and the older one of a file a rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from megatronapp.core.errors import DataError, NotFoundError, UsageError
from megatronapp.trainer import torch_dist
from megatronapp.trainer.checkpoint_folder import LATEST, RECIPE
from megatronapp.trainer.convert import core_weights, megatron_args, new_checkpoint, rank_files, structure
from megatronapp.trainer.convert.arguments import Options
from megatronapp.trainer.convert.core_weights import CoreWeight
from megatronapp.trainer.convert.family import LAYERS, Sizes
from megatronapp.trainer.convert.new_checkpoint import DTYPES
from megatronapp.trainer.torch_dist import COMMON, METADATA, StoredWeights


class Source(Protocol):
    """Raises DataError in all that it does."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...

    def check(self, weights: Sequence[CoreWeight], tied: bool) -> None: ...

    def dtype(self, weight: CoreWeight) -> torch.dtype: ...

    def read(self, weight: CoreWeight) -> torch.Tensor: ...


class Distributed:
    """torch_dist. Layers are stacked under one key, or have one each, as newer Megatron-LMs write them."""

    def __init__(self, folder: Path) -> None:
        self._stored = StoredWeights(folder)
        common = folder / COMMON
        self.arguments: Mapping[str, Any] = rank_files.arguments_of(rank_files.load_file(common), common)
        self._folder = folder

    def check(self, weights: Sequence[CoreWeight], tied: bool) -> None:
        """That all are there, in their shapes, and no others."""
        for weight in weights:
            self._stored.entry(*self._place(weight), weight.shape)
        known = {self._place(weight)[0] for weight in weights} | ({"output_layer.weight"} if tied else set())
        left = [key for key in self._stored.tensors if key not in known and not key.startswith(_NOT_WEIGHTS)]
        if left:
            raise DataError(f"{self._folder} holds {min(left)!r:.120}, which no model of its arguments has")

    def dtype(self, weight: CoreWeight) -> torch.dtype:
        return self._stored.entry(*self._place(weight), weight.shape).dtype

    def read(self, weight: CoreWeight) -> torch.Tensor:
        return self._stored.read(*self._place(weight), weight.shape)

    def _place(self, weight: CoreWeight) -> tuple[str, int | None]:
        if weight.layer is None or weight.key in self._stored.tensors:
            return weight.key, weight.layer
        return f"{LAYERS}{weight.layer}.{weight.key.removeprefix(LAYERS)}", None


_NOT_WEIGHTS = ("optimizer.", "chained_", "rng_state", "rerun_state")


def convert(options: Options) -> None:
    """Raises MegatronAppError; then there is nothing at the target."""
    folder = find(options.source)
    source: Source = Distributed(folder) if (folder / METADATA).is_file() else rank_files.RankFiles(folder)
    arguments = source.arguments
    rows = arguments.get("padded_vocab_size")
    if not isinstance(rows, int):
        raise DataError(f"{folder}: its arguments lack padded_vocab_size, the rows of the embedding")
    flags = megatron_args.model_flags(arguments, folder)
    tokens = megatron_args.tokenizer_settings(arguments, folder, options.tokenizer)
    config = new_checkpoint.settings(flags, rows, torch.float32, tokens, options)
    weights = list(core_weights.of_gpt(config.model, Sizes.of(config.model, rows, config.training.seq_length)))
    source.check(weights, tied=not config.model.untie_embeddings_and_output_weights)
    dtype = DTYPES[options.dtype] if options.dtype else source.dtype(weights[0])
    config = new_checkpoint.settings(flags, rows, dtype, tokens, options)
    new_checkpoint.layout(config)
    tokenizer = new_checkpoint.tokenizer(config, folder, rows)
    if options.print_structure:
        structure.show((_title(weight), weight.shape, source.dtype(weight)) for weight in weights)
    by_place = {(weight.key, weight.layer): weight for weight in weights}

    def tensor_of(block: torch_dist.Block) -> torch.Tensor:
        tensor = source.read(by_place[block.entry.key, block.entry.layer])
        return tensor if block.rows is None else tensor[block.rows]

    entries = [torch_dist.Entry(each.key, each.layer, each.shape, dtype) for each in weights]
    new_checkpoint.write(options.target, config, tokenizer, entries, tensor_of)


def _title(weight: CoreWeight) -> str:
    return weight.key if weight.layer is None else f"{weight.key} of layer {weight.layer}"


def find(given: Path) -> Path:
    """The folder of one step: `given`, or the newest one in it. Raises NotFoundError, DataError and UsageError."""
    if not given.is_dir():
        raise NotFoundError(f"{given}: there is no such folder")
    folder = given
    tracker = given / LATEST
    if tracker.is_file():
        latest = tracker.read_text(errors="replace").strip()
        if not latest.isdigit() and latest != "release":
            raise DataError(f"{tracker} names no step: give the folder of one, such as {given}/iter_0000100")
        folder = given / (latest if latest == "release" else f"iter_{int(latest):07d}")
        if not folder.is_dir():
            raise DataError(f"{tracker} names {folder.name}, which is not there")
    if (folder / RECIPE).is_file():
        raise UsageError(f"{folder} is of this trainer, and loads under every layout as it is: nothing to convert")
    return folder
