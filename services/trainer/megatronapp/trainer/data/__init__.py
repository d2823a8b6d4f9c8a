"""Training data: tokenizers, `data preprocess`, datasets and the order in which ranks read them.

Only `preprocess` and `tokenizers` are free of torch; the rest is loaded when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megatronapp.trainer.data.tokenizers import Tokenizer, build_tokenizer

if TYPE_CHECKING:
    from megatronapp.trainer.data.datasets import build_datasets
    from megatronapp.trainer.data.sampler import CyclicSampler, Microbatch, SequentialSampler, microbatches

__all__ = [
    "CyclicSampler",
    "Microbatch",
    "SequentialSampler",
    "Tokenizer",
    "build_datasets",
    "build_tokenizer",
    "microbatches",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    from megatronapp.trainer.data import datasets, sampler

    return getattr(datasets if name == "build_datasets" else sampler, name)
