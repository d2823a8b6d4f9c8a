"""One cluster for the session; a namespace and an operator, or the whole platform, for the tests that ask."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.kubernetes import monitoring
from tests.e2e.kubernetes.monitoring import Monitoring
from tests.support import images
from tests.support.cluster import (
    PYTHON_IMAGE,
    Cluster,
    CommandError,
    NoClusterError,
    OperatorProcess,
    Release,
)
from tests.support.ports import free_port

USERS_IMAGE = "docker.io/example/somebodys-training:1"


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    try:
        with Cluster.at_hand() as cluster:
            cluster.install_definition()
            _provide_python(cluster)
            yield cluster
    except NoClusterError as error:
        pytest.skip(str(error))


def _provide_python(cluster: Cluster) -> None:
    if not cluster.is_test_cluster or cluster.has_image(PYTHON_IMAGE):
        return
    try:
        cluster.tool("image", PYTHON_IMAGE, "python3", "python3-venv", "python3-pip")
    except CommandError as error:
        raise NoClusterError(f"the test cluster does not start, for want of {PYTHON_IMAGE}: {error.stderr}") from error


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """A namespace of its own."""
    with whole_cluster.fresh_namespace(f"test-{uuid.uuid4().hex[:8]}") as cluster:
        yield cluster


def operator_for(cluster: Cluster, folder: Path, **flags: str) -> OperatorProcess:
    """An operator that looks at this test's namespace alone."""
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    own = {"namespace": cluster.namespace, "watch-namespaces": cluster.namespace, **named}
    return OperatorProcess(cluster.kubeconfig, free_port(), folder / "operator.log", own)


@pytest.fixture
def operator(cluster: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    process = operator_for(cluster, tmp_path)
    process.start()
    process.wait_ready()
    yield process
    process.stop()


@pytest.fixture(scope="session")
def monitors(whole_cluster: Cluster) -> Monitoring:
    found = monitoring.start(whole_cluster)
    if found is None:
        pytest.skip("no prometheus-operator in the namespace monitoring")
    return found


@pytest.fixture(scope="session")
def jobs(whole_cluster: Cluster) -> Iterator[Cluster]:
    """The namespace that the platform's jobs run in."""
    if whole_cluster.is_test_cluster:
        images.provide(whole_cluster)
    elif lacking := images.missing(whole_cluster):
        pytest.skip(f"the nodes have no image {', '.join(lacking)}: make images, and load them")
    with whole_cluster.fresh_namespace("journey-jobs") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def users_image(whole_cluster: Cluster, jobs: Cluster) -> str:
    """Of somebody who has never heard of us: made of what the trainer's image has of torch."""
    if whole_cluster.has_image(USERS_IMAGE):
        return USERS_IMAGE
    if not whole_cluster.is_test_cluster:
        pytest.skip(f"the nodes have no image {USERS_IMAGE}")
    folder = Path(__file__).parent / "users_image"
    torch = ("--build-arg", f"TORCH_IMAGE={images.image('trainer')}")
    whole_cluster.tool("build", USERS_IMAGE, str(folder), "-f", str(folder / "Dockerfile"), *torch)
    return USERS_IMAGE


@pytest.fixture(scope="session")
def release(whole_cluster: Cluster, jobs: Cluster, monitors: Monitoring) -> Iterator[Release]:
    """The chart, installed with as little as it needs, monitoring, and the right to taint nodes."""
    wanted = ["crds.install=false", "operator.remediation.limit=Taint", "monitoring.serviceMonitor.interval=2s"]
    wanted += [f"monitoring.{part}.enabled=true" for part in ("serviceMonitor", "prometheusRule", "alertmanagerConfig")]
    with Release.installed(whole_cluster, "journey", jobs.namespace, "--set", ",".join(wanted)) as release:
        yield release
