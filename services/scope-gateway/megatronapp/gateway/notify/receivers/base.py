"""What a receiver is: an address, and words that it understands."""

from __future__ import annotations

from typing import Any, Protocol

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message


class Receiver(Protocol):
    name: str
    url: SecretStr
    level: Level
    reports: bool
    """Whether it is for people who read, and gets the weekly report."""

    def request(self, message: Message, now: float) -> tuple[dict[str, Any], dict[str, str]]:
        """(JSON body, headers). Pure."""

    def objection(self, answer: httpx.Response) -> str:
        """What a 2xx answer says that is wrong after all; "" when the message was taken."""


async def send(client: httpx.AsyncClient, receiver: Receiver, message: Message, now: float) -> None:
    """Raises UnavailableError when the receiver does not take the message; the address, a secret, is not repeated."""
    body, headers = receiver.request(message, now)
    try:
        answer = await client.post(receiver.url.get_secret_value(), json=body, headers=headers)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnavailableError(f"{receiver.name} does not answer: {type(error).__name__}") from error
    if not answer.is_success:
        raise UnavailableError(f"{receiver.name} answers {answer.status_code}: {answer.text[:200]}")
    if objection := receiver.objection(answer):
        raise UnavailableError(f"{receiver.name} refuses the message: {objection[:200]}")


def bearer(token: SecretStr | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
