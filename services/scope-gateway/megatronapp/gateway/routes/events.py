"""The stream of events: a snapshot first, then what changes."""

from __future__ import annotations

import asyncio
import contextlib
import time

from fastapi import APIRouter, WebSocket, WebSocketDisconnect, status

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.logging import get_logger
from megatronapp.gateway import views
from megatronapp.gateway.deps import identify, parts
from megatronapp.gateway.errors import respond_to
from megatronapp.gateway.events import PAGE
from megatronapp.gateway.live import SubscriberBehindError, Subscription
from megatronapp.gateway.models import PingEvent

log = get_logger(__name__)
router = APIRouter()

PING_SECONDS = 15.0
CLOSE_SECONDS = 1.0


@router.websocket("/events")
async def events(socket: WebSocket) -> None:
    """Events (`Event` in openapi.json) as JSON texts. What the viewer sends is read and ignored."""
    gateway = parts(socket)
    token = socket.headers.get("authorization", "").removeprefix("Bearer ")
    try:
        asking = await identify(gateway, socket.cookies.get(gateway.settings.session_cookie), token)
        allowed_seconds = asking.session.expires_unix_seconds - time.time() if asking.session else None
        with gateway.hub.subscribe(PAGE) as subscription:
            await socket.accept()
            snapshot = views.snapshot(gateway.job_store, time.time_ns()).model_dump_json()
            async with asyncio.timeout(allowed_seconds):
                await _serve(socket, snapshot, subscription, gateway.settings.viewer_timeout_seconds)
    except TimeoutError:
        log.info("viewer_session_expired")
    except MegatronAppError as error:
        await socket.send_denial_response(respond_to(error))


async def _serve(socket: WebSocket, snapshot: str, subscription: Subscription, timeout_seconds: float) -> None:
    """Send until the viewer leaves, is too far behind, or takes nothing for `timeout_seconds`."""
    sending = asyncio.create_task(_send(socket, snapshot, subscription, timeout_seconds))
    leaving = asyncio.create_task(_left(socket))
    try:
        await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (sending, leaving):
            task.cancel()
        results = await asyncio.gather(sending, leaving, return_exceptions=True)
    for result in results:
        if isinstance(result, TimeoutError | SubscriberBehindError):
            log.warning("viewer_too_slow", error=str(result), waiting=len(subscription), missed=subscription.dropped)
            await _close(socket)
        elif isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect):
            raise result


async def _send(socket: WebSocket, snapshot: str, subscription: Subscription, timeout_seconds: float) -> None:
    text = snapshot
    while True:
        async with asyncio.timeout(timeout_seconds):
            await socket.send_text(text)
        try:
            async with asyncio.timeout(PING_SECONDS):
                text = (await subscription.take()).payload.decode()
        except TimeoutError:
            text = PingEvent(unix_seconds=time.time()).model_dump_json()


async def _close(socket: WebSocket) -> None:
    """Tell the viewer to come again, if it still listens."""
    with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.close(status.WS_1013_TRY_AGAIN_LATER)


async def _left(socket: WebSocket) -> None:
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
