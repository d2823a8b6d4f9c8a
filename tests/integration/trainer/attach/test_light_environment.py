"""An environment with torch, in which nothing of ours is installed and what our services need has other versions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.operator.render import Plan
from megatronapp.operator.render.pod import pod_template
from megatronapp.operator.render.volumes import ATTACH_FOLDER
from megatronapp.trainer.agent.rendezvous import answers
from tests.integration.trainer.plugins.scan.traced import read
from tests.support import training_environment
from tests.support.attached import OURS, SCRIPTS, TORCHRUN, every_step, run
from tests.support.cluster import wait_until
from tests.unit.operator.samples import PLATFORM, training_job

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

STEPS = 4
PINNED = {"protobuf": "4.25.8", "pydantic": "1.10.22", "grpcio": "1.60.2"}
INSTALLED = """
from importlib.metadata import distributions
for found in distributions():
    print(found.name, found.version)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pins = [f"{name}=={version}" for name, version in PINNED.items()]
    return training_environment.make(tmp_path_factory.mktemp("environment"), *pins)


@pytest.fixture
def volume() -> Iterator[Path]:
    """Short enough for a socket's address."""
    folder = Path(tempfile.mkdtemp(prefix="volume-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


def check_traces(folder: Path, job: str) -> None:
    for rank in range(2):
        trace = read(trace_file.path_for(folder, job, 1, rank))
        assert [summary.step for summary in trace.summaries] == list(range(1, STEPS + 1))


def test_it_is_attached_to_trains_the_same_and_imports_none_of_them(tmp_path: Path, python: Path) -> None:
    listed = subprocess.run([python, "-c", INSTALLED], capture_output=True, text=True, check=True).stdout
    installed = dict(line.split() for line in listed.splitlines())
    plain = run(SCRIPTS / "ddp.py", STEPS, python=python)

    attached = run(SCRIPTS / "ddp.py", STEPS, python=python, attach=every_step(tmp_path))

    assert PINNED.items() <= installed.items()
    assert not [name for name in installed if name.startswith("megatron") or name == "structlog"]
    assert attached.code == plain.code == 0, attached.output
    assert attached.lines("loss") == plain.lines("loss") != []
    assert attached.lines("heavy") == ["heavy []"]
    [line] = attached.said
    assert "steps and collectives" in line
    check_traces(tmp_path, "local/ddp")


def test_a_pods_command_is_attached_to_with_the_agent_beside_it(tmp_path: Path, python: Path, volume: Path) -> None:
    command = [str(python), *TORCHRUN, "--nproc-per-node=2"]
    job = training_job(
        attach=True, image="x", command=command, args=[str(SCRIPTS / "ddp.py"), str(STEPS)], nodes=1, procPerNode=2
    )
    pod = pod_template(Plan(job, 1, 1, (), PLATFORM))["spec"]
    ours, [training] = pod["initContainers"], pod["containers"]
    lay, serve = (
        [sys.executable, *(part.replace(ATTACH_FOLDER, str(volume)) for part in found["command"][1:])] for found in ours
    )
    given = {each["name"]: each.get("value", "").replace(ATTACH_FOLDER, str(volume)) for each in training["env"]}
    clean = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    names = ("MEGATRONAPP_RUN_ID", "MEGATRONAPP_JOB", "MEGATRONAPP_ATTEMPT", "MEGATRONAPP_AGENT_SOCKET")
    variables = {name: given[name] for name in names} | {"MEGATRONAPP_ATTACH": json.dumps(every_step(tmp_path))}

    subprocess.run(lay, check=True)
    agent = subprocess.Popen(serve)
    try:
        wait_until("the agent listens", lambda: answers(volume / "agent.sock"))
        done = subprocess.run(
            [part.replace(ATTACH_FOLDER, str(volume)) for part in [*training["command"], *training["args"]]],
            env={**clean, "OMP_NUM_THREADS": "1", **variables},
            capture_output=True,
            text=True,
            check=False,
        )
        agent.terminate()
        assert agent.wait(60) == 0
    finally:
        agent.kill()
        agent.wait()

    assert done.returncode == 0, done.stderr
    assert "attached to team/gpt" in done.stderr
    check_traces(tmp_path, "team/gpt")
    assert not (volume / "agent.sock").exists()
