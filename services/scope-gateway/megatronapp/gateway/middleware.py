"""What holds for every request, before any route: who may ask from where, and what a browser may do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from megatronapp.core.errors import AuthError, ForbiddenError
from megatronapp.gateway.errors import Answer, respond, respond_to

SAFE_METHODS = {"GET", "HEAD", "OPTIONS"}
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")

PAGE_POLICY = (
    "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; frame-src 'self'; worker-src 'self' blob:; object-src 'none'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'self'"
)
HEADERS = {
    "Content-Security-Policy": PAGE_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
TOO_LARGE = Answer(413, "too_large", "Send less, or raise MEGATRONAPP_GATEWAY_MAX_REQUEST_BYTES.")


class SecurityHeaders:
    """Adds HEADERS to every answer that does not set its own. `origins` may show the page in a frame."""

    def __init__(self, app: ASGIApp, origins: Collection[str] = ()) -> None:
        self._app = app
        self._headers = {**HEADERS, "Content-Security-Policy": " ".join([PAGE_POLICY, *origins])}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self._headers.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


class SameSite:
    """Refuses foreign pages: a Host that is not ours (DNS rebinding), an Origin that is not ours (forged writes and
    WebSockets). Tools without a browser send no Origin and pass on to authentication.

    hosts: names this server goes by; empty: any (an ingress has checked). origins: further origins to trust.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], origins: Collection[str]) -> None:
        self._app = app
        self._hosts = hosts
        self._origins = origins

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        error = self._objection(scope, Headers(scope=scope))
        if error is None:
            await self._app(scope, receive, send)
        else:
            await refuse(respond_to(error), scope, receive, send)

    def _objection(self, scope: Scope, headers: Headers) -> AuthError | None:
        host = headers.get("host", "")
        if self._hosts and hostname(host) not in self._hosts:
            return ForbiddenError(f"this server does not go by the name {host!r}; set --allowed-hosts to accept it")
        origin = headers.get("origin")
        writes = scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS
        if origin is None or not writes or origin in self._origins or _authority(origin) == host:
            return None
        return ForbiddenError(f"pages of {origin!r} may not do this; set --allowed-origins to accept them")


class AnnouncedBodyLimit:
    """Refuses a request that announces a body of more than `max_bytes`, or than `larger` has for its path; the router
    counts those that do not."""

    def __init__(self, app: ASGIApp, max_bytes: int, larger: Mapping[str, int]) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._larger = larger

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = Headers(scope=scope).get("content-length", "") if scope["type"] == "http" else ""
        if length.isdecimal() and int(length) > self._larger.get(scope["path"], self._max_bytes):
            response = respond(TOO_LARGE, f"the request's body of {length} bytes is too large")
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def hostname(host: str) -> str:
    """`[::1]:8080` → `::1`; "" for what is no host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _authority(origin: str) -> str:
    """`http://localhost:8080` → `localhost:8080`; "" for what is no origin, as "null"."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return ""


async def refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request, or a WebSocket that has not been accepted."""
    if scope["type"] == "http":
        await response(scope, receive, send)
        return
    await receive()
    start: Message = {
        "type": "websocket.http.response.start",
        "status": response.status_code,
        "headers": response.raw_headers,
    }
    await send(start)
    await send({"type": "websocket.http.response.body", "body": bytes(response.body)})
