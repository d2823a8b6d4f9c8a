"""A person calls a finding "not slow" on the page: gateway, Redis and detector in one process."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.core.auth import StaticTokens
from megatronapp.core.bus import Topic
from megatronapp.core.bus.redis import RedisBus
from megatronapp.core.findings import Finding, State
from megatronapp.core.findings_store import FindingsStore, Limits
from megatronapp.core.findings_store.redis import RedisBackend
from megatronapp.detector.app import Detector
from megatronapp.detector.settings import DetectorSettings
from megatronapp.gateway.app import Gateway
from megatronapp.gateway.settings import GatewaySettings
from megatronapp.v1 import findings_pb2
from tests.support.redis import RedisServer
from tests.support.simulated import GPU, Fault, Job, Layout

VIEWER, OPERATOR = "viewer-token", "operator-token"
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
SLOW, SLOWER, OTHER = 26, 90, 70
"""Steps from which rank 1 is slow, rank 1 is slower, and rank 2 is slow."""
MILD = 1.2
FAULTS = (
    Fault("compute", (1,), SLOW, MILD, to_step=SLOWER - 1),
    Fault("compute", (1,), SLOWER, 1.6),
    Fault("compute", (2,), OTHER, MILD),
)


class Services:
    """Detector and gateway on one Redis; the detector may be started anew."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.bus = RedisBus(url)
        self.job = Job(Layout(), GPU, FAULTS, seed=1)
        self.job.clock_ns = time.time_ns() - 300 * 10**9
        self.store = FindingsStore(RedisBackend(url))
        tokens = StaticTokens(viewer=SecretStr(VIEWER), operator=SecretStr(OPERATOR))
        settings = GatewaySettings(port=0, grpc_port=0, collector_addresses=("127.0.0.1:1",))
        self.gateway = Gateway(settings, self.bus, CollectorRegistry(), tokens, self.store)
        self.registry, self.detector = CollectorRegistry(), None

    async def start_detector(self) -> None:
        self.registry = CollectorRegistry()
        store = FindingsStore(RedisBackend(self._url), Limits(), self.registry)
        self.detector = Detector(DetectorSettings(tick_seconds=0.05), self.bus, self.registry, store)
        await self.detector.start()

    async def play(self, first: int, last: int) -> None:
        messages = self.job.hellos() if first == 1 else []
        messages += [message for step in self.job.steps(first, last) for message in step]
        await self.bus.publish_all(Topic.STEPS, [(self.job.run, m.SerializeToString()) for m in messages])
        async with asyncio.timeout(30):
            while not any(e.newest and e.newest.step >= last for e in self.detector._engines.running.values()):
                await asyncio.sleep(0.02)
            while not self.detector._outbox.empty:
                await asyncio.sleep(0.02)

    async def refute(self, finding: Finding, token: str = OPERATOR) -> httpx.Response:
        url = f"http://127.0.0.1:{self.gateway.port}/api/v1/findings/{finding.id}/refute"
        async with httpx.AsyncClient(verify=NO_CERTIFICATES) as client:
            return await client.post(url, headers={"Authorization": f"Bearer {token}"})

    async def until(self, true: Callable[[list[Finding]], bool]) -> list[Finding]:
        async with asyncio.timeout(30):
            while not true(found := [finding for finding in await self.store.find() if finding.page]):
                await asyncio.sleep(0.02)
        return found

    def counted(self) -> float | None:
        return self.registry.get_sample_value("megatronapp_findings_refuted_total", {"kind": "slow_gpu"})


@pytest.fixture
async def services(
    redis_server: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Services]:
    monkeypatch.setenv("MEGATRONAPP_GATEWAY_QUARANTINE_DIR", str(tmp_path / "gateway"))
    services = Services(redis_server.url)
    await services.gateway.start()
    await services.start_detector()
    yield services
    await services.detector.stop()
    await services.gateway.stop()
    await services.bus.close()


async def paged(services: Services) -> Finding:
    await services.play(1, SLOW + 9)
    (found,) = await services.until(lambda findings: bool(findings))
    return found


def pages_of(rank: int) -> Callable[[list[Finding]], bool]:
    return lambda findings: any(f.ranks == (rank,) and f.state is State.OPEN for f in findings)


async def test_a_refuted_finding_is_over_and_does_not_page_again(services: Services) -> None:
    found = await paged(services)

    answer = await services.refute(found)
    (over,) = await services.until(lambda findings: all(f.state is State.RESOLVED for f in findings))
    await services.play(SLOW + 10, OTHER - 1)

    assert (answer.status_code, answer.json()["id"]) == (202, found.id)
    assert over.refuted
    assert not over.open_at_end
    assert [finding.id for finding in await services.store.find()] == [found.id]
    assert services.counted() == 1


async def test_another_rank_still_pages_and_so_does_the_same_one_when_it_is_clearly_worse(services: Services) -> None:
    found = await paged(services)
    await services.refute(found)
    await services.until(lambda findings: all(f.refuted for f in findings))

    await services.play(SLOW + 10, SLOWER - 1)
    before = await services.until(pages_of(2))
    await services.play(SLOWER, SLOWER + 45)
    after = await services.until(pages_of(1))

    assert not pages_of(1)(before)
    assert {finding.ranks for finding in after} == {(1,), (2,)}


async def test_what_was_refuted_stays_so_for_a_detector_that_starts_anew(services: Services) -> None:
    found = await paged(services)
    await services.refute(found)
    await services.until(lambda findings: all(f.refuted for f in findings))
    await services.detector.stop()
    await services.bus._redis.delete("megatronapp:steps", "megatronapp:refutations")

    await services.start_detector()
    services.job.attempt = 2
    await services.play(1, OTHER - 1)

    assert [finding.id for finding in await services.store.find()] == [found.id]


async def test_what_was_refuted_while_the_detector_was_away_is_taken_when_it_is_back(services: Services) -> None:
    found = await paged(services)
    await services.detector.stop()

    answer = await services.refute(found)
    await services.start_detector()

    (over,) = await services.until(lambda findings: all(f.state is State.RESOLVED for f in findings))
    assert answer.status_code == 202
    assert over.refuted


async def test_words_that_cannot_be_meant_are_passed_over(services: Services) -> None:
    found = await paged(services)
    unknown = findings_pb2.Refutation(finding="../../etc/passwd").SerializeToString()
    for word in (b"\xff\xff", b"", unknown, findings_pb2.Refutation(finding="x" * 100_000).SerializeToString()):
        await services.bus.publish(Topic.REFUTATIONS, "run-1", word)

    await services.refute(found)
    await services.refute(found)

    await services.until(lambda findings: all(f.refuted for f in findings))
    assert services.detector.ready()
    assert services.counted() == 1


async def test_viewers_refute_nothing(services: Services) -> None:
    found = await paged(services)

    answer = await services.refute(found, VIEWER)

    assert answer.status_code == 403
    assert not await services.bus.newest(Topic.REFUTATIONS)
