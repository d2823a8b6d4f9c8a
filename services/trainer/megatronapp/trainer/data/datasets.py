"""The training, validation and test sets: megatron-core's GPTDataset over .bin/.idx files, blends, or mock data."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch.distributed as dist
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig, MockGPTDataset

from megatronapp.core.errors import ConfigError, DataError, UsageError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data.indexed import sequence_lengths
from megatronapp.trainer.data.tokenizers import Tokenizer

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
    """For a message: what is measured, what a sample takes, what to do beside another --split."""


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
    if config.mock_data:
        blend, split, cache = None, None, None
    else:
        blend, split = parse_blend(config.data_path), parse_split(config.split)
        sizes = fitting_sizes(blend[0], split, sizes, kind)
        cache = cache_folder(config.data_cache_path, blend[0])
    options = kind.make_options(
        random_seed=seed,
        blend=blend,
        split=split and ",".join(str(part) for part in split),
        path_to_cache=cache and str(cache),
        tokenizer=tokenizer,
        mmap_bin_files=not config.no_mmap_bin_files,
    )
    # A set that nobody asked for is not built: megatron-core never comes back from building one without documents.
    options.split_matrix = [span if size else None for span, size in zip(options.split_matrix, sizes, strict=True)]
    try:
        return tuple(BlendedMegatronDatasetBuilder(kind.dataset, list(sizes), is_built_on_rank, options).build())
    except OSError as error:
        raise ConfigError(f"{cache} can't be written ({error.strerror}): set --data-cache-path") from error


def parse_blend(data_path: Sequence[str]) -> tuple[list[str], list[float] | None]:
    """Prefixes, and weights where they are given. Raises UsageError."""
    if not data_path:
        raise UsageError("training needs --data-path (made by `megatronapp data preprocess`) or --mock-data")
    weights = [_number(part) for part in data_path[::2]]
    if len(data_path) % 2 or all(weight is None for weight in weights):
        return list(data_path), None
    found = [weight for weight in weights if weight is not None]
    if len(found) < len(weights) or min(found) < 0 or sum(found) <= 0:
        raise UsageError("--data-path takes prefixes, or a weight before each prefix; weights are not negative")
    return list(data_path[1::2]), found if len(found) > 1 else None


def parse_split(split: str) -> tuple[float, float, float]:
    """Parts of training, validation and test. Raises UsageError."""
    parts = [_number(part) for part in split.split(",")]
    numbers = [part for part in parts if part is not None and part >= 0]
    if len(numbers) < len(parts) or len(parts) > len(SPLITS) or sum(numbers) <= 0:
        raise UsageError(f"--split {split!r}: give one to three parts, such as 969,30,1")
    train, valid, test = numbers + [0.0] * (len(SPLITS) - len(numbers))
    return train, valid, test


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def fitting_sizes(
    prefixes: Sequence[str], split: Sequence[float], sizes: Sequence[int], kind: DatasetKind
) -> tuple[int, ...]:
    """`sizes`, with 0 for a test set for which the split leaves too little for a sample.

    Raises DataError when that happens to training or validation.
    """
    borders = np.cumsum([0.0, *split]) / sum(split)
    fitting = list(sizes)
    for prefix in prefixes:
        entries = kind.measure(prefix)
        cuts = [round(border * len(entries)) for border in borders]
        for part, name in enumerate(SPLITS):
            found = int(entries[cuts[part] : cuts[part + 1]].sum(dtype=np.int64))
            if not sizes[part] or found >= kind.least:
                continue
            what = f"{prefix} has {found} {kind.unit} for {name} under --split, {kind.sample}"
            if name != "test":
                raise DataError(f"{what}: give more data, another --split or {kind.remedy}")
            if split[part] and _is_first_rank():
                log.warning("no_test_set", reason=what)
            fitting[part] = 0
    return tuple(fitting)


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
