"""One viewer's WebSocket: messages in, and what waits for the viewer out. A stalled one stops its own sender alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from google.protobuf import json_format
from grpc import aio
from starlette.websockets import WebSocketDisconnect

from megatronapp.core.errors import DataError, MegatronAppError, NotFoundError, UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.gateway.scope.events import as_text
from megatronapp.gateway.scope.limits import Close, ClosedError, Rate, RefusedError, limits_message
from megatronapp.gateway.scope.recordings import Header, Recorder, Replay
from megatronapp.gateway.scope.relay import END, Call, RelayedSocket, first_of, watching
from megatronapp.gateway.scope.replicas import ElsewhereError, Place
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.scope.sessions import Session
from megatronapp.gateway.scope.viewers import Viewer, ViewerBehindError
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import scope_pb2

log = get_logger(__name__)

CLOSE_SECONDS = 1.0
RETRY_MILLISECONDS = 1000
JOIN_SECONDS = 10.0
Server = scope_pb2.ScopeServerMessage


class Socket(Protocol):
    """A viewer's WebSocket: starlette's, or one that another replica holds."""

    async def receive(self) -> Any: ...

    async def send(self, message: Any) -> None: ...

    async def close(self, code: int, reason: str) -> None: ...


class Connection:
    def __init__(self, socket: Socket, viewer: Viewer, scope: Scope, settings: GatewaySettings) -> None:
        self._socket = socket
        self._viewer = viewer
        self._scope = scope
        self._settings = settings
        self._rate = Rate(settings.scope_max_messages_per_second)
        self._sending = asyncio.Lock()
        self._offset = 0
        """Of the last event that was sent."""
        self._recorder: Recorder | None = None

    async def serve(self) -> None:
        """Until the viewer leaves, or the gateway ends it; the socket is closed with a code that says why."""
        code, reason = 1000, ""
        try:
            text, join = await self._first()
            try:
                await (self._replay(join.recording) if join.recording else self._watch(join))
            except ElsewhereError as elsewhere:
                await self._pass_on(elsewhere.place, text)
        except ClosedError as error:
            code, reason = error.code, error.reason
        except (TimeoutError, ViewerBehindError):
            code, reason = Close.TRY_AGAIN, "too slow; connect again"
        except WebSocketDisconnect:
            return
        self._scope.metrics.closed.labels(str(int(code))).inc()
        log.info("scope_viewer_closed", viewer=self._viewer.id, code=int(code), reason=reason)
        with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.close(int(code), reason[:100])

    async def _first(self) -> tuple[str, scope_pb2.ScopeJoin]:
        """The first message says whose model. Raises ClosedError."""
        try:
            async with asyncio.timeout(JOIN_SECONDS):
                text = await self._receive_text()
        except TimeoutError as error:
            raise ClosedError(Close.IDLE, "no join came") from error
        message = _parsed(text)
        if not message.HasField("join"):
            raise ClosedError(Close.BAD_MESSAGE, "the first message is a join")
        return text, message.join

    async def _watch(self, join: scope_pb2.ScopeJoin) -> None:
        """Raises ElsewhereError for a run of another replica."""
        session = await self._join(join)
        try:
            await self._run(session, self._send_events(session), _moved(session))
        finally:
            session.leave(self._viewer)
            if self._recorder is not None:
                await asyncio.shield(self._recorder.finish())

    async def _pass_on(self, place: Place, join: str) -> None:
        """The WebSocket to the replica that has the run, until it ends. Raises ClosedError."""
        replicas = self._scope.replicas
        if replicas is None or isinstance(self._socket, RelayedSocket):
            raise ClosedError(Close.TRY_AGAIN, "the run changes hands just now; connect again")
        try:
            async with watching(replicas, place, self._viewer.admission) as call:
                await call.write(scope_pb2.ScopeRelayUp(text=join).SerializeToString())
                await first_of(self._pass_up(call), self._pass_down(call), self._drained())
        except aio.AioRpcError as error:
            log.warning("scope_replica_lost", place=str(place), code=str(error.code()), reason=error.details())
            raise ClosedError(Close.TRY_AGAIN, "the replica that has this run is gone; connect again") from error

    async def _pass_up(self, call: Call) -> None:
        while True:
            text = await self._receive_text()
            await call.write(scope_pb2.ScopeRelayUp(text=text).SerializeToString())

    async def _pass_down(self, call: Call) -> None:
        """Raises ClosedError with what the owner says of the end."""
        while (data := await call.read()) is not END:
            down = scope_pb2.ScopeRelayDown.FromString(data)
            if down.HasField("close"):
                raise ClosedError(down.close.code, down.close.reason)
            await self._send(down.text if down.HasField("text") else down.frame)
        raise ClosedError(Close.TRY_AGAIN, "the replica that has this run is gone; connect again")

    async def _replay(self, recording: str) -> None:
        recordings = self._scope.recordings
        try:
            index = await asyncio.to_thread(recordings.index, recording)
            file = await asyncio.to_thread(recordings.path(recording).open, "rb")
        except (DataError, NotFoundError, OSError) as error:
            raise ClosedError(Close.BAD_MESSAGE, str(error)) from error
        replay = Replay(self._viewer, index, file, self._settings.scope_max_subscriptions)
        try:
            await self._run(replay, replay.run(self._send))
        finally:
            replay.close()

    async def _join(self, join: scope_pb2.ScopeJoin) -> Session:
        """Raises ClosedError, ElsewhereError."""
        try:
            session = await self._scope.session(join.run)
        except (NotFoundError, UnavailableError) as error:
            # Who was there before comes back to a gateway that has just begun: the ranks will come, too.
            code = Close.TRY_AGAIN if join.HasField("resume") else Close.BAD_MESSAGE
            raise ClosedError(code, str(error)) from error
        ring = session.ring
        resumes = join.HasField("resume")
        kept = resumes and ring.keeps(join.resume.epoch, join.resume.offset)
        # After a gap whatever is there is told.
        self._offset = join.resume.offset if kept else ring.oldest if resumes else ring.offset
        viewer = self._viewer
        viewer.send(
            Server(
                welcome=scope_pb2.ScopeWelcome(
                    viewer=viewer.id,
                    epoch=ring.epoch,
                    offset=self._offset if resumes and not kept else ring.offset,
                    server_unix_seconds=time.time(),
                    role=viewer.admission.role.value,
                    limits=limits_message(self._settings),
                )
            )
        )
        if kept:
            viewer.send(Server(resumed=scope_pb2.ScopeResumed(offset=self._offset)))
        elif resumes:
            viewer.send(Server(gap=scope_pb2.ScopeGap(reason="these events are not kept any more")))
        session.join(viewer)
        return session

    async def _run(self, source: Session | Replay, *more: Coroutine[Any, Any, None]) -> None:
        expires = self._viewer.admission.expires_unix_seconds
        await first_of(
            self._read(source),
            self._send_texts(),
            self._send_frames(),
            self._drained(),
            self._expired(expires),
            *more,
        )

    async def _read(self, source: Session | Replay) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.scope_idle_seconds):
                    message = await self._receive()
            except TimeoutError as error:
                raise ClosedError(Close.IDLE, "nothing came; send a ping now and then") from error
            try:
                if isinstance(source, Replay):
                    self._handle_replay(source, message)
                else:
                    await self._handle(source, message)
            except RefusedError as error:
                self._refuse(message, error)

    async def _receive(self) -> scope_pb2.ScopeClientMessage:
        """Raises ClosedError, WebSocketDisconnect."""
        return _parsed(await self._receive_text())

    async def _receive_text(self) -> str:
        """Within the limits. Raises ClosedError, WebSocketDisconnect."""
        received = await self._socket.receive()
        if received["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(received.get("code", 1005))
        text = received.get("text")
        if not isinstance(text, str):
            raise ClosedError(Close.BAD_MESSAGE, "messages of a viewer are texts")
        if len(text.encode(errors="surrogatepass")) > self._settings.scope_max_message_bytes:
            raise ClosedError(Close.TOO_BIG, f"a message has at most {self._settings.scope_max_message_bytes} bytes")
        if not self._rate.spend():
            raise ClosedError(Close.RATE, f"at most {self._settings.scope_max_messages_per_second} messages a second")
        return text

    async def _handle(self, session: Session, message: scope_pb2.ScopeClientMessage) -> None:
        """Raises RefusedError."""
        viewer = self._viewer
        match message.WhichOneof("body"):
            case "subscribe":
                session.subscribe(viewer, message.subscribe)
                if self._recorder is not None:
                    self._recorder.asked(message.subscribe)
            case "unsubscribe":
                session.unsubscribe(viewer, message.unsubscribe.id)
            case "command" if message.command.HasField("record"):
                await self._record(session, message.command)
            case "snapshot":
                await self._snapshot(session, message.snapshot.view)
            case "command":
                session.command(viewer, message.command)
            case "control":
                session.control(viewer, message.control.do)
            case other:
                self._handle_any(other, message)

    def _handle_replay(self, replay: Replay, message: scope_pb2.ScopeClientMessage) -> None:
        """Raises RefusedError."""
        match message.WhichOneof("body"):
            case "subscribe":
                replay.subscribe(message.subscribe)
            case "unsubscribe":
                replay.unsubscribe(message.unsubscribe.id)
            case "replay":
                replay.control(message.replay)
            case "command" | "control" | "snapshot":
                raise RefusedError("replay", "this is a recording: what is over can't be changed")
            case other:
                self._handle_any(other, message)

    def _handle_any(self, kind: str | None, message: scope_pb2.ScopeClientMessage) -> None:
        """Raises RefusedError."""
        match kind:
            case "credit":
                self._viewer.slots.grant(message.credit.id, message.credit.frames)
            case "ping":
                pong = scope_pb2.ScopePong(time=message.ping.time, server_unix_seconds=time.time())
                self._viewer.send(Server(pong=pong))
            case other:
                raise RefusedError("invalid", f"{other or 'an empty message'} is not served here")

    async def _record(self, session: Session, command: scope_pb2.ScopeCommand) -> None:
        """Begin or end the recording of what this viewer gets. Raises RefusedError."""
        if command.record.do == "stop":
            if self._recorder is None:
                raise RefusedError("invalid", "nothing is recorded")
            await self._recorder.finish()
            self._recorder = None
            return
        if command.record.do != "start":
            raise RefusedError("invalid", "a recording is started or stopped")
        if command.record.expressions:
            raise RefusedError("invalid", "what is on screen is recorded", "subscribe to what else is wanted")
        if self._recorder is not None and not self._recorder.ended:
            raise RefusedError("invalid", "this viewer is being recorded already", "stop that first")
        self._recorder = await self._recording(session, command.record.name, command.record.view, command.id)

    async def _snapshot(self, session: Session, view: str) -> None:
        """Raises RefusedError."""
        recorder = await self._recording(session, "", view, snapshot=True)
        await recorder.finish()
        self._viewer.send(Server(snapshot=scope_pb2.ScopeSnapshotTaken(id=recorder.id)))

    async def _recording(
        self, session: Session, name: str, view: str, command: str = "", *, snapshot: bool = False
    ) -> Recorder:
        """One that has what the viewer sees already. Raises RefusedError."""
        viewer, settings = self._viewer, self._settings
        if not viewer.operates:
            raise RefusedError("forbidden", "recording needs the operator role", "sign in with an operator's token")
        try:
            header = Header(
                name=name,
                run=session.identity.run,
                job=session.identity.job,
                by=viewer.admission.name,
                view=view,
                snapshot=snapshot,
                recorded_unix_seconds=time.time(),
            )
            draft = await asyncio.to_thread(self._scope.recordings.draft, header)
        except ValueError as error:
            raise RefusedError("invalid", "a recording's name has at most 200 characters, its view 2,000") from error
        except MegatronAppError as error:
            raise RefusedError("too_many", str(error)) from error
        except OSError as error:
            raise RefusedError("failed", f"the recording can't be written: {error.strerror}") from error
        limits = settings.scope_max_recording_bytes, settings.scope_max_recording_seconds
        recorder = Recorder(draft, header, command, limits, lambda state: viewer.send(Server(recording=state)))
        recorder.begin(*session.shown(viewer))
        return recorder

    def _refuse(self, message: scope_pb2.ScopeClientMessage, error: RefusedError) -> None:
        refused = scope_pb2.ScopeRefused(
            id=message.subscribe.id,
            command=message.command.id[:128],
            code=error.code,
            position=error.position,
            message=error.text,
            hint=error.hint,
        )
        self._viewer.send(Server(refused=refused))

    async def _send_texts(self) -> None:
        while True:
            await self._send(await self._viewer.next_text())

    async def _send_events(self, session: Session) -> None:
        ring = session.ring
        while True:
            await ring.wait(self._offset)
            if not ring.keeps(ring.epoch, self._offset):
                await self._send(as_text(Server(gap=scope_pb2.ScopeGap(reason="too slow for the events"))))
                self._offset = ring.offset
                continue
            for text in ring.after(self._offset):
                await self._send(text)
                self._offset += 1

    async def _send_frames(self) -> None:
        while True:
            await self._send(await self._viewer.slots.take())

    async def _send(self, data: str | bytes) -> None:
        """One at a time. Raises TimeoutError for a viewer that takes nothing."""
        async with asyncio.timeout(self._settings.viewer_timeout_seconds), self._sending:
            await self._socket.send({"type": "websocket.send", "text" if isinstance(data, str) else "bytes": data})
        if self._recorder is not None:
            self._recorder.take(data)

    async def _drained(self) -> None:
        await self._scope.draining.wait()
        await self._send(as_text(Server(go_away=scope_pb2.ScopeGoAway(retry_milliseconds=RETRY_MILLISECONDS))))
        raise ClosedError(Close.DRAINING, "the gateway stops; connect again")

    async def _expired(self, until_unix_seconds: float | None) -> None:
        if until_unix_seconds is None:
            await asyncio.Event().wait()
            return
        await asyncio.sleep(max(until_unix_seconds - time.time(), 0.0))
        raise ClosedError(Close.TICKET, "the session has expired; sign in again")


async def serve(scope: Scope, connection: Connection) -> None:
    """One viewer, counted."""
    scope.connections += 1
    scope.metrics.viewers.inc()
    try:
        await connection.serve()
    finally:
        scope.connections -= 1
        scope.metrics.viewers.dec()


async def _moved(session: Session) -> None:
    await session.moved.wait()
    raise ClosedError(Close.TRY_AGAIN, "another replica has this run now; connect again")


def _parsed(text: str) -> scope_pb2.ScopeClientMessage:
    """Raises ClosedError."""
    try:
        return json_format.Parse(
            text, scope_pb2.ScopeClientMessage(), ignore_unknown_fields=True, max_recursion_depth=20
        )
    except (json_format.ParseError, UnicodeError, RecursionError, ValueError) as error:
        raise ClosedError(Close.BAD_MESSAGE, "a message is a ScopeClientMessage as JSON") from error
