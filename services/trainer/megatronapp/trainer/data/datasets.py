"""The training, validation and test sets: megatron-core's GPTDataset over .bin/.idx files, blends, or mock data."""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset
from megatron.core.datasets.indexed_dataset import DType
from megatron.core.datasets.utils import get_blend_from_list
from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data.tokenizers import Tokenizer

SPLITS = ("training", "validation", "test")
INDEX_MAGIC = b"MMIDIDX\x00\x00"
INDEX_HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, sequences, documents + 1; then the lengths of the sequences as int32."""

Dataset = Any
"""A map from sample number to a dict of tokens, labels, loss_mask and position_ids, each [sequence_length]."""


def build_datasets(
    config: DataConfig,
    tokenizer: Tokenizer,
    *,
    train_samples: int,
    valid_samples: int,
    test_samples: int,
    sequence_length: int,
    seed: int,
    is_built_on_rank: Callable[[], bool] = lambda: True,
) -> tuple[Dataset | None, Dataset | None, Dataset | None]:
    """The three sets, each of at least as many samples as asked for; None where the split leaves none or none is asked.

    Every rank must call this together: the first one builds the sample indices, the others read them. Raises UsageError
    on wrong flags, ConfigError when files are missing and DataError when they are broken or too small.
    """
    sizes = (train_samples, valid_samples, test_samples)
    blend = None if config.mock_data else parse_blend(config.data_path)
    cache = None
    if blend is not None:
        tokens = sum(check_pair(prefix) for prefix in blend[0])
        if tokens <= sequence_length:
            raise DataError(f"--data-path holds {tokens} tokens, less than one sequence of {sequence_length}")
        cache = cache_folder(config.data_cache_path, blend[0])
    gpt_config = GPTDatasetConfig(
        random_seed=seed,
        sequence_length=sequence_length,
        blend=blend,
        split=None if blend is None else check_split(config.split, sizes),
        path_to_cache=None if cache is None else str(cache),
        tokenizer=tokenizer,
        reset_position_ids=False,
        reset_attention_mask=False,
        eod_mask_loss=False,
        create_attention_mask=False,
    )
    kind = MockGPTDataset if blend is None else GPTDataset
    try:
        built = BlendedMegatronDatasetBuilder(kind, list(sizes), is_built_on_rank, gpt_config).build()
    except OSError as error:
        raise ConfigError(
            f"sample indices can't be written to {cache} ({error.strerror}): set --data-cache-path"
        ) from error
    train, valid, test = (dataset if size else None for dataset, size in zip(built, sizes, strict=True))
    return train, valid, test


def parse_blend(data_path: Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Prefixes, and weights where they are given. Raises UsageError."""
    if not data_path:
        raise UsageError("training needs --data-path (made by `megatronapp data preprocess`) or --mock-data")
    try:
        prefixes, weights = get_blend_from_list(list(data_path))
    except AssertionError:
        raise UsageError("--data-path takes prefixes, or a weight before each prefix, not a mixture of both") from None
    if weights is not None and (min(weights) < 0 or sum(weights) <= 0):
        raise UsageError("the weights of --data-path must not be negative, and not all zero")
    if weights is not None and len(prefixes) == 1:
        weights = None
    return prefixes, weights


def check_split(split: str, sizes: Sequence[int]) -> str:
    """`split` as it is. Raises UsageError when it is no list of parts, or has none where samples are asked for."""
    if not re.fullmatch(r"\s*\d*\.?\d+\s*(,\s*\d*\.?\d+\s*){0,2}", split):
        raise UsageError(f"--split {split!r}: give one to three parts, such as 969,30,1")
    parts = [float(part) for part in split.split(",")]
    parts += [0.0] * (len(SPLITS) - len(parts))
    for name, part, size in zip(SPLITS, parts, sizes, strict=True):
        if size and not part and name != "test":
            raise UsageError(f"--split {split} leaves nothing for {name}, which needs {size} samples")
    return split


def check_pair(prefix: str) -> int:
    """Tokens in <prefix>.bin. Raises ConfigError when it or its .idx is missing, DataError when they don't fit."""
    binary, index = Path(f"{prefix}.bin"), Path(f"{prefix}.idx")
    for path in (binary, index):
        if not path.is_file():
            raise ConfigError(f"--data-path {prefix}: there is no file {path}")
    with index.open("rb") as file:
        header = file.read(INDEX_HEADER.size)
        if len(header) < INDEX_HEADER.size or not header.startswith(INDEX_MAGIC):
            raise DataError(f"{index} is no index of `megatronapp data preprocess`")
        _, _, code, sequences, _ = INDEX_HEADER.unpack(header)
        lengths = np.fromfile(file, dtype="<i4", count=sequences)
    tokens = int(lengths.sum(dtype=np.int64))
    try:
        size = tokens * DType.size(DType.dtype_from_code(code))
    except ValueError:
        raise DataError(f"{index} names an unknown number format ({code})") from None
    if len(lengths) < sequences or binary.stat().st_size != size:
        raise DataError(f"{binary} and {index} do not belong together or are cut short: preprocess again")
    return tokens


def cache_folder(data_cache_path: str | None, prefixes: Sequence[str]) -> Path:
    """Where the sample indices of these very files are kept.

    megatron-core names an index after the path of the data, not after its content, and would read a stale one when
    the data is made anew; so every state of the files has a folder of its own.
    """
    state = hashlib.sha256()
    for prefix in prefixes:
        stat = Path(f"{prefix}.idx").stat()
        state.update(f"{prefix} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    folder = Path(data_cache_path) if data_cache_path else Path(prefixes[0]).parent / "index-cache"
    return folder / state.hexdigest()[:16]
