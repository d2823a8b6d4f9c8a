"""What a rank tells of itself, through its agent: states, answers to commands, what it can be asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from megatronapp.core.trace.values import Phase
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.scope.commands import Document


class Teller:
    """For the training thread. What nobody listens to is lost."""

    def __init__(self, context: PluginContext, state_document: Callable[[], Document]) -> None:
        """`state_document`: a `ScopeState` but for its `state`."""
        self._context = context
        self._state_document = state_document
        self.state = "idle" if context.serving else "training"

    def say(self, value: Document) -> None:
        line = self._context.channel.line
        if line is not None:
            line.say("scope", value)

    def mark_step(self) -> None:
        """This step is watched or disturbed: nobody is to judge how long it takes."""
        line = self._context.channel.line
        if line is not None:
            line.mark_step(Phase.WATCHED)

    def acknowledge(self, command: Mapping[str, Any], code: str, hint: str, step: int) -> None:
        """`step`: from which on it holds."""
        identifier = str(command.get("id", ""))
        self.say({"ack": {"command": identifier, "code": code, "hint": hint, "effective_step": step}})

    def report_state(self, state: str) -> None:
        """By rank 0, for all: they are in it together."""
        if state != self.state:
            self.state = state
            if self._context.identity.rank == 0:
                self.say({"event": {"state": self.described_state()}})

    def described_state(self) -> Document:
        return {"state": self.state, **self._state_document()}
