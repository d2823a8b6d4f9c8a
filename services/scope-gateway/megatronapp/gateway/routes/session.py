"""Who is asking: sign in with a token, look, sign out."""

from __future__ import annotations

from time import time

from fastapi import APIRouter, Depends, Request, Response, status

from megatronapp.core.auth import Role
from megatronapp.gateway.deps import Caller, GatewayParts, MaybeCaller, Parts, identify, operator
from megatronapp.gateway.models import Session, SignIn, SignInLink

router = APIRouter(prefix="/session", tags=["session"])


@router.get("")
async def get_session(asking: MaybeCaller, gateway: GatewayParts) -> Session:
    """Who the gateway takes the caller for; never an error."""
    if asking is None:
        return Session(authenticated=False, role=None, name="", can_silence=False, expires_unix_seconds=None)
    return Session(
        authenticated=True,
        role=asking.role,
        name=asking.name,
        can_silence=gateway.silences.possible and asking.role is Role.OPERATOR,
        expires_unix_seconds=asking.session.expires_unix_seconds if asking.session else None,
    )


@router.post("")
async def open_session(body: SignIn, gateway: GatewayParts, request: Request, response: Response) -> Session:
    """Exchange a token for a session cookie, so that the page need not keep the token."""
    asking = await identify(gateway, None, body.token.get_secret_value())
    cookie, ticket = gateway.sessions.open(asking.role, asking.name)
    set_cookie(request, response, gateway, cookie)
    return await get_session(Caller(ticket.role, ticket, ticket.name), gateway)


@router.post("/link", dependencies=[Depends(operator)])
async def new_link(gateway: GatewayParts) -> SignInLink:
    """A one-time token that signs an operator in by a link (operators only)."""
    expires = time() + gateway.links.seconds
    return SignInLink(token=gateway.links.new(Role.OPERATOR), expires_unix_seconds=round(expires, 3))


@router.delete("", status_code=status.HTTP_204_NO_CONTENT)
async def close_session(asking: MaybeCaller, gateway: GatewayParts, response: Response) -> None:
    """Sign out. Without a session nothing happens."""
    if asking is not None and asking.session is not None:
        gateway.sessions.close(asking.session)
    response.delete_cookie(gateway.settings.session_cookie, httponly=True, samesite="strict")


def set_cookie(request: Request, response: Response, gateway: Parts, cookie: str) -> None:
    response.set_cookie(
        gateway.settings.session_cookie,
        cookie,
        max_age=int(gateway.sessions.seconds),
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
