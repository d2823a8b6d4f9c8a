"""The gateway on Redis: several replicas, restarts, and a bus that is away for a while."""

from __future__ import annotations

from collections.abc import Callable

from megatronapp.core.bus import Topic, connect
from tests.integration.gateway.conftest import OPERATOR, Start
from tests.integration.gateway.support import RUN, control, finding, hello, message, summary
from tests.support.redis import RedisServer

WISH = {"enabled": True, "interval": 5, "continuous_iterations": 2, "granularity": "base"}


async def test_replicas_and_restarts_see_all_that_redis_keeps(start: Start, redis_server: RedisServer) -> None:
    first = await start(bus=connect(redis_server.url))
    await first.publish(message(hello()), message(summary(3)), finding(1))
    await first.bus.publish(Topic.TRACE_CONTROL, RUN, control(interval=9).SerializeToString())
    await first.until("/api/v1/findings", lambda found: len(found) == 1)
    await first.gateway.stop()

    second = await start(bus=connect(redis_server.url))

    await second.until("/api/v1/findings", lambda found: len(found) == 1)
    await second.until("/api/v1/jobs", lambda jobs: any(job["run"] == RUN and job["step"] == 3 for job in jobs))
    await second.until(f"/api/v1/jobs/{RUN}/trace-control", lambda status: status["requested"]["interval"] == 9)
    for served in (first, second):
        await served.bus.close()


async def test_without_the_bus_what_is_known_is_served_and_later_the_rest(
    start: Start, start_redis: Callable[..., RedisServer]
) -> None:
    server = start_redis(persistent=True)
    served = await start(bus=connect(server.url))
    await served.publish(message(hello()), finding(1))
    await served.until(f"/api/v1/findings?run={RUN}", lambda found: len(found) == 1)
    await served.until("/api/v1/jobs", lambda jobs: any(job["run"] == RUN for job in jobs))

    server.stop()
    async with served.client(OPERATOR) as client:
        known = await client.get("/api/v1/findings")
        refused = await client.put(f"/api/v1/jobs/{RUN}/trace-control", json=WISH)
    server.start()
    await served.publish(finding(2))

    assert (known.status_code, len(known.json())) == (200, 1)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "unavailable")
    assert await served.until("/api/v1/findings", lambda found: len(found) == 2)
    await served.bus.close()
