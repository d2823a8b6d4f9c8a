"""A TrainingJob of two replicas in two stages that somebody holds for minutes, on a whole platform: nobody is paged,
nothing is restarted, and it learns what it learns without. `make pause` holds it for five minutes."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from megatronapp.cli.local_stack import LocalStack, Options, local_stack
from megatronapp.core.trainingjob import TrainingJob
from megatronapp.trainer.jobs import JobEvent, JobResult, run_job
from tests.integration.gateway.scope.conftest import Viewer, command, joined_on
from tests.support.training import TINY

HELD_SECONDS = float(os.environ.get("MEGATRONAPP_PAUSE_SECONDS", "20"))
LEASE_SECONDS = 30.0
RENEW_SECONDS = 10.0
STEPS = 200
RANKS = 4

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(HELD_SECONDS + 480)]


async def trained(folder: Path, running: LocalStack | None, run: str) -> tuple[JobResult, list[float]]:
    """The job's end, and its losses by step."""
    args = [*TINY.split(), f"--train-iters={STEPS}"]
    plugins = {"scan": {"enabled": True}, "scope": {"enabled": running is not None}}
    document = {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "held", "uid": run},
        "spec": {
            "procPerNode": RANKS,
            "parallelism": {"pipeline": 2},
            "plugins": plugins,
            "failurePolicy": {"maxRestarts": 3},
            "args": args,
        },
    }
    losses: dict[int, float] = {}

    def take(event: JobEvent) -> None:
        line: dict[str, Any] = json.loads(event.text) if event.kind == "line" and event.text.startswith("{") else {}
        if line.get("event") == "step":
            losses[line["step"]] = line["loss"]

    platform = (
        {
            "collector_address": running.collector_address,
            "gateway_address": running.gateway_address,
            "token_file": running.token_file,
        }
        if running
        else {}
    )
    result = await run_job(TrainingJob.model_validate(document), work_dir=folder, on_event=take, **platform)  # type: ignore[arg-type]
    return result, [losses[step] for step in sorted(losses)]


async def held(viewer: Viewer, seconds: float) -> None:
    """As a page does that is left open."""
    viewer.patience_seconds = 120.0  # the first step of four ranks, on whatever machine
    while len((await viewer.text("description")).get("ranks", [])) < RANKS:
        pass
    await viewer.send(control={"do": "request"})
    await command(viewer, "pause", train={"do": "pause", "leaseSeconds": LEASE_SECONDS})
    end, number = time.monotonic() + seconds, 0
    while (left := end - time.monotonic()) > 0:
        await asyncio.sleep(min(left, RENEW_SECONDS))
        number += 1
        await command(viewer, f"renew-{number}", train={"do": "renew", "leaseSeconds": LEASE_SECONDS})


async def found(running: LocalStack, run: str) -> list[dict[str, Any]]:
    headers = {"Authorization": f"Bearer {running.operator_token.get_secret_value()}"}
    async with httpx.AsyncClient(base_url=running.page, headers=headers) as client:
        return list((await client.get("/api/v1/findings", params={"run": run})).json())


async def test_a_job_that_is_held_wakes_nobody_and_learns_the_same(tmp_path: Path) -> None:
    run = uuid.uuid4().hex
    async with local_stack(Options(tmp_path / "platform", page_port=0)) as running:
        training = asyncio.create_task(trained(tmp_path / "held", running, run))
        token = running.operator_token.get_secret_value()
        viewer = await joined_on(running.page, token, run, training)
        began = time.monotonic()
        await held(viewer, HELD_SECONDS)
        lasted = time.monotonic() - began
        during = await found(running, run)
        await command(viewer, "resume", train={"do": "resume"})
        await viewer.socket.close()
        result, losses = await training
        after = await found(running, run)

    _, undisturbed = await trained(tmp_path / "free", None, uuid.uuid4().hex)
    assert lasted >= HELD_SECONDS
    assert (result.exit_code, result.attempts) == (0, 1)
    assert [each["summary"] for each in during if each["page"]] == []
    # A machine on which others compute, too, has slow ranks.
    assert [each["summary"] for each in after if each["kind"] == "hang"] == []
    assert len(losses) == STEPS
    assert losses == undisturbed
