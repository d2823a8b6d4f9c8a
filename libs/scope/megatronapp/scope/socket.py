"""One connection of `mscope.v1` (docs/scope.md), for as long as one thing is done."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Generator, Iterator
from types import TracebackType
from typing import Any, Self

from google.protobuf import json_format
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.sync.client import ClientConnection, connect

from megatronapp.core.errors import AuthError, DataError, NotFoundError, UnavailableError, UsageError
from megatronapp.core.generation import Command, Control, Event, Finished, GenerationRequest
from megatronapp.core.generation_json import event_from_json, to_json
from megatronapp.core.scope.captures import QUANTIZER
from megatronapp.core.scope.frame import Frame, unpack
from megatronapp.v1 import scope_pb2

PROTOCOL = "mscope.v1"
MAX_BYTES = 8 << 20
OPEN_SECONDS = 10.0
ANSWER_SECONDS = 60.0
"""Of the gateway and the ranks to a command; a generation may take longer."""
CREDITS = 4096
Client = scope_pb2.ScopeClientMessage


class Socket:
    """Raises UnavailableError where the connection ends, AuthError for a token that does not allow it."""

    def __init__(self, url: str, token: str, run: str) -> None:
        self._url, self._token, self._run = url, token, run
        self.description = scope_pb2.ScopeDescription()
        self._frames: list[Frame] = []

    def __enter__(self) -> Self:
        address = self._url.rstrip("/").replace("http", "ws", 1) + "/api/v1/scope"
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            self._opened = connect(
                address,
                additional_headers=headers,
                subprotocols=[PROTOCOL],  # type: ignore[list-item]
                compression=None,
                max_size=MAX_BYTES,
                open_timeout=OPEN_SECONDS,
            )
            self._socket: ClientConnection = self._opened.__enter__()
        except InvalidStatus as error:
            raise _refused(error) from error
        except (OSError, WebSocketException, TimeoutError) as error:
            raise UnavailableError(f"no gateway answers at {self._url}: {error}") from error
        self.send(Client(join=scope_pb2.ScopeJoin(client="python", run=self._run)))
        self.description = self._next("description").description
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.__exit__(kind, error, at)

    def send(self, message: scope_pb2.ScopeClientMessage) -> None:
        try:
            self._socket.send(json_format.MessageToJson(message, indent=None))
        except ConnectionClosed as error:
            raise _closed(error) from error

    def subscribe(self, number: int, expression: str, request: str) -> tuple[str, ...]:
        """The axes of its frames. Raises UsageError for what is refused."""
        asked = scope_pb2.ScopeSubscribe(
            id=number, expression=expression, quantizer=QUANTIZER, credits=CREDITS, request=request
        )
        self.send(Client(subscribe=asked))
        return tuple(self._next("subscribed", number=number).subscribed.axes)

    def command(self, **action: Any) -> scope_pb2.ScopeAck:
        """`reason`, and one of ScopeCommand's actions. Raises UsageError for what is refused or failed."""
        command = scope_pb2.ScopeCommand(id=secrets.token_hex(8), **action)
        self.send(Client(command=command))
        ack = self._next("result", command=command.id).result.ack
        if ack.code:
            raise UsageError(f"{ack.code}: {ack.hint}")
        return ack

    def generate(self, request: GenerationRequest, reason: str) -> Generator[Event, None, None]:
        """Its events to the end; closed before it, it is cancelled. Raises UsageError for what the model refuses,
        UnavailableError where it fails."""
        command = scope_pb2.ScopeCommand(id=secrets.token_hex(8), reason=reason, generation=_document(request))
        self.send(Client(command=command))
        ended = False
        try:
            while not ended:
                message = self._receive(None)
                _check(message, command.id)
                said = message.event.event.generation
                if said.request != request.id:
                    continue
                event = event_from_json(said.event)
                if isinstance(event, Finished):
                    ended = True
                    _raise_for(event)
                yield event
        finally:
            if not ended:
                self.send(Client(command=scope_pb2.ScopeCommand(id=secrets.token_hex(8), generation=_cancel(request))))

    def frames(self, quiet_seconds: float) -> Iterator[Frame]:
        """Those that have come, and that come until nothing comes for so long."""
        while True:
            while self._frames:
                yield self._frames.pop(0)
            try:
                self._receive(quiet_seconds)
            except TimeoutError:
                if not self._frames:
                    return

    def _next(self, kind: str, **about: Any) -> scope_pb2.ScopeServerMessage:
        """The next message of this kind."""
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            try:
                message = self._receive(max(until - time.monotonic(), 0.0))
            except TimeoutError as error:
                raise UnavailableError(f"no {kind} came within {ANSWER_SECONDS:g} s; see the gateway's log") from error
            _check(message, about.get("command", ""))
            if message.WhichOneof("body") != kind:
                continue
            if about.get("number", message.subscribed.id) != message.subscribed.id:
                continue
            if about.get("command", message.result.command) == message.result.command:
                return message

    def _receive(self, timeout_seconds: float | None) -> scope_pb2.ScopeServerMessage:
        """The next text; frames are put aside, and return an empty one. Raises TimeoutError."""
        try:
            data = self._socket.recv(timeout_seconds)
        except ConnectionClosed as error:
            raise _closed(error) from error
        if isinstance(data, bytes):
            self._frames.append(unpack(data, MAX_BYTES))
            return scope_pb2.ScopeServerMessage()
        try:
            return json_format.Parse(data, scope_pb2.ScopeServerMessage(), ignore_unknown_fields=True)
        except json_format.ParseError as error:
            raise DataError(f"the gateway says what this client does not know: {str(error)[:100]}") from error


def _document(command: Command) -> scope_pb2.ScopeGeneration:
    return scope_pb2.ScopeGeneration(command=to_json(command))


def _cancel(request: GenerationRequest) -> scope_pb2.ScopeGeneration:
    return _document(Control(action="cancel", request=request.id))


def _check(message: scope_pb2.ScopeServerMessage, command: str) -> None:
    match message.WhichOneof("body"):
        case "refused" if not message.refused.command or message.refused.command == command:
            refused = message.refused
            raise UsageError(f"{refused.code}: {refused.message}" + (f"; {refused.hint}" if refused.hint else ""))
        case "result" if command and message.result.command == command and message.result.ack.code:
            raise UsageError(f"{message.result.ack.code}: {message.result.ack.hint}")
        case "gap":
            raise UnavailableError("events came faster than they were read: ask again")
        case "go_away":
            raise UnavailableError("the gateway stops: try again")


def _raise_for(finished: Finished) -> None:
    if finished.reason == "refused":
        raise UsageError(finished.message or "the model refuses this")
    if finished.reason == "failed":
        raise UnavailableError(finished.message or "the generation failed; see the run's log")


def _refused(error: InvalidStatus) -> Exception:
    status = error.response.status_code
    try:
        text = str(json.loads(error.response.body or b"")["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = f"the gateway answers {status}"
    return AuthError(text) if status in (401, 403) else UnavailableError(text)


def _closed(error: ConnectionClosed) -> Exception:
    received = error.rcvd
    code, reason = (received.code, received.reason) if received else (1006, "")
    if code == 4400:
        return NotFoundError(reason)
    return UnavailableError(f"the connection has ended ({code}): {reason or 'try again'}")
