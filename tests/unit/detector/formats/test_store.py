from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.protobuf import proto

from megatronapp.core.errors import DataError
from megatronapp.detector.formats import store
from megatronapp.v1 import trace_pb2

TOO_LARGE = b"\x80" * 9 + b"\x01"
"""The size of a part of 2 ** 63 bytes."""


@pytest.mark.parametrize("part", ["job", "rank"])
def test_a_note_with_a_part_larger_than_any_memory_is_one_line_that_names_it(tmp_path: Path, part: str) -> None:
    before = BytesIO()
    if part == "rank":
        proto.serialize_length_prefixed(trace_pb2.JobRecord(run="run-1", job="team/gpt", attempt=1), before)
    note = tmp_path / "run-1" / "attempt-1" / store.NOTE
    note.parent.mkdir(parents=True)
    note.write_bytes(before.getvalue() + TOO_LARGE)
    (tmp_path / store.MANIFEST).write_text('{"write": 1}')

    with pytest.raises(DataError, match=r"attempt\.pb can't be read: [^\n]+$"):
        store.find_attempts(tmp_path)


def test_a_table_with_a_column_that_is_no_text_is_one_line_that_names_it(tmp_path: Path) -> None:
    attempt = store.StoredAttempt("team/gpt", 1, tmp_path, {}, {}, last_write=1)
    for name in ("steps", "summaries"):
        pq.write_table(pa.table({"step": pa.array([1], pa.uint64())}), tmp_path / f"{name}-00000001-1-1.parquet")
    table = tmp_path / "steps-00000001-1-1.parquet"
    table.write_bytes(table.read_bytes().replace(b"step", b"\x80tep"))

    with pytest.raises(DataError, match=r"steps-00000001-1-1\.parquet can't be read: [^\n]+$"):
        list(attempt.messages())
