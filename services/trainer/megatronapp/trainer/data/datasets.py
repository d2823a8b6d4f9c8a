"""The training, validation and test sets: megatron-core's GPTDataset over .bin/.idx files, blends, or mock data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

from megatronapp.core.errors import ConfigError, DataError
from megatronapp.core.logging import get_logger
from megatronapp.trainer import data_paths
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data.indexed import sequence_lengths
from megatronapp.trainer.data.tokenizers import Tokenizer
from megatronapp.trainer.data_paths import Blend, Share

log = get_logger(__name__)

SPLITS = ("training", "validation", "test")

Dataset = Any
"""A map from sample number to a dict of arrays, which a family's `collate` knows."""


@dataclass(frozen=True, kw_only=True)
class DatasetKind:
    """One of megatron-core's datasets. `make_options` makes its configuration from what all kinds have in common."""

    dataset: type
    make_options: Callable[..., Any]
    measure: Callable[[str], npt.NDArray[np.integer[Any]]]
    """Of the data with this prefix: how much each entry that --split deals out holds of what samples are made of."""
    least: int
    """Of that, for one sample. megatron-core never comes back from building a set that gives none."""
    unit: str
    sample: str
    remedy: str
    """For a message: what is measured, what a sample takes, what to do beside giving more data."""


def gpt_dataset(config: DataConfig, sequence_length: int) -> DatasetKind:
    """Samples are dicts of tokens, labels, loss_mask and position_ids, each [sequence_length]."""
    make_options = partial(
        GPTDatasetConfig,
        sequence_length=sequence_length,
        reset_position_ids=config.reset_position_ids or config.reset_attention_mask,  # a document is told by them
        reset_attention_mask=False,
        eod_mask_loss=config.eod_mask_loss,
        create_attention_mask=False,
    )
    return DatasetKind(
        dataset=MockGPTDataset if config.mock_data else GPTDataset,
        make_options=make_options,
        measure=sequence_lengths,
        least=sequence_length + 1,
        unit="tokens",
        sample=f"a sequence takes {sequence_length + 1}",
        remedy="a shorter --seq-length",
    )


def build_datasets(
    config: DataConfig,
    tokenizer: Tokenizer,
    kind: DatasetKind,
    *,
    train_samples: int,
    valid_samples: int,
    test_samples: int,
    seed: int,
    is_built_on_rank: Callable[[], bool] = lambda: True,
) -> tuple[Dataset | None, Dataset | None, Dataset | None]:
    """The three sets, each of at least as many samples as asked for; None where the split leaves none or none is asked.

    Every rank must call this together: the first one builds the sample indices, the others read them. Raises UsageError
    on wrong flags, ConfigError when files are missing and DataError when they are broken or too small.
    """
    sizes: tuple[int, ...] = (train_samples, valid_samples, test_samples)
    origin: dict[str, Any] = {}
    if not config.mock_data:
        sets = data_paths.shares(config)
        sizes = fitting_sizes(sets, sizes, kind)
        blends = [share.blend if size else None for share, size in zip(sets, sizes, strict=True)]
        prefixes = list(dict.fromkeys(prefix for blend in blends if blend is not None for prefix in blend.prefixes))
        if not prefixes:
            return None, None, None
        origin = {**_origin(config, blends), "path_to_cache": str(cache_folder(config.data_cache_path, prefixes))}
    options = kind.make_options(
        random_seed=seed, tokenizer=tokenizer, mmap_bin_files=not config.no_mmap_bin_files, **origin
    )
    if options.split_matrix is not None:
        # A set that nobody asked for is not built: megatron-core never comes back from building one without documents.
        options.split_matrix = [span if size else None for span, size in zip(options.split_matrix, sizes, strict=True)]
    try:
        return tuple(BlendedMegatronDatasetBuilder(kind.dataset, list(sizes), is_built_on_rank, options).build())
    except OSError as error:
        folder = origin.get("path_to_cache")
        raise ConfigError(f"{folder} can't be written ({error.strerror}): set --data-cache-path") from error


def _origin(config: DataConfig, blends: Sequence[Blend | None]) -> dict[str, Any]:
    """megatron-core's settings of where samples come from."""
    if any(data_paths.by_set(config)):
        return {"blend_per_split": [blend and _listed(blend) for blend in blends]}
    (blend, *_) = (blend for blend in blends if blend is not None)
    split = data_paths.parse_split(config.split)
    return {"blend": _listed(blend), "split": ",".join(str(part) for part in split)}


def _listed(blend: Blend) -> tuple[list[str], list[float] | None]:
    return list(blend.prefixes), None if blend.weights is None else list(blend.weights)


def fitting_sizes(sets: Sequence[Share], sizes: Sequence[int], kind: DatasetKind) -> tuple[int, ...]:
    """`sizes`, with 0 for a test set for which the data leaves too little for a sample.

    Raises DataError when that happens to training or validation.
    """
    measured = cache(kind.measure)
    fitting = list(sizes)
    for part, (name, share, size) in enumerate(zip(SPLITS, sets, sizes, strict=True)):
        if not size:
            continue
        reason = _why_too_little(name, share, measured, kind)
        if reason and name != "test":
            raise DataError(f"{reason}: give more data, {kind.remedy}, or {share.remedy}")
        if reason:
            fitting[part] = 0
            if not share.is_empty and _is_first_rank():
                log.warning("no_test_set", reason=reason)
    return tuple(fitting)


def _why_too_little(
    name: str, share: Share, measured: Callable[[str], npt.NDArray[np.integer[Any]]], kind: DatasetKind
) -> str | None:
    """Of the first file of a set that has too little for a sample; None where all have enough."""
    if share.blend is None:
        return f"there is no data for {name}"
    for prefix in share.blend.prefixes:
        entries = measured(prefix)
        span = slice(round(share.begin * len(entries)), round(share.end * len(entries)))
        found = int(entries[span].sum(dtype=np.int64))
        if found < kind.least:
            return f"{prefix} has {found} {kind.unit} for {name}, {kind.sample}"
    return None


def _is_first_rank() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


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
