"""What NCCL tells of a communicator becomes a frontier that other members' can be compared with, or none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.trace.validate import check_message
from megatronapp.trainer.agent.nccl_frontiers import frontiers_of, span_name
from megatronapp.trainer.agent.operations import Direction, Enqueued, Lane
from megatronapp.v1 import trace_pb2

OPERATION = Enqueued(0, -1, 6, 3, 512, 9, 2, True, "AllGather", "ncclBfloat16", "RING", "LL")
LANE = Lane(
    communicator=7,
    ranks=4,
    rank=1,
    peer=-1,
    direction=Direction.NONE,
    closed=False,
    switches=1,
    enqueued=8,
    started=6,
    completed=5,
    enqueued_ns=20,
    started_ns=15,
    completed_ns=10,
    name="dp",
    lost=0,
    oldest=OPERATION,
    newest=OPERATION,
)


def test_a_collective_under_way_is_told_with_how_it_was_called() -> None:
    (frontier,) = frontiers_of([LANE])

    assert (frontier.enqueued, frontier.started, frontier.completed) == (8, 6, 5)
    assert (frontier.operation, frontier.elements, frontier.data_type) == ("all_gather", 512, "bfloat16")
    assert not frontier.HasField("root")
    assert frontier.nccl == trace_pb2.NcclSeat(hash=7, size=4, place=1, timed=True)


def test_a_message_names_the_place_of_its_other_end() -> None:
    (frontier,) = frontiers_of([replace(LANE, peer=3, direction=Direction.SENDS)])

    assert (frontier.sending, frontier.nccl.peer, frontier.peer, frontier.elements) == (True, 3, -1, 0)


def test_one_that_nobody_has_used_is_told_so_that_its_members_are_known() -> None:
    unused = replace(LANE, enqueued=0, started=0, completed=0, oldest=None, newest=None)

    (frontier,) = frontiers_of([unused])

    assert (frontier.enqueued, frontier.operation, frontier.nccl.place) == (0, "", 1)


@pytest.mark.parametrize(
    "lane",
    [
        replace(LANE, closed=True),
        replace(LANE, ranks=1, rank=0),
        replace(LANE, rank=4),
        replace(LANE, completed=9),
        replace(LANE, peer=2),
        replace(LANE, peer=2, direction=Direction.RECEIVES, switches=2),
        replace(LANE, peer=9, direction=Direction.RECEIVES),
    ],
)
def test_what_can_not_be_compared_is_left_out(lane: Lane) -> None:
    assert frontiers_of([lane]) == []


@pytest.mark.parametrize(
    ("function", "name"),
    [("AllReduce", "all_reduce"), ("ReduceScatter", "reduce_scatter"), ("AlltoAll", "all_to_all"), ("Send", "send")],
)
def test_functions_have_the_names_of_our_spans(function: str, name: str) -> None:
    assert span_name(function) == name


NUMBERS = st.integers(0, 2**64 - 1)
SIGNED = st.integers(-(2**63), 2**63 - 1)
PLACES = st.integers(-(2**31), 2**31 - 1)
OPERATIONS = st.builds(
    Enqueued,
    lane=NUMBERS,
    root=PLACES,
    number=NUMBERS,
    sequence=NUMBERS,
    count=NUMBERS,
    at_ns=SIGNED,
    channels=NUMBERS,
    timed=st.booleans(),
    operation=st.text(max_size=16),
    type=st.sampled_from(["ncclFloat32", "", "?"]),
    algorithm=st.just(""),
    protocol=st.just(""),
)
LANES = st.builds(
    Lane,
    communicator=NUMBERS,
    ranks=PLACES,
    rank=PLACES,
    peer=PLACES,
    direction=st.sampled_from(Direction),
    closed=st.booleans(),
    switches=NUMBERS,
    enqueued=NUMBERS,
    started=NUMBERS,
    completed=NUMBERS,
    enqueued_ns=SIGNED,
    started_ns=SIGNED,
    completed_ns=SIGNED,
    name=st.just(""),
    lost=NUMBERS,
    oldest=st.none() | OPERATIONS,
    newest=st.none() | OPERATIONS,
)


@given(st.lists(LANES, max_size=5))
def test_whatever_a_rank_has_written_the_heartbeat_holds(lanes: list[Lane]) -> None:
    check_message(trace_pb2.TraceMessage(seq=1, heartbeat=trace_pb2.Heartbeat(frontiers=frontiers_of(lanes))))
