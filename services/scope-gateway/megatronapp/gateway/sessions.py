"""Sessions of people in a browser: signed cookies, and sign-in links that work once."""

from __future__ import annotations

import hmac
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from time import time

from megatronapp.core.auth import Role

COOKIE = "megatronapp_session"


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who holds it may do what `role` may, until it expires."""

    id: str
    role: Role
    expires_unix_seconds: float
    name: str = ""
    """Who it is; empty: nobody said."""


@dataclass
class Sessions:
    """Cookies signed with a key: replicas that share the key accept each other's. A closed one is refused here."""

    key: bytes
    seconds: float
    clock: Callable[[], float] = time
    _closed: dict[str, float] = field(default_factory=dict)

    def open(self, role: Role, name: str = "") -> tuple[str, Ticket]:
        """A new session and the cookie that proves it."""
        ticket = Ticket(secrets.token_urlsafe(16), role, round(self.clock() + self.seconds, 3), name)
        return self._sign(ticket), ticket

    def find(self, cookie: str) -> Ticket | None:
        """The session that the cookie proves; None when forged, expired or closed."""
        try:
            number, role, expires, *name, _ = cookie.split("~")
            ticket = Ticket(number, Role(role), float(expires), urlsafe_b64decode("".join(name)).decode())
        except ValueError:
            return None
        genuine = hmac.compare_digest(_bytes(self._sign(ticket)), _bytes(cookie))
        alive = ticket.expires_unix_seconds > self.clock() and ticket.id not in self._closed
        return ticket if genuine and alive else None

    def close(self, ticket: Ticket) -> None:
        now = self.clock()
        self._closed = {number: until for number, until in self._closed.items() if until > now}
        self._closed[ticket.id] = ticket.expires_unix_seconds

    def _sign(self, ticket: Ticket) -> str:
        text = f"{ticket.id}~{ticket.role.value}~{ticket.expires_unix_seconds}"
        if ticket.name:
            text += f"~{urlsafe_b64encode(ticket.name.encode()).decode()}"
        return f"{text}~{hmac.new(self.key, _bytes(text), sha256).hexdigest()}"


@dataclass
class SignInLinks:
    """One-time tokens: the demo prints a URL with one, so that nobody has to type a token."""

    seconds: float
    clock: Callable[[], float] = time
    _open: dict[bytes, Ticket] = field(default_factory=dict)

    def new(self, role: Role) -> str:
        token = secrets.token_urlsafe(32)
        self._open[_digest(token)] = Ticket("", role, self.clock() + self.seconds)
        return token

    def use(self, token: str) -> Role | None:
        """The link's role, once; None when unknown, used or expired."""
        ticket = self._open.pop(_digest(token), None)
        return ticket.role if ticket and ticket.expires_unix_seconds > self.clock() else None


def _digest(token: str) -> bytes:
    """Tokens are looked up by their hash, so that the time of a look-up tells nothing about them."""
    return sha256(_bytes(token)).digest()


def _bytes(text: str) -> bytes:
    """Also of a text that no encoding has: JSON knows half characters."""
    return text.encode(errors="surrogatepass")
