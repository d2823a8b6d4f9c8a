"""What is skimmed is what protobuf reads, and what protobuf refuses is never skimmed."""

from __future__ import annotations

import random

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from megatronapp.core.trace.columns import fill_spans, span_columns
from megatronapp.core.trace.skim import LARGE_BYTES, skim
from megatronapp.v1 import trace_pb2
from tests.attack.inputs import damaged

ROWS = 2_000


def batch(rows: int = ROWS) -> trace_pb2.TraceBatch:
    index = np.arange(rows)
    made = trace_pb2.TraceBatch(step=7, names=["forward", "all_reduce"], last=True, dropped=3)
    made.communicators.add(index=1, id="tp:0-1", kind="tp", ranks=[0, 1])
    columns = {"start_ns": 10**15 + index * 10**6, "duration_ns": index * 100, "name": index % 2, "layer": index % 9}
    fill_spans(made, columns)
    return made


def message(rows: int = ROWS) -> bytes:
    return trace_pb2.TraceMessage(seq=5, batch=batch(rows)).SerializeToString()


def skimmed(data: bytes) -> trace_pb2.TraceMessage | None:
    """What was skimmed, put together again."""
    found = skim(data)
    if found is None:
        return None
    whole, columns = found
    for name, column in columns.items():
        setattr(whole.batch, name, bytes(column))
    return whole


def parsed(data: bytes) -> trace_pb2.TraceMessage | None:
    try:
        return trace_pb2.TraceMessage.FromString(data)
    except DecodeError:
        return None


def test_the_columns_of_a_large_batch_stay_where_they_are() -> None:
    data = message()

    found = skim(data)

    assert found is not None
    assert {column.obj is data for column in found[1].values()} == {True}
    assert found[0].batch.ByteSize() < 200
    columns, expected = span_columns(found[0].batch, beside=found[1]), span_columns(batch())
    assert {name: columns[name].tolist() for name in columns} == {name: expected[name].tolist() for name in expected}


@pytest.mark.parametrize(
    "data",
    [
        message(rows=10),
        message() + trace_pb2.TraceMessage(seq=6).SerializeToString(),
        message() + message(),
        message() + b"\x00",
        message()[:-1],
        trace_pb2.TraceMessage(seq=5, summary=trace_pb2.StepSummary(order=bytes(LARGE_BYTES))).SerializeToString(),
        bytes(LARGE_BYTES),
        b"\xff" * LARGE_BYTES,
    ],
    ids=["small", "fields behind", "twice", "a tag of 0", "cut", "summary", "zeros", "ones"],
)
def test_what_is_out_of_the_ordinary_is_left_to_protobuf(data: bytes) -> None:
    assert skim(data) is None


def test_a_field_that_comes_again_counts_as_protobuf_counts_it() -> None:
    again = trace_pb2.TraceBatch(step=8, start_ns=bytes(4 * ROWS), layer=b"1").SerializeToString()
    body = batch().SerializeToString()
    for both in (body + again, again + body, again + body + again):
        data = trace_pb2.TraceMessage(seq=5, batch=trace_pb2.TraceBatch()).SerializeToString()[:-1]
        size = len(both)
        data += bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14]) + both

        assert skimmed(data) in (None, parsed(data))


def test_of_any_bytes_the_same_is_understood_as_by_protobuf() -> None:
    chance, good = random.Random(1), message()
    read = 0
    for _ in range(1_500):
        data = damaged(chance, good)
        found = skimmed(data)
        read += found is not None
        assert found is None or found == parsed(data)

    assert read > 100
