"""Checkpoints of Megatron-LM in its older format: a file for each tensor-parallel rank and pipeline stage, whose
tensors are put together again. A file builds tensors, numbers and the named types of megatron-core alone."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from megatron.core.safe_globals import SAFE_GLOBALS
from megatron.core.transformer.enums import AttnMaskType

from megatronapp.core.errors import DataError
from megatronapp.trainer.convert.core_weights import CoreWeight
from megatronapp.trainer.convert.family import LAYERS
from megatronapp.trainer.torch_dist import TORN

NAMES = ("model_optim_rng.pt", "model_rng.pt")
OLDEST = 2.0
"""Of the numbers by which Megatron-LM tells how it arranges queries, keys and values."""
_FOLDER = re.compile(r"mp_rank_(\d{2,})(?:_(\d{3,}))?(?:_(\d{3,}))?")
_CHUNK = re.compile(r"model(\d*)")
_LAYER = re.compile(r"decoder\.layers\.(\d{1,6})\.(.+)")
_RENAMED = (
    (r"^(module\.)?language_model\.(encoder|transformer)\.", "decoder."),
    (r"^(module\.)?language_model\.", ""),
    (r"^decoder\.final_(layer)?norm\.", "decoder.final_layernorm."),
    (r"\.(attention|self_attention)\.query_key_value\.", ".self_attention.linear_qkv."),
    (r"\.(attention|self_attention)\.dense\.", ".self_attention.linear_proj."),
    (r"\.mlp\.dense_h_to_4h\.", ".mlp.linear_fc1."),
    (r"\.mlp\.dense_4h_to_h\.", ".mlp.linear_fc2."),
    (r"\.input_(layer)?norm\.", ".self_attention.linear_qkv.layer_norm_"),
    (r"\.(post_attention|pre_mlp)_(layer)?norm\.", ".mlp.linear_fc1.layer_norm_"),
)
"""Of Megatron-LM's own older layers, and of those of megatron-core without Transformer Engine, to its keys with it."""
_PASSED_OVER = re.compile(r"_extra_state|inv_freq$|^(module\.)?word_embeddings(_for_head)?\.")


def load_file(file: Path) -> Mapping[str, Any]:
    """Tensors are read when they are used. Raises DataError."""
    try:
        with torch.serialization.safe_globals([*SAFE_GLOBALS, AttnMaskType]):
            content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except TORN as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"{file} can't be read: it is torn, or holds more than tensors and settings ({reason:.200})"
        ) from (error)
    if not isinstance(content, Mapping):
        raise DataError(f"{file} is no checkpoint of Megatron-LM")
    return content


