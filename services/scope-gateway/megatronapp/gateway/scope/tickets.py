"""Tickets for the WebSocket: a browser can set no header there, and a token in an address would end up in logs. Each is
good once, for some seconds, for the role of who asked for it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from megatronapp.core.auth import Role
from megatronapp.core.errors import AuthError
from megatronapp.gateway.errors import TooManyError

TICKET_SECONDS = 30.0
MAX_OPEN = 10_000


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
    clock: Callable[[], float] = time.monotonic
    _open: dict[bytes, tuple[float, Admission]] = field(default_factory=dict)

    def issue(self, admission: Admission) -> str:
        """Raises TooManyError."""
        now = self.clock()
        self._open = {key: kept for key, kept in self._open.items() if kept[0] > now}
        if len(self._open) >= MAX_OPEN:
            raise TooManyError("too many tickets are open; use the one you have")
        ticket = secrets.token_urlsafe(24)
        self._open[_digest(ticket)] = (now + TICKET_SECONDS, admission)
        return ticket

    def use(self, ticket: str) -> Admission:
        """Once. Raises AuthError."""
        until, admission = self._open.pop(_digest(ticket), (0.0, None))
        if admission is None or until <= self.clock():
            raise AuthError("the ticket is unknown, used or expired; ask for another one")
        return admission


def _digest(ticket: str) -> bytes:
    """Looked up by its hash, so that the time of a look-up tells nothing."""
    return sha256(ticket.encode(errors="surrogatepass")).digest()
