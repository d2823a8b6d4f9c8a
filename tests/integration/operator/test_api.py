"""Requests over real HTTP, to a server that answers as it is told."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from megatronapp.core.errors import UnavailableError
from megatronapp.operator.api import Api, ConflictError, GoneError, RefusedError
from megatronapp.operator.lease import TRIPPED, Lease
from megatronapp.operator.login import Login
from tests.support.kubeconfig import write_kubeconfig

LEASES = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"


class Server:
    """Answers with what is lined up, then as an API server that keeps objects and their versions."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[tuple[str, str]] = []

    async def handle(self, request: web.Request) -> web.Response:
        self.requests.append((request.method, request.path))
        if self.answers:
            status, headers = self.answers.pop(0)
            return web.json_response({"message": f"answer {status}"}, status=status, headers=headers)
        if request.method == "POST":
            return self._create(request.path, await request.json())
        if request.path not in self.objects:
            return web.json_response({"message": "not found"}, status=404)
        return self._change(request, await request.json() if request.method in {"PUT", "PATCH"} else None)

    def _create(self, path: str, body: dict[str, Any]) -> web.Response:
        place = f"{path}/{body['metadata']['name']}"
        if place in self.objects:
            return web.json_response({"message": "there already"}, status=409)
        body["metadata"]["resourceVersion"] = "1"
        self.objects[place] = body
        return web.json_response(body, status=201)

    def _change(self, request: web.Request, body: dict[str, Any] | None) -> web.Response:
        there = self.objects[request.path]
        if body is not None:
            version = there["metadata"]["resourceVersion"]
            if body["metadata"].get("resourceVersion", version) != version:
                return web.json_response({"message": "changed meanwhile"}, status=409)
            if request.method == "PATCH":
                body = {**there, "metadata": {**there["metadata"], **body["metadata"]}}
            body["metadata"]["resourceVersion"] = str(int(version) + 1)
            self.objects[request.path] = there = body
        return web.json_response(there)


@pytest.fixture
def server() -> Server:
    return Server()


async def test_overload_is_waited_out(server: Server, api: Api) -> None:
    server.objects["/x"] = {"metadata": {"resourceVersion": "1"}}
    server.answers = [(429, {"Retry-After": "0"}), (500, {})]

    assert await api.get("/x") == server.objects["/x"]
    assert len(server.requests) == 3


CHANGES: dict[str, Callable[[Api], Awaitable[Any]]] = {
    "POST": lambda api: api.create("/x", {"metadata": {"name": "new"}}),
    "PATCH": lambda api: api.patch("/x/there", {"metadata": {}}),
    "PUT": lambda api: api.replace("/x/there", {"metadata": {}}),
    "DELETE": lambda api: api.delete("/x/there"),
}


@pytest.mark.parametrize("verb", CHANGES)
async def test_every_verb_is_tried_again(server: Server, api: Api, verb: str) -> None:
    server.objects["/x/there"] = {"metadata": {"resourceVersion": "1"}}
    server.answers = [(429, {"Retry-After": "0"}), (500, {"Retry-After": "0"}), (503, {"Retry-After": "0"})]

    await CHANGES[verb](api)

    assert [method for method, _ in server.requests] == [verb] * 4


async def test_a_server_that_stays_in_trouble_is_given_up(server: Server, api: Api) -> None:
    server.answers = [(503, {"Retry-After": "0"})] * 4

    with pytest.raises(UnavailableError, match="503"):
        await api.get("/x")


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (404, GoneError),
        (409, ConflictError),
        (410, UnavailableError),
        (422, RefusedError),
        (403, RefusedError),
    ],
)
async def test_refusals_say_what_the_server_says(server: Server, api: Api, status: int, error: type[Exception]) -> None:
    server.answers = [(status, {})]

    with pytest.raises(error, match=f"answer {status}"):
        await api.get("/x")


async def test_nobody_there_is_unavailable(tmp_path: Path) -> None:
    api = Api(await Login.of_kubeconfig(write_kubeconfig(tmp_path / "kubeconfig", "http://127.0.0.1:9")))

    with pytest.raises(UnavailableError, match="does not answer"):
        await api.get("/x")


# ---- the lease


def lease(api: Api, identity: str, seconds: int = 3) -> Lease:
    return Lease(api, "ns", "operator", identity, seconds)


async def test_the_first_one_leads_and_the_second_waits(api: Api) -> None:
    first, second = lease(api, "a"), lease(api, "b")

    await first.acquire()

    assert not await second._try()
    assert await first._try()


async def test_a_released_lease_is_taken_at_once(api: Api, server: Server) -> None:
    first, second = lease(api, "a"), lease(api, "b")
    await first.acquire()

    await first.release()

    assert await second._try()
    spec = server.objects[f"{LEASES}/operator"]["spec"]
    assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("b", 1)


async def test_a_lease_that_is_not_renewed_is_taken_after_its_duration(api: Api) -> None:
    await lease(api, "a", 1).acquire()
    second = lease(api, "b", 1)

    assert not await second._try()
    await second.acquire()


async def test_a_holder_that_can_not_renew_says_so(api: Api, server: Server) -> None:
    holder = lease(api, "a", 1)
    await holder.acquire()
    server.objects[f"{LEASES}/operator"]["spec"]["holderIdentity"] = "somebody"

    with pytest.raises(UnavailableError, match="could not be renewed"):
        await holder.keep()


async def test_the_open_circuit_breaker_stands_on_the_lease(api: Api, server: Server) -> None:
    holder = lease(api, "a")
    await holder.acquire()

    await holder.trip("too many nodes")
    assert await holder._try()
    assert holder.tripped

    del server.objects[f"{LEASES}/operator"]["metadata"]["annotations"][TRIPPED]
    assert await holder._try()
    assert not holder.tripped
