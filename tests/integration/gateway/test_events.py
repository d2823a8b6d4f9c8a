"""The stream of events over real WebSockets: snapshot, changes, slow viewers."""

from __future__ import annotations

import asyncio
import base64
import json
import secrets
import socket as sockets
import time
from dataclasses import replace

import pytest
from grpc import aio
from structlog.testing import capture_logs
from websockets.exceptions import ConnectionClosed, InvalidStatus

from megatronapp.core.findings import State
from megatronapp.gateway import events as page_events
from megatronapp.gateway import watch
from megatronapp.gateway.routes import events
from tests.integration.gateway.conftest import VIEWER, Served, Start, next_event
from tests.integration.gateway.support import RUN, finding, heartbeat, hello, message, summary
from tests.support.ports import free_port


async def test_a_stream_begins_with_everything_as_it_is_now(served: Served) -> None:
    await served.publish(message(hello()), message(summary(3, loss=2.5)), finding(1))
    await served.until("/api/v1/findings", lambda found: len(found) == 1)
    await served.until(f"/api/v1/jobs/{RUN}", lambda job: job["step"] == 3)

    async with served.listen() as socket:
        snapshot = json.loads(await socket.recv())

    assert snapshot["type"] == "snapshot"
    assert {job["run"] for job in snapshot["jobs"]} >= {RUN}
    assert snapshot["findings"] == [finding(1).model_dump(mode="json")]


async def test_steps_jobs_and_findings_arrive_as_they_change(served: Served) -> None:
    async with served.listen() as socket:
        await next_event(socket, "snapshot")
        await served.publish(message(hello()), message(summary(1, seconds=0.4, loss=2.5)))
        step = await next_event(socket, "step")
        job = await next_event(socket, "job", lambda event: event["job"]["step"] == 1)
        await served.publish(finding(1))
        opened = await next_event(socket, "finding")
        slow = await next_event(socket, "job", lambda event: event["job"]["open_findings"] == 1)
        await served.publish(finding(1, state=State.RESOLVED, changes=1))
        resolved = await next_event(socket, "finding")

    assert (step["run"], step["row"]["step"], step["row"]["step_seconds"]) == (RUN, 1, 0.4)
    assert job["job"]["loss"] == 2.5
    assert (opened["finding"]["state"], resolved["finding"]["state"]) == ("open", "resolved")
    assert slow["job"]["slow_ranks"] == [1]


async def test_every_step_arrives_at_a_viewer_that_keeps_up(served: Served) -> None:
    async with served.listen() as socket:
        for step in range(1, 51):
            await served.publish(message(summary(step)))
        seen = {(await next_event(socket, "step"))["row"]["step"] for _ in range(50)}

    assert seen == set(range(1, 51))


async def test_a_job_that_falls_silent_is_said_to_be_lost(served: Served) -> None:
    async with served.listen() as socket:
        await served.publish(message(hello()), message(summary(1)))
        await next_event(socket, "job", lambda event: event["job"]["state"] == "running")
        await served.publish(message(None, lost=True))

        lost = await next_event(socket, "job", lambda event: event["job"]["state"] == "lost")

    assert lost["job"]["ranks_connected"] == 0


async def test_a_job_that_ended_long_ago_leaves_the_list(start: Start) -> None:
    served = await start(ended_job_seconds=0)
    async with served.listen() as socket:
        await served.publish(message(hello()), finding(1), message(heartbeat(closing=True)))

        gone = await next_event(socket, "job_gone", lambda event: event["run"] == RUN)

    assert gone["run"] == RUN
    await served.until("/api/v1/findings", lambda found: found == [])


async def test_old_findings_of_a_job_that_nobody_knows_are_not_kept(start: Start) -> None:
    served = await start(ended_job_seconds=3600)
    old = finding(1, run="run-of-last-year").model_copy(update={"updated_unix_ns": 1})
    await served.publish(old, finding(2, run="run-to-come"))

    found = await served.until("/api/v1/findings", lambda found: [f["id"] for f in found] == ["finding-2"])

    assert found[0]["run"] == "run-to-come"


async def test_a_quiet_stream_says_that_it_lives(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.05)

    async with served.listen() as socket:
        assert (await next_event(socket, "ping"))["unix_seconds"] > 0


async def test_a_stream_that_is_busy_says_so_too(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.05)

    async with served.listen() as socket, asyncio.TaskGroup() as tasks:
        publishing = tasks.create_task(publish_for_ever(served))
        for _ in range(3):
            await next_event(socket, "ping")
        publishing.cancel()


