"""What a rank's summaries tell of NCCL's operations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.core.trace.limits import MAX_SAMPLED
from megatronapp.core.trace.nccl_tallies import check_tallies
from megatronapp.trainer.agent.nccl_tallies import NcclTallies
from megatronapp.trainer.agent.operations import Completed, Direction, Enqueued, Lane

ALL = Lane(77, 4, 1, -1, Direction.NONE, False, 1, 0, 0, 0, 0, 0, 0, "", 0, None, None)
LANES = {0: ALL, 1: replace(ALL, peer=2, direction=Direction.SENDS), 2: replace(ALL, ranks=1, rank=0)}


def operation(
    number: int, took: int = 100, *, lane: int = 0, count: int = 1024, name: str = "AllReduce", waits=(0,) * 4
):
    called = Enqueued(lane, -1, number, number, count, 1, 1, True, name, "ncclFloat32", "RING", "SIMPLE")
    return called, Completed(lane, 1, number, 1, 2, 3, 4, 1000, 1000 + took, *waits, 700, 500)


def tallies_of(*operations):
    tallies = NcclTallies(lambda: LANES)
    for pair in operations:
        tallies.note(pair)
    return tallies.take()


def test_operations_of_one_kind_are_added_up_and_the_fastest_is_kept() -> None:
    (tally,) = tallies_of(*(operation(n, took, waits=(1, 2, 3, 4)) for n, took in enumerate((300, 100, 200), 1)))

    assert (tally.operation, tally.algorithm, tally.size_log2, tally.count) == ("all_reduce", "RING", 12, 3)
    assert (tally.fastest_bytes, tally.fastest_ns, tally.sent_bytes) == (4096, 100, 1500)
    assert (tally.gpu_ns, tally.peer_ns, tally.network_ns, tally.data_ns) == (3, 6, 9, 12)
    assert (list(tally.numbers), list(tally.durations_ns)) == ([1, 2, 3], [300, 100, 200])
    check_tallies([tally])


def test_sizes_algorithms_and_peers_are_kinds_of_their_own() -> None:
    found = tallies_of(operation(1), operation(2, count=2048), operation(1, lane=1, name="Send"))

    assert [(tally.size_log2, tally.sending, tally.seat.peer, len(tally.numbers)) for tally in found] == [
        (12, False, 0, 1),
        (13, False, 0, 1),
        (12, True, 2, 0),
    ]


def test_members_choose_the_same_of_many_operations_also_where_one_has_seen_more_of_them() -> None:
    (few,), (many,) = (tallies_of(*(operation(n) for n in range(1, last))) for last in (60, 200))

    assert max(len(few.numbers), len(many.numbers)) <= MAX_SAMPLED
    assert set(few.numbers) >= {number for number in many.numbers if number < 60}


def test_what_was_told_is_not_told_again_and_what_ends_later_is_told_then() -> None:
    tallies, (called, ended) = NcclTallies(lambda: LANES), operation(1)
    tallies.note([called])

    assert tallies.take() == []
    tallies.note([ended])

    assert [tally.count for tally in tallies.take()] == [1]
    assert tallies.take() == []


@pytest.mark.parametrize("lane", [2, 3], ids=["of one rank", "not known"])
def test_what_has_no_other_member_is_left_out(lane: int) -> None:
    assert tallies_of(operation(1, lane=lane)) == []


def test_what_the_device_does_not_time_is_counted_without_a_speed() -> None:
    called, ended = operation(1)

    (tally,) = tallies_of((called, replace(ended, start_ns=0, end_ns=0)))

    assert (tally.count, tally.fastest_ns, tally.seat.timed, list(tally.numbers)) == (1, 0, False, [])
