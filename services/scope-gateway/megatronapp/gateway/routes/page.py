"""The page's front door, with the one-time sign-in link."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from megatronapp.gateway import pages
from megatronapp.gateway.deps import GatewayParts, MaybeCaller
from megatronapp.gateway.routes.session import set_cookie

router = APIRouter(include_in_schema=False)


@router.get("/")
@router.head("/")
async def front_door(
    request: Request,
    gateway: GatewayParts,
    asking: MaybeCaller,
    token: Annotated[str | None, Query(max_length=4096)] = None,
) -> Response:
    """The page; with `?token=` it opens a session first, and the token leaves the address."""
    if token is None:
        page: pages.Page | None = request.app.state.page
        return await page.get_response("index.html", request.scope) if page else await pages.not_built()
    role = gateway.links.use(token)
    if role is None and (asking is None or asking.session is None):
        return pages.link_refused(gateway.settings.ui_folder)
    response = RedirectResponse("/", status_code=303, headers={"Cache-Control": "no-store"})
    if role is not None:
        cookie, _ = gateway.sessions.open(role)
        set_cookie(request, response, gateway, cookie)
    return response
