"""The agent beside a trainer, in a container of its own, as the operator renders it: it has of the trainer no more than
what came over the socket in the volume of both, and tells what the trainer was in when that is killed."""

from __future__ import annotations

import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from megatronapp.operator.render.attached import SOCKET
from megatronapp.operator.render.plan import Plan
from megatronapp.operator.render.pod import pod_template
from megatronapp.operator.render.volumes import ATTACH_FOLDER
from tests.support.sidecar import Container, PodFolder
from tests.unit.operator.samples import PLATFORM, training_job

pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
from tests.support import nccl_rank

Process = subprocess.Popen[str]

FIELDS = {"spec.nodeName": "node1", "metadata.annotations['batch.kubernetes.io/job-completion-index']": "0"}
TRAINER = ["python", "-m", "tests.support.nccl_rank"]
ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def containers() -> Iterator[tuple[Container, Container]]:
    """Trainer and sidecar of one pod, whose socket has a short path."""
    job = training_job(image="registry.example.com/gpt:1", command=["torchrun", "pretrain_gpt.py"], attach=True)
    rendered = pod_template(Plan(job, 1, 2, (), PLATFORM))["spec"]
    [trainer], [_, sidecar] = rendered["containers"], rendered["initContainers"]
    with tempfile.TemporaryDirectory() as folder:
        pod = PodFolder(Path(folder), FIELDS)
        yield pod.container(trainer), pod.container(sidecar)


@contextmanager
def standing_rank(
    trainer: Container, sidecar: Container
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str]]]:
    """A rank that has said what it is in, and the agent that may not have read it yet."""
    with sidecar.start() as agent:
        try:
            _until_there(sidecar.mounts[ATTACH_FOLDER] / SOCKET.removeprefix(f"{ATTACH_FOLDER}/"))
            with trainer.start(TRAINER, cwd=ROOT) as rank:
                try:
                    assert rank.stdout is not None
                    assert rank.stdout.readline().strip() == nccl_rank.READY
                    yield rank, agent
                finally:
                    rank.kill()
        finally:
            agent.kill()


def _until_there(socket: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not socket.exists():
        assert time.monotonic() < deadline, f"nobody listens at {socket}"
        time.sleep(0.05)


def test_the_sidecar_tells_the_last_operation_of_a_trainer_that_is_killed(
    containers: tuple[Container, Container],
) -> None:
    with standing_rank(*containers) as (rank, agent):
        rank.kill()
        rank.wait()
        agent.terminate()
        said, _ = agent.communicate(timeout=PATIENCE_SECONDS)

    assert f'"rank": {nccl_rank.RANK}' in said
    assert "rank_died_in" in said
    assert all(operation in said for operation in nccl_rank.OPEN)


def test_a_sidecar_that_is_ended_before_it_has_seen_the_death_tells_it_too(
    containers: tuple[Container, Container],
) -> None:
    with standing_rank(*containers) as (rank, agent):
        agent.send_signal(signal.SIGSTOP)
        rank.kill()
        rank.wait()
        agent.terminate()
        agent.send_signal(signal.SIGCONT)
        said, _ = agent.communicate(timeout=PATIENCE_SECONDS)

    assert all(operation in said for operation in nccl_rank.OPEN)


def test_of_a_trainer_that_lives_when_the_sidecar_is_ended_nothing_is_told(
    containers: tuple[Container, Container],
) -> None:
    with standing_rank(*containers) as (_, agent):
        agent.terminate()
        said, _ = agent.communicate(timeout=PATIENCE_SECONDS)

    assert "rank_died_in" not in said
