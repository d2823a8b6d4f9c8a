"""One cluster for the session; an operator and a namespace for each test that asks."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster import PYTHON_IMAGE, Cluster, NoClusterError, OperatorProcess


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Cluster]:
    try:
        with Cluster.at_hand() as cluster:
            cluster.install_definition()
            if cluster.is_test_cluster and not cluster.has_image(PYTHON_IMAGE):
                cluster.tool("image", PYTHON_IMAGE, "python3", "python3-venv", "python3-pip")
            yield cluster
    except NoClusterError as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(whole_cluster: Cluster) -> Iterator[Cluster]:
    """A namespace of its own."""
    with whole_cluster.fresh_namespace(f"test-{uuid.uuid4().hex[:8]}") as cluster:
        yield cluster


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


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
