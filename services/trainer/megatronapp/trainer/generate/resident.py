"""A generator that stays: requests come in on rank 0, all ranks work on them, and their events go out on rank 0.

Who asks is behind a Port (core/generation_port.py), which a plug-in or a server gives to rank 0; this module knows no
transport:

    resident = ResidentGenerator(generator, port if rank == 0 else None)     # on all ranks
    with generator.ready():
        resident.serve(stopping)             # until the port is closed or `stopping()` says so
        resident.serve_pending(seconds)      # or, at a border of a training run: what waits now, for so long at most

Before each step rank 0 hands what came in to all ranks, as JSON, and all apply it: so every rank steps the same
request. What else all ranks are to do at the same place, between two forward passes, is behind a Between. Up to LIVE
requests take turns, step by step; others wait. While nothing can be stepped, rank 0 says so every second, so that no
other rank waits in vain. What a model does not take is refused on all ranks alike, before anything is computed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.generation import Command, Control, Event, Finished, GenerationRequest, RequestEnd, StateChanged
from megatronapp.core.generation_json import command_from_json, to_json
from megatronapp.core.generation_port import Port, PortClosedError
from megatronapp.trainer.generate.generator import LIVE, AnySession, Generator
from megatronapp.trainer.plugins.generating import Between

WAITING = 64
"""Requests that wait for theirs; one more is refused."""
BEAT_SECONDS = 1.0
COMMANDS_PER_STEP = 256
_STOP, _HOLD = "stop", "hold"


@dataclass
class _Live:
    session: AnySession
    running: bool
    steps: int = 0
    """That it may take although it is paused."""

    @property
    def can_step(self) -> bool:
        return self.running or self.steps > 0


class ResidentGenerator:
    def __init__(self, generator: Generator, port: Port | None, between: Between | None = None) -> None:
        """`port` on rank 0, and there alone."""
        self.generator = generator
        self._port = port
        self._between = between
        self._live: dict[str, _Live] = {}
        """In the order of their turns."""
        self._waiting: deque[GenerationRequest] = deque()
        self._closed = False

    def serve(self, stopping: Callable[[], bool] = lambda: False) -> None:
        """Until the port is closed and all is answered, or `stopping()`, which every rank asks in each round, is true
        on rank 0: what is under way is cancelled then. All ranks call it together, inside of `generator.ready()`."""
        self._run(lambda quiet: stopping() or (self._closed and quiet), block=True)

    def serve_pending(self, most_seconds: float, stopping: Callable[[], bool] = lambda: False) -> None:
        """What waits in the port and what it brings; after `most_seconds`, or when rank 0 is `stopping()`, the rest is
        cancelled, also what is paused. For a border of a training run; what was computed is forgotten at its end, as
        weights change."""
        end = time.monotonic() + most_seconds
        self._run(lambda quiet: quiet or stopping() or time.monotonic() >= end, block=False)
        self.generator.forget()

    # ---- the loop

    @property
    def _busy(self) -> bool:
        return bool(self._live or self._waiting)

    def _run(self, is_over: Callable[[bool], bool], *, block: bool) -> None:
        """`is_over` gets whether nothing came in and nothing is under way; rank 0's answer counts."""
        try:
            while self._round(is_over, block=block):
                pass
        except BaseException as error:
            self._give_up(f"the model's ranks ended: {error}"[:300])
            raise

    def _round(self, is_over: Callable[[bool], bool], *, block: bool) -> bool:
        """Take what came in and make one step. Returns whether another round follows."""
        lines = list(self._received(block=block)) if self._port is not None else []
        over = is_over(not lines and not self._busy)
        if self._between is not None and self._between.due():
            lines.insert(0, _HOLD)
        if over:
            lines.append(_STOP)
        said = self.generator.ranks.from_first("\n".join(lines))
        for line in said.splitlines():
            if line == _STOP:
                self._cancel_all()
                return False
            if line == _HOLD:
                if self._between is not None:
                    self._between.hold()
            else:
                self._apply(command_from_json(line))
        self._admit()
        self._step()
        return True

    def _received(self, *, block: bool) -> Iterator[str]:
        """Rank 0's commands as lines. It waits only while there is nothing to step."""
        assert self._port is not None  # noqa: S101
        idle = not self._waiting and not any(live.can_step for live in self._live.values())
        wait = BEAT_SECONDS if idle and (block or self._busy) else 0.0
        for _ in range(COMMANDS_PER_STEP):
            try:
                command = self._port.next_command(wait)
            except PortClosedError:
                self._closed = True
                return
            if command is None:
                return
            yield to_json(command)
            wait = 0.0

    def _apply(self, command: Command) -> None:
        if isinstance(command, Control):
            self._control(command)
        elif not command.id or command.id in self._live or any(each.id == command.id for each in self._waiting):
            message = f"a request needs an id that no other one has, not {command.id[:80]!r}"
            self._emit([Finished(request="", reason="refused", message=message)])  # the id is another one's
        elif len(self._waiting) >= WAITING:
            self._refuse(command, f"{WAITING} requests wait already; ask again later")
        else:
            self._waiting.append(command)
            if len(self._live) + len(self._waiting) > LIVE:
                self._emit([StateChanged(request=command.id, state="waiting")])

    def _control(self, control: Control) -> None:
        live = self._live.get(control.request)
        if control.action == "cancel":
            self._cancel(control.request)
        elif live is None:
            return
        elif control.action == "step":
            live.running, live.steps = False, live.steps + control.steps
        else:
            live.running, live.steps = control.action == "resume", 0
            self._emit([StateChanged(request=control.request, state="running" if live.running else "paused")])

    def _admit(self) -> None:
        while self._waiting and len(self._live) < LIVE:
            request = self._waiting.popleft()
            try:
                session = self.generator.session(request)
            except MegatronAppError as error:
                self._refuse(request, str(error))
                continue
            self._live[request.id] = _Live(session, running=not request.paused)
            self._emit(session.start())
            if request.paused:
                self._emit([StateChanged(request=request.id, state="paused")])

    def _step(self) -> None:
        """Of the request whose turn it is."""
        name = next((name for name, live in self._live.items() if live.can_step), None)
        if name is None:
            return
        live = self._live.pop(name)
        try:
            events = live.session.step() if not live.session.done else []
        except MegatronAppError as error:
            self.generator.forget()
            self._end(name, "failed", str(error))
            return
        self._emit(events)
        live.steps = max(0, live.steps - 1)
        if live.session.done:
            self._end(name, "done")
        else:
            self._live[name] = live

    # ---- ends

    def _cancel(self, name: str) -> None:
        if (live := self._live.pop(name, None)) is not None:
            self._emit(live.session.cancel())
            self._end(name, "cancelled")
        elif any(request.id == name for request in self._waiting):
            self._waiting = deque(request for request in self._waiting if request.id != name)
            self._emit([Finished(request=name, reason="cancelled")])

    def _cancel_all(self) -> None:
        for name in [*self._live, *(request.id for request in self._waiting)]:
            self._cancel(name)

    def _refuse(self, request: GenerationRequest, message: str) -> None:
        self._end(request.id, "refused", message)

    def _end(self, name: str, reason: RequestEnd, message: str = "") -> None:
        """On all ranks; of a request whose id no other one has."""
        self.generator.ended(name)
        self._emit([Finished(request=name, reason=reason, message=message)])

    def _give_up(self, message: str) -> None:
        names = [*self._live, *(request.id for request in self._waiting)]
        self._emit(Finished(request=name, reason="failed", message=message) for name in names)

    def _emit(self, events: Iterable[Event]) -> None:
        if self._port is not None:
            for event in events:
                self._port.emit(event)
