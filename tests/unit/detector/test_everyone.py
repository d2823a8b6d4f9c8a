"""NCCL's word replaces that of a rank's hooks where it is known whose it is, on all members or on none."""

from __future__ import annotations

from megatronapp.detector import everyone
from megatronapp.detector.positions import Positions
from megatronapp.detector.signals.frontier import Side, blame
from megatronapp.detector.steps import Group
from megatronapp.v1 import trace_pb2

DP = Group("dp:0-1", "dp", (0, 1))


def hooks(enqueued: int, completed: int) -> trace_pb2.Frontier:
    return trace_pb2.Frontier(
        communicator=1, enqueued=enqueued, started=enqueued, completed=completed, operation="all_reduce", peer=-1
    )


def nccl(
    place: int, enqueued: int, started: int, completed: int, *, peer: int = -1, **told: object
) -> trace_pb2.Frontier:
    seat = trace_pb2.NcclSeat(hash=7, size=2, place=place, timed=True, peer=None if peer < 0 else peer)
    return trace_pb2.Frontier(
        enqueued=enqueued, started=started, completed=completed, peer=-1, operation="all_reduce", nccl=seat, **told
    )


def of(*frontiers: list[trace_pb2.Frontier]) -> everyone.Everyone:
    ranks = enumerate(frontiers)
    return everyone.of({rank: Positions(rank, {1: DP}, [f.SerializeToString() for f in own]) for rank, own in ranks})


def test_a_device_that_does_not_come_to_an_operation_is_told_by_nccl_alone() -> None:
    known = of([hooks(9, 8), nccl(0, 9, 9, 8)], [hooks(9, 8), nccl(1, 9, 8, 8)])

    (culprit,) = blame(known.frontiers, known.members)

    assert (culprit.rank, culprit.side, culprit.communicator, culprit.sequence) == (1, Side.DEVICE, "dp:0-1", 9)


def test_where_a_member_has_not_told_its_place_the_hooks_hold() -> None:
    known = of([hooks(9, 8), nccl(0, 5, 5, 4)], [hooks(8, 8)])

    assert [frontier["dp:0-1"].enqueued for frontier in known.frontiers.values()] == [9, 8]
    assert known.members == {"dp:0-1": (0, 1)}


def test_a_root_is_told_as_a_rank_and_not_as_a_place() -> None:
    group = Group("tp:4-6", "tp", (4, 6))
    told = nccl(1, 3, 3, 2, root=1, elements=8, data_type="float32").SerializeToString()
    other = nccl(0, 3, 3, 2, root=1, elements=8, data_type="float32").SerializeToString()

    known = everyone.of({4: Positions(4, {1: group}, [other]), 6: Positions(6, {1: group}, [told])})

    (position,) = known.frontiers[6].values()
    assert position.called is not None
    assert position.called.root == 6


def test_messages_are_told_where_the_hooks_know_none_of_the_pair() -> None:
    sends, receives = nccl(0, 3, 2, 2, peer=1, sending=True), nccl(1, 2, 2, 2, peer=0)

    known = of([nccl(0, 1, 1, 1), sends], [nccl(1, 1, 1, 1), receives])

    assert known.members["p2p:0-1"] == (0, 1)
    assert [known.frontiers[rank]["p2p:0-1"].enqueued for rank in (0, 1)] == [3, 2]
