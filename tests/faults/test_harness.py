"""What the matrix counts: all that ever paged, in a case that goes on when its fault is found."""

from __future__ import annotations

import asyncio

import pytest

from megatronapp.cli.demo.state import DemoState
from megatronapp.core.bus import MemoryBus, Topic
from megatronapp.core.findings import Cause, Finding, Kind, State
from megatronapp.v1 import trace_pb2
from tests.faults import harness
from tests.faults.cases import FROM_STEP, case, hang, slow

CASE = case("DP4", slow(1))
FOUND = Finding(id="right", kind=Kind.SLOW_GPU, cause=Cause.COMPUTE, ranks=(1,), page=True, opened_step=FROM_STEP + 3)


class Playing(DemoState):
    """A job that makes a step whenever somebody looks, and whose fault was found at once."""

    looked = FROM_STEP

    @property
    def step(self) -> int:
        self.looked += 1
        return self.looked


class Standing(DemoState):
    """A job that comes to a stand in the first step of its fault."""

    @property
    def step(self) -> int:
        return FROM_STEP - 1


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


async def test_briefly_played_a_fault_that_is_found_is_over_after_some_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "FAULT_STEPS", 10**9)
    monkeypatch.setattr(harness, "FAULT_SECONDS", 0.5)
    state = state_of(Playing)
    began = asyncio.get_running_loop().time()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await harness._until_over(CASE, state_of(Playing), [], briefly=True)
    state.find(FOUND)
    async with asyncio.timeout(10):
        await harness._until_over(CASE, state, [], briefly=True)

    assert asyncio.get_running_loop().time() - began >= 1.5


async def test_a_hang_lets_the_next_case_begin_while_it_is_watched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "STANDING_SECONDS", 0.2)
    monkeypatch.setattr(harness, "HANG_SECONDS", 0.6)
    hangs, state = case("DP4", hang(1)), state_of(Standing)

    async with asyncio.timeout(0.5):
        stands = await harness._until_over(hangs, state, [])
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await harness._watch_on(hangs, state, [])
    await harness._watch_on(hangs, state, [])

    assert stands


async def test_a_hang_that_goes_on_is_none() -> None:
    with pytest.raises(AssertionError, match="it goes on"):
        await harness._watch_on(case("DP4", hang(1)), state_of(Playing), [])


@pytest.mark.parametrize("kind", [Playing, Standing])
async def test_nothing_plays_beside_a_case_that_shall_not_stand_still(
    kind: type[DemoState], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harness, "STANDING_SECONDS", 0.0)
    monkeypatch.setattr(harness, "HANG_SECONDS", 0.5)
    monkeypatch.setattr(harness, "FAULT_SECONDS", 0.0)
    state = state_of(kind)
    state.find(FOUND)

    assert not await harness._until_over(CASE, state, [], briefly=True)


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
