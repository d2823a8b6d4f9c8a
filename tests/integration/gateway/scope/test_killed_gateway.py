"""A gateway that is killed loses no token, although it alone had told them: the ranks' agents tell the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.scope_stream import ScopeStream
from megatronapp.trainer.agent.stream import StreamLoop
from megatronapp.v1 import scope_pb2
from tests.integration.gateway.scope.conftest import PODS, Viewer
from tests.support.gateway_process import Ports, gateway_process
from tests.support.scope_pods import ranks

pytestmark = pytest.mark.long


async def test_a_gateway_that_is_killed_loses_no_token(tmp_path: Path) -> None:
    ports = Ports()
    with agent(ports, tmp_path) as stream:
        with gateway_process(ports, tmp_path, POD_TOKEN=PODS) as process:
            tell(stream, 1, 4)
            async with joined(ports) as (viewer, welcome):
                told = [await token(viewer) for _ in range(3)]
                process.kill()
                await viewer.socket.wait_closed()
        tell(stream, 4, 7)
        with gateway_process(ports, tmp_path, POD_TOKEN=PODS):
            resume = {"epoch": welcome["epoch"], "offset": told[-1]["offset"]}
            async with joined(ports, resume=resume) as (viewer, again):
                await viewer.text("gap")
                tell(stream, 7, 9)
                after = [await token(viewer) for _ in range(8)]

    assert [position(event) for event in told] == ["1", "2", "3"]
    assert [position(event) for event in after] == [str(number) for number in range(1, 9)]
    assert again["epoch"] != welcome["epoch"]
    assert int(after[0]["offset"]) > int(again.get("offset", 0))  # a page takes all that follow its welcome


def tell(stream: ScopeStream, first: int, end: int) -> None:
    for number in range(first, end):
        event = scope_pb2.ScopeGenerationEvent(event=str(number), request="r")
        stream.put(scope_pb2.ScopeUp(event=scope_pb2.ScopeEvent(unix_ns=1, generation=event)))


async def token(viewer: Viewer) -> Any:
    return await viewer.event("generation")


def position(event: Any) -> str:
    return str(event["event"]["generation"]["event"])


@contextmanager
def agent(ports: Ports, folder: Path) -> Iterator[ScopeStream]:
    """A rank's stream, as its agent keeps it; its hello, with sites, is a made-up one's."""
    (folder / "token").write_text(PODS)
    [rank, *_] = ranks()
    with closing(StreamLoop()) as loop:
        access = Access(token_file=str(folder / "token"), gateway_address=ports.for_ranks)
        stream = ScopeStream(ports.for_ranks, rank.hello, lambda _: None, lambda: None, loop, access)
        try:
            yield stream
        finally:
            stream.close(5.0)


@asynccontextmanager
async def joined(ports: Ports, **join: Any) -> AsyncIterator[tuple[Viewer, Any]]:
    """As a page: it comes back until the gateway knows the run. Without a resume all that comes is missed until then,
    so that it asks for an epoch that nobody has."""
    asked = join or {"resume": {"epoch": "none", "offset": "0"}}
    while True:
        async with connect(f"ws://127.0.0.1:{ports.http}/api/v1/scope", subprotocols=["mscope.v1"]) as socket:  # type: ignore[list-item]
            viewer = Viewer(socket)
            try:
                welcome = await viewer.join(**asked)
            except ConnectionClosed:
                assert socket.close_code == 1013
                await asyncio.sleep(0.1)
                continue
            yield viewer, welcome
            return
