"""What routes are given: the gateway's parts, and who asks."""

from __future__ import annotations

import time
from dataclasses import dataclass
from hmac import compare_digest
from typing import Annotated

from fastapi import Depends, Path, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from starlette.requests import HTTPConnection

from megatronapp.core.auth import Authenticator, Role
from megatronapp.core.bus import Bus
from megatronapp.core.errors import AuthError, ForbiddenError, NotFoundError
from megatronapp.core.findings_store import FindingsStore
from megatronapp.gateway.exports import Exports
from megatronapp.gateway.live import Hub
from megatronapp.gateway.notify.notifier import Notifier
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.sessions import COOKIE, Sessions, SignInLinks, Ticket
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.gateway.shards import CollectorShards
from megatronapp.gateway.state import JobStore, TrackedJob


@dataclass(frozen=True, slots=True)
class Parts:
    """One gateway's parts, made by its start and kept in `app.state.parts`."""

    settings: GatewaySettings
    bus: Bus
    authenticator: Authenticator
    job_store: JobStore
    findings: FindingsStore
    hub: Hub
    collector: CollectorShards
    exports: Exports
    sessions: Sessions
    links: SignInLinks
    notifier: Notifier
    scope: Scope


def parts(connection: HTTPConnection) -> Parts:
    found: Parts = connection.app.state.parts
    return found


@dataclass(frozen=True, slots=True)
class Caller:
    role: Role
    session: Ticket | None


class _SessionCookie(APIKeyCookie):
    """By the name that this gateway's settings give it; the documented one is the default."""

    async def __call__(self, request: HTTPConnection) -> str | None:
        return request.cookies.get(parts(request).settings.session_cookie)


GatewayParts = Annotated[Parts, Depends(parts)]
Cookie = Annotated[str | None, Security(_SessionCookie(name=COOKIE, auto_error=False, scheme_name="session"))]
Bearer = Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False, scheme_name="token"))]


async def identify(gateway: Parts, cookie: str | None, token: str) -> Caller:
    """Who asks: a session's cookie, else a bearer token ("": none). Raises AuthError."""
    session = gateway.sessions.find(cookie) if cookie else None
    if session is not None and not token:
        return Caller(session.role, session)
    return Caller(await gateway.authenticator.reader(token), None)


async def caller(gateway: GatewayParts, cookie: Cookie, bearer: Bearer) -> Caller:
    return await identify(gateway, cookie, bearer.credentials if bearer else "")


async def operator(asking: Annotated[Caller, Depends(caller)]) -> None:
    """Let operators pass."""
    if asking.role is not Role.OPERATOR:
        raise ForbiddenError("this needs the operator role; sign in with an operator's token")


async def alertmanager(gateway: GatewayParts, bearer: Bearer) -> None:
    """Let Alertmanager pass: by its own token, or without one where everybody on this machine may do everything."""
    expected = gateway.settings.alertmanager_token
    if expected is None:
        await operator(await caller(gateway, None, bearer))
    elif bearer is None or not compare_digest(bearer.credentials.encode(), expected.get_secret_value().encode()):
        raise AuthError("Alertmanager's token is missing or wrong; set MEGATRONAPP_GATEWAY_ALERTMANAGER_TOKEN's value")


async def maybe_caller(gateway: GatewayParts, cookie: Cookie, bearer: Bearer) -> Caller | None:
    try:
        return await caller(gateway, cookie, bearer)
    except AuthError:
        return None


MaybeCaller = Annotated[Caller | None, Depends(maybe_caller)]


def job(gateway: GatewayParts, run: Annotated[str, Path(max_length=256, description="the job's run id")]) -> TrackedJob:
    found = gateway.job_store.jobs.get(run)
    if found is None:
        raise NotFoundError(f"there is no job with run id {run!r}, or it ended long ago")
    return found


KnownJob = Annotated[TrackedJob, Depends(job)]


def now_ns() -> int:
    return time.time_ns()


Now = Annotated[int, Depends(now_ns)]
