"""Any address that takes JSON: the whole incident, for programs."""

from __future__ import annotations

from typing import Any

from pydantic import SecretStr

from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message
from megatronapp.gateway.notify.receivers.base import Posted, bearer


class Webhook(Posted):
    name = "webhook"
    reports = True

    def __init__(self, url: SecretStr, level: Level, token: SecretStr | None) -> None:
        self.url = url
        self.level = level
        self._token = token

    def request(self, message: Message, now: float) -> tuple[dict[str, Any], dict[str, str]]:
        body: dict[str, Any] = {
            "version": 1,
            "kind": message.kind,
            "reason": message.reason,
            "level": message.level,
            "title": message.title,
            "text": message.text,
            "facts": dict(message.facts),
            "link": message.link,
            "runbook": message.runbook,
        }
        if message.incident is not None:
            incident = message.incident
            body["incident"] = {
                "id": incident.id,
                "opened_unix_seconds": incident.opened,
                "resolved_unix_seconds": incident.resolved,
                **incident.state.model_dump(mode="json"),
            }
        return body, bearer(self._token)
