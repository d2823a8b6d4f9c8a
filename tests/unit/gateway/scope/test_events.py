"""A ring of events keeps the newest, and says honestly what it keeps."""

import asyncio
import json

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.gateway.scope.events import Ring, Source
from megatronapp.v1 import scope_pb2


def event(step: int = 0) -> scope_pb2.ScopeEvent:
    return scope_pb2.ScopeEvent(series=scope_pb2.ScopeSeries(name="loss", step=step))


def offsets(texts: list[str]) -> list[int]:
    return [int(json.loads(text)["event"]["offset"]) for text in texts]


@given(count=st.integers(0, 40), size=st.integers(1, 20), at=st.integers(0, 50))
def test_what_is_kept_is_all_that_came_after(count: int, size: int, at: int) -> None:
    ring = Ring(size)
    for step in range(count):
        ring.append(event(step))

    assert ring.keeps(ring.epoch, at) == (max(count - size, 0) <= at <= count)
    if ring.keeps(ring.epoch, at):
        assert offsets(ring.after(at)) == list(range(at + 1, count + 1))


def test_another_epoch_is_not_kept() -> None:
    assert not Ring(4).keeps(Ring(4).epoch, 0)


def test_large_events_do_not_fill_the_memory() -> None:
    ring = Ring(1000, max_bytes=1000)
    for _ in range(100):
        ring.append(event())

    assert sum(map(len, ring.after(ring.offset - len(ring._texts)))) <= 1000


def test_a_ring_knows_what_it_has_of_a_ranks_incarnation() -> None:
    ring = Ring(2)
    for number in (1, 2, 3):
        ring.append(event(), Source(0, incarnation=7, number=number))
    ring.append(event(), Source(1, incarnation=9))
    ring.append(event())

    assert [ring.received(0, 7), ring.received(0, 8), ring.received(1, 9)] == [3, 0, 0]


def test_another_ring_knows_it_from_what_was_kept() -> None:
    ring, again = Ring(4), Ring(4)
    ring.append(event(), Source(0, incarnation=2**63, number=5))
    ring.append(event())

    again.restore(ring.epoch, ring.kept())

    assert again.received(0, 2**63) == 5


async def test_who_waits_is_woken() -> None:
    ring = Ring(4)
    waiting = asyncio.create_task(ring.wait(0))
    await asyncio.sleep(0)
    ring.append(event())

    await asyncio.wait_for(waiting, 5)
