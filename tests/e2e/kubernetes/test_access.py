"""Who may speak to the platform over the network: every wrong token is refused, and no token is logged."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.e2e.kubernetes.jobs import job, nodes_of, pods, wait_phase
from tests.integration.collector.support import RankStream
from tests.support.cluster import Cluster, Release

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(600, func_only=True)]

OWN, OTHER = "access-own", "access-other"


@pytest.fixture(scope="module")
def pod_of(jobs: Cluster, release: Release) -> Iterator[dict[str, str]]:
    """Two jobs that sleep, a pod each."""
    for name in (OWN, OTHER):
        jobs.apply(job(name, nodes=1))
    for name in (OWN, OTHER):
        wait_phase(jobs, name, "Running")
    yield {name: pods(jobs, name)[0]["metadata"]["name"] for name in (OWN, OTHER)}
    jobs.kubectl("delete", "trainingjob", OWN, OTHER)


def token(jobs: Cluster, audience: str, pod: str = "") -> str:
    """A service account's token for this audience, bound to a pod."""
    bound = ["--bound-object-kind=Pod", f"--bound-object-name={pod}"] if pod else []
    return jobs.kubectl("create", "token", "default", f"--audience={audience}", *bound).strip()


def expired(good: str, key: Path) -> str:
    """The same token, signed with the cluster's own key, an hour too old."""
    head, body, _ = good.split(".")
    claims = json.loads(base64.urlsafe_b64decode(body + "=="))
    for name in ("exp", "iat", "nbf"):
        claims[name] -= 3 * 3600
    text = f"{head}.{_encoded(json.dumps(claims).encode())}"
    command = ["openssl", "dgst", "-sha256", "-sign", str(key)]
    signed = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    return f"{text}.{_encoded(signed.stdout)}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def audience(jobs: Cluster, name: str = OWN) -> str:
    """As the operator writes it into the pods of a job."""
    return f"megatronapp/{jobs.namespace}/{name}/{uid_of(jobs, name)}"


def uid_of(jobs: Cluster, name: str) -> str:
    return str((jobs.get("trainingjob", name) or {})["metadata"]["uid"])


async def stream(address: str, who: trace_pb2.Identity, node: str, bearer: str) -> grpc.StatusCode:
    """How the collector answers a rank that says hello, and nothing else: a write that meets the end of its call would
    be told as INTERNAL in place of the collector's answer."""
    rank = RankStream(address, bearer)
    sizes = trace_pb2.ParallelSizes(world=1, data=1, pipeline=1, tensor=1)
    hello = trace_pb2.Hello(identity=who, placement=trace_pb2.Placement(node=node, sizes=sizes))
    try:
        async with asyncio.timeout(60):
            await rank.send(trace_pb2.TraceMessage(hello=hello))
            await rank.call.done_writing()
            await rank.status()
            return await rank.call.code()
    finally:
        await rank.channel.close(None)


def test_the_collector_takes_a_jobs_own_pods_and_nobody_else(
    jobs: Cluster, release: Release, pod_of: dict[str, str]
) -> None:
    own = token(jobs, audience(jobs), pod_of[OWN])
    wrong = {
        "no token": "",
        "an empty token": " ",
        "no token of Kubernetes": "abc.def.ghi",
        "wrong audience": token(jobs, "https://kubernetes.default.svc", pod_of[OWN]),
        "another job's token": token(jobs, audience(jobs, OTHER), pod_of[OTHER]),
        "another job's pod": token(jobs, audience(jobs), pod_of[OTHER]),
        "bound to no pod": token(jobs, audience(jobs)),
        "the query token": release.secret("auth", "query-token"),
    }
    if jobs.is_test_cluster:
        wrong["expired"] = expired(own, jobs.kubeconfig.parent / "pki" / "sa.key")

    who = trace_pb2.Identity(run=uid_of(jobs, OWN), job=f"{jobs.namespace}/{OWN}", attempt=1, rank=0, incarnation=1)
    (node,) = nodes_of(jobs, OWN)

    with release.cluster.forward(f"pod/{release.pod('collector')}", 7601) as address:
        answers = {what: asyncio.run(stream(address, who, node, bearer)) for what, bearer in wrong.items()}
        accepted = asyncio.run(stream(address, who, node, own))

    assert answers == dict.fromkeys(wrong, grpc.StatusCode.UNAUTHENTICATED)
    assert accepted is grpc.StatusCode.OK
    log = logged(release, "collector")
    assert "refused" in log.lower()
    assert not [what for what, bearer in {**wrong, "own": own}.items() if bearer.strip() and bearer in log]


