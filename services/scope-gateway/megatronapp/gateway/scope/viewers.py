"""One WebSocket's state: who it is, what it has subscribed to, and what waits to be sent to it."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field

from megatronapp.core.auth import Role
from megatronapp.gateway.scope.events import as_text
from megatronapp.gateway.scope.slots import Slots
from megatronapp.gateway.scope.streams import Stream
from megatronapp.gateway.scope.tickets import Admission
from megatronapp.v1 import scope_pb2

MAX_WAITING_TEXTS = 1024


class ViewerBehindError(Exception):
    """It has taken too little for too long."""


@dataclass(eq=False)
class Viewer:
    admission: Admission
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    slots: Slots = field(default_factory=lambda: Slots(time.monotonic))
    subscriptions: dict[int, Stream] = field(default_factory=dict)
    asked: dict[int, scope_pb2.ScopeSubscribe] = field(default_factory=dict)
    """What it said of each."""
    _texts: asyncio.Queue[str] = field(default_factory=lambda: asyncio.Queue(MAX_WAITING_TEXTS))
    _behind: bool = False

    @property
    def operates(self) -> bool:
        return self.admission.role is Role.OPERATOR

    def send(self, message: scope_pb2.ScopeServerMessage) -> None:
        """Line a text up. One too many ends the connection, when its sender comes to it."""
        try:
            self._texts.put_nowait(as_text(message))
        except asyncio.QueueFull:
            self._behind = True

    def stall(self, subscription: int, reason: str) -> None:
        """Why something of it does not come (`ScopeStall`)."""
        self.send(scope_pb2.ScopeServerMessage(stall=scope_pb2.ScopeStall(id=subscription, reason=reason)))

    async def next_text(self) -> str:
        """Raises ViewerBehindError."""
        if self._behind:
            raise ViewerBehindError
        return await self._texts.get()
