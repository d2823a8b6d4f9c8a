"""`trace aggregate` over the three kinds of recordings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from megatronapp.collector.aggregate import main
from megatronapp.core.trace import file as trace_file
from megatronapp.v1 import trace_pb2
from tests.integration.collector.support import JOB, batch, closing, hello, identity, summary
from tests.unit.core.trace.test_megascan import iteration
from tests.unit.core.trace.test_megascan import write as write_megascan

PROFILING = Path(__file__).parents[4] / "shared" / "data" / "megatronapp_profiling"


def write_rank(folder: Path, rank: int, attempt: int = 1, offset_ns: int = 0) -> Path:
    path = trace_file.path_for(folder, JOB, attempt, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    who = identity(rank, attempt=attempt)
    with path.open("wb") as file:
        messages = [hello(who, world=2, offset_ns=offset_ns), summary(1, 1), batch(2, 1), batch(2, 1), batch(3, 2)]
        for message in [*messages, closing(4)]:
            trace_file.write(file, message)
    return path


def events(output: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(output.read_bytes())["traceEvents"]
    return found


def slices(output: Path) -> list[dict[str, Any]]:
    return [event for event in events(output) if event["ph"] == "X"]


def test_our_own_folder_becomes_one_timeline_with_duplicates_left_out(tmp_path: Path) -> None:
    for rank in range(2):
        write_rank(tmp_path / "traces", rank)

    assert main(["-b", str(tmp_path / "traces"), "-o", str(tmp_path / "all.json")]) == 0

    found = slices(tmp_path / "all.json")
    assert len(found) == 2 * 2 * 4
    assert {(s["pid"], s["args"]["step"]) for s in found} == {(0, 1), (0, 2), (1, 1), (1, 2)}
    assert sum(event["name"] == "match" for event in events(tmp_path / "all.json")) == 4


def test_ranks_of_one_host_share_its_clock(tmp_path: Path) -> None:
    """The wall clocks were read at different moments of a correction; the trace clock is the same."""
    write_rank(tmp_path / "traces", 0, offset_ns=0)
    write_rank(tmp_path / "traces", 1, offset_ns=3_000_000)

    main(["-b", str(tmp_path / "traces"), "-o", str(tmp_path / "all.json")])

    starts = {pid: [s["ts"] for s in slices(tmp_path / "all.json") if s["pid"] == pid] for pid in (0, 1)}
    assert starts[0] == starts[1]


def test_the_newest_attempt_counts(tmp_path: Path) -> None:
    write_rank(tmp_path / "traces", 0, attempt=2)
    write_rank(tmp_path / "traces", 0, attempt=10)
    write_rank(tmp_path / "traces", 1, attempt=10)

    main(["-b", str(tmp_path / "traces"), "-o", str(tmp_path / "all.json")])

    assert {s["pid"] for s in slices(tmp_path / "all.json")} == {0, 1}


def test_a_damaged_file_is_named_and_the_others_are_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path / "traces", 0)
    damaged = write_rank(tmp_path / "traces", 1)
    damaged.write_bytes(b"\xff" * 40)

    assert main(["-b", str(tmp_path / "traces"), "-o", str(tmp_path / "all.json")]) == 0

    assert {s["pid"] for s in slices(tmp_path / "all.json")} == {0}
    assert str(damaged) in capsys.readouterr().err


def test_a_torn_last_message_costs_that_message_alone(tmp_path: Path) -> None:
    path = write_rank(tmp_path / "traces", 0)
    path.write_bytes(path.read_bytes()[:-3])

    main(["-b", str(tmp_path / "traces"), "-o", str(tmp_path / "all.json")])

    assert len(slices(tmp_path / "all.json")) == 2 * 4


def test_megascans_rank_files_become_a_perfetto_trace(tmp_path: Path) -> None:
    for rank in range(4):
        write_megascan(tmp_path, rank, iteration(rank, 0) * 4 + iteration(rank, 1))

    assert main(["-b", str(tmp_path), "-o", str(tmp_path / "all.pftrace")]) == 0

    packets = perfetto_trace_pb2.Trace.FromString((tmp_path / "all.pftrace").read_bytes()).packet
    begun = [p for p in packets if p.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN]
    assert len(begun) == 4 * 2 * 5
    assert any(packet.track_event.flow_ids for packet in begun)


@pytest.mark.skipif(not PROFILING.exists(), reason="../shared is not there")
@pytest.mark.parametrize("suffix", [".json", ".pftrace"])
def test_megascans_merged_traces_are_taken(tmp_path: Path, suffix: str) -> None:
    source = PROFILING / "data-1-pipeline-4-tensor-1-dpp-aggregated.json"
    output = tmp_path / f"all{suffix}"

    assert main(["-b", str(source), "-o", str(output)]) == 0

    if suffix == ".json":
        assert len(slices(output)) == 5_120
    else:
        packets = perfetto_trace_pb2.Trace.FromString(output.read_bytes()).packet
        assert sum(packet.HasField("track_event") for packet in packets) == 2 * 5_120


@pytest.mark.parametrize(
    ("source", "output", "code", "says"),
    [
        ("nowhere", "all.json", 1, "no such file"),
        (".", "all.json", 1, "holds neither"),
        ("traces", "all.txt", 2, ".json or .pftrace"),
        ("traces", "missing/all.json", 1, "can't be written"),
    ],
)
def test_what_can_not_be_done_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], source: str, output: str, code: int, says: str
) -> None:
    if source == "traces":
        write_rank(tmp_path / "traces", 0)

    assert main(["-b", str(tmp_path / source), "-o", str(tmp_path / output)]) == code

    assert says in capsys.readouterr().err


def test_several_jobs_in_one_folder_must_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rank(tmp_path / "traces", 0)
    other = trace_file.path_for(tmp_path / "traces", "team/other", 1, 0)
    other.parent.mkdir(parents=True)
    with other.open("wb") as file:
        trace_file.write(file, trace_pb2.TraceMessage(hello=hello(identity()).hello))

    assert main(["-b", str(tmp_path / "traces"), "-o", str(tmp_path / "all.json")]) == 2

    assert "team/gpt, team/other" in capsys.readouterr().err
