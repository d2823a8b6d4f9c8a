"""What many TrainingJobs cost the operator: cold start, steady state, idle, memory.

    KUBECONFIG=… python -m bench.operator_jobs [--jobs 1000] [--running | --fake-nodes]

The jobs are suspended, so that no pod competes with what is measured. Such a job has one child, its Job; --running
measures jobs that are not suspended and have all three, Job, Service and NetworkPolicy, but no place for their pods.
With --fake-nodes they run on kwok's nodes, a pod each, which soon ends: what is then called steady still moves. The
operator is a process beside this one. Cold start: from its start until each job has its children and its status. Steady
state: each Job is labelled once, and looked at again. Goals on two cores: cold start < 20 s, p99 of a look < 50 ms in
steady state, no write by a look that finds nothing to do, < 200 MiB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, NamedTuple

import httpx
import psutil
from kubernetes.aio.client import ApiClient
from prometheus_client.parser import text_string_to_metric_families

from megatronapp.operator import names
from megatronapp.operator.api import JSON, Api, GoneError
from megatronapp.operator.login import Login

NAMESPACE = "bench-operator"
JOBS = f"/apis/megatronapp.io/v1alpha1/namespaces/{NAMESPACE}/trainingjobs"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
GOALS = {"cold_start_seconds": 20.0, "steady_p99_seconds": 0.05, "memory_mib": 200.0, "idle_writes": 0}
KWOK = {"key": "kwok.x-k8s.io/node", "operator": "Exists"}


class Load(NamedTuple):
    """What jobs are measured, and what each of them becomes."""

    spec: dict[str, Any]
    phases: frozenset[str]
    """In one of which each job shall be."""
    children: tuple[str, ...]
    """Collections in each of which it shall have one object."""


HELD = (f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",)
WHOLE = (
    *HELD,
    f"/api/v1/namespaces/{NAMESPACE}/services",
    f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
)
LOADS = {
    "suspended": Load({"suspend": True}, frozenset({"Suspended"}), HELD),
    "running": Load({"scheduling": {"nodeSelector": {"type": "nowhere"}}}, frozenset({"Pending"}), WHOLE),
    # kwok ends the pods of Jobs soon after they began.
    "fake-nodes": Load(
        {"scheduling": {"tolerations": [KWOK], "nodeSelector": {"type": "kwok"}}},
        frozenset({"Running", "Succeeded"}),
        WHOLE,
    ),
}


def training_job(number: int, load: Load) -> dict[str, Any]:
    return {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": f"job-{number}", "namespace": NAMESPACE},
        "spec": {"procPerNode": 1, **load.spec},
    }


class Operator:
    """The process, and what its metrics say."""

    def __init__(self, port: int) -> None:
        flags = ["--http-port", str(port), "--watch-namespaces", NAMESPACE, "--namespace", NAMESPACE]
        # A machine that is measured is busy: the Lease must not be lost over it.
        flags += ["--lease-seconds", "120"]
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "megatronapp.operator", *flags, "--log-level", "warning"]
        )

    def metrics(self) -> dict[str, float]:
        """Sample name, with the bucket's bound where it has one → value; empty while nobody answers."""
        try:
            families = list(text_string_to_metric_families(httpx.get(self._url, timeout=10).text))
        except httpx.TransportError:
            return {}
        samples = (sample for family in families for sample in family.samples)
        return {sample.name + sample.labels.get("le", ""): sample.value for sample in samples}

    def cpu_seconds(self) -> float:
        """Of user and system: on a machine that others use too, this says more than the time on the wall."""
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)

    def memory_mib(self) -> float:
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20


@contextmanager
def operator() -> Iterator[Operator]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    running = Operator(port)
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(30)


OnObject = Callable[[str, dict[str, Any]], None]
"""Collection and object."""


