from __future__ import annotations

from io import BytesIO
from pathlib import Path

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