def test_the_gateway_serves_people_with_a_token_and_lets_viewers_look_only(
    jobs: Cluster, release: Release, pod_of: dict[str, str]
) -> None:
    viewer, operator = (release.secret("auth", f"{role}-token") for role in ("viewer", "operator"))
    pods_own = token(jobs, audience(jobs), pod_of[OWN])
    control = {"enabled": True, "interval": 5, "continuous_iterations": 2, "granularity": "full"}
    put = ("PUT", "/jobs/no-such-run/trace-control", control)
    look: tuple[str, str, Any] = ("GET", "/jobs", None)
    alert = ("POST", "/alerts", {"version": "4", "groupKey": "{}", "status": "firing", "alerts": []})
    phases = ("PATCH", "/jobs/phases", {"jobs": []})
    expected = [
        (phases, "", 401),
        (phases, viewer, 401),
        (phases, operator, 401),
        (phases, release.secret("auth", "webhook-token"), 401),
        (phases, release.secret("auth", "phase-token"), 204),
        (look, release.secret("auth", "phase-token"), 401),
        (look, "", 401),
        (look, " ", 401),
        (look, "wrong", 401),
        (look, pods_own, 401),
        (look, release.secret("auth", "webhook-token"), 401),
        (look, viewer, 200),
        (put, "", 401),
        (put, pods_own, 401),
        (put, viewer, 403),
        (put, operator, 404),
        (alert, "", 401),
        (alert, viewer, 401),
        (alert, operator, 401),
    ]

    with (
        release.cluster.forward(f"service/{release.prefix}-gateway", 8080) as address,
        httpx.Client(base_url=f"http://{address}/api/v1", timeout=30) as client,
    ):
        found = [
            client.request(
                method, path, json=body, headers={"Authorization": f"Bearer {bearer}".strip()} if bearer else {}
            ).status_code
            for (method, path, body), bearer, _ in expected
        ]

    assert found == [status for _, _, status in expected]
    log = logged(release, "gateway")
    assert not [bearer for bearer in (viewer, operator, pods_own) if bearer in log]


def test_redis_and_the_traces_need_their_passwords(release: Release) -> None:
    with release.cluster.forward(f"service/{release.prefix}-redis", 6379) as address:
        host, port = address.split(":")
        with socket.create_connection((host, int(port)), 10) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(100).startswith(b"-NOAUTH")
    with release.cluster.forward(f"pod/{release.pod('collector')}", 7601) as address:
        for bearer in ("", " ", "wrong", release.secret("auth", "viewer-token")):
            assert asyncio.run(list_jobs(address, bearer)) is grpc.StatusCode.UNAUTHENTICATED
        assert asyncio.run(list_jobs(address, release.secret("auth", "query-token"))) is grpc.StatusCode.OK


async def list_jobs(address: str, bearer: str) -> grpc.StatusCode:
    metadata = (("authorization", f"Bearer {bearer}"),) if bearer else None
    async with grpc.aio.insecure_channel(address) as channel:
        try:
            await trace_pb2_grpc.TraceQueryStub(channel).ListJobs(trace_pb2.ListJobsRequest(), metadata=metadata)
        except grpc.aio.AioRpcError as error:
            return error.code()
    return grpc.StatusCode.OK


def logged(release: Release, component: str) -> str:
    return release.cluster.kubectl("logs", release.pod(component), "--tail=-1")
