"""Receivers of notifications that answer anything, about incidents whose every text is hostile."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import httpx
from prometheus_client import CollectorRegistry
from pydantic import SecretStr

from megatronapp.core.bus import MemoryBus
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.gateway.notify.events import GroupState
from megatronapp.gateway.notify.incidents import Due, Incident, Reason
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.notifier import Notifier
from megatronapp.gateway.notify.settings import NotifySettings
from tests.attack.inputs import TEXTS, any_value, as_json, damaged
from tests.attack.session import Harm

ADDRESSES = {name: SecretStr(f"https://{name}.example/secret") for name in ("feishu", "slack", "webhook", "phone")}
TAKEN = {"code": 0}
HEADERS = ("Content-Type", "Content-Encoding", "Content-Length", "Location", "Set-Cookie", "Retry-After", "Connection")
VALUES = ("gzip", "identity", "br, gzip", "application/json", "https://127.0.0.1/", "0", "-1", "9" * 30, "close", "é")
MAX_SENT_BYTES = 1 << 20


class Receivers:
    name = "receivers"
    at_once = 8

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    async def start(self, folder: Path) -> None:
        settings = NotifySettings(
            feishu_url=ADDRESSES["feishu"],
            slack_url=ADDRESSES["slack"],
            webhook_url=ADDRESSES["webhook"],
            phone_url=ADDRESSES["phone"],
        )
        self._notifier = Notifier(settings, MemoryBus(), GatewayMetrics(CollectorRegistry()))

    async def stop(self) -> None:
        """Nothing runs."""

    async def check(self) -> None:
        """A receiver that takes a message is believed."""
        good = Incident("a", _state(random.Random(0), texts=("a",)), 1.0, 1.0)
        for receiver in ADDRESSES:
            if not await self._deliver(
                Due("a", receiver, "opened"), good, httpx.Response(200, stream=_Body(as_json(TAKEN)))
            ):
                raise Harm(f"{receiver} has taken a message, and is not believed")

    async def execute(self, chance: random.Random) -> None:
        incident = Incident("a", _state(chance), chance.choice((0.0, 1e9)), 1e9, chance.choice((None, 2e9)), 3)
        due = Due("a", chance.choice(list(ADDRESSES)), chance.choice(get_args(Reason)[:4]))
        delivered = await self._deliver(due, incident, _answer(chance))
        self.seen[f"{due.receiver}: {'taken' if delivered else 'not taken'}"] += 1

    async def _deliver(self, due: Due, incident: Incident, answer: httpx.Response | Exception) -> bool:
        sent: list[bytes] = []

        def take(request: httpx.Request) -> httpx.Response:
            sent.append(request.content)
            if isinstance(answer, Exception):
                raise answer
            return answer

        async with httpx.AsyncClient(transport=httpx.MockTransport(take)) as client:
            delivered = await self._notifier._deliver(client, due, incident)
        if len(sent) > 1:
            raise Harm(f"{due.receiver}: the message went elsewhere, too")
        for body in sent:
            if len(body) > MAX_SENT_BYTES:
                raise Harm(f"{due.receiver}: a message of {len(body)} bytes")
            if due.receiver == "slack" and "<!channel>" in "".join(_marked_up(json.loads(body))):
                raise Harm("a label calls a whole channel")
        return delivered


def _marked_up(body: dict[str, Any]) -> Iterator[str]:
    """What Slack reads as markup: the text beside the blocks, and what in them is not plain."""
    yield body["text"]
    for block in body["blocks"]:
        for part in (*block.get("elements", ()), *([block["text"]] if "text" in block else ())):
            if part["type"] == "mrkdwn":
                yield part["text"]


def _answer(chance: random.Random) -> httpx.Response | Exception:
    kind = chance.random()
    if kind < 0.1:
        return chance.choice(
            (httpx.ReadError("x"), httpx.ConnectTimeout("x"), httpx.RemoteProtocolError("x"), OSError())
        )
    body = as_json(any_value(chance, 3)) if chance.random() < 0.6 else as_json(TAKEN)
    if kind < 0.3:
        body = damaged(chance, body)
    elif kind < 0.4:
        body = chance.choice((b"[" * 100_000, b"9" * 5_000, b"1e400", b"\xff\xfe", b"", b"x" * (1 << 18)))
    headers = [(chance.choice(HEADERS), chance.choice(VALUES).encode()) for _ in range(chance.randrange(3))]
    status = chance.choice((200, 200, 200, 204, 301, 302, 307, 400, 429, 500, 599))
    return httpx.Response(status, headers=[(name.encode(), value) for name, value in headers], stream=_Body(body))


class _Body(httpx.AsyncByteStream):
    """In pieces, of which some say nothing."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def __aiter__(self) -> Any:
        for begin in range(0, len(self._body), 1 << 12):
            yield b""
            yield self._body[begin : begin + (1 << 12)]


def _state(chance: random.Random, texts: tuple[str, ...] = TEXTS) -> GroupState:
    names = ("group", "name", "summary", "description", "runbook", "namespace", "training_job", "node", "component")
    # An alert comes as UTF-8.
    known = [text.encode("utf-8", "replace").decode() for text in texts]
    return GroupState(
        **{name: chance.choice(known) for name in (*names, "cause")},
        firing=chance.random() < 0.5,
        level=chance.choice(list(Level)),
        ranks=tuple(chance.choices(known, k=chance.choice((0, 1, 40)))),
        gpu_uuids=tuple(chance.choices(known, k=chance.choice((0, 1, 40)))),
        since_unix_seconds=chance.choice((0.0, 1e9, 1e18, -1e18)),
    )
