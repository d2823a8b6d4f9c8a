"""A Feishu (Lark) group, by a custom bot's webhook with an interactive card."""

from __future__ import annotations

import base64
import hmac
from typing import Any

from pydantic import SecretStr

from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message
from megatronapp.gateway.notify.receivers.base import Posted

COLOURS = {Level.P0: "red", Level.P1: "orange", Level.P2: "yellow", Level.P3: "blue"}


class Feishu(Posted):
    name = "feishu"
    reports = True

    def __init__(self, url: SecretStr, level: Level, secret: SecretStr | None) -> None:
        self.url = url
        self.level = level
        self._secret = secret

    def request(self, message: Message, now: float) -> tuple[dict[str, Any], dict[str, str]]:
        colour = "green" if message.reason in {"resolved", "report"} else COLOURS[message.level]
        body: dict[str, Any] = {
            "msg_type": "interactive",
            "card": {
                "header": {"template": colour, "title": {"tag": "plain_text", "content": message.title}},
                "elements": _elements(message),
            },
        }
        if self._secret:
            timestamp = str(int(now))
            body |= {"timestamp": timestamp, "sign": signature(self._secret.get_secret_value(), timestamp)}
        return body, {}

    def objection(self, answer: Any) -> str:
        """Feishu answers 200 also when it refuses; then `code` is not 0."""
        if not isinstance(answer, dict):
            return "the answer is no JSON object"
        return "" if answer.get("code", answer.get("StatusCode", 0)) == 0 else str(answer.get("msg", answer))


def signature(secret: str, timestamp: str) -> str:
    """Feishu's: HMAC-SHA256 of nothing, keyed by timestamp and secret."""
    return base64.b64encode(hmac.digest(f"{timestamp}\n{secret}".encode(), b"", "sha256")).decode()


def _elements(message: Message) -> list[dict[str, Any]]:
    fields = [{"is_short": True, "text": _text(f"{name}\n{value}")} for name, value in message.facts]
    elements: list[dict[str, Any]] = [{"tag": "div", "fields": fields}] if fields else []
    if message.text:
        elements.append(_prose(message))
    buttons = [("open the page", message.link), ("runbook", message.runbook)]
    actions = [{"tag": "button", "text": _text(name), "url": url, "type": "default"} for name, url in buttons if url]
    return [*elements, {"tag": "action", "actions": actions}] if actions else elements


def _prose(message: Message) -> dict[str, Any]:
    if message.kind == "report":
        # The report escapes its names; a tag, as <at id=all>, must not come through even if one is forgotten.
        return {"tag": "markdown", "content": message.text.replace("<", "&#60;").replace(">", "&#62;")}
    return {"tag": "div", "text": _text(message.text)}


def _text(content: str) -> dict[str, str]:
    """Plain, so that no label is read as markup."""
    return {"tag": "plain_text", "content": content}