class Watch:
    """What has become of the jobs, as the API server tells of it: asking it again and again would be measured too."""

    def __init__(self, jobs: int, load: Load) -> None:
        self._settled = asyncio.Event()
        self._jobs, self._load = jobs, load
        self._reported: set[str] = set()
        self._children: set[tuple[str, str]] = set()

    async def until_settled(self) -> None:
        """Return when each job has its status and its children. Raises what ends a watch before."""
        tasks = [asyncio.create_task(self._run()), asyncio.create_task(self._settled.wait())]
        done, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for task in done:
            task.result()

    async def _run(self) -> None:
        login = await Login.find()
        async with ApiClient(login.configuration) as client, asyncio.TaskGroup() as group:
            group.create_task(self._follow(client, JOBS, JSON, self._on_job))
            for path in self._load.children:
                group.create_task(self._follow(client, path, METADATA, self._on_child))

    async def _follow(self, client: ApiClient, path: str, accept: str, on: OnObject) -> None:
        selector = "" if path == JOBS else f"&labelSelector={names.JOB_LABEL}"
        _, url, headers, *_ = await client.param_serialize(
            "GET", f"{path}?watch=1{selector}", header_params={"Accept": accept}, auth_settings=["BearerToken"]
        )
        answer = await client.call_api("GET", url, headers, _request_timeout=600)
        async with answer.response as stream:
            async for line in stream.content:
                on(path, json.loads(line)["object"])
                if len(self._reported) == self._jobs and len(self._children) == len(self._load.children) * self._jobs:
                    self._settled.set()

    def _on_job(self, _: str, body: dict[str, Any]) -> None:
        if (body.get("status") or {}).get("phase") in self._load.phases:
            self._reported.add(body["metadata"]["name"])

    def _on_child(self, path: str, body: dict[str, Any]) -> None:
        self._children.add((path, body["metadata"]["name"]))


def quantile(before: dict[str, float], after: dict[str, float], share: float) -> float:
    """The bound of the bucket in which `share` of the looks between two readings ended."""
    name = "megatronapp_operator_reconcile_seconds_bucket"
    bounds = sorted((float(key.removeprefix(name)), key) for key in after if key.startswith(name))
    total = after[bounds[-1][1]] - before.get(bounds[-1][1], 0.0)
    return next(bound for bound, key in bounds if after[key] - before.get(key, 0.0) >= share * total)


async def each(jobs: int, work: Any) -> None:
    """`work(number)` for each job, 16 at a time."""
    slots = asyncio.Semaphore(16)

    async def one(number: int) -> None:
        async with slots:
            await work(number)

    await asyncio.gather(*(one(number) for number in range(jobs)))


async def versions(api: Api) -> dict[str, str]:
    return {job["metadata"]["name"]: job["metadata"]["resourceVersion"] for job in (await api.get(JOBS))["items"]}


@asynccontextmanager
async def namespace(api: Api) -> AsyncIterator[None]:
    """A namespace of the benchmark's own, gone afterwards with all its jobs."""
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    await api.create("/api/v1/namespaces", body)
    try:
        yield
    finally:
        with contextlib.suppress(GoneError):
            await api.delete(f"/api/v1/namespaces/{NAMESPACE}")


async def measure(jobs: int, load: Load) -> dict[str, float]:
    api = Api(await Login.find())
    async with namespace(api):
        await each(jobs, lambda number: api.create(JOBS, training_job(number, load)))
        began = time.perf_counter()
        with operator() as running:
            await Watch(jobs, load).until_settled()
            cold, cold_cpu = time.perf_counter() - began, running.cpu_seconds()
            await asyncio.sleep(5)
            before, cold_metrics = await versions(api), running.metrics()
            label = {"metadata": {"labels": {"looked": "at"}}}
            path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/job-"
            await each(jobs, lambda number: api.patch(f"{path}{number}-1", label))
            await asyncio.sleep(5)
            steady, after = running.metrics(), await versions(api)
            memory = running.memory_mib()
    await api.close()
    count = "megatronapp_operator_reconcile_seconds_count"
    return {
        "jobs": jobs,
        "children_per_job": len(load.children),
        "cold_start_seconds": round(cold, 1),
        "cold_cpu_seconds": round(cold_cpu, 1),
        "cold_p99_seconds": quantile({}, cold_metrics, 0.99),
        "steady_looks": steady[count] - cold_metrics[count],
        "steady_p50_seconds": quantile(cold_metrics, steady, 0.5),
        "steady_p99_seconds": quantile(cold_metrics, steady, 0.99),
        "idle_writes": sum(before[name] != after[name] for name in before),
        "memory_mib": round(memory, 1),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.operator_jobs", description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--running", dest="load", action="store_const", const="running", help="jobs with all children")
    parser.add_argument(
        "--fake-nodes", dest="load", action="store_const", const="fake-nodes", help="let the jobs run, on kwok's nodes"
    )
    parser.set_defaults(load="suspended")
    chosen = parser.parse_args()
    if not os.environ.get("KUBECONFIG"):
        print("no cluster: set KUBECONFIG to one with the TrainingJob definition installed")
        return 0
    found = asyncio.run(measure(chosen.jobs, LOADS[chosen.load]))
    print(json.dumps({"measured": found, "goals": GOALS}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