async def publish_for_ever(served: Served) -> None:
    changes = 0
    while True:
        changes += 1
        await served.publish(finding(1, changes=changes))
        await asyncio.sleep(0.005)


async def test_viewers_hear_that_a_collector_does_not_answer_and_that_it_is_back(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "PING_SECONDS", 0.05)
    monkeypatch.setattr(watch, "CHECK_SECONDS", 0.05)
    port = free_port()
    before = time.time()
    served = await start(collector_addresses=(f"127.0.0.1:{port}",))

    async with served.listen() as socket:
        lost = await next_event(socket, "ping", lambda ping: ping["collector_lost_unix_seconds"] is not None)
        server = aio.server()
        server.add_insecure_port(f"127.0.0.1:{port}")
        await server.start()
        await next_event(socket, "ping", lambda ping: ping["collector_lost_unix_seconds"] is None)
        await server.stop(None)

    assert before <= lost["collector_lost_unix_seconds"] <= time.time()


async def test_what_a_viewer_says_is_ignored(served: Served) -> None:
    async with served.listen() as socket:
        await next_event(socket, "snapshot")
        await socket.send("{'not': json")
        await socket.send(b"\x00\xff")
        await served.publish(finding(1))

        assert await next_event(socket, "finding")


async def test_messages_of_viewers_are_bounded(served: Served) -> None:
    async with served.listen() as socket:
        await next_event(socket, "snapshot")
        await socket.send("x" * (1 << 17))

        with pytest.raises(ConnectionClosed):
            await next_event(socket, "nothing more")


async def test_more_viewers_than_are_served_are_refused(start: Start) -> None:
    served = await start(max_viewers=1)

    async with served.listen():
        with pytest.raises(InvalidStatus) as refused:
            async with served.listen():
                pass
    async with served.client() as client:
        assert (await client.get("/api/v1/jobs")).status_code == 200

    assert refused.value.response.status_code == 503


async def test_a_viewer_that_reads_nothing_holds_up_nobody_and_is_disconnected(start: Start) -> None:
    served = await start(viewer_timeout_seconds=3.0)  # longer than a busy machine keeps who reads waiting
    stuck = await open_and_never_read(served)
    bulky = [finding(number).model_copy(update={"advice": "x" * 20_000}) for number in range(300)]

    with capture_logs() as logged:
        async with served.listen() as socket:
            for item in bulky:
                await served.publish(item)
            seen = {(await next_event(socket, "finding"))["finding"]["id"] for _ in bulky}
            while "viewer_too_slow" not in {entry["event"] for entry in logged}:
                await asyncio.sleep(0.02)
            while served.registry.get_sample_value("megatronapp_gateway_viewers") != 1:  # as of its last count
                await asyncio.sleep(0.02)
    stuck.close()

    assert seen == {item.id for item in bulky}


async def test_stop_disconnects_viewers(served: Served) -> None:
    async with served.listen() as socket:
        await next_event(socket, "snapshot")
        await served.gateway.stop()

        with pytest.raises(ConnectionClosed):
            await next_event(socket, "nothing more")


async def open_and_never_read(served: Served) -> sockets.socket:
    """A WebSocket whose client takes nothing from the network after the handshake."""
    raw = sockets.socket()
    raw.setsockopt(sockets.SOL_SOCKET, sockets.SO_RCVBUF, 4096)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", served.gateway.port))
    key = base64.b64encode(secrets.token_bytes(16)).decode()
    request = (
        f"GET /api/v1/events HTTP/1.1\r\nHost: 127.0.0.1:{served.gateway.port}\r\nUpgrade: websocket\r\n"
        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        f"Authorization: Bearer {VIEWER}\r\n\r\n"
    )
    await loop.sock_sendall(raw, request.encode())
    assert (await loop.sock_recv(raw, 12)).endswith(b"101")
    return raw


async def test_a_viewer_that_would_miss_a_finding_is_sent_away_to_begin_anew(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    no_room = replace(page_events.FINDINGS, max_bytes=10)
    monkeypatch.setattr(page_events, "FINDINGS", no_room)
    monkeypatch.setattr(events, "PAGE", (page_events.JOBS, page_events.STEPS, no_room))

    async with served.listen() as socket:
        await next_event(socket, "snapshot")
        await served.publish(finding(1))
        with pytest.raises(ConnectionClosed) as closed:
            await next_event(socket, "finding")
    async with served.listen() as socket:
        again = await next_event(socket, "snapshot")

    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
    assert [found["id"] for found in again["findings"]] == ["finding-1"]
