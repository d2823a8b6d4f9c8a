"""What a heartbeat costs: of a large job there come thousands a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megatronapp.core.trace.membership import Process
from megatronapp.detector.members import Member
from megatronapp.detector.progress import Progress
from megatronapp.v1 import trace_pb2

WORLD, BEATS, LONG_CHECKPOINT = 64, 5, 20
NS = 10**9


class Looks(dict[int, object]):
    """A dictionary that counts how often somebody goes through it."""

    times = 0

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()

    def items(self) -> Any:
        self.times += 1
        return super().items()

    def values(self) -> Any:
        self.times += 1
        return super().values()


def watched() -> tuple[Progress, Looks]:
    progress, looks = Progress(), Looks()
    progress._ranks = looks  # type: ignore[assignment]
    return progress, looks


def members() -> list[Member]:
    who = [trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=rank) for rank in range(WORLD)]
    return [Member(Process(each), {}) for each in who]


def play(progress: Progress, ranks: list[Member], second: int, beat: trace_pb2.SentHeartbeat) -> None:
    for rank, member in enumerate(ranks):
        progress.beat(member, beat, second * NS + rank * NS // WORLD)
        assert progress.stall() is None


def test_a_heartbeat_costs_no_look_at_all_ranks() -> None:
    (progress, looks), ranks = watched(), members()

    for second in range(BEATS):
        play(progress, ranks, second, trace_pb2.SentHeartbeat(step=second + 1, phase=trace_pb2.PHASE_STEP))

    assert len(looks) == WORLD
    assert looks.times == 0


def test_while_nothing_moves_all_ranks_are_looked_at_as_often_as_each_speaks() -> None:
    (progress, looks), ranks = watched(), members()

    for second in range(LONG_CHECKPOINT):
        play(progress, ranks, second, trace_pb2.SentHeartbeat(step=1, phase=trace_pb2.PHASE_CHECKPOINT))

    assert 0 < looks.times <= LONG_CHECKPOINT
