"""Which documents samples with masked words can be made of, and what a decoder has room for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.trainer.config import DataConfig
from megatronapp.trainer.data.datasets import fitting_sizes
from megatronapp.trainer.data.indexed import DocumentWriter
from megatronapp.trainer.data.masked import bert_dataset, fitting_spans, usable_documents
from megatronapp.trainer.data_paths import Blend, Share


def written(folder: Path, *documents: list[int]) -> str:
    """Data whose documents have sentences of these lengths."""
    with DocumentWriter(folder / "data", 100) as writer:
        for lengths in documents:
            writer.add(*(np.ones(length, dtype=np.int32) for length in lengths))
        writer.commit()
    return str(folder / "data")


@pytest.mark.parametrize(("sentences", "usable"), [(1, [1, 1, 0, 1]), (2, [1, 0, 0, 0])])
def test_documents_with_too_few_or_too_long_sentences_give_no_sample(
    sentences: int, usable: list[int], tmp_path: Path
) -> None:
    prefix = written(tmp_path, [3, 4, 5], [3], [3, 600], [600])

    assert usable_documents(prefix, sentences).tolist() == usable


def test_data_of_one_sentence_each_is_refused_for_the_order_of_sentences(tmp_path: Path) -> None:
    prefix = written(tmp_path, [3], [4], [5])
    kind = bert_dataset(DataConfig(), 16, sentence_order=True)
    taken, nothing = (Share(Blend((prefix,)), 0.0, end, "change --split") for end in (1.0, 0.0))

    with pytest.raises(DataError, match=r"0 documents for training, .* preprocess it with --split-sentences"):
        fitting_sizes([taken, nothing, nothing], (10, 0, 0), kind)


@given(st.lists(st.integers(1, 10), max_size=30), st.integers(0, 20), st.integers(2, 64))
def test_as_many_spans_are_cut_out_as_have_a_mark_and_a_place(lengths: list[int], marks: int, room: int) -> None:
    kept = fitting_spans(lengths, marks, room)

    assert kept <= marks
    assert 1 + sum(1 + length for length in lengths[:kept]) <= room
    assert kept == min(len(lengths), marks) or 1 + sum(1 + length for length in lengths[: kept + 1]) > room
