"""What routes are given: the gateway's parts, and who asks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from hmac import compare_digest
from typing import Annotated

from fastapi import Depends, Path, Security
from fastapi.security import APIKeyCookie, HTTPAuthorizationCredentials, HTTPBearer
from pydantic import SecretStr
from starlette.requests import HTTPConnection

from megatronapp.core.auth import Authenticator, Role
from megatronapp.core.bus import Bus
from megatronapp.core.errors import AuthError, ForbiddenError, NotFoundError
from megatronapp.core.findings_store import FindingsStore
from megatronapp.gateway.exports import Exports
from megatronapp.gateway.finding_archive import FindingArchive
from megatronapp.gateway.live import Hub
from megatronapp.gateway.notify.notifier import Notifier
from megatronapp.gateway.people import NamedTokens, clean_name
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.sessions import COOKIE, Sessions, SignInLinks, Ticket
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.gateway.shards import CollectorShards
from megatronapp.gateway.silences import Silences
from megatronapp.gateway.state import JobStore, TrackedJob
from megatronapp.gateway.watch import CollectorWatch


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
    watch: CollectorWatch
    exports: Exports
    sessions: Sessions
    people: NamedTokens
    silences: Silences
    archive: FindingArchive
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
    name: str = ""
    """Empty: nobody said."""

    @property
    def signature(self) -> str:
        """The name, or the role of somebody without one."""
        return self.name or self.role.value


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
        return Caller(session.role, session, session.name)
    person = gateway.people.find(token)
    if person is not None:
        return Caller(person.role, None, person.name)
    return Caller(await gateway.authenticator.reader(token), None)


async def caller(connection: HTTPConnection, gateway: GatewayParts, cookie: Cookie, bearer: Bearer) -> Caller:
    asking = await identify(gateway, cookie, bearer.credentials if bearer else "")
    # A header is anybody's word: only a proxy that replaces it makes it true, which the setting says there is.
    header = gateway.settings.user_header
    name = clean_name(connection.headers.get(header, "")) if header else ""
    return replace(asking, name=name) if name else asking


async def operator(asking: Annotated[Caller, Depends(caller)]) -> Caller:
    """Let operators pass."""
    if asking.role is not Role.OPERATOR:
        raise ForbiddenError("this needs the operator role; sign in with an operator's token")
    return asking


Asking = Annotated[Caller, Depends(caller)]
AskingOperator = Annotated[Caller, Depends(operator)]


async def alertmanager(gateway: GatewayParts, bearer: Bearer) -> None:
    """Let Alertmanager pass."""
    wrong = "Alertmanager's token is missing or wrong; set MEGATRONAPP_GATEWAY_ALERTMANAGER_TOKEN's value"
    await _own_token(gateway, bearer, gateway.settings.alertmanager_token, wrong)


async def job_operator(gateway: GatewayParts, bearer: Bearer) -> None:
    """Let the operator of TrainingJobs pass."""
    wrong = "the token for phases is missing or wrong; set MEGATRONAPP_GATEWAY_PHASE_TOKEN's value"
    await _own_token(gateway, bearer, gateway.settings.phase_token, wrong)


async def _own_token(gateway: Parts, bearer: Bearer, expected: SecretStr | None, wrong: str) -> None:
    """Let a service pass by its own token, or without one where everybody on this machine may do everything."""
    if expected is None:
        await operator(await identify(gateway, None, bearer.credentials if bearer else ""))
    elif bearer is None or not compare_digest(bearer.credentials.encode(), expected.get_secret_value().encode()):
        raise AuthError(wrong)


async def maybe_caller(
    connection: HTTPConnection, gateway: GatewayParts, cookie: Cookie, bearer: Bearer
) -> Caller | None:
    try:
        return await caller(connection, gateway, cookie, bearer)
    except AuthError:
        return None


MaybeCaller = Annotated[Caller | None, Depends(maybe_caller)]


async def find_job(gateway: Parts, run: str) -> TrackedJob:
    """A job that is listed, or one that the trace-collector still has records of. Raises NotFoundError, and
    UnavailableError where only a collector that does not answer might know it."""
    found = gateway.job_store.jobs.get(run) or await _archived(gateway, run)
    if found is None:
        raise NotFoundError(f"there is no job with run id {run!r}, or it ended too long ago")
    return found


async def _archived(gateway: Parts, run: str) -> TrackedJob | None:
    """A job as the collector's records tell it, of its newest attempt."""
    records = [record for record in await gateway.collector.jobs(run) if record.run == run]
    if not records:
        return None
    store = JobStore()
    newest = max(records, key=lambda record: record.attempt)
    store.apply_record(newest, await gateway.collector.ranks(run))
    return store.jobs[run]


async def job(
    gateway: GatewayParts, run: Annotated[str, Path(max_length=256, description="the job's run id")]
) -> TrackedJob:
    return await find_job(gateway, run)


KnownJob = Annotated[TrackedJob, Depends(job)]


def now_ns() -> int:
    return time.time_ns()


Now = Annotated[int, Depends(now_ns)]
