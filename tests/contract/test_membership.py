"""Whatever the way does to the ranks' messages, every reader believes the same processes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.cli.demo.state import DemoState
from megatronapp.collector.jobs import Attempt
from megatronapp.collector.received import from_record
from megatronapp.core.scenario import Scenario
from megatronapp.core.trace.membership import Membership
from megatronapp.detector.engine import Engine, Engines
from megatronapp.gateway.state import JobStore
from megatronapp.v1 import trace_pb2

RUN, JOB = "run-1", "team/gpt"
SECOND = 10**9


def said(rank: int, incarnation: int, at: int, attempt: int = 1, **message: object) -> trace_pb2.RankMessage:
    """at: arrival in seconds."""
    lost = bool(message.pop("lost", False))
    identity = trace_pb2.Identity(run=RUN, job=JOB, attempt=attempt, rank=rank, incarnation=incarnation)
    if "hello" in message:
        message["hello"].identity.CopyFrom(identity)  # type: ignore[attr-defined]
    body = trace_pb2.TraceMessage(**message)  # type: ignore[arg-type]
    return trace_pb2.RankMessage(identity=identity, message=body, received_unix_ns=at * SECOND, lost=lost)


def life(rank: int, incarnation: int, at: int, steps: Sequence[int], attempt: int = 1) -> list[trace_pb2.RankMessage]:
    """A process from its Hello to the loss of its stream, or its goodbye."""
    clock, seq = itertools.count(at), itertools.count(1)
    place = trace_pb2.Placement(node=f"node-{incarnation}", data=rank, sizes=trace_pb2.ParallelSizes(world=2, data=2))
    recipe = trace_pb2.Recipe(settings=[trace_pb2.Setting(name="seed", value=str(incarnation))])
    messages = [said(rank, incarnation, next(clock), attempt, hello=trace_pb2.Hello(placement=place, recipe=recipe))]
    for step in steps:
        beat = trace_pb2.Heartbeat(step=step, phase=trace_pb2.PHASE_STEP, dropped=step)
        summary = trace_pb2.StepSummary(step=step, duration_ns=SECOND, memory=trace_pb2.Memory(host_bytes=step))
        messages.append(said(rank, incarnation, next(clock), attempt, seq=next(seq), heartbeat=beat))
        messages.append(said(rank, incarnation, next(clock), attempt, seq=next(seq), summary=summary))
    if incarnation % 2:
        messages.append(said(rank, incarnation, next(clock), attempt, lost=True))
    else:
        goodbye = trace_pb2.Heartbeat(step=max(steps), closing=True)
        messages.append(said(rank, incarnation, next(clock), attempt, seq=next(seq), heartbeat=goodbye))
    return messages


STORIES = [
    life(0, 11, at=100, steps=[1, 2]) + life(0, 12, at=200, steps=[2, 3, 4]) + life(1, 13, at=101, steps=[1, 2, 3]),
    life(0, 21, at=100, steps=[5]) + life(0, 22, at=300, steps=[1]) + life(0, 23, at=200, steps=[9]),
    life(0, 31, at=500, steps=[7, 8]) + life(0, 32, at=400, steps=[1, 2], attempt=2),
]


def state_of(membership: Membership) -> object:
    ranks = {
        rank: (
            process.identity.incarnation,
            process.placement.node,
            process.heard_unix_ns,
            process.step,
            process.dropped,
            process.heartbeat and (process.heartbeat.step, process.heartbeat.phase),
            process.memory and process.memory.host_bytes,
            process.closed,
            process.lost,
        )
        for rank, process in membership.ranks.items()
    }
    return membership.attempt, ranks, membership.recipe


def folded(messages: Sequence[trace_pb2.RankMessage]) -> Membership:
    membership = Membership()
    for message in messages:
        membership.apply(message)
    return membership


@settings(max_examples=200)
@given(story=st.sampled_from(STORIES), seed=st.integers(0, 2**32), late=st.booleans())
def test_any_order_and_repetition_gives_the_same_membership(
    story: list[trace_pb2.RankMessage], seed: int, late: bool
) -> None:
    mixed = random.Random(seed)
    messages = story + mixed.choices(story, k=len(story) // 2)
    mixed.shuffle(messages)
    if late:  # one message of the beginning comes again, or for the first time, at the end
        messages.append(messages.pop(0))

    assert state_of(folded(messages)) == state_of(folded(story))


def test_the_newest_process_of_the_newest_attempt_is_believed() -> None:
    restarted, replaced, resumed = (folded(story) for story in STORIES)

    assert {rank: process.step for rank, process in restarted.ranks.items()} == {0: 4, 1: 3}
    assert [(p.identity.incarnation, p.step, p.closed) for p in replaced.ranks.values()] == [(22, 1, True)]
    assert (resumed.attempt, resumed.ranks[0].step, resumed.ranks[0].heartbeat.step) == (2, 2, 2)


def test_a_lost_rank_that_is_heard_again_is_not_lost() -> None:
    first, *_, lost = life(0, 11, at=100, steps=[1])
    again = said(0, 11, 999, seq=9, heartbeat=trace_pb2.Heartbeat(step=2))

    assert folded([first, lost]).ranks[0].lost
    assert not folded([first, again, lost]).ranks[0].lost


RankStates = dict[int, tuple[int, int, bool]]
"""Of each rank: incarnation, step of its newest heartbeat, whether it has ended in good order."""


def of_membership(membership: Membership) -> RankStates:
    return {
        rank: (p.identity.incarnation, p.heartbeat.step if p.heartbeat else 0, p.closed)
        for rank, p in membership.ranks.items()
    }


def collector_believes(messages: Sequence[trace_pb2.RankMessage]) -> RankStates:
    attempts: dict[int, Attempt] = {}
    for message in messages:
        number = message.identity.attempt
        attempt = attempts.setdefault(number, Attempt(RUN, JOB, number, 1, 1))
        if message.lost:
            attempt.membership.apply(message)
        else:
            attempt.take(from_record(message.SerializeToString()))
    newest = attempts[max(attempts)]
    assert {rank: known.process for rank, known in newest.ranks.items()} == newest.membership.ranks
    return of_membership(newest.membership)


def detector_believes(messages: Sequence[trace_pb2.RankMessage]) -> RankStates:
    engines = Engines()
    for message in messages:
        engines.feed(message)
    engine = engines.running[RUN]
    progress = engine.progress._ranks
    believed = of_membership(engine.membership)  # which keeps no heartbeats here: the steps are those of the progress
    assert {r: s.closing for r, s in progress.items()} == {rank: closed for rank, (_, _, closed) in believed.items()}
    return {rank: (process, progress[rank].step, closed) for rank, (process, _, closed) in believed.items()}


def gateway_believes(messages: Sequence[trace_pb2.RankMessage]) -> RankStates:
    store = JobStore()
    for message in messages:
        store.apply_message(message)
    return of_membership(store.jobs[RUN].membership)


def demo_believes(messages: Sequence[trace_pb2.RankMessage]) -> RankStates:
    state = DemoState(Scenario.model_validate({"faults": []}))
    for message in messages:
        state.on_message(message)
    assert {rank: view.process for rank, view in state.ranks.items()} == state.membership.ranks
    return of_membership(state.membership)


READERS = [collector_believes, detector_believes, gateway_believes, demo_believes]


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("story", STORIES, ids=["restarted", "replaced twice", "resumed"])
@pytest.mark.parametrize("late", [0, 1, 3])
def test_every_reader_believes_the_same_whatever_comes_late(read, story, late: int) -> None:
    messages = [*story, *story[: 2 * late + 1]]

    assert read(messages) == of_membership(folded(story))


def test_the_detector_drops_a_late_heartbeat_of_a_replaced_process() -> None:
    old, new = life(0, 11, at=100, steps=[3])[:2], life(0, 12, at=200, steps=[1])[:2]
    engine = Engine(RUN, JOB, 1)
    for message in [old[0], *new]:
        engine.feed(message)

    engine.feed(old[1])

    assert engine.progress._ranks[0].step == 1
