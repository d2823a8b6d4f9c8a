"""One run as viewers see it: its ranks, its events, who looks at what, and who controls it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from megatronapp.core.errors import DataError, ForbiddenError, UnavailableError
from megatronapp.core.scope.frame import addressed
from megatronapp.core.scope.plan import Plan
from megatronapp.core.scope.wire import site_to_proto
from megatronapp.gateway.metrics import ScopeMetrics
from megatronapp.gateway.scope import commands
from megatronapp.gateway.scope.audit import Audit
from megatronapp.gateway.scope.events import Ring, Source, as_text
from megatronapp.gateway.scope.limits import RefusedError
from megatronapp.gateway.scope.pictures import Pictures
from megatronapp.gateway.scope.producers import Producer
from megatronapp.gateway.scope.streams import Recipient, Watcher
from megatronapp.gateway.scope.structure import Structure
from megatronapp.gateway.scope.viewers import Viewer
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import scope_pb2

REBUILD_AFTER_SECONDS = 0.02
DESCRIBE_AFTER_SECONDS = 0.1
"""Ranks come in crowds."""
MAX_EVENT_BYTES = 1 << 20
"""A generation's first event has the tokens of all its prompts."""
OWN_EVENTS = frozenset({"presence", "audit"})
"""Of the gateway alone."""
HOLD_SECONDS = 5.0
"""For so long at most a command waits for the demands before it. A training's next border may be farther away; there
the ranks keep the order themselves."""
DEFAULT_CREDITS = 2
LEAST_FPS = 0.01
Server = scope_pb2.ScopeServerMessage
EventListener = Callable[[scope_pb2.ScopeEvent], None]
Append = Callable[[scope_pb2.ScopeEvent, Source | None], None]


@dataclass(frozen=True, slots=True)
class Identity:
    run: str
    job: str


@dataclass(frozen=True, slots=True)
class _Held:
    """A command that is not sent before what was asked for before it is in force."""

    producers: tuple[Producer, ...]
    command: scope_pb2.ScopeCommand
    until: float


