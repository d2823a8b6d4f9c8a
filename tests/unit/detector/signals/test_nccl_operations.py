"""Bus bandwidth, waits and late starts out of what NCCL tells of a step."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from megatronapp.detector.signals.late_starts import KEPT_STEPS, LateStarts, waited_for
from megatronapp.detector.signals.nccl_operations import Communicators, bus_factor, transfers, waits
from megatronapp.detector.steps import Group, RankTable
from megatronapp.v1 import trace_pb2
from tests.support.simulated import Layout
from tests.unit.detector.signals.test_waits import table_of

HASH = (1 << 63) + 5
GROUP = Group("dp:0-1-2", "dp", (0, 1, 2))


def tally(place: int, duration: int = 1000, *, hash_: int = HASH, peer: int | None = None, **more):
    seat = trace_pb2.NcclSeat(hash=hash_, size=3, place=place, timed=True, peer=peer)
    values = {"operation": "all_reduce", "size_log2": 20, "count": 1, "fastest_bytes": 1 << 20, "fastest_ns": duration}
    return trace_pb2.NcclTally(seat=seat, **values | more)


def ranks(*stages: int) -> RankTable:
    table = table_of(Layout(pp=1, dp=len(stages)), set()).ranks
    return replace(table, pipeline=np.array(stages))


def known(sent):
    communicators = Communicators()
    communicators.learn(sent, (GROUP,))
    return communicators.known


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 1.75),
        ("all_gather", 0.875),
        ("reduce_scatter", 0.875),
        ("broadcast", 1),
        ("reduce", 1),
        ("send", 1),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(operation: str, factor: float) -> None:
    assert bus_factor(operation, 8) == factor


def test_a_transfer_is_as_fast_as_for_the_member_that_waits_least() -> None:
    sent = [(rank, [tally(rank, duration)]) for rank, duration in enumerate((4000, 1000, 2000))]

    found = transfers(sent, known(sent))

    ((key, speed),) = found.bandwidth.items()
    assert (key.communicator, found.ends[key]) == ("dp:0-1-2", ((0, 1, 2), (0, 1, 2)))
    assert speed == pytest.approx((1 << 20) * 4 / 3 / 1e-6)


def test_a_sum_of_a_few_numbers_says_nothing_of_a_link() -> None:
    small = {"size_log2": 4, "protocol": "LL", "fastest_bytes": 16}
    sent = [(rank, [tally(rank, 20_000, **small), tally(rank)]) for rank in range(3)]

    assert [key.size_log2 for key in transfers(sent, known(sent)).bandwidth] == [20]


def test_both_ends_of_a_message_tell_of_one_transfer() -> None:
    send, receive = tally(0, 3000, peer=2, sending=True, operation="send"), tally(2, peer=0, operation="recv")
    sent = [(0, [send]), (1, [tally(1)]), (2, [receive])]

    found = transfers(sent, known(sent))

    speeds = {key.communicator: (speed, found.ends[key]) for key, speed in found.bandwidth.items()}
    assert speeds["p2p:0-2"] == (pytest.approx((1 << 20) / 1e-6), ((0,), (2,)))


def test_a_communicator_of_which_a_member_has_not_told_is_nobodys() -> None:
    sent = [(0, [tally(0)]), (1, [tally(1)])]

    assert transfers(sent, known(sent)).bandwidth == {}


def test_a_rank_that_sends_little_tells_nothing_of_speed() -> None:
    (little, much) = waits(
        [(0, [tally(0, network_ns=9, sent_bytes=9)]), (1, [tally(1, network_ns=9, sent_bytes=1 << 20)])]
    ).values()

    assert (little.sending, much.sending) == (None, pytest.approx(9e-9 / (1 << 20)))


def sampled(place: int, durations: dict[int, int], count: int = 2):
    return tally(place, numbers=list(durations), durations_ns=list(durations.values()), count=count)


def test_of_each_operation_the_last_to_begin_is_known_and_by_how_much() -> None:
    sent = [(0, [sampled(0, {7: 90, 8: 10})]), (1, [sampled(1, {7: 20, 8: 50})]), (2, [sampled(2, {7: 100, 8: 70})])]

    first, second = LateStarts().of(sent, known(sent))

    assert (first.communicator, first.number, first.rank, first.seconds) == (HASH, 7, 1, pytest.approx(75e-9))
    assert (second.number, second.rank, second.seconds) == (8, 0, pytest.approx(50e-9))


def test_members_may_tell_of_it_in_different_steps_but_not_for_ever() -> None:
    sent = [(rank, [sampled(rank, {7: 10 + rank})]) for rank in range(3)]
    whole, late = known(sent), LateStarts()

    assert late.of(sent[:2], whole) == []
    assert [start.rank for start in late.of(sent[2:], whole)] == [0]

    late.of(sent[:2], whole)
    for _ in range(KEPT_STEPS):
        late.of([], whole)
    assert late.of(sent[2:], whole) == []


def test_what_is_waited_for_one_counts_all_operations_that_a_sampled_one_stands_for() -> None:
    sent = [(rank, [sampled(rank, {8: took}, count=5)]) for rank, took in enumerate((100, 100, 40))]
    whole = known(sent)

    waited = waited_for(LateStarts().of(sent, whole), whole, ranks(0, 0, 0))

    assert waited == {0: 0, 1: 0, 2: pytest.approx(300e-9)}


def test_members_of_several_stages_may_be_late_for_their_work() -> None:
    sent = [(rank, [sampled(rank, {8: took})]) for rank, took in enumerate((100, 100, 40))]
    whole = known(sent)

    assert waited_for(LateStarts().of(sent, whole), whole, ranks(0, 0, 1)) == {}
