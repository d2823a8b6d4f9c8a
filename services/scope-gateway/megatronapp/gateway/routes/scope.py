"""MegaScope: tickets, the WebSocket, and who did what."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, WebSocket

from megatronapp.core.errors import AuthError, MegatronAppError, NotFoundError
from megatronapp.core.logging import get_logger
from megatronapp.gateway.deps import Caller, GatewayParts, caller, parts
from megatronapp.gateway.elsewhere import OwnersRoute
from megatronapp.gateway.errors import respond_to
from megatronapp.gateway.models import AuditEntry, ScopeModel, ScopeTicket
from megatronapp.gateway.scope.connection import Connection, serve
from megatronapp.gateway.scope.limits import Close
from megatronapp.gateway.scope.service import Scope
from megatronapp.gateway.scope.tickets import TICKET_SECONDS, Admission
from megatronapp.gateway.scope.viewers import Viewer

log = get_logger(__name__)

PROTOCOL = "mscope.v1"
TICKET_PREFIX = "ticket."

router = APIRouter(prefix="/scope", tags=["scope"], route_class=OwnersRoute)
socket_router = APIRouter()
"""Without the HTTP routes' dependency: it says itself who may pass."""


@router.post("/tickets", status_code=201)
async def new_ticket(gateway: GatewayParts, asking: Annotated[Caller, Depends(caller)]) -> ScopeTicket:
    """What opens one WebSocket of `mscope.v1`, once, within half a minute: offer it as the subprotocol
    `ticket.<ticket>` beside `mscope.v1`."""
    ticket = await gateway.scope.tickets.issue(_admission(asking))
    return ScopeTicket(ticket=ticket, expires_unix_seconds=round(time.time() + TICKET_SECONDS, 3))


@router.get("/models")
async def list_models(gateway: GatewayParts) -> list[ScopeModel]:
    """Runs whose ranks are connected, by job."""
    return [
        ScopeModel(run=one.run, job=one.job, roles=list(one.roles), layers=one.layers, ranks=one.ranks)
        for one in await gateway.scope.served()
    ]


@router.get("/audit")
async def list_audit(
    gateway: GatewayParts, run: Annotated[str, Query(max_length=256, description="of this run")]
) -> list[AuditEntry]:
    """Who disturbed, paused or compared, and why: the newest thousand since the gateway's start, the oldest first."""
    await gateway.scope.check_here(run)
    return [
        AuditEntry(
            unix_seconds=entry.unix_ns / 1e9,
            by=entry.by,
            action=entry.action,
            detail=entry.detail,
            reason=entry.reason,
            outcome=entry.outcome,
            command=entry.command,
        )
        for entry in gateway.scope.audit.of(run)
    ]


@socket_router.websocket("/scope")
async def scope_socket(socket: WebSocket) -> None:
    """`mscope.v1` (docs/scope.md): ScopeClientMessage and ScopeServerMessage as JSON texts, frames as bytes."""
    gateway = parts(socket)
    offered = socket.scope.get("subprotocols", [])
    try:
        if PROTOCOL not in offered:
            raise NotFoundError(f"this WebSocket speaks {PROTOCOL}; offer it as a subprotocol")
        admission = await _admitted(socket, gateway.scope, offered)
        if admission is not None and gateway.scope.connections >= gateway.settings.scope_max_viewers:
            raise NotFoundError("as many viewers as are served are connected")
    except MegatronAppError as error:
        await socket.send_denial_response(respond_to(error))
        return
    await socket.accept(PROTOCOL)
    if admission is None:
        # A page can read the code of a close, but not the status of a refusal.
        await socket.close(Close.TICKET, "the ticket is unknown, used or expired; ask for another one")
        return
    await serve(gateway.scope, Connection(socket, Viewer(admission), gateway.scope, gateway.settings))


async def _admitted(socket: WebSocket, scope: Scope, offered: list[str]) -> Admission | None:
    """By a ticket, or by a bearer token, which programs can send; None for a ticket that is not good. Raises
    AuthError."""
    ticket = next((each.removeprefix(TICKET_PREFIX) for each in offered if each.startswith(TICKET_PREFIX)), "")
    if ticket:
        try:
            return await scope.tickets.use(ticket)
        except AuthError:
            return None
    token = socket.headers.get("authorization", "").removeprefix("Bearer ")
    role = await parts(socket).authenticator.reader(token)
    return Admission(role, f"{role.value} (token)", None)


def _admission(asking: Caller) -> Admission:
    session = asking.session
    name = f"{asking.role.value} {session.id[:6]}" if session else f"{asking.role.value} (token)"
    return Admission(asking.role, name, session.expires_unix_seconds if session else None)
