"""A port whose commands are written down beforehand, round by round."""

from __future__ import annotations

from collections.abc import Sequence

from megatronapp.core.generation import Command, Event
from megatronapp.core.generation_port import PortClosedError


class ScriptedPort:
    """Hands out the commands of one round, then None; closed after the last round."""

    def __init__(self, rounds: Sequence[Sequence[Command]]) -> None:
        self._items: list[Command | None] = [item for commands in rounds for item in (*commands, None)]
        self.events: list[Event] = []

    def next_command(self, timeout_seconds: float) -> Command | None:
        if not self._items:
            raise PortClosedError
        return self._items.pop(0)

    def emit(self, event: Event) -> None:
        self.events.append(event)
