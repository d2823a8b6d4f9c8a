from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from megatronapp.collector.export import chrome, perfetto
from megatronapp.collector.rank_spans import RankSpans
from megatronapp.core.trace.columns import fill_spans
from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.v1 import trace_pb2

PLACES = {0: trace_pb2.Placement(node="a"), 1: trace_pb2.Placement(node="b", pipeline=1)}
P2P, COLLECTIVE, COMPUTE = trace_pb2.SPAN_KIND_P2P, trace_pb2.SPAN_KIND_COLLECTIVE, trace_pb2.SPAN_KIND_COMPUTE


def rank_spans(rank: int, names: list[str], step: int = 1, **columns: list[int]) -> RankSpans:
    unique = list(dict.fromkeys(names))
    batch = trace_pb2.TraceBatch(step=step, names=unique)
    batch.communicators.add(index=rank + 1, id="dp:0-1", kind="dp", ranks=[0, 1])
    fill_spans(batch, {"name": [unique.index(name) for name in names], **columns})
    return RankSpans.of(rank, batch, batch.communicators)


def pipeline_step() -> list[RankSpans]:
    """Rank 0 computes, sends to rank 1 and meets it in an all-reduce on another stream."""
    return [
        rank_spans(
            0,
            ["forward", "forward_send", "all_reduce"],
            start_ns=[1_000, 2_000, 5_000],
            duration_ns=[3_000, 500, 1_000],
            kind=[COMPUTE, P2P, COLLECTIVE],
            stream=[1, 1, 2],
            peer=[-1, 1, -1],
            microbatch=[0, 0, -1],
            sequence=[0, 7, 9],
            communicator=[0, 0, 1],
            bytes=[0, 64, 0],
        ),
        rank_spans(
            1,
            ["forward_recv", "all_reduce"],
            start_ns=[2_200, 4_000],
            duration_ns=[400, 2_000],
            kind=[P2P, COLLECTIVE],
            stream=[1, 2],
            peer=[0, -1],
            sequence=[7, 9],
            communicator=[0, 2],
        ),
    ]


