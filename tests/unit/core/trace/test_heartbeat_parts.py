"""What a heartbeat may tell of a stack and of NCCL's communicators."""

from __future__ import annotations

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_RECORDER, MAX_STACK, MAX_WORLD
from megatronapp.core.trace.validate import check_message
from megatronapp.v1 import trace_pb2


def check(**fields: object) -> None:
    check_message(trace_pb2.TraceMessage(seq=1, heartbeat=trace_pb2.Heartbeat(**fields)))  # type: ignore[arg-type]


def seat(**fields: int) -> list[trace_pb2.Frontier]:
    return [trace_pb2.Frontier(peer=-1, nccl=trace_pb2.NcclSeat(**fields))]  # type: ignore[arg-type]


def test_a_stack_has_lines() -> None:
    check(stack=trace_pb2.Stack(text="in step\n  in wait", state="sleeping", source="faulthandler"))


@pytest.mark.parametrize("text", ["\x1b[2J", "in step\r", "x" * (MAX_STACK + 1), "x\n" * (MAX_STACK // 2 + 1)])
def test_a_stack_that_a_terminal_would_act_on_or_that_is_too_long_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="stack"):
        check(stack=trace_pb2.Stack(text=text))


@pytest.mark.parametrize("text", ["\x1b[2J", "x" * (MAX_RECORDER + 1), "x\n" * (MAX_RECORDER // 2 + 1)])
def test_a_flight_recorder_that_a_terminal_would_act_on_or_that_is_too_long_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="flight recorder"):
        check(stack=trace_pb2.Stack(recorder=text))


def test_a_place_in_a_communicator_is_one_of_its_members() -> None:
    check(frontiers=seat(hash=2**64 - 1, size=4, place=3, peer=0))


@pytest.mark.parametrize(
    "fields",
    [{"size": 4, "place": 4}, {"size": 0, "place": 0}, {"size": 4, "place": 0, "peer": 4}, {"size": MAX_WORLD + 1}],
)
def test_a_place_that_can_not_be_is_refused(fields: dict[str, int]) -> None:
    with pytest.raises(DataError, match="NCCL's communicator"):
        check(frontiers=seat(**fields))
