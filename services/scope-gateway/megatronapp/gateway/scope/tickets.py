"""Tickets for the WebSocket: a browser can set no header there, and a token in an address would end up in logs. Each is
good once, for some seconds, for the role of who asked for it."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from megatronapp.core.auth import Role
from megatronapp.core.errors import AuthError
from megatronapp.gateway.errors import TooManyError

if TYPE_CHECKING:
    from megatronapp.core.registry import Registry

TICKET_SECONDS = 30.0
MAX_OPEN = 10_000
REFUSED = "the ticket is unknown, used or expired; ask for another one"


@dataclass(frozen=True, slots=True)
class Admission:
    """Who may open one WebSocket."""

    role: Role
    name: str
    """For presence and audit; no secret."""
    expires_unix_seconds: float | None
    """Of the session behind it; None: it does not end by itself."""


@dataclass
class Tickets:
    """`shared`: where replicas keep them, so that any of them lets the holder in; None: here."""

    shared: Registry | None = None
    clock: Callable[[], float] = time.monotonic
    _open: dict[bytes, tuple[float, Admission]] = field(default_factory=dict)

    async def issue(self, admission: Admission) -> str:
        """Raises TooManyError, UnavailableError."""
        ticket = secrets.token_urlsafe(24)
        if self.shared is not None:
            await self.shared.put(_digest(ticket).hex(), _to_json(admission), TICKET_SECONDS)
            return ticket
        now = self.clock()
        self._open = {key: kept for key, kept in self._open.items() if kept[0] > now}
        if len(self._open) >= MAX_OPEN:
            raise TooManyError("too many tickets are open; use the one you have")
        self._open[_digest(ticket)] = (now + TICKET_SECONDS, admission)
        return ticket

    async def use(self, ticket: str) -> Admission:
        """Once. Raises AuthError, UnavailableError."""
        if self.shared is not None:
            found = await self.shared.take(_digest(ticket).hex())
            if found is None:
                raise AuthError(REFUSED)
            return _of_json(found)
        until, admission = self._open.pop(_digest(ticket), (0.0, None))
        if admission is None or until <= self.clock():
            raise AuthError(REFUSED)
        return admission


def _to_json(admission: Admission) -> bytes:
    return json.dumps([admission.role.value, admission.name, admission.expires_unix_seconds]).encode()


def _of_json(data: bytes) -> Admission:
    role, name, expires = json.loads(data)
    return Admission(Role(role), name, expires)


def _digest(ticket: str) -> bytes:
    """Looked up by its hash, so that the time of a look-up tells nothing."""
    return sha256(ticket.encode(errors="surrogatepass")).digest()
