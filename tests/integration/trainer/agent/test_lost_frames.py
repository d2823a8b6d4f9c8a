"""Frames that a rank has shown and its agent could not pass on are told of, once for what is asked for."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from google.protobuf import json_format

from megatronapp.trainer.agent import layout, scope_stream
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.ring import RingReader
from megatronapp.trainer.agent.scope import RankScope
from megatronapp.trainer.agent.stream import StreamLoop
from megatronapp.trainer.plugins.scan.ring_writer import RingWriter
from megatronapp.v1 import scope_pb2
from tests.support.rank_writer import HELLO
from tests.support.scope_gateway import ScopeGateway, scope_gateway
from tests.support.scope_pods import ranks

RING, AT, READ_WORD = 4096, 64, 0
TAPS = [scope_pb2.ScopeTap(id=number, expression="layers[*].resid_post") for number in (1, 2)]


@dataclass
class WatchedRank:
    """A rank that shows something, the agent's part that passes it on, and the gateway."""

    gateway: ScopeGateway
    scope: RankScope
    writer: RingWriter
    passed_on: list[Any]
    """What was passed on to the rank."""

    def demand(self, revision: int) -> None:
        self.gateway.demand(revision, TAPS, range(1))
        self.gateway.wait(lambda: self._heard(revision))

    def _heard(self, revision: int) -> bool:
        self.scope.tick()
        return any(int(value.get("demand", {}).get("revision", 0)) == revision for value in self.passed_on)

    def show(self, frames: int, tap: int = 1) -> None:
        """So many, before the agent comes round."""
        for _ in range(frames):
            payload = bytes(self.writer.most_content - layout.FRAME_HEAD.size - layout.FRAME_PART.size)
            head = layout.FRAME_HEAD.pack(layout.FRAME_PART.size, 0, len(payload))
            self.writer.put(layout.FRAME, head, layout.FRAME_PART.pack(tap, 0, 1), payload)
        self.scope.tick()

    def alerts(self, count: int) -> list[tuple[str, int, int]]:
        """(kind, tap, rank), once so many and a mark behind them have come."""
        mark = scope_pb2.ScopeUp(event=scope_pb2.ScopeEvent(series=scope_pb2.ScopeSeries(name="mark", step=count)))
        self.scope.take(json_format.MessageToDict(mark, preserving_proto_field_name=True))
        self.gateway.wait(lambda: any(event.series.step == count for _, event in self.gateway.events))
        found = [event.alert for _, event in self.gateway.events if event.HasField("alert")]
        return [(alert.kind, alert.tap, alert.rank) for alert in found]


@pytest.fixture
def watched() -> Iterator[WatchedRank]:
    memory = mmap.mmap(-1, AT + layout.RING_HEADER_BYTES + RING)
    words = memoryview(memory).cast("Q")
    segment: Any = SimpleNamespace(bulk=RingReader(memory, words, AT, RING, READ_WORD))
    passed_on: list[Any] = []
    with scope_gateway() as (gateway, address), closing(StreamLoop()) as loop:
        scope = RankScope(
            HELLO, segment, lambda _, value: passed_on.append(value), loop, Access(gateway_address=address)
        )
        hello = json_format.MessageToDict(ranks()[0].hello(), preserving_proto_field_name=True)
        scope.take({"hello": hello})
        gateway.wait(lambda: gateway.hellos)
        yield WatchedRank(gateway, scope, RingWriter(memory, words, AT, RING), passed_on)
        scope.close(1.0)


def test_frames_that_were_overwritten_before_they_were_read_are_told_of_once_a_demand(watched: WatchedRank) -> None:
    watched.demand(1)
    watched.show(3)
    before = watched.alerts(1)
    watched.show(20)
    watched.show(20)
    once = watched.alerts(2)
    watched.demand(2)
    watched.show(20)

    assert before == []
    assert once == [("overrun", 0, 0)]
    assert watched.alerts(3) == [("overrun", 0, 0)] * 2


def test_frames_that_give_way_before_they_are_sent_are_told_of_by_their_tap(
    watched: WatchedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scope_stream, "MAX_WAITING_BYTES", 8)
    watched.demand(1)
    watched.show(2, tap=1)
    watched.show(2, tap=2)

    assert watched.alerts(1) == [("overrun", 1, 0), ("overrun", 2, 0)]


def test_a_ranks_states_count_what_its_agent_lost(watched: WatchedRank) -> None:
    watched.demand(1)
    watched.show(20)
    watched.scope.take({"event": {"state": {"state": "paused", "dropped_frames": 2}}})
    watched.gateway.wait(watched.gateway.states)
    [state] = [event.state for _, event in watched.gateway.events if event.HasField("state")]

    assert state.dropped_frames > 2 + 10


def test_what_was_sent_last_reaches_a_gateway_that_is_slow_to_read(
    watched: WatchedRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.demand(1)
    take = ScopeGateway._take

    def slowly(gateway: ScopeGateway, rank: int, up: scope_pb2.ScopeUp) -> None:
        time.sleep(0.05)
        take(gateway, rank, up)

    monkeypatch.setattr(ScopeGateway, "_take", slowly)
    for step in range(20):
        event = scope_pb2.ScopeUp(event=scope_pb2.ScopeEvent(series=scope_pb2.ScopeSeries(name="loss", step=step)))
        watched.scope.take(json_format.MessageToDict(event, preserving_proto_field_name=True))

    watched.scope.close(20.0)

    watched.gateway.wait(lambda: watched.gateway.left)
    assert [event.series.step for _, event in watched.gateway.events] == list(range(20))


def test_what_nobody_asked_for_is_not_missed(watched: WatchedRank) -> None:
    watched.show(20)

    assert watched.alerts(1) == []
