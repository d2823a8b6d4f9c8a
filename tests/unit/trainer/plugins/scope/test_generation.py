"""Rank 0's port: commands in, events out, and nobody waits in vain."""

from __future__ import annotations

import json
from typing import Any

import pytest

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Control, Finished, GenerationRequest, Started, Stepped, Token
from megatronapp.trainer.plugins.scope.generation import MAX_EVENT_BYTES, ScopePort


class Rank:
    """`hears` are what the agent says at each look, one after the other."""

    def __init__(self, *hears: dict[str, Any] | None) -> None:
        self.said: list[dict[str, Any]] = []
        self.hears = list(hears)
        self.port = ScopePort(self.said.append, self._listen)

    def _listen(self) -> bool:
        heard = self.hears.pop(0) if self.hears else None
        if heard is not None and "command" in heard:
            self.port.put(heard)
        return heard is not None

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(each["event"]["generation"]["event"]) for each in self.said]


def test_a_request_is_waited_for_and_handed_in() -> None:
    rank = Rank(None, None, {"command": '{"prompts": ["a"], "id": "r"}'})

    assert rank.port.next_command(20.0) == GenerationRequest(prompts=("a",), id="r")
    assert rank.port.next_command(0.0) is None


def test_what_else_is_heard_ends_the_wait() -> None:
    assert Rank(None, {"demand": {}}).port.next_command(1e6) is None


@pytest.mark.parametrize("generation", [{}, {"command": 3}, {"command": "{"}, {"command": '{"type": "explode"}'}])
def test_what_is_no_request_is_refused(generation: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Rank().port.put(generation)


def test_a_request_whose_events_are_too_large_to_be_told_fails_and_is_cancelled() -> None:
    rank = Rank()
    long = Token(row=0, position=0, id=1, text="a" * MAX_EVENT_BYTES, origin="prompt")
    rank.port.emit(Started(request="r", rows=((long,),)))
    rank.port.emit(Stepped(request="r", step=1, tokens=()))
    rank.port.emit(Stepped(request="other", step=1, tokens=()))
    cancel = rank.port.next_command(0.0)
    rank.port.emit(Finished(request="r", reason="cancelled"))
    rank.port.emit(Started(request="r", rows=()))

    assert [(event["type"], event["request"]) for event in rank.events()] == [
        ("finished", "r"),
        ("stepped", "other"),
        ("started", "r"),
    ]
    assert rank.events()[0]["reason"] == "failed"
    assert "fewer prompts" in rank.events()[0]["message"]
    assert cancel == Control(action="cancel", request="r")
