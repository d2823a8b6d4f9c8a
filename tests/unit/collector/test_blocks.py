"""What rows that wait for the store count as: what they are in memory, however few bytes they came in."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.collector import tables
from megatronapp.collector.blocks import TOLERATED_GROWTH, Buffer, SummaryBlock
from megatronapp.collector.clocks import Reading
from megatronapp.core.trace.columns import fill_summary, summary_columns
from megatronapp.v1 import trace_pb2


def summary(rows: int, *columns: str) -> trace_pb2.StepSummary:
    made = trace_pb2.StepSummary(step=1, names=["forward"])
    fill_summary(made, {"name": np.zeros(rows, int)} | {column: np.arange(rows) for column in columns})
    return made


def added(body: trace_pb2.StepSummary) -> Buffer:
    buffer = Buffer()
    block = SummaryBlock(0, body, summary_columns(body), {}, Reading(0, 0), on_cpu=False)
    buffer.add_summary(block, body.ByteSize())
    return buffer


@pytest.mark.parametrize("columns", [("chunk",), ("duration_sum_ns", "count")])
def test_rows_of_few_bytes_count_as_what_they_are_when_decoded(columns: tuple[str, ...]) -> None:
    body = summary(10_000, *columns)

    buffer = added(body)

    decoded = tables.summary_table(buffer.summaries).nbytes
    assert decoded > TOLERATED_GROWTH * body.ByteSize()
    assert TOLERATED_GROWTH * buffer.bytes > 0.9 * decoded


def test_what_is_no_more_when_decoded_counts_as_it_came() -> None:
    body = summary(100)
    body.names.append("n" * 100_000)

    assert added(body).bytes == body.ByteSize()
