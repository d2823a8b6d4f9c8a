"""A tenant whose pod sends anything it likes: the platform refuses it, and a job beside it is seen whole.

The attacker has what a real one would have: a TrainingJob of its own, and the token of its pod.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
import httpx
import pytest

from megatronapp.v1 import trace_pb2
from tests.e2e.kubernetes.jobs import job, pods, wait_phase
from tests.e2e.kubernetes.test_access import audience, token
from tests.e2e.kubernetes.test_platform import gapless, goes_on, iteration, known_steps, run_of
from tests.e2e.kubernetes.training import gone_afterwards, training_job
from tests.integration.collector.support import RankStream, summary
from tests.support.cluster import Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

VICTIM, ATTACKER = "innocent", "attacker"
SERVICES = ("collector", "detector", "gateway", "redis", "operator")
LARGEST_U32, LARGEST_I64 = 2**32 - 1, 2**63 - 1

Message = trace_pb2.TraceMessage


@dataclass(frozen=True)
class Attacker:
    """What its pod knows."""

    job: str
    run: str
    node: str
    token: str

    def hello(self, **identity: Any) -> Message:
        own = {"run": self.run, "job": self.job, "attempt": 1, "rank": 0, "incarnation": 7}
        sizes = trace_pb2.ParallelSizes(world=1, data=1, pipeline=1, tensor=1)
        placement = trace_pb2.Placement(node=self.node, sizes=sizes, host_unix_ns=10**18)
        who = trace_pb2.Identity(**{**own, **identity})
        return Message(hello=trace_pb2.Hello(identity=who, placement=placement))


@pytest.fixture(scope="module")
def victim(jobs: Cluster, release: Release) -> Iterator[str]:
    """A job that trains, and is seen to, through all attacks."""
    with gone_afterwards(jobs, VICTIM):
        jobs.apply(*training_job(VICTIM, 20_000))
        wait_phase(jobs, VICTIM, "Running", 300)
        wait_until("it is seen", lambda: iteration(jobs, VICTIM) > 0, 300)
        yield VICTIM


@pytest.fixture(scope="module")
def attacker(jobs: Cluster, release: Release) -> Iterator[Attacker]:
    with gone_afterwards(jobs, ATTACKER):
        jobs.apply(job(ATTACKER, nodes=1))
        wait_phase(jobs, ATTACKER, "Running")
        (pod,) = pods(jobs, ATTACKER)
        own = token(jobs, audience(jobs, ATTACKER), pod["metadata"]["name"])
        yield Attacker(f"{jobs.namespace}/{ATTACKER}", run_of(jobs, ATTACKER), pod["spec"]["nodeName"], own)


async def said(address: str, bearer: str, *messages: Message) -> grpc.StatusCode:
    """How a stream of these messages ends, once all of them are acknowledged or one is refused. A refused Hello is
    waited for: a write that meets the end of its call would be told as INTERNAL in its place."""
    rank = RankStream(address, bearer)
    first, *others = messages
    try:
        async with asyncio.timeout(60):
            with contextlib.suppress(grpc.aio.AioRpcError):
                await rank.send(first)
                ending = asyncio.create_task(rank.status())
                await asyncio.wait({ending}, timeout=1.0)
                if not ending.done():
                    await rank.send(*others)
                await rank.call.done_writing()
                await ending
            return await rank.call.code()
    finally:
        await rank.channel.close(None)


def changed_hello(attacker: Attacker, change: Callable[[trace_pb2.Hello], None]) -> Message:
    message = attacker.hello()
    change(message.hello)
    return message


def _clock(hello: trace_pb2.Hello) -> None:
    hello.placement.host_unix_ns, hello.placement.host_clock_ns = LARGEST_I64, -(2**63)


def _communicator(hello: trace_pb2.Hello) -> None:
    hello.communicators.add(index=LARGEST_U32, id="dp:0", kind="dp", ranks=[0])


def _microbatches(hello: trace_pb2.Hello) -> None:
    hello.schedule.microbatches = LARGEST_U32


def _chunks(hello: trace_pb2.Hello) -> None:
    hello.placement.sizes.virtual_pipeline = LARGEST_U32


def _world(hello: trace_pb2.Hello) -> None:
    hello.placement.sizes.world = LARGEST_U32


def _attempt(hello: trace_pb2.Hello) -> None:
    hello.identity.attempt = LARGEST_U32


def _store_file(hello: trace_pb2.Hello) -> None:
    hello.identity.run = "manifest.json"


BAD_HELLOS = (_clock, _communicator, _microbatches, _chunks, _world, _attempt, _store_file)


def with_phases(*phases: int) -> Message:
    message = summary(1, 1)
    message.summary.phases.extend(phases)
    return message


BAD_MESSAGES = {
    "phase -1": with_phases(-1),
    "phase 40": with_phases(40),
    "a row bomb": Message(seq=1, summary=trace_pb2.StepSummary(step=1, rows=1_000_000)),
    "a bomb of spans": Message(seq=1, batch=trace_pb2.TraceBatch(step=1, count=1_000_000)),
    "lost events": Message(seq=1, heartbeat=trace_pb2.Heartbeat(dropped=2**64 - 1)),
    "a step": Message(seq=1, summary=trace_pb2.StepSummary(step=2**63)),
    "a control": Message(
        seq=1, heartbeat=trace_pb2.Heartbeat(control=trace_pb2.TraceControl(enabled=True, interval=2_000_000))
    ),
}


@pytest.fixture
def collector(release: Release) -> Iterator[str]:
    with release.cluster.forward(f"pod/{release.pod('collector')}", 7601) as address:
        yield address


@pytest.fixture
def unharmed(jobs: Cluster, release: Release, victim: str) -> Iterator[None]:
    """After each attack: nothing of the platform was started again, the job goes on and is known whole."""
    before = release.restarts()
    yield
    goes_on(jobs, victim)
    assert release.restarts() == before
    wait_until("every step is known", lambda: gapless(known_steps(release, run_of(jobs, victim))), 120, 2.0)


@pytest.mark.parametrize("change", BAD_HELLOS, ids=lambda change: change.__name__.strip("_"))
def test_a_hello_that_can_not_be_true_is_refused(
    change: Callable[[trace_pb2.Hello], None], attacker: Attacker, collector: str, unharmed: None
) -> None:
    code = asyncio.run(said(collector, attacker.token, changed_hello(attacker, change), summary(1, 1)))

    assert code in {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.UNAUTHENTICATED}


@pytest.mark.parametrize("what", BAD_MESSAGES)
def test_a_message_that_can_not_be_true_is_refused(
    what: str, attacker: Attacker, collector: str, unharmed: None
) -> None:
    code = asyncio.run(said(collector, attacker.token, attacker.hello(), BAD_MESSAGES[what]))

    assert code is grpc.StatusCode.INVALID_ARGUMENT


def test_nobody_writes_into_anothers_run(
    jobs: Cluster, release: Release, victim: str, attacker: Attacker, collector: str, unharmed: None
) -> None:
    theirs = run_of(jobs, victim)
    claims = {
        "the run, as its own job": attacker.hello(run=theirs, rank=3),
        "the run and the job": attacker.hello(run=theirs, job=f"{jobs.namespace}/{victim}", rank=3),
        "the next attempt": attacker.hello(run=theirs, job=f"{jobs.namespace}/{victim}", attempt=2, rank=0),
        "another node": changed_hello(attacker, lambda hello: setattr(hello.placement, "node", "node-of-another")),
        "an attempt that its pod is not of": attacker.hello(attempt=2),
    }

    answers = {
        what: asyncio.run(said(collector, attacker.token, hello, summary(1, 1))) for what, hello in claims.items()
    }

    refusals = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT}
    assert {what: code for what, code in answers.items() if code not in refusals} == {}
    listed = asked(release, "/jobs").json()
    assert {found["job"] for found in listed if found["run"] == theirs} == {f"{jobs.namespace}/{victim}"}


def test_requests_for_everything_keep_nobody_waiting(
    jobs: Cluster, release: Release, victim: str, unharmed: None
) -> None:
    run = run_of(jobs, victim)
    endless = [f"/jobs/{run}/trace?to_step={LARGEST_I64}"] * 8 + [f"/jobs/{run}/trace?ranks=0-1048575,0-1048575"]

    with ThreadPoolExecutor(len(endless)) as pool:
        asking = [pool.submit(asked, release, path) for path in endless]
        plain = asked(release, "/jobs")
        codes = {answer.result().status_code for answer in asking}

    assert plain.status_code == 200
    assert codes <= {200, 413, 422, 429, 503}


def test_killed_after_all_that_the_services_come_back(jobs: Cluster, release: Release, victim: str) -> None:
    """What the attacks left in journal, bus and store does no harm when it is read again."""
    for component in ("collector", "detector", "gateway"):
        release.cluster.kubectl("delete", "pod", release.pod(component), "--grace-period=0", "--force")
    wait_until("all parts are back", lambda: all(map(release.is_ready, SERVICES)), 180, 1.0)
    before = release.restarts()

    goes_on(jobs, victim)

    wait_until("every step is known", lambda: gapless(known_steps(release, run_of(jobs, victim))), 120, 2.0)
    assert release.restarts() == before


def asked(release: Release, path: str) -> httpx.Response:
    """What the gateway answers a viewer."""
    headers = {"Authorization": f"Bearer {release.secret('auth', 'viewer-token')}"}
    with release.cluster.forward(f"service/{release.prefix}-gateway", 8080) as address:
        return httpx.get(f"http://{address}/api/v1{path}", headers=headers, timeout=60)
