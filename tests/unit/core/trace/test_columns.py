from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.trace import columns, file
from megatronapp.v1 import trace_pb2

VALUES = {
    name: st.integers(*_range)
    for name, _range in {
        name: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for name, dtype in columns.SPAN_DTYPES.items()
    }.items()
    if name != "name"
}


@st.composite
def span_tables(draw: st.DrawFn) -> dict[str, np.ndarray]:
    rows = draw(st.integers(0, 20))
    table = {
        name: np.array(draw(st.lists(values, min_size=rows, max_size=rows)), columns.SPAN_DTYPES[name])
        for name, values in VALUES.items()
    }
    return table | {"name": np.zeros(rows, np.uint16)}


@given(span_tables())
def test_columns_survive_the_wire(table: dict[str, np.ndarray]) -> None:
    batch = trace_pb2.TraceBatch(names=["forward"])
    columns.fill_spans(batch, table)

    decoded = columns.span_columns(trace_pb2.TraceBatch.FromString(batch.SerializeToString()))

    for name, column in table.items():
        np.testing.assert_array_equal(decoded[name], column)


def test_a_column_that_says_none_everywhere_costs_nothing() -> None:
    batch = trace_pb2.TraceBatch(names=["forward"])

    columns.fill_spans(batch, {"start_ns": [1, 2], "peer": [-1, -1], "bytes": [0, 0]})

    assert (batch.peer, batch.bytes) == (b"", b"")
    assert columns.span_columns(batch)["peer"].tolist() == [-1, -1]


def test_a_span_that_begins_at_0_has_a_beginning() -> None:
    batch = trace_pb2.TraceBatch(names=["forward"])

    columns.fill_spans(batch, {"start_ns": [0], "enqueue_ns": [2**31]})

    assert batch.start_ns
    assert columns.span_columns(batch)["start_ns"].tolist() == [0]


def test_a_column_is_as_narrow_as_its_values() -> None:
    batch = trace_pb2.TraceBatch(names=["forward"])
    begin = 10**18

    columns.fill_spans(
        batch,
        {
            "start_ns": [begin, begin + 2 * 10**9],
            "enqueue_ns": [begin - 500, 0],
            "duration_ns": [100, 127],
            "bytes": [1 << 25, 0],
            "peer": [-1, 200],
        },
    )

    assert batch.base_ns == begin - 501
    widths = {
        name: len(getattr(batch, name)) // 2 for name in ("start_ns", "enqueue_ns", "duration_ns", "bytes", "peer")
    }
    assert widths == {"start_ns": 4, "enqueue_ns": 1, "duration_ns": 1, "bytes": 4, "peer": 2}
    decoded = columns.span_columns(batch)
    assert decoded["start_ns"].tolist() == [begin, begin + 2 * 10**9]
    assert decoded["enqueue_ns"].tolist() == [begin - 500, 0]
    assert decoded.take("start_ns", np.array([1])).tolist() == [begin + 2 * 10**9]
    assert decoded.first("start_ns") == begin


@settings(max_examples=25)
@given(st.lists(span_tables(), max_size=4))
def test_joined_columns_are_those_of_all_messages_in_a_row(tables: list[dict[str, np.ndarray]]) -> None:
    batches = [trace_pb2.TraceBatch(names=["forward"]) for _ in tables]
    for batch, table in zip(batches, tables, strict=True):
        columns.fill_spans(batch, table)
    decoded = [columns.span_columns(batch) for batch in batches]

    for name in columns.SPAN_DTYPES if decoded else ():
        expected = np.concatenate([each[name] for each in decoded])
        np.testing.assert_array_equal(columns.joined(decoded, name), expected)


def test_summaries_of_columns_of_different_widths_are_joined() -> None:
    summaries = [trace_pb2.StepSummary(names=["forward"]) for _ in range(3)]
    for number, summary in enumerate(summaries):
        columns.fill_summary(summary, {"name": [0, 0], "duration_sum_ns": [10**number, 10 ** (6 * number)]})

    joined = columns.joined_summaries(list(map(columns.summary_columns, summaries)))

    assert joined["duration_sum_ns"].tolist() == [1, 1, 10, 10**6, 100, 10**12]
    assert joined["peer"].tolist() == [-1] * 6


def test_a_column_of_the_wrong_length_is_refused() -> None:
    batch = trace_pb2.TraceBatch(count=2, start_ns=b"\0" * 9)

    with pytest.raises(DataError, match="start_ns"):
        columns.span_columns(batch)


def test_a_name_outside_the_table_is_refused() -> None:
    batch = trace_pb2.TraceBatch(count=1, names=["forward"], name=b"\x01\0")

    with pytest.raises(DataError, match="name"):
        columns.span_columns(batch)


def test_a_huge_count_is_refused_before_memory_is_taken() -> None:
    with pytest.raises(DataError, match="at most"):
        columns.span_columns(trace_pb2.TraceBatch(count=2**31))


def messages(count: int) -> list[trace_pb2.TraceMessage]:
    return [trace_pb2.TraceMessage(seq=n, summary=trace_pb2.StepSummary(step=n)) for n in range(1, count + 1)]


def write(path: Path, count: int) -> bytes:
    with path.open("wb") as out:
        for message in messages(count):
            file.write(out, message)
    return path.read_bytes()


def test_a_file_gives_back_its_messages(tmp_path: Path) -> None:
    write(tmp_path / "rank-0.pb", 300)

    assert list(file.read(tmp_path / "rank-0.pb")) == messages(300)


@given(cut=st.integers(0, 40))
def test_a_torn_end_loses_only_the_last_message(cut: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("torn") / "rank-0.pb"
    data = write(path, 5)
    path.write_bytes(data[: len(data) - cut])

    assert list(file.read(path)) == messages(len(list(file.read(path))))


def test_another_kind_of_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.pb").write_bytes(b"\xff" * 40)

    with pytest.raises(DataError, match=r"x\.pb"):
        list(file.read(tmp_path / "x.pb"))


def test_rank_files_lie_below_job_and_attempt() -> None:
    assert file.path_for(Path("t"), "local/demo", 2, 3) == Path("t/local/demo/attempt-2/rank-3.pb")
