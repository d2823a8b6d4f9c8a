"""Hosts that share no collective, aligned by the messages between them; the truth is known."""

from __future__ import annotations

import numpy as np
import pytest

from megatronapp.collector.bridges import Bridges, ClockDomains
from megatronapp.collector.clocks import Clocks
from megatronapp.core.trace.columns import fill_spans, span_columns
from megatronapp.v1 import trace_pb2
from tests.unit.collector.test_clocks import CPU, collectives, feed, place

SECOND = 10**9
LATENCY_NS = 20_000
NAMES = ["forward_send", "forward_recv", "backward_send", "backward_recv"]


def pipeline_step(
    step: int, rank: int, late_ns: int, count: int = 8, waits_ns: int = 0, peer: int | None = None
) -> trace_pb2.TraceBatch:
    """As the first stage (rank 0) `count` activations are sent and gradients got back, as the second the other way; its
    clock is late_ns ahead."""
    batch = trace_pb2.TraceBatch(step=step, names=NAMES, last=True)
    sent = step * SECOND + np.arange(count) * 10_000_000
    noise = np.random.default_rng(step).integers(0, 3_000_000, count)
    if rank == 0:
        name, start, duration = [0] * count + [3] * count, np.r_[sent, sent], np.r_[sent * 0 + 1, sent * 0 + 6_000_000]
    else:
        received = LATENCY_NS + waits_ns + noise * (np.arange(count) > 0)
        name, start = [1] * count + [2] * count, np.r_[sent, sent + 6_000_000 - LATENCY_NS] + late_ns
        duration = np.r_[received, sent * 0 + 1]
    columns = {
        "start_ns": start,
        "duration_ns": duration,
        "name": np.array(name),
        "sequence": step * count + np.tile(np.arange(count), 2) + 1,
        "kind": np.full(2 * count, 2),
        "peer": np.full(2 * count, 1 - rank if peer is None else peer),
    }
    fill_spans(batch, columns)
    return batch


def two_hosts() -> Clocks:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("b", 0), CPU)
    return clocks


def test_two_hosts_are_aligned_by_the_messages_between_them() -> None:
    clocks = two_hosts()
    for step in range(1, 60):
        for rank in range(2):
            feed(clocks, rank, pipeline_step(step, rank, late_ns=700_000))

    first, second = (clocks.at(rank, 60 * SECOND) for rank in range(2))

    assert clocks.bridges.alignment.fitted
    assert abs(first.offset_ns - second.offset_ns - 700_000) <= LATENCY_NS
    assert LATENCY_NS <= first.error_ns <= 3 * LATENCY_NS


def test_messages_that_their_ends_post_in_other_orders_align_hosts_all_the_same() -> None:
    clocks = two_hosts()
    for step in range(1, 60):
        for rank in range(2):
            batch = pipeline_step(step, rank, late_ns=700_000)
            columns = dict(span_columns(batch))
            direction = np.repeat([1, 2], 8) << 38
            columns["message"] = direction + (np.tile(np.arange(8), 2) << 18)
            if rank == 1:  # it posts the last message first
                columns["sequence"] = columns["sequence"].reshape(2, 8)[:, ::-1].ravel()
            fill_spans(batch, columns)
            feed(clocks, rank, batch)

    first, second = (clocks.at(rank, 60 * SECOND) for rank in range(2))

    assert clocks.bridges.alignment.fitted
    assert abs(first.offset_ns - second.offset_ns - 700_000) <= LATENCY_NS


@pytest.mark.parametrize("waits_ns", [0, 500_000])
def test_the_published_uncertainty_covers_messages_that_take_longer_one_way(waits_ns: int) -> None:
    clocks = two_hosts()
    for step in range(1, 60):
        for rank in range(2):
            feed(clocks, rank, pipeline_step(step, rank, late_ns=2_000_000, waits_ns=waits_ns))

    first, second = (clocks.at(rank, 60 * SECOND) for rank in range(2))

    assert clocks.bridges.alignment.fitted
    assert abs(first.offset_ns - second.offset_ns - 2_000_000) <= min(first.error_ns, second.error_ns)


def test_clocks_that_agree_are_left_as_they_are() -> None:
    clocks = two_hosts()
    for step in range(1, 60):
        for rank in range(2):
            feed(clocks, rank, pipeline_step(step, rank, late_ns=0))

    assert abs(clocks.at(0, 60 * SECOND).offset_ns - clocks.at(1, 60 * SECOND).offset_ns) <= LATENCY_NS
    assert clocks.at(0, 60 * SECOND).error_ns >= 0


def test_messages_one_way_bound_nothing() -> None:
    bridges, step = Bridges(), np.arange(1, 50)
    for number in step.tolist():
        zero, one = np.zeros(1, np.int64), np.ones(1, np.int64)
        bridges.observe(number, zero, one, one * number * SECOND, one * number * SECOND + LATENCY_NS)

    assert bridges.error_ns(0, SECOND) == -1
    assert bridges.correction(0, SECOND) == 0.0


def test_messages_within_the_reach_of_collectives_are_not_used() -> None:
    clocks = two_hosts()
    for step in range(1, 20):
        for rank in range(2):
            feed(clocks, rank, collectives(step, 12, late_ns=400_000 * rank))
            feed(clocks, rank, pipeline_step(step, rank, late_ns=400_000))

    assert clocks.alignment.fitted
    assert clocks.bridges.alignment.anchors == 0


def test_islands_grow_together() -> None:
    clock_domains = ClockDomains()
    clock_domains.grow(4)

    assert clock_domains.join([(0, 2), (1, 3)])
    assert not clock_domains.join([(2, 0)])
    assert clock_domains.of(np.arange(4)).tolist() == [0, 1, 0, 1]
    assert clock_domains.join([(3, 2)])
    assert not clock_domains.several


def test_a_host_beside_two_that_share_collectives_is_aligned_with_both() -> None:
    """Of a, b and c only a and b meet in collectives; a and c exchange messages."""
    clocks = two_hosts()
    clocks.hello(2, place("c", 0), CPU)
    for step in range(1, 60):
        for rank in range(2):
            batch = collectives(step, 12, late_ns=300_000 * rank)
            batch.last = rank == 1
            feed(clocks, rank, batch)
        feed(clocks, 0, pipeline_step(step, 0, late_ns=0, peer=2))
        feed(clocks, 2, pipeline_step(step, 1, late_ns=900_000, peer=0))

    of = [clocks.at(rank, 60 * SECOND) for rank in range(3)]

    assert clocks.alignment.fitted
    assert clocks.bridges.alignment.fitted
    assert abs(of[0].offset_ns - of[1].offset_ns - 300_000) < 5_000
    assert abs(of[0].offset_ns - of[2].offset_ns - 900_000) <= LATENCY_NS + 5_000
    assert min(reading.error_ns for reading in of) >= LATENCY_NS / 2
