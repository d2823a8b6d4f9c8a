"""What docs/backup.md says, done: volumes of collector and Redis are copied out, lost, and restored."""

from __future__ import annotations

import re
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.support import images
from tests.support.cluster import CHART, ROOT, Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

STORED = ROOT / "tests/data/6491aef/stored"
RUN = "run-of-6491aef"
DOCS = ROOT / "docs/backup.md"
VOLUME_POD = ROOT / "deploy/backup/volume-pod.yaml"
NEEDED = (images.image("trace-collector"), images.REDIS_IMAGE)


@pytest.fixture(scope="module")
def release(whole_cluster: Cluster) -> Iterator[Release]:
    """Under the names of the documentation. Of detector, gateway and operator no images are needed."""
    if whole_cluster.is_test_cluster:
        images.provide_stand_in(whole_cluster, images.REDIS_IMAGE)
        images.provide_service(whole_cluster, "trace-collector")
    elif lacking := [name for name in NEEDED if not whole_cluster.has_image(name)]:
        pytest.skip(f"the nodes have no image {', '.join(lacking)}")
    with whole_cluster.fresh_namespace("megatronapp") as own:
        release = Release(own, "megatronapp")
        flags = ("-f", str(CHART / "ci/minimal-values.yaml"), "--set", "crds.install=false,watchNamespaces={nobodys}")
        whole_cluster.kubectl("create", "namespace", "nobodys")
        release.helm("install", release.name, str(CHART), *flags)
        try:
            for component in ("redis", "collector"):
                ready(own, component)
            yield release
        finally:
            release.helm("uninstall", release.name)
            whole_cluster.kubectl("delete", "namespace", "nobodys", "--wait=false")


def ready(cluster: Cluster, component: str) -> None:
    cluster.kubectl("rollout", "status", f"statefulset/megatronapp-{component}", "--timeout=300s")


def commands(heading: str) -> list[str]:
    """Of the documentation: those of a section that handle a volume."""
    section = DOCS.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.findall(r"^\$ (.*)$", section, re.MULTILINE)
    return [command for command in found if re.search("volume|collector", command)]


def run(cluster: Cluster, folder: Path, component: str, *shell: str) -> None:
    """The documentation's commands, for one of the components."""
    pod = VOLUME_POD.read_text().replace("megatronapp-collector", f"megatronapp-{component}")
    (folder / "volume-pod.yaml").write_text(pod)
    for command in shell:
        line = command.replace("megatronapp-collector", f"megatronapp-{component}")
        line = line.replace("collector-0.tar", f"{component}-0.tar").replace("deploy/backup/", "")
        environment = {"KUBECONFIG": str(cluster.kubeconfig), "PATH": f"{cluster.program_folder}:/usr/bin:/bin"}
        done = subprocess.run(
            ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"


def restore(cluster: Cluster, folder: Path, component: str) -> None:
    stop, gone, start, up, _copy, away, again = commands("Back up")
    run(cluster, folder, component, stop, gone, start, up, *commands("Restore"), away, again)
    ready(cluster, component)


def lose(cluster: Cluster, component: str) -> None:
    """The volume with all that is on it."""
    cluster.kubectl("scale", "statefulset", f"megatronapp-{component}", "--replicas=0")
    cluster.kubectl("wait", "--for=delete", f"pod/megatronapp-{component}-0", "--timeout=120s")
    cluster.kubectl("delete", "pvc", f"data-megatronapp-{component}-0")
    cluster.kubectl("scale", "statefulset", f"megatronapp-{component}", "--replicas=1")
    ready(cluster, component)


def runs(release: Release) -> list[str]:
    """That the collector has."""
    token = release.cluster.kubectl("get", "secret", "megatronapp-auth", "-o", "jsonpath={.data.query-token}")
    bearer = [("authorization", f"Bearer {b64decode(token).decode()}")]
    with (
        release.cluster.forward("service/megatronapp-collector", 7601) as address,
        grpc.insecure_channel(address) as way,
    ):
        found = trace_pb2_grpc.TraceQueryStub(way).ListJobs(trace_pb2.ListJobsRequest(), metadata=bearer, timeout=30)
    return [job.run for job in found.jobs]


def valkey(cluster: Cluster, *command: str) -> str:
    return cluster.kubectl("exec", "megatronapp-redis-0", "--", "valkey-cli", *command).strip()


def test_traces_are_copied_out_lost_and_restored(release: Release, tmp_path: Path) -> None:
    cluster = release.cluster
    own = sorted(path.name for path in STORED.iterdir())
    subprocess.run(["tar", "-C", str(STORED), "-cf", str(tmp_path / "collector-0.tar"), *own], check=True)
    restore(cluster, tmp_path, "collector")
    assert runs(release) == [RUN]

    run(cluster, tmp_path, "collector", *commands("Back up"))
    ready(cluster, "collector")
    lose(cluster, "collector")
    assert runs(release) == []
    restore(cluster, tmp_path, "collector")

    wait_until("the run is there again", lambda: runs(release) == [RUN], 60, 1.0)


def test_findings_are_copied_out_lost_and_restored(release: Release, tmp_path: Path) -> None:
    cluster = release.cluster
    valkey(cluster, "SET", "finding", "slow gpu")

    run(cluster, tmp_path, "redis", *commands("Back up"))
    ready(cluster, "redis")
    lose(cluster, "redis")
    assert valkey(cluster, "GET", "finding") == ""
    restore(cluster, tmp_path, "redis")

    assert valkey(cluster, "GET", "finding") == "slow gpu"
