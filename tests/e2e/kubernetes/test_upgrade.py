"""`helm upgrade` from an earlier commit's chart and operator to today's, with jobs running: their pods stay, the
definition is today's, and the new operator goes on where the old one stopped."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.kubernetes.jobs import GRACEFUL, conditions, job, message, pods, status, wait_phase
from tests.support import images
from tests.support.cluster import CHART, ROOT, Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

EARLIER = "6491aef"
EARLIER_IMAGE = f"docker.io/megatronapp/operator:{EARLIER}"
SECRET = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "hf-token"}, "stringData": {"HF_TOKEN": "x"}}


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project as it was then."""
    git = ("git", "-C", str(ROOT))
    if subprocess.run([*git, "cat-file", "-e", f"{EARLIER}^{{commit}}"], check=False, capture_output=True).returncode:
        pytest.skip(f"commit {EARLIER} is not in this checkout: fetch the whole history (git fetch --unshallow)")
    folder = tmp_path_factory.mktemp("earlier")
    archive = subprocess.run([*git, "archive", EARLIER], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(folder)], input=archive, check=True)
    return folder


@pytest.fixture(scope="module")
def training(whole_cluster: Cluster) -> Iterator[Cluster]:
    with whole_cluster.fresh_namespace("upgrade-jobs") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def release(whole_cluster: Cluster, training: Cluster, earlier: Path) -> Iterator[Release]:
    """The earlier chart with its own operator. Of the other services there are no images: the operator needs none."""
    if not whole_cluster.is_test_cluster:
        pytest.skip("no images can be made for the nodes of this cluster")
    images.provide_service(whole_cluster, "operator")
    images.provide_service(whole_cluster, "operator", earlier, EARLIER_IMAGE)
    with whole_cluster.fresh_namespace("upgrade") as own:
        release = Release(own, "up", ("--set", f"watchNamespaces={{{training.namespace}}}"))
        chart = earlier / "deploy/helm/megatronapp"
        tag = f"operator.image.tag={EARLIER}"
        # The session's definition belongs to no release yet.
        flags = ("--take-ownership", "--force-conflicts", *values(chart), "--set", tag)
        release.helm("install", release.name, str(chart), *release.flags, *flags)
        rolled_out(release)
        try:
            yield release
        finally:
            release.helm("uninstall", release.name)
            whole_cluster.install_definition()


def values(chart: Path) -> tuple[str, ...]:
    return ("-f", str(chart / "ci/minimal-values.yaml"))


def rolled_out(release: Release) -> None:
    release.cluster.kubectl("rollout", "status", f"deployment/{release.prefix}-operator", "--timeout=300s")


def pod_ids(cluster: Cluster, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(cluster, name)}


def knows_backoff(cluster: Cluster) -> bool:
    version: dict[str, Any] = (cluster.get("crd", "trainingjobs.megatronapp.io") or {})["spec"]["versions"][0]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return "backoffSeconds" in spec["failurePolicy"]["properties"]


def test_jobs_run_on_over_an_upgrade_and_the_new_operator_looks_after_them(
    whole_cluster: Cluster, training: Cluster, release: Release
) -> None:
    assert not knows_backoff(whole_cluster)
    training.apply(SECRET)
    training.apply(job("steady", GRACEFUL), job("secretive", envFrom=[{"secretRef": {"name": "hf-token"}}], nodes=1))
    for name in ("steady", "secretive"):
        wait_phase(training, name, "Running")
    before, old = {name: pod_ids(training, name) for name in ("steady", "secretive")}, release.pod("operator")

    release.helm("upgrade", release.name, str(CHART), *release.flags, *values(CHART))
    rolled_out(release)

    assert knows_backoff(whole_cluster)
    wait_until("the new operator leads", lambda: not (leader(release) or old).startswith(old), 60)
    # What is no longer allowed runs on, and is told of in time.
    wait_until("it is told", lambda: "InvalidTemplate" in conditions(status(training, "secretive")), 60)
    assert "operator.jobs.secrets" in message(status(training, "secretive"), "InvalidTemplate")
    for name in before:
        told = status(training, name)
        assert (told["phase"], told["attempt"], told["restarts"]) == ("Running", 1, 0)
        assert pod_ids(training, name) == before[name]
        assert "ReconcileError" not in conditions(told)

    training.kubectl("delete", "pod", pods(training, "steady")[0]["metadata"]["name"], "--wait=false")
    wait_until("the next attempt", lambda: status(training, "steady")["attempt"] == 2, 90)
    assert wait_phase(training, "steady", "Running")["restarts"] == 1


def leader(release: Release) -> str:
    found = release.cluster.get("lease", f"{release.prefix}-operator") or {}
    return str((found.get("spec") or {}).get("holderIdentity") or "")
