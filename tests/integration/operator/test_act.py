"""What is written on a node, by real HTTP: each write is a new version of it."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp import web

from megatronapp.operator import nodes
from megatronapp.operator.act import Actor
from megatronapp.operator.actions import MarkNode
from megatronapp.operator.api import Api, ConflictError
from megatronapp.operator.observed import Node, SlowMark
from tests.unit.operator.samples import NOW, running

FOREIGN = {"key": "example.com/others", "effect": "NoExecute"}
MARK = SlowMark(NOW, NOW, "ns/gpt")


class NodeServer:
    """One node, which takes a patch of the version that it has, and others change once it was read."""

    def __init__(self) -> None:
        self.node: dict[str, Any] = {
            "metadata": {"name": "node2", "resourceVersion": "1"},
            "spec": {"taints": [FOREIGN]},
        }
        self.changed_by_others_after_read = False

    async def handle(self, request: web.Request) -> web.Response:
        if request.path not in {"/api/v1/nodes/node2", "/api/v1/nodes/node2/status"}:
            return web.json_response({"message": "not found"}, status=404)
        patch = await request.json()
        if patch.get("metadata", {}).get("resourceVersion", self._version) != self._version:
            return web.json_response({"message": "changed meanwhile"}, status=409)
        answer = self._write(patch)
        if self.changed_by_others_after_read:
            self._write({})
        return web.json_response(answer)

    @property
    def _version(self) -> str:
        return str(self.node["metadata"]["resourceVersion"])

    def _write(self, patch: dict[str, Any]) -> dict[str, Any]:
        metadata = {
            **self.node["metadata"],
            **patch.get("metadata", {}),
            "resourceVersion": str(int(self._version) + 1),
        }
        self.node = {**self.node, **patch, "metadata": metadata}
        return self.node


@pytest.fixture
def server() -> NodeServer:
    return NodeServer()


@pytest.fixture
def actor(api: Api) -> Actor:
    return Actor(api, "test")


async def test_a_slow_node_gets_condition_mark_and_taint_beside_others(server: NodeServer, actor: Actor) -> None:
    await actor.do(MarkNode("node2", MARK, "slow ranks"), running())

    found = Node.of(server.node)
    assert found.taints == (("example.com/others", "NoExecute"), (nodes.TAINT, nodes.EFFECT))
    assert found.mark == MARK
    assert server.node["status"]["conditions"][0]["status"] == "True"


async def test_a_released_node_keeps_its_mark_and_others_taints(server: NodeServer, actor: Actor) -> None:
    await actor.do(MarkNode("node2", MARK, "slow ranks"), running())

    await actor.release("node2", NOW)

    found = Node.of(server.node)
    assert found.taints == (("example.com/others", "NoExecute"),)
    assert found.mark == MARK
    assert server.node["status"]["conditions"][0]["status"] == "False"


async def test_taints_are_not_written_over_what_somebody_has_changed(server: NodeServer, actor: Actor) -> None:
    server.changed_by_others_after_read = True

    with pytest.raises(ConflictError):
        await actor.do(MarkNode("node2", MARK, "slow ranks"), running())

    assert server.node["spec"]["taints"] == [FOREIGN]


async def test_a_node_that_is_gone_needs_no_mark(actor: Actor) -> None:
    await actor.do(MarkNode("node9", MARK, "slow ranks"), running())
    await actor.release("node9", NOW)
