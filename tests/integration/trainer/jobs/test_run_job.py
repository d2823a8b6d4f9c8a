"""TrainingJobs on this machine, by a real torchrun."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from megatronapp.core.trainingjob import TrainingJob
from megatronapp.trainer.jobs import JobEvent, run_job
from tests.support.training import TINY

pytestmark = pytest.mark.timeout(240)


def content(uid: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "tiny", "uid": uid},
        "spec": {
            "procPerNode": 2,
            "plugins": {"scan": {"enabled": False}},
            "failurePolicy": {"maxRestarts": 1},
            "args": [*TINY.split(), "--train-iters=100000", "--save-interval=20"],
            **spec,
        },
    }


@pytest.fixture
def uid() -> Iterator[str]:
    """A run whose processes must all be gone after the test."""
    name = uuid.uuid4().hex
    yield name
    left = running(name)
    for process in left:
        process.kill()
    assert left == []


def running(uid: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("MEGATRONAPP_RUN_ID") == uid:
                found.append(process)
        except psutil.Error:
            continue
    return found


def rank(uid: str, number: int) -> psutil.Process:
    return next(process for process in running(uid) if process.environ().get("RANK") == str(number))


def logged(event: JobEvent) -> dict[str, Any]:
    """The log line that the event shows, if it is one."""
    if event.kind != "line" or not event.text.startswith("{"):
        return {}
    line: dict[str, Any] = json.loads(event.text)
    return line


@pytest.mark.long
async def test_a_killed_rank_restarts_the_job_from_its_checkpoint_and_a_stop_saves(tmp_path: Path, uid: str) -> None:
    job = TrainingJob.model_validate(content(uid))
    stop, events, steps = asyncio.Event(), list[JobEvent](), {1: list[int](), 2: list[int]()}

    def watch(event: JobEvent) -> None:
        events.append(event)
        line = logged(event)
        if line.get("event") == "checkpoint_saved" and event.attempt == 1 and not steps[2]:
            rank(uid, 1).send_signal(signal.SIGKILL)
        if line.get("event") == "step":
            steps[event.attempt].append(line["step"])
            if event.attempt == 2:
                stop.set()

    result = await run_job(job, work_dir=tmp_path, on_event=watch, stop=stop)

    assert (result.exit_code, result.attempts, result.stopped) == (0, 2, True)
    assert [event.kind for event in events if event.kind != "line"] == ["start", "restart", "start", "end"]
    assert min(steps[1]) == 1
    assert min(steps[2]) > 1
    assert (tmp_path / "logs" / "attempt-2.log").stat().st_size
    saved = [logged(event)["step"] for event in events if logged(event).get("event") == "checkpoint_saved"]
    assert saved[-1] >= max(steps[2])


async def test_wrong_flags_are_not_tried_again(tmp_path: Path, uid: str) -> None:
    job = TrainingJob.model_validate(content(uid, procPerNode=1, args=["--hiden-size=3"]))
    events: list[JobEvent] = []

    result = await run_job(job, work_dir=tmp_path, on_event=events.append)

    assert (result.exit_code, result.attempts) == (2, 1)
    assert any("did you mean --hidden-size?" in event.text for event in events)


@pytest.mark.long
async def test_an_error_of_all_ranks_is_told_once_and_logged_for_each(tmp_path: Path, uid: str) -> None:
    args = [*TINY.replace("--mock-data", "--data-path /nowhere/text").split(), "--train-iters=5"]
    job = TrainingJob.model_validate(content(uid, args=args))
    events: list[JobEvent] = []

    await run_job(job, work_dir=tmp_path, on_event=events.append)

    told = [event.text for event in events if event.text.startswith("error: ")]
    assert told == ["error: data /nowhere/text: there is no file /nowhere/text.bin"]
    assert not any("torch/distributed/elastic" in event.text for event in events)
    assert told[0] in (tmp_path / "logs" / "attempt-1.log").read_text()


@pytest.mark.long
async def test_a_cancelled_run_leaves_nothing_behind(tmp_path: Path, uid: str) -> None:
    job = TrainingJob.model_validate(content(uid))
    trained = asyncio.Event()

    def watch(event: JobEvent) -> None:
        if logged(event).get("event") == "step":
            trained.set()

    task = asyncio.create_task(run_job(job, work_dir=tmp_path, on_event=watch))
    await trained.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert running(uid) == []
    assert list((tmp_path / "checkpoints").glob("iter_*"))


@pytest.mark.long
def test_the_ranks_end_with_their_starter(tmp_path: Path, uid: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(yaml.safe_dump(content(uid)))
    command = [sys.executable, "-m", "megatronapp.cli.main", "run", str(file), "--folder", str(tmp_path / "run")]
    starter = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert starter.stdout is not None
    next(line for line in starter.stdout if '"event": "step"' in line)
    ranks = running(uid)

    starter.kill()

    starter.wait()
    gone, _ = psutil.wait_procs(ranks, timeout=90)
    assert len(gone) == len(ranks) > 2
