"""Forward ranks on a node of their own: two launchers of one job, as the pods of its two Jobs start them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.ports import free_port
from tests.support.training import TINY

pytest.importorskip("megatronapp.rdma", reason="the transport's wheel is not installed: pip install native/rdma")
pytestmark = pytest.mark.long

FLAGS = "--pipeline-model-parallel-size 2 --forward-backward-disaggregating --fbd-roles-apart --log-interval 1"
SECONDS = 200


def launcher(port: int, first_node: str) -> subprocess.Popen[str]:
    """The only node of a Job."""
    torchrun = {
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "2",
        "PET_NODE_RANK": "0",
        "PET_MASTER_ADDR": "127.0.0.1",
        "PET_MASTER_PORT": str(port),
        "PET_MAX_RESTARTS": "0",
    }
    environment = {**os.environ, **torchrun, "OMP_NUM_THREADS": "1", "MEGATRONAPP_FIRST_NODE_RANK": first_node}
    command = [sys.executable, "-m", "megatronapp.trainer.jobs.pod", "-m", "megatronapp.trainer"]
    flags = f"{TINY} --train-iters 2 {FLAGS}".split()
    return subprocess.Popen(
        [*command, *flags], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


@pytest.mark.timeout(SECONDS + 30)
def test_two_nodes_of_one_role_each_train_together() -> None:
    port = free_port()
    backward, forward = launcher(port, ""), launcher(port, "1")
    try:
        said = [each.communicate(timeout=SECONDS)[0] for each in (backward, forward)]
    finally:
        for each in (backward, forward):
            each.kill()

    assert (backward.returncode, forward.returncode) == (0, 0), said
    assert ["loss" in each for each in said] == [True, False]  # the last backward rank tells of steps
