"""What is written of a job's status, by real HTTP: as a whole, over the version that was looked at alone."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from megatronapp.core.trainingjob import Phase, Status
from megatronapp.core.trainingjob.status import Progress
from megatronapp.operator.api import Api, ConflictError
from megatronapp.operator.executor import Executor

PATH = "/apis/megatronapp.io/v1alpha1/namespaces/team/trainingjobs/gpt/status"


class JobServer:
    """One TrainingJob, of which a PUT replaces the status."""

    def __init__(self) -> None:
        self.job: dict[str, Any] = {
            "metadata": {"name": "gpt", "namespace": "team", "resourceVersion": "7"},
            "spec": {"procPerNode": 1},
        }

    async def handle(self, request: web.Request) -> web.Response:
        if (request.method, request.path) != ("PUT", PATH):
            return web.json_response({"message": "not found"}, status=404)
        given, there = await request.json(), self.job["metadata"]
        if given["metadata"]["resourceVersion"] != there["resourceVersion"]:
            return web.json_response({"message": "changed meanwhile"}, status=409)
        version = str(int(there["resourceVersion"]) + 1)
        self.job = {**self.job, "metadata": {**there, "resourceVersion": version}, "status": given["status"]}
        return web.json_response(self.job)


@pytest.fixture
def server() -> JobServer:
    return JobServer()


async def test_a_status_is_replaced_with_all_that_is_gone_from_it(server: JobServer, api: Api) -> None:
    running = Status(phase=Phase.RUNNING, progress=Progress(iteration=3, eta_seconds=40))
    stalled = running.model_copy(update={"progress": Progress(iteration=3)})
    executor = Executor(api, "test")

    first = await executor.write_status(server.job, None, running)
    await executor.write_status(first, running, stalled)

    assert Status.model_validate(server.job["status"]) == stalled
    assert server.job["metadata"]["resourceVersion"] == "9"


async def test_a_status_is_not_written_over_a_job_that_has_changed(server: JobServer, api: Api) -> None:
    looked_at = server.job
    server.job = {**looked_at, "metadata": {**looked_at["metadata"], "resourceVersion": "8"}}

    with pytest.raises(ConflictError, match="changed meanwhile"):
        await Executor(api, "test").write_status(looked_at, None, Status(phase=Phase.FAILED))

    assert "status" not in server.job
