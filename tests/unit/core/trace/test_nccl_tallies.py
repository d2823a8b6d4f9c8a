"""What can't be true of NCCL's operations is refused with one line."""

from __future__ import annotations

from typing import Any

import pytest

from megatronapp.core.trace.limits import MAX_COUNT, MAX_SAMPLED, MAX_TALLIES
from megatronapp.core.trace.ranges import ImplausibleError
from megatronapp.core.trace.validate import check_message
from megatronapp.v1 import trace_pb2


def summary(*tallies: trace_pb2.NcclTally) -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(seq=1, summary=trace_pb2.StepSummary(step=1, duration_ns=1, nccl=tallies))


def tally(size: int = 2, place: int = 0, peer: int | None = None, **values: Any) -> trace_pb2.NcclTally:
    return trace_pb2.NcclTally(seat=trace_pb2.NcclSeat(hash=1, size=size, place=place, peer=peer), **values)


def test_plausible_ones_pass() -> None:
    check_message(summary(tally(operation="all_reduce", size_log2=20, numbers=[1], durations_ns=[5]), tally(peer=1)))


@pytest.mark.parametrize(
    "refused",
    [
        tally(place=2),
        tally(peer=2),
        tally(size_log2=64),
        tally(fastest_ns=1 << 63),
        tally(operation="x" * 10_000),
        tally(algorithm="\n"),
        tally(numbers=[1, 2], durations_ns=[1]),
        tally(numbers=[1], durations_ns=[MAX_COUNT + 1]),
        tally(numbers=range(MAX_SAMPLED + 1), durations_ns=range(MAX_SAMPLED + 1)),
    ],
    ids=["place", "peer", "size", "time", "long", "unprintable", "uneven", "duration", "many"],
)
def test_one_that_cant_be_true_is_refused(refused: trace_pb2.NcclTally) -> None:
    with pytest.raises(ImplausibleError) as error:
        check_message(summary(refused))

    assert "\n" not in str(error.value)


def test_so_many_kinds_are_refused() -> None:
    with pytest.raises(ImplausibleError, match=str(MAX_TALLIES)):
        check_message(summary(*[tally()] * (MAX_TALLIES + 1)))
