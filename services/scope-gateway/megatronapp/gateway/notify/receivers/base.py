"""What a receiver is: an address, and words that it understands."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from typing import Any, Protocol

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message

SEND_SECONDS = 15.0
"""For one message, from the connection to the end of the answer."""
MAX_ANSWER_BYTES = 1 << 16


class Receiver(Protocol):
    name: str
    level: Level
    reports: bool
    """Whether it is for people who read, and gets the weekly report."""

    async def deliver(self, client: httpx.AsyncClient, message: Message, now: float) -> None:
        """Raises UnavailableError when the message is not taken; addresses and other secrets are not repeated."""


class Posted(ABC):
    """A receiver that is told by one POST of JSON."""

    name: str
    url: SecretStr
    level: Level
    reports: bool

    @abstractmethod
    def request(self, message: Message, now: float) -> tuple[dict[str, Any], dict[str, str]]:
        """(JSON body, headers). Pure."""

    def objection(self, answer: Any) -> str:
        """What a 2xx answer, parsed from JSON (None: it is none), says that is wrong after all; "" when the message was
        taken. The answer may be any JSON."""
        return ""

    async def deliver(self, client: httpx.AsyncClient, message: Message, now: float) -> None:
        body, headers = self.request(message, now)
        answer = await post(client, self.name, self.url, body, headers)
        if objection := self.objection(answer):
            raise UnavailableError(f"{self.name} refuses the message: {objection[:200]}")


async def post(
    client: httpx.AsyncClient, name: str, url: SecretStr, body: dict[str, Any], headers: dict[str, str]
) -> Any:
    """The answer, parsed from JSON (None: it is none). Raises UnavailableError when there is none, or none of success;
    the address, a secret, is not repeated."""
    headers = {**headers, "Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(SEND_SECONDS),
            client.stream("POST", url.get_secret_value(), json=body, headers=headers) as answer,
        ):
            found = await _beginning(answer)
    except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
        raise UnavailableError(f"{name} does not answer: {type(error).__name__}") from error
    if not answer.is_success:
        raise UnavailableError(f"{name} answers {answer.status_code}: {found[:200].decode(errors='replace')}")
    return _parsed(found)


async def _beginning(answer: httpx.Response) -> bytes:
    """The answer's first MAX_ANSWER_BYTES: a receiver says little. Of one that is compressed, which was not asked for,
    nothing: a few KiB of it may unpack to GiB before they can be counted."""
    found = b""
    if answer.headers.get("Content-Encoding", "").lower() not in {"", "identity"}:
        return found
    async for piece in answer.aiter_raw():
        found += piece
        if len(found) >= MAX_ANSWER_BYTES:
            break
    return found[:MAX_ANSWER_BYTES]


def _parsed(found: bytes) -> Any:
    try:
        return json.loads(found)
    except (ValueError, RecursionError):
        return None


def bearer(token: SecretStr | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