def chrome_events(spans: list[RankSpans]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(b"".join(chrome.write(spans, PLACES)))["traceEvents"]
    return events


def perfetto_packets(spans: list[RankSpans]) -> list[Any]:
    return list(perfetto_trace_pb2.Trace.FromString(b"".join(perfetto.write(spans, PLACES))).packet)


def test_chrome_has_a_process_per_rank_and_a_track_per_stream() -> None:
    events = chrome_events(pipeline_step())

    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert processes == {0: "DP0-PP0-TP0", 1: "DP0-PP1-TP0"}
    assert tracks == {(0, 1): "compute", (0, 2): "stream 2", (1, 1): "compute", (1, 2): "stream 2"}


def test_chrome_slices_carry_times_and_what_is_known_of_them() -> None:
    slices = [event for event in chrome_events(pipeline_step()) if event["ph"] == "X"]

    assert [(s["name"], s["pid"], s["ts"], s["dur"]) for s in slices] == [
        ("forward", 0, 0.0, 3.0),
        ("forward_send", 0, 1.0, 0.5),
        ("all_reduce", 0, 4.0, 1.0),
        ("forward_recv", 1, 1.2, 0.4),
        ("all_reduce", 1, 3.0, 2.0),
    ]
    assert slices[1]["args"] == {"step": 1, "microbatch": 0, "peer": 1, "sequence": 7, "bytes": 64}
    assert slices[4]["args"] == {"step": 1, "sequence": 9, "communicator": "dp:0-1"}


def choices() -> list[RankSpans]:
    """A stage that holds nothing chooses, and again when it holds two of three activations."""
    at = {"start_ns": [1_000, 4_000], "duration_ns": [500, 500], "kind": [COMPUTE, COMPUTE], "stream": [0, 0]}
    return [rank_spans(1, ["decide", "decide"], tokens=[0, 2], length_squares=[3, 3], **at)]


def test_chrome_counts_the_activations_that_a_stage_holds_beside_its_cap() -> None:
    counted = [event for event in chrome_events(choices()) if event["ph"] == "C"]

    assert [(e["name"], e["pid"], e["ts"], e["args"]["count"]) for e in counted] == [
        ("activations held", 1, 0.0, 0),
        ("cap of activations", 1, 0.0, 3),
        ("activations held", 1, 3.0, 2),
        ("cap of activations", 1, 3.0, 3),
    ]


def test_perfetto_has_a_counter_track_of_each() -> None:
    packets = perfetto_packets(choices())

    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    counted = [p for p in packets if p.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_COUNTER]
    assert [(tracks[p.track_event.track_uuid].name, p.timestamp, p.track_event.counter_value) for p in counted] == [
        ("activations held", 1_000, 0),
        ("cap of activations", 1_000, 3),
        ("activations held", 4_000, 2),
        ("cap of activations", 4_000, 3),
    ]
    assert all(tracks[p.track_event.track_uuid].HasField("counter") for p in counted)


def test_bytes_under_way_are_counted_beside_their_cap() -> None:
    at = {"start_ns": [1_000, 4_000], "duration_ns": [0, 0], "kind": [COMPUTE, COMPUTE], "stream": [0, 0]}
    told = [rank_spans(1, ["in_flight", "in_flight"], tokens=[4096, 0], length_squares=[8192, 8192], **at)]

    counted = [event for event in chrome_events(told) if event["ph"] == "C"]

    assert [(e["name"], e["ts"], e["args"]["count"]) for e in counted] == [
        ("bytes under way", 0.0, 4096),
        ("cap of bytes under way", 0.0, 8192),
        ("bytes under way", 3.0, 0),
        ("cap of bytes under way", 3.0, 8192),
    ]


def test_what_no_cap_holds_up_has_no_line_of_one() -> None:
    at = {"start_ns": [1_000], "duration_ns": [500], "kind": [COMPUTE], "stream": [0]}
    waits = [rank_spans(0, ["wait_input"], tokens=[2], **at), rank_spans(1, ["decide"], tokens=[2], **at)]

    counted = [event for event in chrome_events(waits) if event["ph"] == "C"]

    assert [(e["name"], e["pid"]) for e in counted] == [("slots held", 0), ("activations held", 1)]


def test_chrome_arrows_join_messages_and_collectives_in_the_order_of_their_starts() -> None:
    arrows = [event for event in chrome_events(pipeline_step()) if event["name"] == "match"]

    by_flow = defaultdict(list)
    for arrow in arrows:
        by_flow[arrow["id"]].append((arrow["ph"], arrow["pid"], arrow["tid"]))
    assert sorted(by_flow.values()) == [[("s", 0, 1), ("f", 1, 1)], [("s", 1, 2), ("f", 0, 2)]]


def test_messages_posted_in_other_orders_are_joined_by_their_names() -> None:
    """The sender posts 0, 1, the receiver 1, 0; each end numbers its own."""
    first, second = MessageId(Direction.FORWARD, 0).pack(), MessageId(Direction.FORWARD, 1, chunk=2).pack()
    times = {"start_ns": [1_000, 2_000], "duration_ns": [500, 500], "kind": [P2P, P2P], "sequence": [1, 2]}
    spans = [
        rank_spans(0, ["forward_send"] * 2, peer=[1, 1], message=[first, second], **times),
        rank_spans(1, ["forward_recv"] * 2, peer=[0, 0], message=[second, first], **times),
    ]

    events = chrome_events(spans)

    arrows = defaultdict(set)
    for event in events:
        if event["name"] == "match":
            arrows[event["id"]].add((event["pid"], event["ts"]))
    slices = {(e["pid"], e["ts"]): e["args"]["message"] for e in events if e["ph"] == "X"}
    assert sorted({slices[end] for end in ends} for ends in arrows.values()) == [
        {"forward of microbatch 0"},
        {"forward of microbatch 1, chunk 2"},
    ]


def test_perfetto_has_a_process_per_rank_and_a_track_per_stream() -> None:
    packets = perfetto_packets(pipeline_step())

    described = [packet.track_descriptor for packet in packets if packet.HasField("track_descriptor")]
    processes = {d.uuid: d.process.process_name for d in described if d.HasField("process")}
    tracks = sorted((processes[d.parent_uuid], d.name) for d in described if d.parent_uuid)
    assert sorted(processes.values()) == ["DP0-PP0-TP0 (rank 0)", "DP0-PP1-TP0 (rank 1)"]
    assert tracks == [
        ("DP0-PP0-TP0 (rank 0)", "compute"),
        ("DP0-PP0-TP0 (rank 0)", "stream 2"),
        ("DP0-PP1-TP0 (rank 1)", "compute"),
        ("DP0-PP1-TP0 (rank 1)", "stream 2"),
    ]


def test_perfetto_names_are_interned_and_flows_join_matched_slices() -> None:
    packets = perfetto_packets(pipeline_step())

    names = {entry.iid: entry.name for packet in packets for entry in packet.interned_data.event_names}
    begun = [packet.track_event for packet in packets if packet.track_event.name_iid]
    flows = defaultdict(list)
    for event in begun:
        for flow in event.flow_ids:
            flows[flow].append(names[event.name_iid])
    assert [names[event.name_iid] for event in begun] == [
        "forward",
        "forward_send",
        "all_reduce",
        "forward_recv",
        "all_reduce",
    ]
    assert sorted(flows.values()) == [["all_reduce", "all_reduce"], ["forward_send", "forward_recv"]]


SPANS = st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 500)), min_size=1, max_size=40)


@given(spans=SPANS)
def test_perfetto_slices_nest_whatever_the_spans(spans: list[tuple[int, int]]) -> None:
    item = rank_spans(0, ["forward"] * len(spans), start_ns=[s for s, _ in spans], duration_ns=[d for _, d in spans])

    packets = [p for p in perfetto_packets([item]) if p.HasField("track_event")]

    depth, last = 0, 0
    for packet in packets:
        depth += 1 if packet.track_event.type == perfetto_trace_pb2.TrackEvent.TYPE_SLICE_BEGIN else -1
        assert depth >= 0
        assert packet.timestamp >= last
        last = packet.timestamp
    assert depth == 0
    assert len(packets) == 2 * len(spans)


def test_arrow_numbers_do_not_repeat_over_steps() -> None:
    first = pipeline_step()
    second = [replace(item, step=2) for item in first]

    arrows = [event for event in chrome_events(first + second) if event["name"] == "match"]

    assert len({arrow["id"] for arrow in arrows}) == 4


def test_nothing_to_show_is_still_a_file() -> None:
    assert [event["ph"] for event in chrome_events([])] == ["M"] * 6
    assert len(perfetto_packets([])) == 2
