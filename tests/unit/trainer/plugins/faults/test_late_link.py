"""The late link of a transport that can't hold one message back."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest
import torch

from megatronapp.core.trace.message_id import Direction, MessageId
from megatronapp.trainer.pipeline.port import Message, PipelineMessages
from megatronapp.trainer.plugins.faults.waits import LateLink

SECONDS = 0.05


def message(*, sends: bool) -> Message:
    return Message(step=1, peer=1, sends=sends, id=MessageId(Direction.FORWARD, 0), bytes=4)


@pytest.mark.parametrize(("sends", "late"), [((True,), True), ((False, True), True), ((False,), False)])
def test_only_an_exchange_in_which_something_leaves_the_rank_waits(sends: tuple[bool, ...], late: bool) -> None:
    pipeline = PipelineMessages(cast(Any, object()), cast(Any, None), cast(Any, None))
    link = LateLink(torch.device("cpu"), pipeline)
    link.seconds = SECONDS

    began = time.perf_counter()
    for observer in pipeline.observers:
        observer.posting([message(sends=each) for each in sends])

    assert (time.perf_counter() - began >= SECONDS) is late


def test_a_closed_one_watches_no_more() -> None:
    pipeline = PipelineMessages(cast(Any, object()), cast(Any, None), cast(Any, None))
    link = LateLink(torch.device("cpu"), pipeline)

    link.close()

    assert pipeline.observers == []
