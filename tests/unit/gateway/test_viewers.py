"""Mailboxes: nothing of a finding is lost, newer replaces older, and they stay small."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import State
from megatronapp.gateway.models import FindingEvent, StepEvent, StepRow
from megatronapp.gateway.viewers import MAX_WAITING_STEPS, Mailbox, Viewers
from tests.integration.gateway.support import finding

ROW = StepRow(
    step=0,
    unix_seconds=0,
    step_seconds=None,
    loss=None,
    learning_rate=None,
    grad_norm=None,
    tokens_per_second=None,
    tflops_per_gpu=None,
)


async def drain(mailbox: Mailbox) -> list[str]:
    return [await mailbox.take() for _ in range(len(mailbox))]


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400), st.integers()), max_size=600))
def test_all_that_may_not_be_dropped_arrives_in_its_newest_state(puts: list[tuple[bool, int, int]]) -> None:
    mailbox = Mailbox()
    for droppable, key, value in puts:
        mailbox.put((droppable, key), f"{droppable} {key} {value}", droppable=droppable)

    texts = asyncio.run(drain(mailbox))

    newest = {(droppable, key): f"{droppable} {key} {value}" for droppable, key, value in puts}
    kept = {text for key, text in newest.items() if not key[0]}
    dropped = {text for key, text in newest.items() if key[0]}
    assert kept <= set(texts) <= kept | dropped
    assert len(texts) == len(set(texts))
    assert len(texts) - len(kept) == min(len(dropped), MAX_WAITING_STEPS)


async def test_what_waited_longest_goes_first() -> None:
    mailbox = Mailbox()
    for key in "abc":
        mailbox.put(key, key, droppable=False)

    assert await drain(mailbox) == ["a", "b", "c"]


async def test_taking_waits_for_something() -> None:
    mailbox = Mailbox()
    taking = asyncio.create_task(mailbox.take())
    await asyncio.sleep(0)
    assert not taking.done()

    mailbox.put("a", "news", droppable=False)

    assert await taking == "news"


async def test_events_are_written_once_for_all_viewers() -> None:
    viewers = Viewers(max_viewers=2)

    with viewers.join() as one, viewers.join() as two:
        viewers.publish(FindingEvent(finding=finding(1)))
        viewers.publish(StepEvent(run="r", row=ROW))
        viewers.publish(FindingEvent(finding=finding(1, state=State.RESOLVED)))
        seen = [await drain(one), await drain(two)]

    assert seen[0] == seen[1]
    assert '"resolved"' in seen[0][1]
    assert len(viewers) == 0


def test_only_so_many_viewers_may_join() -> None:
    viewers = Viewers(max_viewers=1)

    with viewers.join(), pytest.raises(UnavailableError, match="most that are served"), viewers.join():
        pass
