from __future__ import annotations

import math

import numpy as np
import pytest

from megatronapp.collector.clocks import (
    ANCHORS_PER_STEP,
    COMMUNICATORS_PER_RANK,
    HOSTS_PER_RANK,
    MAX_BATCHES,
    Clocks,
    Reading,
)
from megatronapp.core.trace.columns import fill_spans, span_columns
from megatronapp.v1 import trace_pb2

CPU, CUDA = trace_pb2.DEVICE_CPU, trace_pb2.DEVICE_CUDA
IDS = {1: "tp:0-1"}


def place(node: str, offset_ns: int) -> trace_pb2.Placement:
    return trace_pb2.Placement(node=node, host_unix_ns=offset_ns, host_clock_ns=0)


def collectives(step: int, count: int, late_ns: int = 0) -> trace_pb2.TraceBatch:
    """`count` all-reduces of the communicator, spread over a second."""
    batch = trace_pb2.TraceBatch(step=step, names=["all_reduce"], last=True, reference_error_ns=40)
    start = step * 10**9 + np.linspace(0, 9e8, count).astype(np.int64) + late_ns
    sequence = step * count + np.arange(count) + 1
    columns = {"start_ns": start, "duration_ns": np.full(count, 100), "name": np.zeros(count), "sequence": sequence}
    fill_spans(batch, columns | {"kind": np.full(count, 3), "communicator": np.ones(count)})
    return batch


def mixed(step: int, late_ns: int, large_late_ns: int) -> trace_pb2.TraceBatch:
    """Eight all-reduces of 8 KiB and eight of 16 MiB, in turns, of a GPU that runs 10 ms behind its host."""
    batch = collectives(step, 16, late_ns)
    columns = dict(span_columns(batch))
    large = np.arange(16) % 2 == 1
    columns["start_ns"] = columns["start_ns"] + large * large_late_ns
    columns["enqueue_ns"] = columns["start_ns"] - 10_000_000
    columns["bytes"] = np.where(large, 16 << 20, 8 << 10)
    fill_spans(batch, columns)
    return batch


def feed(clocks: Clocks, rank: int, batch: trace_pb2.TraceBatch) -> None:
    clocks.add(rank, batch, tuple(batch.names), span_columns(batch), IDS)


def test_ranks_of_one_host_share_the_first_readings_offset() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 1_000), CPU)
    clocks.hello(1, place("a", 5_000_000), CPU)

    assert clocks.at(0, 7) == clocks.at(1, 7) == Reading(1_000, 0)


def test_a_node_that_started_anew_is_another_clock() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("a", 60 * 10**9), CPU)

    assert clocks.clock_of(0) != clocks.clock_of(1)
    assert clocks.at(1, 7).offset_ns == 60 * 10**9


def test_hosts_without_anchors_are_not_aligned() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("b", 0), CPU)

    assert clocks.at(0, 7) == Reading(0, -1)
    assert clocks.at(9, 7) == Reading(0, -1)


def test_gpus_of_one_host_are_known_to_their_reference_events_error() -> None:
    clocks = Clocks()
    for rank in range(2):
        clocks.hello(rank, place("a", 500), CUDA)
        feed(clocks, rank, collectives(1, 4))

    assert clocks.at(0, 7) == Reading(500, 40)


def test_two_hosts_are_aligned_by_the_ends_of_their_collectives() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("b", 0), CPU)
    for step in range(1, 20):
        feed(clocks, 0, collectives(step, 12))
        feed(clocks, 1, collectives(step, 12, late_ns=400_000))

    at = 20 * 10**9
    assert clocks.alignment.fitted
    assert abs(clocks.at(0, at).offset_ns - clocks.at(1, at).offset_ns - 400_000) < 2_000
    assert abs(clocks.nodes()["a"] - clocks.nodes()["b"] - 400e-6) < 2e-6


def test_small_collectives_tell_where_large_ones_end_apart() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CUDA)
    clocks.hello(1, place("a", 0), CUDA)
    for step in range(1, 40):
        feed(clocks, 0, mixed(step, late_ns=0, large_late_ns=0))
        feed(clocks, 1, mixed(step, late_ns=70_000, large_late_ns=5_000))

    at = 40 * 10**9
    assert clocks.alignment.fitted
    assert abs(clocks.at(0, at).offset_ns - clocks.at(1, at).offset_ns - 70_000) < 1_000


