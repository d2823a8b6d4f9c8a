"""Who asks a model for text through the gateway, and what is seen of it.

    gateway → agent → rank 0: ScopePort → ResidentGenerator → all ranks → Generator → PassObserver → taps → frames
                      rank 0: ScopePort ← events of the generation

Requests and controls come to rank 0 alone, which hands them to the others (generate/resident.py). Demands and plans
come to each rank by itself and take effect between two passes, on all ranks at the same one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from megatronapp.core.errors import UsageError
from megatronapp.core.generation import Command, Control, Event, Finished
from megatronapp.core.generation_json import command_from_json, to_json
from megatronapp.core.logging import get_logger

log = get_logger(__name__)

POLL_SECONDS = 0.005
EAGER_SECONDS, EAGER_POLL_SECONDS = 0.5, 0.05
"""After something was heard here, the other ranks soon hear theirs: for so long they are let look so often."""
MAX_EVENT_BYTES = 900 << 10
"""The gateway takes events of 1 MiB."""


class ScopePort:
    """Rank 0's end of the way to whoever asks (core/generation_port.py). For the thread that generates."""

    def __init__(self, say: Callable[[dict[str, Any]], None], listen: Callable[[], bool]) -> None:
        """`listen` looks for what the agent has said, and calls `put`; whether there was anything."""
        self._say = say
        self._listen = listen
        self._commands: deque[Command] = deque()
        self._silenced: set[str] = set()
        """Requests whose events are too large to be told."""
        self._heard_at = -EAGER_SECONDS

    def put(self, generation: Mapping[str, Any]) -> None:
        """Of a `ScopeGeneration`. Raises UsageError for what is no request and no control."""
        text = generation.get("command")
        if not isinstance(text, str):
            raise UsageError("a generation has a command: a request or a control as JSON")
        self._commands.append(command_from_json(text))

    def next_command(self, timeout_seconds: float) -> Command | None:
        """Returns None early when something else was heard: ranks are to come together for it."""
        begin = time.monotonic()
        while True:
            now = time.monotonic()
            if heard := self._listen():
                self._heard_at = now
            if self._commands:
                return self._commands.popleft()
            eager = now - self._heard_at < EAGER_SECONDS
            if heard or now - begin >= (min(timeout_seconds, EAGER_POLL_SECONDS) if eager else timeout_seconds):
                return None
            time.sleep(POLL_SECONDS)

    def emit(self, event: Event) -> None:
        name = event.request
        if name in self._silenced:
            if isinstance(event, Finished):
                self._silenced.discard(name)
            return
        text = to_json(event)
        if len(text) > MAX_EVENT_BYTES:
            log.warning("scope_event_too_large", request=name, bytes=len(text))
            message = f"an event of {len(text)} bytes; at most {MAX_EVENT_BYTES}: ask for fewer prompts, or no logits"
            text = to_json(Finished(request=name, reason="failed", message=message))
            self._silenced.add(name)
            self._commands.append(Control(action="cancel", request=name))
        self._say({"event": {"generation": {"event": text, "request": name}}})
