"""A Slack channel, by an incoming webhook (Slack's Block Kit)."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message
from megatronapp.gateway.notify.receivers.base import Posted

MAX_TEXT = 2_900
"""Slack takes 3,000 characters a section."""


class Slack(Posted):
    name = "slack"
    reports = True

    def __init__(self, url: SecretStr, level: Level) -> None:
        self.url = url
        self.level = level

    def request(self, message: Message, now: float) -> tuple[dict[str, Any], dict[str, str]]:
        facts = "\n".join(f"*{name}* {escape(value)}" for name, value in message.facts)
        text = "\n".join(filter(None, (facts, escape(message.text))))[:MAX_TEXT]
        pages = (("open the page", message.link), ("runbook", message.runbook))
        links = [f"<{escape(url)}|{name}>" for name, url in pages if url]
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": message.title[:150]}},
            {"type": "section", "text": _markup(text or "–")},
        ]
        if links:
            blocks.append({"type": "context", "elements": [_markup(" · ".join(links))]})
        return {"text": escape(message.title), "blocks": blocks}, {}


def _markup(text: str) -> dict[str, Any]:
    """Verbatim: a bare @channel, #general or address is no mention and no link."""
    return {"type": "mrkdwn", "text": text, "verbatim": True}


def escape(text: str) -> str:
    """Slack's three control characters, so that no label makes a link or calls a channel."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
