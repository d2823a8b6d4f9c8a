"""An archive: a row of a Feishu (Lark) sheet for each beginning, change of level and end of an incident.

An app of the organisation writes it: its secret is changed for a token of two hours, and the row is appended by
https://open.feishu.cn/document/ukTMukTMukTM/uMjMzUjLzIzM14yMyMTN. Strings that are written so are text, never formulas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.notify.incidents import Incident
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message, moment
from megatronapp.gateway.notify.receivers.base import post

MAX_CELL = 4_000
"""Characters. A cell takes 40,000."""
EARLY_SECONDS = 300.0
"""A token is renewed so long before it ends."""
TOKEN_SECONDS = 7_200.0
"""A token's life, at most."""


@dataclass(frozen=True, slots=True)
class Sheet:
    api: str
    """https://open.feishu.cn, or Lark's."""
    app_id: str
    app_secret: SecretStr
    spreadsheet: SecretStr
    """The token in the spreadsheet's address: who has it and may read the document finds it."""
    sheet: str
    """The sheet in it, as in its address behind `sheet=`."""


class FeishuSheet:
    name = "feishu-sheet"
    reports = False

    def __init__(self, sheet: Sheet, level: Level) -> None:
        self.level = level
        self._sheet = sheet
        self._token = ""
        self._good_until = 0.0

    async def deliver(self, client: httpx.AsyncClient, message: Message, now: float) -> None:
        if message.incident is None or message.reason == "still":
            return
        cells = row(message.incident, message.reason, now)
        body = {"valueRange": {"range": f"{self._sheet.sheet}!A:{chr(ord('A') + len(cells) - 1)}", "values": [cells]}}
        bearer = {"Authorization": f"Bearer {await self._tenant_token(client, now)}"}
        path = f"sheets/v2/spreadsheets/{self._sheet.spreadsheet.get_secret_value()}/values_append"
        try:
            await self._call(client, f"{path}?insertDataOption=INSERT_ROWS", body, bearer)
        except UnavailableError:
            self._good_until = 0.0
            raise

    async def _tenant_token(self, client: httpx.AsyncClient, now: float) -> str:
        if now >= self._good_until:
            secret = {"app_id": self._sheet.app_id, "app_secret": self._sheet.app_secret.get_secret_value()}
            answer = await self._call(client, "auth/v3/tenant_access_token/internal", secret, {})
            token, lasts = answer.get("tenant_access_token"), answer.get("expire")
            if not isinstance(token, str) or not token.isascii() or not token.isprintable():
                raise UnavailableError(f"{self.name} gives no token")
            known = lasts if isinstance(lasts, int) and 0 < lasts < TOKEN_SECONDS else TOKEN_SECONDS
            self._token, self._good_until = token, now + max(known - EARLY_SECONDS, 0.0)
        return self._token

    async def _call(
        self, client: httpx.AsyncClient, path: str, body: dict[str, Any], headers: dict[str, str]
    ) -> dict[str, Any]:
        url = SecretStr(f"{self._sheet.api.rstrip('/')}/open-apis/{path}")
        answer = await post(client, self.name, url, body, headers)
        if not isinstance(answer, dict):
            raise UnavailableError(f"{self.name} answers no JSON object")
        if answer.get("code") != 0:
            raise UnavailableError(f"{self.name} refuses: {str(answer.get('msg', answer))[:200]}")
        return answer


COLUMNS = (
    "incident", "what", "at", "level", "alert", "job", "node", "ranks", "GPUs", "cause", "opened", "resolved",
    "lasted, seconds", "summary",
)  # fmt: skip


def row(incident: Incident, reason: str, now: float) -> list[str | float]:
    """One row, of COLUMNS. Pure."""
    state = incident.state
    resolved = incident.resolved
    cells: list[str | float] = [
        incident.id,
        reason,
        moment(now),
        str(state.level),
        state.name,
        "/".join(filter(None, (state.namespace, state.training_job))),
        state.node,
        ", ".join(state.ranks),
        ", ".join(state.gpu_uuids),
        state.cause,
        moment(incident.opened),
        moment(resolved) if resolved is not None else "",
        round(resolved - incident.opened) if resolved is not None else "",
        state.summary,
    ]
    return [cell[:MAX_CELL] if isinstance(cell, str) else cell for cell in cells]
