"""What a heartbeat costs: of a large job there come thousands a second."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from megatronapp.core.trace.membership import Process
from megatronapp.detector.members import Member
from megatronapp.detector.progress import Progress
from megatronapp.v1 import trace_pb2

WORLD, BEATS = 64, 5
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


def test_a_heartbeat_costs_no_look_at_all_ranks() -> None:
    progress, looks = Progress(), Looks()
    progress._ranks = looks  # type: ignore[assignment]
    members = [Member(Process(trace_pb2.Identity(run="a", job="a/b", attempt=1, rank=r)), {}) for r in range(WORLD)]

    for second in range(BEATS):
        for rank, member in enumerate(members):
            beat = trace_pb2.SentHeartbeat(step=second + 1, phase=trace_pb2.PHASE_STEP)
            progress.beat(member, beat, second * NS + rank * NS // WORLD)
            assert progress.stall() is None

    assert len(looks) == WORLD
    assert looks.times == 0
