"""What the matrix counts: all that ever paged, in a case that goes on when its fault is found."""

from __future__ import annotations

import asyncio

import pytest

from megatronapp.cli.demo.state import DemoState
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.v1 import trace_pb2
from tests.faults import harness
from tests.faults.cases import FROM_STEP, case, slow

CASE = case("DP4", slow(1))
FOUND = Finding(id="right", kind=Kind.SLOW_GPU, cause=Cause.COMPUTE, ranks=(1,), page=True, opened_step=FROM_STEP + 3)


class Playing(DemoState):
    """A job that makes a step whenever somebody looks, and whose fault was found at once."""

    looked = FROM_STEP

    @property
    def step(self) -> int:
        self.looked += 1
        return self.looked


def state_of(kind: type[DemoState]) -> DemoState:
    """All ranks have made the first step of the fault."""
    state = kind(CASE.scenario)
    hello = trace_pb2.Hello(schedule=trace_pb2.Schedule(total_steps=1000))
    step = trace_pb2.StepSummary(step=FROM_STEP)
    for rank in range(harness.WORLD):
        for message in (trace_pb2.TraceMessage(hello=hello), trace_pb2.TraceMessage(seq=1, summary=step)):
            state.on_message(trace_pb2.RankMessage(identity=trace_pb2.Identity(rank=rank), message=message))
    return state


async def test_a_case_whose_fault_is_found_is_played_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(harness.asyncio, "sleep", lambda _: sleep(0))
    state = state_of(Playing)
    state.find(FOUND)
    assert state.verdict()["detection_steps"] is not None

    await harness._until_over(CASE, state, [])

    assert state.looked >= FROM_STEP + harness.FAULT_STEPS


async def test_a_page_that_is_taken_back_counts_all_the_same() -> None:
    bus, pages = MemoryBus(), dict[str, tuple[Finding, bool]]()
    false = FOUND.model_copy(update={"id": "false", "ranks": (3,)})
    taken_back = false.model_copy(update={"state": State.RESOLVED})

    async with harness._listening(bus, state_of(DemoState), pages):
        for finding in (FOUND, false, taken_back):
            await bus.publish(Topic.FINDINGS, finding.id, finding.to_proto().SerializeToString())
        async with asyncio.timeout(5):
            while len(pages) < 2:
                await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    assert {page.ranks for page, _ in pages.values()} == {(1,), (3,)}
    assert not any(early for _, early in pages.values())
