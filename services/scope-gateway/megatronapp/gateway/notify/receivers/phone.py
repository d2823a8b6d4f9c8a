"""A service that calls people: the few words that a voice reads out, under one key for an incident, so that it ends."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message
from megatronapp.gateway.notify.receivers.base import Posted, bearer


class Phone(Posted):
    name = "phone"
    reports = False

    def __init__(self, url: SecretStr, level: Level, token: SecretStr | None) -> None:
        self.url = url
        self.level = level
        self._token = token

    def request(self, message: Message, now: float) -> tuple[dict[str, Any], dict[str, str]]:
        incident = message.incident
        body = {
            "event": "resolve" if message.reason == "resolved" else "trigger",
            "key": incident.id if incident else message.title,
            "level": message.level,
            "say": message.title,
            "runbook": message.runbook,
        }
        return body, bearer(self._token)
