"""The stream of events: a snapshot first, then what changes."""

from __future__ import annotations

import asyncio
import contextlib
import time

from fastapi import APIRouter, WebSocket, WebSocketDisconnect, status

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.logging import get_logger
from megatronapp.gateway import views
from megatronapp.gateway.deps import Parts, identify, parts
from megatronapp.gateway.errors import respond_to
from megatronapp.gateway.events import PAGE
from megatronapp.gateway.live import SubscriberBehindError, Subscription
from megatronapp.gateway.models import PingEvent

log = get_logger(__name__)
router = APIRouter()

PING_SECONDS = 2.0
CLOSE_SECONDS = 1.0
MAX_MESSAGE_BYTES = 1 << 16
"""Of what a viewer sends, which nobody reads."""


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
                await _serve(socket, snapshot, subscription, gateway)
    except TimeoutError:
        log.info("viewer_session_expired")
    except MegatronAppError as error:
        await socket.send_denial_response(respond_to(error))


async def _serve(socket: WebSocket, snapshot: str, subscription: Subscription, gateway: Parts) -> None:
    """Send until the viewer leaves, is too far behind, or takes nothing for `viewer_timeout_seconds`."""
    sending = asyncio.create_task(_send(socket, snapshot, subscription, gateway))
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


async def _send(socket: WebSocket, snapshot: str, subscription: Subscription, gateway: Parts) -> None:
    """The snapshot and a ping, then what changes, and a ping every PING_SECONDS however much else there is to say."""
    loop = asyncio.get_running_loop()
    text, next_ping = snapshot, loop.time()
    while True:
        async with asyncio.timeout(gateway.settings.viewer_timeout_seconds):
            await socket.send_text(text)
        try:
            async with asyncio.timeout_at(next_ping):
                text = (await subscription.take()).payload.decode()
        except TimeoutError:
            lost = gateway.watch.lost_unix_seconds
            text = PingEvent(unix_seconds=time.time(), collector_lost_unix_seconds=lost).model_dump_json()
            next_ping = loop.time() + PING_SECONDS


async def _close(socket: WebSocket) -> None:
    """Tell the viewer to come again, if it still listens."""
    with contextlib.suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        async with asyncio.timeout(CLOSE_SECONDS):
            await socket.close(status.WS_1013_TRY_AGAIN_LATER)


async def _left(socket: WebSocket) -> None:
    """Ends when the viewer leaves, or sends what nobody has asked it for."""
    while (message := await socket.receive())["type"] != "websocket.disconnect":
        if len(message.get("text") or message.get("bytes") or b"") > MAX_MESSAGE_BYTES:
            await socket.close(status.WS_1009_MESSAGE_TOO_BIG)
            return
