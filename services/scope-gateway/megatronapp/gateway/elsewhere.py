"""REST about a run that another replica owns: asked of that one, whose answer is passed on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import httpx
from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from fastapi.routing import APIRoute

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.leaving import unless_gone
from megatronapp.gateway.scope.replicas import RELAYED, ElsewhereError, Place

CONNECT_SECONDS = 5.0
HOP_BY_HOP = frozenset({"connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"})
Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class OwnersRoute(APIRoute):
    """Answered by the replica that has the run."""

    def get_route_handler(self) -> Handler:
        handler = super().get_route_handler()

        async def answered(request: Request) -> Response:
            try:
                return await handler(request)
            except ElsewhereError as elsewhere:
                return await _passed_on(request, elsewhere.place)

        return answered


async def _passed_on(request: Request, place: Place) -> Response:
    """Raises UnavailableError where the other replica does not answer, or has passed it on itself."""
    if RELAYED in request.headers:
        raise UnavailableError("the run changes hands just now; try again")
    url = f"{place.url}{request.url.path}" + (f"?{request.url.query}" if request.url.query else "")
    headers = [(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP]
    timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
    # Clear text within the cluster, past any proxy; no certificates are loaded for it.
    client = httpx.AsyncClient(verify=False, trust_env=False, timeout=timeout)  # noqa: S501
    asked = client.build_request(request.method, url, headers=[*headers, (RELAYED, "1")], content=await request.body())
    try:
        answer = await unless_gone(request, client.send(asked, stream=True))
    except httpx.HTTPError as error:
        await client.aclose()
        raise UnavailableError("the replica that has this run does not answer; try again") from error
    except BaseException:
        await client.aclose()
        raise
    kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
    return StreamingResponse(_body(client, answer), answer.status_code, kept)


async def _body(client: httpx.AsyncClient, answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in answer.aiter_raw():
            yield piece
    finally:
        await answer.aclose()
        await client.aclose()