def arguments_of(content: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Those of the run. Raises DataError."""
    if "args" not in content:
        raise DataError(f"{file} holds no arguments of Megatron-LM, which say what the model is")
    return dict(vars(content["args"]))


class RankFiles:
    """Raises DataError for files that are missing or broken."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = _found(folder)
        first = self._files[0, 0]
        content = load_file(first)
        self.arguments = arguments_of(content, first)
        version = content.get("checkpoint_version", 0)
        if not isinstance(version, int | float) or version < OLDEST:
            raise DataError(f"{first} is of version {version!r:.20}: load and save it with a Megatron-LM from 2021 on")

    @cached_property
    def _tensors(self) -> Mapping[tuple[str, int | None], Sequence[torch.Tensor]]:
        """By key and layer: one tensor a tensor-parallel rank."""
        ranks = max(tensor for tensor, _ in self._files) + 1
        found: dict[tuple[str, int | None], list[torch.Tensor]] = defaultdict(list)
        for rank in range(ranks):
            for place, tensor in self._of_rank(rank):
                if len(found[place]) == rank:  # an embedding that two stages have is the same in both
                    found[place].append(tensor)
        return found

    def _of_rank(self, rank: int) -> Iterator[tuple[tuple[str, int | None], torch.Tensor]]:
        """Chunks in the order of the model: of virtual stage 0 all stages, then of virtual stage 1."""
        stages = max(stage for _, stage in self._files) + 1
        chunks: dict[tuple[int, int], Mapping[str, Any]] = {}
        for stage in range(stages):
            file = self._files[rank, stage]
            for name, state in load_file(file).items():
                if (match := _CHUNK.fullmatch(str(name))) and isinstance(state, Mapping):
                    chunks[int(match[1] or 0), stage] = state
        before = 0
        for place in sorted(chunks):
            last = before
            for key, tensor in _named(chunks[place]):
                if match := _LAYER.fullmatch(key):
                    layer = before + int(match[1])
                    last = max(last, layer + 1)
                    yield (f"{LAYERS}{match[2]}", layer), tensor
                else:
                    yield (key, None), tensor
            before = last

    def check(self, weights: Sequence[CoreWeight], tied: bool) -> None:
        """That all are there, in their shapes, and no others. Raises DataError."""
        left = set(self._tensors) - {(weight.key, weight.layer) for weight in weights}
        left -= {("output_layer.weight", None)} if tied else set()
        if left:
            key, layer = min(left, key=str)
            where = "" if layer is None else f" of layer {layer}"
            raise DataError(f"{self.folder} holds {key!r:.120}{where}, which no model of its arguments has")
        for weight in weights:
            parts = self._tensors.get((weight.key, weight.layer), ())
            found = [tuple(part.shape) for part in parts]
            if found != [_part(weight, len(parts))] * max(len(parts), 1):
                what = f"has the shapes {found}" if found else "is missing"
                where = "" if weight.layer is None else f" of layer {weight.layer}"
                raise DataError(f"{self.folder}: {weight.key}{where} {what}; its arguments ask for {weight.shape}")

    def dtype(self, weight: CoreWeight) -> torch.dtype:
        return self._tensors[weight.key, weight.layer][0].dtype

    def read(self, weight: CoreWeight) -> torch.Tensor:
        parts = self._tensors[weight.key, weight.layer]
        if weight.axis is None or len(parts) == 1:
            return parts[0]
        if not weight.gated:
            return torch.cat(list(parts), weight.axis)
        gates, ups = zip(*(part.chunk(2, weight.axis) for part in parts), strict=True)
        return torch.cat([*gates, *ups], weight.axis)


def _found(folder: Path) -> dict[tuple[int, int], Path]:
    """By tensor-parallel rank and stage, of all there must be. Raises DataError."""
    files: dict[tuple[int, int], Path] = {}
    for each in folder.iterdir():
        if (match := _FOLDER.fullmatch(each.name)) is None:
            continue
        if match[3]:
            raise DataError(f"{each} is of a model with experts over several ranks, which is not converted")
        file = next((each / name for name in NAMES if (each / name).is_file()), None)
        if file is None:
            raise DataError(f"{each} holds no {NAMES[0]}: the checkpoint is not whole")
        files[int(match[1]), int(match[2] or 0)] = file
    if not files:
        raise DataError(f"{folder} is no checkpoint of Megatron-LM: no .metadata and no mp_rank_00")
    ranks, stages = (max(each) + 1 for each in zip(*files, strict=True))
    for place in ((rank, stage) for rank in range(ranks) for stage in range(stages)):
        if place not in files:
            raise DataError(f"{folder} lacks mp_rank_{place[0]:02d}_{place[1]:03d}: the checkpoint is not whole")
    return files


def _named(state: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of a chunk, by megatron-core's keys."""
    for name, value in state.items():
        key = f"{before}{name}"
        if isinstance(value, Mapping):
            yield from _named(value, f"{key}.")
        elif isinstance(value, torch.Tensor) and not _PASSED_OVER.search(key):
            for pattern, replacement in _RENAMED:
                key = re.sub(pattern, replacement, key)
            yield key, value


def _part(weight: CoreWeight, ranks: int) -> tuple[int, ...]:
    """The shape of what one tensor-parallel rank has."""
    if weight.axis is None or not ranks:
        return weight.shape
    return tuple(size // ranks if axis == weight.axis else size for axis, size in enumerate(weight.shape))
