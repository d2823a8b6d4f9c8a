"""MegaScan's files, with the defects its recorder is known for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trace.megascan import read_megascan
from megatronapp.v1 import trace_pb2

PROFILING = Path(__file__).parents[5] / "shared" / "data" / "megatronapp_profiling"


def row(rank: int, name: str, phase: str, at_us: float, **attributes: Any) -> dict[str, Any]:
    place = {"dp_rk": rank % 2, "pp_rk": rank // 2, "tp_rk": 0, "dev": rank, "g_rk": rank}
    return {"name": name, "ph": phase, "rel_ts": round(at_us * 1000), **place, **attributes}


def iteration(rank: int, number: int, pad: int = 0) -> list[dict[str, Any]]:
    late = number  # us, so that no two iterations are the same
    group = [other for other in (rank // 2 * 2, rank // 2 * 2 + 1) if other != rank]
    return [
        row(rank, "iteration", "B", 0) | {"pad_before": pad},
        row(rank, "forward", "B", 1 + late, micro_batch_index=0),
        row(rank, "_reduce", "B", 2 + late, group=group),
        row(rank, "_reduce", "E", 4 + late),
        row(rank, "forward", "E", 10 + late),
        row(rank, "send-extra", "B", 11 + late, data=4096, group=[(rank + 2) % 4]),
        row(rank, "send-extra", "E", 12 + late),
        row(rank, "decoder", "B", 13 + late),
        row(rank, "decoder", "E", 14 + late),
        row(rank, "tick", "i", 15 + late),
        row(rank, "iteration", "E", 100) | {"duration_wall": 100_000, "duration_cuda": 99_000},
    ]


def write(folder: Path, rank: int, rows: list[dict[str, Any]]) -> None:
    path = folder / f"benchmark-data-{rank % 2}-pipeline-{rank // 2}-tensor-0.json"
    path.write_text(json.dumps(rows))


def test_a_folder_of_rank_files_becomes_spans_by_step(tmp_path: Path) -> None:
    for rank in range(4):
        write(tmp_path, rank, iteration(rank, 0) + iteration(rank, 1, pad=5_000))

    traces = read_megascan(tmp_path)

    assert [(t.rank, t.placement.data, t.placement.pipeline) for t in traces] == [
        (0, 0, 0),
        (1, 1, 0),
        (2, 0, 1),
        (3, 1, 1),
    ]
    assert (traces[0].placement.sizes.world, traces[0].placement.sizes.pipeline) == (4, 2)
    assert sorted(traces[3].steps) == [1, 2]
    batch = traces[0].steps[2]
    columns = span_columns(batch)
    assert [batch.names[index] for index in columns["name"]] == [
        "step",
        "forward",
        "all_reduce",
        "backward_send",
        "decoder",
    ]
    assert columns["start_ns"].tolist() == [105_000, 107_000, 108_000, 117_000, 119_000]
    assert columns["duration_ns"].tolist() == [100_000, 9_000, 2_000, 1_000, 1_000]
    assert columns["microbatch"].tolist() == [-1, 0, -1, -1, -1]
    assert columns["peer"].tolist() == [-1, -1, -1, 2, -1]
    assert columns["bytes"].tolist() == [0, 0, 0, 4096, 0]
    assert columns["kind"][2] == trace_pb2.SPAN_KIND_COLLECTIVE
    assert [communicator.id for communicator in batch.communicators] == ["group:0-1"]


def test_an_iteration_written_four_times_counts_once(tmp_path: Path) -> None:
    write(tmp_path, 0, iteration(0, 0) * 4 + iteration(0, 1))

    (trace,) = read_megascan(tmp_path)

    assert sorted(trace.steps) == [1, 2]


def test_a_row_without_its_other_half_is_dropped_and_counted(tmp_path: Path) -> None:
    rows = iteration(0, 0)
    del rows[4]
    write(tmp_path, 0, rows)

    (trace,) = read_megascan(tmp_path)

    assert "forward" not in trace.steps[1].names
    assert trace.steps[1].dropped == 1


def test_collectives_are_numbered_only_where_all_members_recorded_the_same(tmp_path: Path) -> None:
    whole, short = iteration(1, 0), iteration(1, 1)
    del short[2:4]
    write(tmp_path, 0, iteration(0, 0) + iteration(0, 1) + iteration(0, 2))
    write(tmp_path, 1, whole + short + iteration(1, 2))

    traces = read_megascan(tmp_path)

    numbers = [[int(span_columns(trace.steps[step])["sequence"].max()) for step in (1, 2, 3)] for trace in traces]
    assert numbers == [[1, 0, 2], [1, 0, 2]]


BEYOND = '[{"ph": "B", "name": "iteration", "g_rk": 1e400, "rel_ts": 1e400}]'


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", '{"a": 1}', "[]", '[{"ph": "B"}]', BEYOND, "[" * 60_000])
def test_what_is_none_of_megascans_is_an_error_that_names_the_file(tmp_path: Path, content: str) -> None:
    path = tmp_path / "benchmark-data-0-pipeline-0-tensor-0.json"
    path.write_text(content)

    with pytest.raises(DataError, match=r"benchmark-data-0|holds no iteration"):
        read_megascan(tmp_path)


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("forward", "micro_batch_index", 2**31 - 1),
        ("forward", "model_chunk", 2**20),
        ("iteration", "pp_rk", 2**20),
        ("iteration", "tp_rk", 2**30),
    ],
)
def test_numbers_that_would_take_all_memory_are_refused_with_what_may_be(
    tmp_path: Path, name: str, field: str, value: int
) -> None:
    rows = [each | ({field: value} if each["name"] == name else {}) for each in iteration(0, 0)]
    write(tmp_path, 0, rows)

    with pytest.raises(DataError, match=rf"^{tmp_path}: [^\n]*(at most|must be from 0 to)"):
        read_megascan(tmp_path)


def test_an_empty_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no benchmark-data"):
        read_megascan(tmp_path)


def test_a_merged_trace_of_complete_events_is_read(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "DP1-PP0-TP1"}},
        {"ph": "X", "name": "iteration", "pid": 5, "tid": 0, "ts": 0, "dur": 50},
        {"ph": "X", "name": "forward", "pid": 5, "tid": 0, "ts": 1, "dur": 10},
        {"ph": "X", "name": "iteration", "pid": 5, "tid": 0, "ts": 60, "dur": 50},
        {"ph": "X", "name": "forward", "pid": 5, "tid": 0, "ts": 61, "dur": 12},
    ]
    path = tmp_path / "run-aggregated.json"
    path.write_text(json.dumps({"traceEvents": events}))

    (trace,) = read_megascan(path)

    assert (trace.placement.data, trace.placement.tensor) == (1, 1)
    assert [span_columns(trace.steps[step])["duration_ns"].tolist() for step in (1, 2)] == [
        [50_000, 10_000],
        [50_000, 12_000],
    ]


@pytest.mark.skipif(not PROFILING.exists(), reason="../shared is not there")
def test_megatronapps_own_profiles_are_read_whole() -> None:
    traces = read_megascan(PROFILING / "data-1-pipeline-4-tensor-1-pp-aggregated.json")

    assert [trace.placement.pipeline for trace in traces] == [0, 1, 2, 3]
    assert traces[0].placement.sizes.virtual_pipeline == 4
    for trace in traces:
        assert sorted(trace.steps) == list(range(1, 21))
        for batch in trace.steps.values():
            columns = span_columns(batch)
            names = np.array(batch.names)[columns["name"]]
            assert (names == "forward").sum() == (names == "backward").sum() == 32
            assert set(columns["chunk"]) == {0, 1, 2, 3}
            assert set(columns["microbatch"]) == set(range(8))
