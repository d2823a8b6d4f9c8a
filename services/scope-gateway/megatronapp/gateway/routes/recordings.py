"""Recordings of MegaScope: list, download, bring, delete. They are made, and shown again, over `mscope.v1`."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import FileResponse

from megatronapp.core.errors import DataError, UsageError
from megatronapp.gateway.deps import AskingOperator, GatewayParts, operator
from megatronapp.gateway.models import Recording
from megatronapp.gateway.scope.recordings import Header, store

router = APIRouter(prefix="/scope/recordings", tags=["scope"])
upload_router = APIRouter(prefix="/scope/recordings", tags=["scope"])
"""Whose bodies may be larger."""

MEDIA_TYPE = "application/octet-stream"
CHUNK_BYTES = 1 << 20
FILE: dict[str, object] = {"content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}}

Id = Annotated[str, Path(max_length=64, description="the recording's id")]


@router.get("")
async def list_recordings(gateway: GatewayParts) -> list[Recording]:
    """Recordings and snapshots, the newest first, at most 2,000."""
    return [_described(one) for one in await asyncio.to_thread(gateway.scope.recordings.list)]


@router.get("/{recording}")
async def get_recording(gateway: GatewayParts, recording: Id) -> Recording:
    return _described(await asyncio.to_thread(gateway.scope.recordings.get, recording))


@router.get("/{recording}/file", response_class=FileResponse, responses={200: {"description": "a `.mscope`", **FILE}})
async def get_recording_file(gateway: GatewayParts, recording: Id) -> FileResponse:
    """Download it; another platform takes it by `POST`."""
    path = await asyncio.to_thread(gateway.scope.recordings.path, recording)
    return FileResponse(path, media_type=MEDIA_TYPE, filename=path.name, headers={"Cache-Control": "no-store"})


@router.delete("/{recording}", status_code=204, dependencies=[Depends(operator)])
async def delete_recording(gateway: GatewayParts, recording: Id) -> None:
    await asyncio.to_thread(gateway.scope.recordings.delete, recording)


@upload_router.post("", status_code=201, openapi_extra={"requestBody": {"required": True, **FILE}})
async def upload_recording(request: Request, gateway: GatewayParts, asking: AskingOperator) -> Recording:
    """Bring a `.mscope` file: all of it is checked before it is listed, under the name of who brought it."""
    recordings = gateway.scope.recordings
    draft = await asyncio.to_thread(recordings.draft, Header(recorded_unix_seconds=time.time()))
    try:
        await _receive(request, draft)
        return _described(await asyncio.to_thread(recordings.take, draft, asking.signature))
    except DataError as error:
        raise UsageError(str(error)) from error
    finally:
        draft.discard()


async def _receive(request: Request, draft: store.Draft) -> None:
    """Into the draft, in place of its header."""
    draft.rewind()
    waiting = bytearray()
    async for chunk in request.stream():
        waiting += chunk
        if len(waiting) >= CHUNK_BYTES:
            await asyncio.to_thread(draft.write, bytes(waiting))
            waiting.clear()
    await asyncio.to_thread(draft.write, bytes(waiting))


def _described(one: store.Recording) -> Recording:
    header = one.header
    return Recording(
        id=one.id,
        name=header.name,
        run=header.run,
        job=header.job,
        by=header.by,
        view=header.view,
        snapshot=header.snapshot,
        recorded_unix_seconds=header.recorded_unix_seconds,
        seconds=header.seconds,
        frames=header.frames,
        events=header.events,
        bytes=one.bytes,
        expires_unix_seconds=one.expires_unix_seconds,
    )