class Session:
    """For one event loop."""

    def __init__(
        self,
        identity: Identity,
        settings: GatewaySettings,
        metrics: ScopeMetrics,
        audit: Audit,
        ring: Ring | None = None,
        append: Append | None = None,
    ) -> None:
        """`append` puts an event into `ring`; None: at once."""
        self.identity = identity
        self._settings = settings
        self._metrics = metrics
        self._audit = audit
        self.ring = ring or Ring(settings.scope_events)
        self._append = append or self.ring.append
        self.moved = asyncio.Event()
        """Another replica has the run now."""
        self.viewers: dict[str, Viewer] = {}
        self.controller = ""
        """A viewer's id."""
        self.producers: dict[int, Producer] = {}
        self._pictures = Pictures(identity.run, self.producers, settings, metrics, self._alert)
        self._pending: dict[str, commands.Pending] = {}
        self._held: deque[_Held] = deque()
        self._listeners: list[EventListener] = []
        self._describing: asyncio.TimerHandle | None = None
        self._rebuilding: asyncio.TimerHandle | None = None
        self.idle_since = time.monotonic()

    # Ranks

    def attach(self, producer: Producer) -> None:
        """A rank is there; an earlier stream of it ends. Raises ForbiddenError for another job's, DataError for an
        attempt that is over, UnavailableError for too many."""
        identity = producer.identity
        if identity.job != self.identity.job:
            raise ForbiddenError(f"run {identity.run} is of another job than {identity.job}")
        newest = max((each.identity.attempt for each in self.producers.values()), default=0)
        if identity.attempt < newest:
            raise DataError(f"attempt {identity.attempt} is over; attempt {newest} of this run is connected")
        for other in list(self.producers.values()):
            if other.identity.attempt < identity.attempt or other.rank == identity.rank:
                self.detach(other)
                other.close()
        if len(self.producers) >= self._settings.scope_max_ranks:
            raise UnavailableError(f"{len(self.producers)} ranks of this run are connected, the most that are served")
        self.producers[identity.rank] = producer
        self._rebuild_soon()

    def detach(self, producer: Producer) -> None:
        if self.producers.get(producer.rank) is not producer:
            return
        del self.producers[producer.rank]
        left = scope_pb2.ScopeAck(code="failed", hint="its rank has left")
        for command, pending in list(self._pending.items()):
            if producer.rank in pending.asked - pending.answers.keys():
                self._settle(command, pending, producer.rank, left)
        self._rebuild_soon()
        if not self.producers:
            for viewer in self.viewers.values():
                for number in viewer.subscriptions:
                    viewer.stall(number, "no_producer")

    def take_sites(self, producer: Producer, message: scope_pb2.ScopeSites) -> None:
        """Raises DataError."""
        producer.take_sites(message.sites)
        self._rebuild_soon()

    def take_frame(self, producer: Producer, frame: scope_pb2.ScopeFrame) -> None:
        self._pictures.take_frame(producer, frame)

    def received(self, producer: Producer) -> int:
        """Number of the newest event of this rank's incarnation that is here."""
        return self.ring.received(producer.rank, producer.identity.incarnation)

    def take_event(self, producer: Producer, event: scope_pb2.ScopeEvent, number: int = 0) -> None:
        """To everybody, once and in order. Of states only those of the first rank, as they are all alike. `number`: the
        rank's own one, of an event that may have come before."""
        if number and number <= self.received(producer):
            return
        kind = event.WhichOneof("body")
        if kind is None or kind in OWN_EVENTS or event.ByteSize() > MAX_EVENT_BYTES:
            self._metrics.refused_events.inc()
            return
        if kind == "state":
            producer.state.CopyFrom(event.state)
            if producer.rank != min(self.producers):
                return
        if kind == "alert":
            self._pictures.take_alert(producer.rank, event.alert)
        self.publish(event, Source(producer.rank, producer.identity.incarnation, number))

    def take_ack(self, producer: Producer, ack: scope_pb2.ScopeAck) -> None:
        pending = self._pending.get(ack.command)
        if pending is not None and producer.rank in pending.asked:
            self._settle(ack.command, pending, producer.rank, ack)

    def take_in_force(self, producer: Producer, revision: int) -> None:
        producer.take_in_force(revision)
        self._send_held(time.monotonic())

    def sweep(self, now: float) -> None:
        """What waits too long goes out as it is; commands that nobody answers fail."""
        self._send_held(now)
        self._pictures.send_overdue(now)
        for number, pending in list(self._pending.items()):
            if pending.until < now:
                self._finish(number, pending)
        if self.producers or self.viewers:
            self.idle_since = now

    def close(self) -> None:
        """Send ranks and viewers away: the run is another replica's."""
        for producer in self.producers.values():
            producer.close()
        self.moved.set()

    # Viewers

    def join(self, viewer: Viewer) -> None:
        self.viewers[viewer.id] = viewer
        viewer.send(Server(description=self._description()))
        self._presence(viewer, "joined")

    def leave(self, viewer: Viewer) -> None:
        for number in list(viewer.subscriptions):
            self._drop(viewer, number)
        self.viewers.pop(viewer.id, None)
        if self.controller == viewer.id:
            self.controller = ""
        self._presence(viewer, "left")
        self._pictures.update()

    def subscribe(self, viewer: Viewer, asked: scope_pb2.ScopeSubscribe) -> Plan:
        """What it will see. Raises RefusedError."""
        if asked.id < 1:
            raise RefusedError("invalid", "a subscription's id counts from 1")
        if asked.id not in viewer.subscriptions and len(viewer.subscriptions) >= self._settings.scope_max_subscriptions:
            raise RefusedError("too_many", f"{len(viewer.subscriptions)} subscriptions are the most of one viewer")
        stream, planned = self._pictures.stream(asked)
        self._drop(viewer, asked.id)
        most = self._settings.scope_max_fps
        max_fps = max(min(asked.max_fps or most, most), LEAST_FPS)
        viewer.subscriptions[asked.id] = stream
        viewer.asked[asked.id] = asked
        viewer.slots.open(asked.id, asked.credits or DEFAULT_CREDITS, max_fps)
        viewer.send(Server(subscribed=self._pictures.subscribed(asked.id, stream, planned)))
        recipient = Recipient(viewer.slots, max_fps, partial(viewer.stall, asked.id))
        self._pictures.add(stream, Watcher(viewer.id, asked.id), recipient)
        self._pictures.update()
        return planned

    def shown(self, viewer: Viewer) -> tuple[list[scope_pb2.ScopeSubscribe], list[str | bytes]]:
        """What a viewer looks at, and all that somebody who comes now is sent: texts and the newest frames."""
        asked: list[scope_pb2.ScopeSubscribe] = []
        sent: list[str | bytes] = [as_text(Server(description=self._description())), *self.ring.kept()]
        for number, stream in viewer.subscriptions.items():
            subscribe = viewer.asked[number]
            asked.append(subscribe)
            with suppress(RefusedError):
                again, planned = self._pictures.stream(subscribe)
                sent.append(as_text(Server(subscribed=self._pictures.subscribed(number, again, planned))))
            sent.extend(addressed(frame, number, 0) for frame in stream.latest.values())
        return asked, sent

    def unsubscribe(self, viewer: Viewer, number: int) -> None:
        self._drop(viewer, number)
        viewer.slots.close(number)
        self._pictures.update()

    def control(self, viewer: Viewer, do: str) -> None:
        """Raises RefusedError."""
        if do == "release":
            if self.controller == viewer.id:
                self.controller = ""
                self._presence(viewer, "released")
            return
        if do != "request":
            raise RefusedError("invalid", "the control is requested or released")
        if not viewer.operates:
            raise RefusedError("forbidden", "the control needs the operator role", "sign in with an operator's token")
        if self.controller not in ("", viewer.id):
            raise RefusedError("not_controller", "somebody else controls this run", "wait until it is released")
        if self.controller != viewer.id:
            self.controller = viewer.id
            self._presence(viewer, "controls")

    def command(self, viewer: Viewer, command: scope_pb2.ScopeCommand) -> None:
        """Of whoever controls; where nobody does, an operator's command takes the control. Raises RefusedError."""
        action = commands.check(command, operates=viewer.operates)
        self.control(viewer, "request")
        self.dispatch(viewer.id, viewer.admission.name, action, command)

    def dispatch(
        self,
        viewer: str,
        by: str,
        action: str,
        command: scope_pb2.ScopeCommand,
        on_result: commands.OnResult | None = None,
    ) -> None:
        """To the ranks that can do it; what came of it goes to the viewer and to `on_result`. Raises RefusedError."""
        able = commands.able(action, self.producers.values())
        if len(self._pending) >= commands.MAX_PENDING:
            raise RefusedError("too_many", "too many commands are on their way")
        number = f"{viewer}:{command.id}"
        if number in self._pending:
            raise RefusedError("invalid", f"a command {command.id} is on its way already")
        sent = scope_pb2.ScopeCommand()
        sent.CopyFrom(command)
        sent.id, sent.by = number, by
        now = time.monotonic()
        if self._held or (commands.goes_on(action, command) and not self._settled):
            self._held.append(_Held(tuple(able), sent, now + HOLD_SECONDS))
        else:
            self._send(able, sent)
        asked = frozenset(producer.rank for producer in able)
        until = now + commands.TIMEOUT_SECONDS
        self._pending[number] = commands.Pending(viewer, command.id, action, by, asked, until, on_result)
        self.publish(scope_pb2.ScopeEvent(audit=self._audit.record(self.identity.run, by, action, sent)))

    @property
    def structure(self) -> Structure:
        """The model that its ranks are together."""
        return self._pictures.structure

    @property
    def generates(self) -> bool:
        """Whether ranks that can generate are connected."""
        return any("generate" in producer.roles for producer in self.producers.values())

    def listen(self, listener: EventListener) -> Callable[[], None]:
        """Hear all events until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def publish(self, event: scope_pb2.ScopeEvent, source: Source | None = None) -> None:
        if not event.unix_ns:
            event.unix_ns = time.time_ns()
        self._append(event, source)
        for listener in list(self._listeners):
            listener(event)

    # Inside

    def _alert(self, alert: scope_pb2.ScopeAlert) -> None:
        """Of what no rank can see by itself."""
        self.publish(scope_pb2.ScopeEvent(alert=alert))

    def _drop(self, viewer: Viewer, number: int) -> None:
        stream = viewer.subscriptions.pop(number, None)
        viewer.asked.pop(number, None)
        if stream is None:
            return
        self._pictures.remove(stream, Watcher(viewer.id, number))

    def _rebuild_soon(self) -> None:
        """Ranks or their sites have changed."""
        self._pictures.structure.changed()
        if self._rebuilding is None:
            self._rebuilding = asyncio.get_running_loop().call_later(REBUILD_AFTER_SECONDS, self._rebuild)
        if self._describing is None:
            self._describing = asyncio.get_running_loop().call_later(DESCRIBE_AFTER_SECONDS, self._describe)

    def _rebuild(self) -> None:
        self._rebuilding = None
        self._pictures.rebuild()

    @property
    def _settled(self) -> bool:
        """Whether all ranks show what they were asked for."""
        return all(producer.settled for producer in self.producers.values())

    def _send_held(self, now: float) -> None:
        while self._held and (self._settled or self._held[0].until < now):
            held = self._held.popleft()
            with suppress(RefusedError):  # its answer does not come, and is not waited for for ever
                self._send(held.producers, held.command)

    def _send(self, producers: Sequence[Producer], command: scope_pb2.ScopeCommand) -> None:
        """Raises RefusedError."""
        for producer in producers:
            try:
                producer.command(command)
            except UnavailableError as error:
                raise RefusedError("no_producer", str(error)) from error

    def _settle(self, number: str, pending: commands.Pending, rank: int, ack: scope_pb2.ScopeAck) -> None:
        pending.answers.setdefault(rank, ack)
        if pending.done:
            self._finish(number, pending)

    def _finish(self, number: str, pending: commands.Pending) -> None:
        self._pending.pop(number, None)
        result = pending.result()
        viewer = self.viewers.get(pending.viewer)
        if viewer is not None:
            viewer.send(Server(result=result))
        if pending.on_result is not None:
            pending.on_result(result)
        self._audit.settle(self.identity.run, number, pending.by, pending.action, result)

    def _presence(self, viewer: Viewer, what: str) -> None:
        presence = scope_pb2.ScopePresence(
            viewer=viewer.id, what=what, viewers=len(self.viewers), role=viewer.admission.role.value
        )
        self.publish(scope_pb2.ScopeEvent(presence=presence))

    def _describe(self) -> None:
        self._describing = None
        for viewer in self.viewers.values():
            viewer.send(Server(description=self._description()))

    def _description(self) -> scope_pb2.ScopeDescription:
        structure = self._pictures.structure
        described = scope_pb2.ScopeDescription(
            run=self.identity.run,
            job=self.identity.job,
            model=structure.model,
            sizes=structure.sizes,
            sites=[site_to_proto(site) for site in structure.sites()],
            roles=structure.roles,
            ranks=sorted(self.producers),
            controller=self.controller,
        )
        if self.producers:
            first = self.producers[min(self.producers)]
            described.attempt = first.identity.attempt
            described.state.CopyFrom(first.state)
            world = min(structure.sizes.world, self._settings.scope_max_ranks)
            described.missing_ranks.extend(rank for rank in range(world) if rank not in self.producers)
        return described
