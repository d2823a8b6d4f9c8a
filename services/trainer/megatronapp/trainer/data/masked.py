"""megatron-core's datasets of texts with masked words, as Megatron-LM's scripts set them up. A sample is of one
document's sentences."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from megatron.core.datasets.bert_dataset import BERTMaskedWordPieceDataset, BERTMaskedWordPieceDatasetConfig
from megatron.core.datasets.t5_dataset import T5MaskedWordPieceDataset, T5MaskedWordPieceDatasetConfig

from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data.datasets import DatasetKind
from megatronapp.trainer.data.indexed import read_index

LONGEST_SENTENCE = 512
"""megatron-core passes over a document of several sentences with one of more tokens."""


def bert_dataset(config: DataConfig, sequence_length: int, *, sentence_order: bool) -> DatasetKind:
    """Samples are dicts of text, types, labels, padding_mask and loss_mask, each [sequence_length], and is_random:
    whether the two parts are swapped, where there are two."""
    sentences = 2 if sentence_order else 1
    return _masked(
        BERTMaskedWordPieceDataset,
        partial(
            BERTMaskedWordPieceDatasetConfig,
            classification_head=sentence_order,
            masking_max_ngram=3,
            masking_use_geometric_distribution=False,
        ),
        config,
        sequence_length,
        sentences,
    )


def t5_dataset(config: DataConfig, sequence_length: int, decoder_length: int) -> DatasetKind:
    """Samples are dicts of text_enc and enc_mask, each [sequence_length], and of text_dec, dec_mask, labels and
    loss_mask, each [decoder_length]."""
    return _masked(
        SpanCorruption,
        partial(
            T5MaskedWordPieceDatasetConfig,
            sequence_length_decoder=decoder_length,
            masking_max_ngram=10,
            masking_use_geometric_distribution=True,
        ),
        config,
        sequence_length,
        1,
    )


class SpanCorruption(T5MaskedWordPieceDataset):
    """megatron-core's dataset, which breaks off where more spans are cut out than there are tokens to mark them, or
    than the decoder has room for: these stay in the text here."""

    def _create_masked_lm_predictions(self, token_ids: Any, target_sequence_length: int, generator: Any) -> Any:
        masked, positions, labels, boundaries, spans = super()._create_masked_lm_predictions(
            token_ids, target_sequence_length, generator
        )
        marks = len(self.config.tokenizer.additional_special_tokens_ids)
        kept = fitting_spans([len(places) for places, _ in spans], marks, self.config.sequence_length_decoder)
        for places, words in spans[kept:]:
            for place, word in zip(places, words, strict=True):
                masked[place] = word
        return masked, positions, labels, boundaries, spans[:kept]


def fitting_spans(lengths: Sequence[int], marks: int, decoder_length: int) -> int:
    """How many of the spans, from the first on, have a mark each and fit into the decoder behind what begins a text."""
    used = np.cumsum([1 + length for length in lengths]) + 1
    return min(marks, int(np.searchsorted(used, decoder_length, side="right")))


def _masked(dataset: type, make: Any, config: DataConfig, sequence_length: int, sentences: int) -> DatasetKind:
    make_options = partial(
        make,
        sequence_length=sequence_length,
        masking_probability=config.mask_prob,
        short_sequence_probability=config.short_seq_prob,
        masking_do_full_word=True,
        masking_do_permutation=False,
        masking_use_longer_ngrams=False,
    )
    few = "sentences" if sentences == 1 else f"{sentences} or more sentences"
    return DatasetKind(
        dataset=dataset,
        make_options=make_options,
        measure=partial(usable_documents, sentences=sentences),
        least=1,
        unit="documents",
        sample=f"and a sample takes one of {few} of up to {LONGEST_SENTENCE} tokens",
        remedy="preprocess it with --split-sentences",
    )


def usable_documents(prefix: str, sentences: int) -> npt.NDArray[np.int64]:
    """[documents], 1 for each that samples can be made of, which needs so many sentences. Raises ConfigError and
    DataError."""
    lengths, borders = read_index(prefix)
    counts = np.diff(borders)
    long = np.concatenate(([0], np.cumsum(lengths > LONGEST_SENTENCE)))
    has_long = (long[borders[1:]] - long[borders[:-1]] > 0) & (counts > 1)
    return ((counts >= max(sentences, 1)) & ~has_long).astype(np.int64)