def test_an_end_that_the_host_may_have_marked_late_is_no_anchor() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CUDA)
    clocks.hello(1, place("a", 0), CUDA)
    batch = collectives(1, 8)
    columns = dict(span_columns(batch))
    columns["enqueue_ns"] = columns["start_ns"] - np.where(np.arange(8) < 3, 10_000, 10_000_000)
    fill_spans(batch, columns)

    for rank in range(2):
        feed(clocks, rank, batch)

    assert clocks.alignment.anchors == 5


def test_all_members_keep_the_same_few_of_many_collectives() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("b", 0), CPU)
    whole, short = collectives(1, 1_000), collectives(1, 1_000)
    kept = {name: column[:480] for name, column in span_columns(short).items()}
    fill_spans(short, kept)

    feed(clocks, 0, whole)
    feed(clocks, 1, short)

    assert ANCHORS_PER_STEP / 4 <= clocks.alignment.anchors <= 4 * ANCHORS_PER_STEP


def test_a_step_that_a_rank_never_finishes_is_used_in_the_end() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("b", 0), CPU)
    clocks.hello(2, place("c", 0), CPU)
    for rank in range(2):
        feed(clocks, rank, collectives(1, 8))

    assert clocks.alignment.anchors == 0
    clocks.flush()
    assert clocks.alignment.anchors == 8


@pytest.mark.parametrize("correction", [math.nan, math.inf, 1e19])
def test_a_fit_that_went_astray_leaves_the_clock_as_read_and_not_aligned(
    correction: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    for rank, node in enumerate(("a", "b")):
        clocks.hello(rank, trace_pb2.Placement(node=node, host_unix_ns=1_000), trace_pb2.DEVICE_CPU)
    monkeypatch.setattr(clocks.alignment, "correction", lambda *_: correction)

    assert clocks.at(0, 5) == Reading(1_000, -1)


def test_a_rank_that_begins_anew_on_ever_other_hosts_leaves_no_more_than_a_few_behind() -> None:
    clocks = Clocks()
    clocks.hello(0, place("a", 500), CPU)

    for number in range(100):
        clocks.hello(1, place(f"b{number}", 700), CUDA)

    assert len(clocks.nodes()) == 2
    assert clocks.alignment.clocks <= 2 * HOSTS_PER_RANK
    assert (clocks.at(0, 7).offset_ns, clocks.at(1, 7).offset_ns) == (500, 700)


def test_hosts_are_aligned_again_once_others_were_forgotten() -> None:
    clocks = Clocks()
    for number in range(100):
        clocks.hello(1, place(f"b{number}", 700), CPU)
    clocks.hello(0, place("a", 0), CPU)
    clocks.hello(1, place("b", 0), CPU)

    for step in range(1, 30):
        feed(clocks, 0, collectives(step, 16))
        feed(clocks, 1, collectives(step, 16, late_ns=1_000_000))

    difference = clocks.at(1, 20 * 10**9).offset_ns - clocks.at(0, 20 * 10**9).offset_ns
    assert difference == pytest.approx(-1_000_000, abs=10_000)


def test_names_of_communicators_that_change_for_ever_are_forgotten_and_the_fit_goes_on() -> None:
    clocks = Clocks()
    for rank in range(2):
        clocks.hello(rank, place(f"node-{rank}", 0), CPU)

    for step in range(1, 300):
        for rank in range(2):
            batch = collectives(step, 16, late_ns=rank * 1_000_000)
            clocks.add(rank, batch, tuple(batch.names), span_columns(batch), {1: f"tp:{step}"})

    assert len(clocks._communicators) <= 2 * COMMUNICATORS_PER_RANK + 1
    difference = clocks.at(1, 290 * 10**9).offset_ns - clocks.at(0, 290 * 10**9).offset_ns
    assert difference == pytest.approx(-1_000_000, abs=10_000)


def test_of_a_step_that_never_ends_no_more_than_the_first_batches_are_kept() -> None:
    clocks = Clocks()
    for rank in range(2):
        clocks.hello(rank, place(f"node-{rank}", 0), CPU)
    batch = collectives(1, 4)
    batch.last = False

    for _ in range(10 * MAX_BATCHES):
        feed(clocks, 0, batch)

    assert len(clocks._open[1].parts) == MAX_BATCHES
