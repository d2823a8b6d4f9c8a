"""What a rank hears from its agent: all ranks are told of it, and its own demands wait for the border that follows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from megatronapp.core.errors import DataError
from megatronapp.core.logging import get_logger
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.scope.commands import Agreement, Document
from megatronapp.trainer.plugins.scope.generation import Text
from megatronapp.trainer.plugins.scope.lens import lens_documents
from megatronapp.trainer.plugins.scope.step_clock import StepClock

log = get_logger(__name__)

Acknowledge = Callable[[Mapping[str, Any], str, str], None]
"""Of a command, with the code and the hint of its acknowledgement."""


class Listener:
    """For the training thread."""

    def __init__(
        self, context: PluginContext, agreement: Agreement, clock: StepClock, text: Text, acknowledge: Acknowledge
    ) -> None:
        self._context = context
        self._rank = context.identity.rank
        self._agreement = agreement
        self._clock = clock
        self._text = text
        self._acknowledge = acknowledge
        self._demand: Document | None = None
        self._lens_asked: list[Any] = []
        """Of this rank; what it has told the others."""
        self.tells_lens = False
        """The lens needs all stages: what the last one is asked for all must know."""

    def listen(self) -> bool:
        """What the agent has said goes to all ranks. Whether there was anything."""
        line = self._context.channel.line
        heard = False
        for key, value in line.received() if line is not None else ():
            if key != "scope" or not isinstance(value, dict):
                continue
            heard = True
            try:
                self.publish(value)
            except DataError as error:
                log.warning("scope_command_refused", reason=str(error))
                if isinstance(command := value.get("command"), dict):
                    self._acknowledge(command, "invalid", str(error))
        return heard

    def take_demand(self) -> Document | None:
        """The newest of this rank's, once."""
        demand, self._demand = self._demand, None
        return demand

    def publish(self, value: Document) -> None:
        command = value.get("command")
        if isinstance(command, dict) and isinstance(generation := command.get("generation"), dict):
            self._ask(command, generation)
        elif isinstance(command, dict):
            self._agreement.publish(f"command/{command.get('id', '')}", {"command": command})
        elif isinstance(demand := value.get("demand"), dict):
            self._demand = demand
            self._publish_demand(demand)

    def _publish_demand(self, demand: Document) -> None:
        asked = lens_documents(demand) if self.tells_lens else []
        lens, self._lens_asked = (asked if asked != self._lens_asked else None), asked
        digest = hashlib.blake2s(json.dumps(lens).encode(), digest_size=8).hexdigest()
        document = {"lens": lens, "step_seconds": self._clock.mean_seconds}
        # The agent's own, of a gateway that is gone, has no number, and is to be done each time.
        revision = demand.get("revision") or f"{self._rank}.{self._clock.step}"
        self._agreement.publish(f"demand/{revision}/{digest}", document)

    def _ask(self, command: Mapping[str, Any], generation: Mapping[str, Any]) -> None:
        """For text, on rank 0; a training comes to a border for it."""
        if not self._text.here:
            self._acknowledge(command, "unsupported", "this rank is not asked for text")
            return
        self._text.put(generation)
        self._acknowledge(command, "", "")
        if not self._context.serving:
            self._agreement.publish(f"text/{self._text.requests}", {"text": self._text.requests})
