"""Two gateways share MegaScope's runs over a real Redis: ranks and viewers may come to either."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from grpc import aio
from pydantic import SecretStr
from websockets.exceptions import ConnectionClosed

from megatronapp.core.errors import ConfigError
from megatronapp.core.leases import Leases
from megatronapp.gateway.scope.replicas import Place
from megatronapp.v1 import scope_pb2, scope_pb2_grpc
from tests.integration.gateway.conftest import OPERATOR, Served, Start
from tests.integration.gateway.scope.conftest import PODS, Viewer, address, opened, viewing, with_pods
from tests.support.gateway_process import Ports, gateway_process
from tests.support.redis import RedisServer
from tests.support.scope_pods import FakeRank, attached, ranks

ONE = "layers[0].resid_post | token(0) | batch(0)"
KEY = "one key of all replicas"
SEEN = scope_pb2.ScopeAlert(kind="nonfinite", detail="seen")


async def replica(start: Start, redis_server: RedisServer, **settings: Any) -> Served:
    return await with_pods(
        start,
        replica_host="127.0.0.1",
        redis_url=SecretStr(redis_server.url),
        session_key=SecretStr(KEY),
        **settings,
    )


@pytest.fixture
async def two(start: Start, redis_server: RedisServer) -> tuple[Served, Served]:
    return await replica(start, redis_server), await replica(start, redis_server)


async def test_pictures_are_whole_wherever_ranks_and_viewers_come_to(two: tuple[Served, Served]) -> None:
    first, second = two
    pods = ranks()
    async with attached(address(first), pods[:2]), attached(address(second), pods[2:]):
        for served in two:
            async with viewing(served) as viewer:
                await viewer.subscribe(1, "layers[*].mlp.act | batch(0)", credits=100)
                await asyncio.gather(*(pod.asked(1) for pod in pods))
                await asyncio.gather(*(pod.step(1) for pod in pods))
                frames = [await viewer.frame() for _ in range(4)]
                assert {frame.layer for frame in frames} == {0, 1, 2, 3}
                assert {frame.missing_shards for frame in frames} == {0}
                await viewer.send(unsubscribe={"id": 1})
                await asyncio.gather(*(pod.asked(0) for pod in pods))


async def test_commands_events_and_refusals_pass_between_replicas(two: tuple[Served, Served]) -> None:
    first, second = two
    async with (
        attached(address(first), ranks()) as pods,
        viewing(second, OPERATOR) as operator,
        viewing(second) as viewer,
    ):
        await operator.send(command={"id": "a", "train": {"do": "pause"}})
        result = await operator.text("result", command="a")
        refused = await viewer.refused(command={"id": "b", "train": {"do": "resume"}})
        await pods[1].event(alert=SEEN)
        alerted = await viewer.event("alert")

    assert (result["ranks"], result["answered"]) == (4, 4)
    assert refused["code"] == "forbidden"
    assert alerted["event"]["alert"]["detail"] == "seen"
    assert [command.WhichOneof("action") for command in pods[0].commands] == ["train"]


async def test_rest_of_either_replica_knows_the_run(two: tuple[Served, Served]) -> None:
    first, second = two
    async with attached(address(first), ranks()), viewing(first, OPERATOR) as operator:
        await operator.send(command={"id": "a", "train": {"do": "pause"}})
        await operator.text("result", command="a")
        models = await second.until("/api/v1/scope/models", bool)
        async with second.client() as client:
            audit = await client.get("/api/v1/scope/audit", params={"run": "run-1"})
            refused = await client.post("/api/v1/scope/runs/run-1/surprisal", json={"prompts": ["a"]})

    assert [(model["run"], model["ranks"]) for model in models] == [("run-1", 4)]
    assert {entry["action"] for entry in audit.json()} == {"train"}
    assert refused.status_code == 403


async def test_a_ticket_is_good_at_any_replica_and_once(two: tuple[Served, Served]) -> None:
    first, second = two
    async with attached(address(first), ranks()), first.client() as client:
        ticket = (await client.post("/api/v1/scope/tickets")).json()["ticket"]
        offered = ["mscope.v1", f"ticket.{ticket}"]
        async with opened(second, "", subprotocols=offered) as socket:
            welcome = await Viewer(socket).join()
        async with opened(first, "", subprotocols=offered) as again:
            with pytest.raises(ConnectionClosed):
                await again.recv()

    assert welcome["role"] == "viewer"
    assert again.close_code == 4401


async def test_nobody_serves_a_run_while_another_replica_may_be_doing_so(
    start: Start, redis_server: RedisServer
) -> None:
    dead = Leases(redis_server.url, "scope-run", str(Place("127.0.0.1", 1, 1)), 30.0)
    await dead.hold(["run-1"])
    served = await replica(start, redis_server)
    with pytest.raises((AssertionError, aio.AioRpcError)):
        async with attached(address(served), ranks()):
            pass

    await dead.release(["run-1"])
    async with attached(address(served), ranks()):
        models = await served.until("/api/v1/scope/models", bool)

    assert models[0]["ranks"] == 4
    await dead.close()


async def test_whoever_takes_a_run_over_goes_on_with_its_events(start: Start, redis_server: RedisServer) -> None:
    first = await replica(start, redis_server)
    async with attached(address(first), ranks()) as pods, opened(first) as socket:
        viewer = Viewer(socket)
        epoch = (await viewer.join())["epoch"]
        for step in range(1, 4):
            await pods[0].event(series=scope_pb2.ScopeSeries(name="loss", step=step))
        told = [await viewer.event("series") for _ in range(3)]
    await first.gateway.stop()

    second = await replica(start, redis_server)
    async with attached(address(second), ranks()) as pods, opened(second) as socket:
        viewer = Viewer(socket)
        await viewer.join(resume={"epoch": epoch, "offset": told[0]["offset"]})
        await viewer.text("resumed")
        await pods[0].event(series=scope_pb2.ScopeSeries(name="loss", step=4))
        heard = [await viewer.event("series") for _ in range(3)]

    assert [event["event"]["series"]["step"] for event in heard] == ["2", "3", "4"]


async def test_a_replica_that_has_lost_a_run_sends_its_ranks_and_viewers_away(
    two: tuple[Served, Served], redis_server: RedisServer
) -> None:
    first, _ = two
    async with attached(address(first), ranks()) as pods, viewing(first) as viewer:
        client = redis.asyncio.Redis.from_url(redis_server.url)
        await client.set("megatronapp:scope-run:run-1", str(Place("127.0.0.1", 1, 1)))
        await asyncio.wait_for(viewer.socket.wait_closed(), 30)
        code = await pods[0].call.code()
        await client.aclose()

    assert viewer.socket.close_code == 1013
    assert code.name == "OK"


async def test_only_replicas_may_say_who_a_viewer_is(two: tuple[Served, Served]) -> None:
    async with aio.insecure_channel(address(two[0])) as channel:
        stub = scope_pb2_grpc.ScopeRelayStub(channel)  # type: ignore[no-untyped-call]
        for token in ("", PODS, OPERATOR):
            call = stub.Watch(metadata=[("authorization", f"Bearer {token}")])
            with suppress(aio.AioRpcError):  # it may be refused before anything was said
                await call.write(scope_pb2.ScopeRelayUp(viewer=scope_pb2.ScopeRelayViewer(role="operator")))
            assert (await call.code()).name == "UNAUTHENTICATED"


async def test_runs_can_be_shared_only_by_gateways_that_know_each_other(start: Start) -> None:
    with pytest.raises(ConfigError, match="session_key"):
        await start(replica_host="127.0.0.1")


@pytest.mark.long
async def test_an_owner_that_is_killed_is_followed_by_another(
    redis_server: RedisServer, tmp_path: Path, start: Start
) -> None:
    served = await replica(start, redis_server)
    with killable_gateway(redis_server, tmp_path) as (process, grpc_address):
        async with attached(grpc_address, ranks()) as owned, viewing(served, OPERATOR) as viewer:
            await viewer.subscribe(1, ONE, credits=100)
            await owned[0].asked(1)
            process.kill()
            await asyncio.wait_for(viewer.socket.wait_closed(), 30)
    assert viewer.socket.close_code == 1013

    async with attached_at_last(address(served)) as pods, viewing(served) as viewer:
        await viewer.subscribe(1, ONE, credits=100)
        await pods[0].asked(1)
        await pods[0].step(7)
        frame = await viewer.frame()

    assert (frame.step, frame.missing_shards) == (7, 0)


@contextmanager
def killable_gateway(redis_server: RedisServer, folder: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A replica, and its address for ranks."""
    ports = Ports()
    shared = {"REDIS_URL": redis_server.url, "SESSION_KEY": KEY, "REPLICA_HOST": "127.0.0.1", "POD_TOKEN": PODS}
    with gateway_process(ports, folder, **shared) as process:
        yield process, ports.for_ranks


@asynccontextmanager
async def attached_at_last(gateway: str) -> AsyncIterator[list[FakeRank]]:
    """As an agent: it dials until the gateway takes it."""
    while True:
        pods = ranks()
        try:
            async with attached(gateway, pods):
                yield pods
            return
        except (AssertionError, aio.AioRpcError) as error:
            if "UNAVAILABLE" not in str(error):
                raise
        await asyncio.sleep(0.1)
