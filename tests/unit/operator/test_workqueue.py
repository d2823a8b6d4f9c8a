"""Keys are worked on once at a time, again when marked meanwhile, and later after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from megatronapp.core.errors import UnavailableError
from megatronapp.operator import workqueue
from megatronapp.operator.workqueue import WorkQueue


@asynccontextmanager
async def working(queue: WorkQueue[str], workers: int = 2) -> AsyncIterator[None]:
    task = asyncio.create_task(queue.run(workers))
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(check: object) -> None:
    async with asyncio.timeout(10):
        while not check():  # type: ignore[operator]
            await asyncio.sleep(0.005)


async def test_a_key_marked_often_is_worked_on_once() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    queue = WorkQueue(work, ())
    for _ in range(5):
        queue.mark("a")
    async with working(queue):
        await until(lambda: len(queue) == 0)

    assert done == ["a"]


async def test_a_key_is_never_worked_on_twice_at_once_but_again_when_marked_meanwhile() -> None:
    running, most, calls = 0, 0, 0

    async def work(key: str) -> None:
        nonlocal running, most, calls
        running, calls = running + 1, calls + 1
        most = max(most, running)
        if calls == 1:
            queue.mark(key)
        await asyncio.sleep(0.01)
        running -= 1

    queue = WorkQueue(work, ())
    queue.mark("a")
    async with working(queue, 4):
        await until(lambda: calls == 2 and running == 0)

    assert most == 1


async def test_a_failure_is_tried_again_and_events_do_not_make_it_sooner() -> None:
    calls = 0

    async def work(key: str) -> None:
        nonlocal calls
        calls += 1
        queue.mark(key)
        raise UnavailableError("down")

    queue = WorkQueue(work, (UnavailableError,))
    queue.mark("a")
    async with working(queue):
        await until(lambda: calls == 1)
        await asyncio.sleep(0.05)
        assert calls == 1
        await until(lambda: calls == 2)

    assert workqueue.FIRST_PAUSE_SECONDS >= 1.0


async def test_work_may_ask_for_another_look() -> None:
    calls = 0

    async def work(key: str) -> float | None:
        nonlocal calls
        calls += 1
        return 0.01 if calls < 3 else None

    queue = WorkQueue(work, ())
    queue.mark("a")
    async with working(queue):
        await until(lambda: calls == 3)


@pytest.mark.parametrize("error", [ValueError("x"), OverflowError(), RecursionError(), KeyError("a"), MemoryError()])
async def test_whatever_one_key_raises_others_are_worked_on(error: Exception) -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        if key == "bad":
            raise error
        done.append(key)

    queue = WorkQueue(work, (UnavailableError,))
    async with working(queue, 1):
        for key in ("bad", "a", "bad", "b"):
            queue.mark(key)
        await until(lambda: done == ["a", "b"])
        assert len(queue) == 0


@pytest.mark.parametrize(
    ("error", "times", "longest"), [(UnavailableError("down"), 1100, 60.0), (ValueError("x"), 12, 300.0)]
)
async def test_a_key_that_fails_for_ever_is_tried_slower_and_slower_up_to_minutes(
    error: Exception, times: int, longest: float
) -> None:
    async def work(key: str) -> None:
        raise error

    queue = Restless(work, (UnavailableError,))
    queue.mark("a")
    async with working(queue, 1):
        await until(lambda: len(queue.pauses) >= times)

    assert queue.pauses[:4] == [1, 2, 4, 8]
    assert set(queue.pauses[9:]) == {longest}


class Restless(WorkQueue[str]):
    """Notes how long it should wait, and does not."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pauses: list[float] = []

    def mark_in(self, key: str, seconds: float) -> None:
        self.pauses.append(seconds)
        asyncio.get_running_loop().call_soon(self.mark, key)
