"""Who asks a model for text through the gateway, and what is seen of it.

    gateway → agent → rank 0: ScopePort → ResidentGenerator → all ranks → Generator → PassObserver → taps → frames
                      rank 0: ScopePort ← events of the generation

Requests and controls come to rank 0 alone, which hands them to the others (generate/resident.py). Demands and plans
come to each rank by itself and take effect between two passes, on all ranks at the same one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from megatronapp.core.errors import DataError, UsageError
from megatronapp.core.generation import Command, Control, Event, Finished
from megatronapp.core.logging import get_logger
from megatronapp.trainer.plugins.base import PluginContext
from megatronapp.trainer.plugins.generating import Between, PassObserver, Resident, TextGenerator

log = get_logger(__name__)

POLL_SECONDS = 0.005
EAGER_SECONDS, EAGER_POLL_SECONDS = 0.5, 0.05
"""After something was heard here, the other ranks soon hear theirs: for so long they are let look so often."""
MAX_EVENT_BYTES = 900 << 10
"""The gateway takes events of 1 MiB."""
MOST_SECONDS = 120.0
"""Of one border: for so long a training stands for those who ask it for text."""


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
        from megatronapp.core.generation_json import command_from_json  # pydantic: not in a rank that nobody asks

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
        from megatronapp.core.generation_json import to_json

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


class Text:
    """What a rank has to do with text. Of a checkpoint that is served the server has the generator; a training makes it
    when it is first asked, at a border of all ranks."""

    def __init__(
        self, context: PluginContext, say: Callable[[dict[str, Any]], None], listen: Callable[[], bool]
    ) -> None:
        self._context = context
        self._first = context.identity.rank == 0
        self._generator: TextGenerator | None = None
        self._resident: Resident | None = None
        self.port = ScopePort(say, listen)
        self.asked = False
        """A training is to come to it at its border."""
        self.requests = 0
        """Requests and controls that this rank has heard of."""

    @property
    def possible(self) -> bool:
        """Ranks that do but a part of a layer's work, or of a sequence, can't."""
        context = self._context
        able = context.serving or context.make_resident is not None
        return able and not context.placement.role and context.placement.sizes.context == 1

    @property
    def here(self) -> bool:
        """Whether this rank is asked."""
        return self._first and self.possible

    def put(self, generation: Mapping[str, Any]) -> None:
        """Raises DataError for what is no request and no control."""
        try:
            self.port.put(generation)
        except UsageError as error:
            raise DataError(str(error)) from error
        self.requests += 1

    def use(self, generator: TextGenerator, observer: PassObserver) -> None:
        generator.observe(observer)
        self._generator = generator

    def generate(self, chunks: Sequence[torch.nn.Module], config: Any, plugin: Watching) -> None:
        """At a border of a training: what waits, to its end. The training is as it was before."""
        context = self._context
        if self._resident is None:
            assert context.make_resident is not None  # noqa: S101
            self._resident = context.make_resident(chunks, config, self.port if self._first else None, plugin)
            self.use(self._resident.generator, plugin)
        with self._resident.generator.ready():
            self._resident.serve_pending(MOST_SECONDS, context.stopping)

    def forget(self) -> None:
        """What was computed is another model's than from now on."""
        if self._generator is not None:
            self._generator.forget()


class Watching(PassObserver, Between, Protocol):
    """Who looks at passes, and acts between them."""
