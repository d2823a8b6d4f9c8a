"""The archive in a Feishu sheet: rows by an app's token, which is asked for once."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from pydantic import SecretStr
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.notify.events import GroupState
from megatronapp.gateway.notify.incidents import Incident, Reason
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import of_incident
from megatronapp.gateway.notify.receivers.feishu_sheet import COLUMNS, FeishuSheet, Sheet

STATE = GroupState(
    group="g",
    firing=True,
    name="SlowGPU",
    level=Level.P1,
    summary="=1+1",
    node="n1",
    ranks=("5",),
    since_unix_seconds=1.0,
)
INCIDENT = Incident("g-1", STATE, opened=1_700_000_000.0, reopened=1_700_000_000.0, resolved=1_700_000_060.0)


class Feishu:
    """Its two methods, as the documents have them."""

    def __init__(self) -> None:
        self.tokens = 0
        self.rows: list[list[Any]] = []
        self.answer: Any = {"code": 0, "msg": "success"}
        self.app = Starlette(
            routes=[
                Route("/open-apis/auth/v3/tenant_access_token/internal", self.token, methods=["POST"]),
                Route("/open-apis/sheets/v2/spreadsheets/book/values_append", self.append, methods=["POST"]),
            ]
        )

    async def token(self, request: Request) -> JSONResponse:
        assert await request.json() == {"app_id": "cli", "app_secret": "hidden"}
        self.tokens += 1
        return JSONResponse({"code": 0, "msg": "ok", "tenant_access_token": f"t-{self.tokens}", "expire": 7200})

    async def append(self, request: Request) -> JSONResponse:
        assert request.headers["Authorization"] == f"Bearer t-{self.tokens}"
        assert request.query_params["insertDataOption"] == "INSERT_ROWS"
        values = (await request.json())["valueRange"]
        assert values["range"] == "s1!A:N"
        self.rows += values["values"]
        return JSONResponse(self.answer)


async def archive(feishu: Feishu, *moments: tuple[Reason, float]) -> None:
    sheet = Sheet("http://feishu.test", "cli", SecretStr("hidden"), SecretStr("book"), "s1")
    receiver = FeishuSheet(sheet, Level.P3)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(feishu.app)) as client:
        for reason, now in moments:
            await receiver.deliver(client, of_incident(INCIDENT, reason, ""), now)


async def test_an_incident_s_beginning_and_end_are_rows_of_text() -> None:
    feishu = Feishu()

    await archive(feishu, ("opened", 1_700_000_010.0), ("still", 1_700_000_020.0), ("resolved", 1_700_000_070.0))

    rows = [dict(zip(COLUMNS, row, strict=True)) for row in feishu.rows]
    assert [(row["incident"], row["what"]) for row in rows] == [("g-1", "opened"), ("g-1", "resolved")]
    assert (rows[1]["node"], rows[1]["lasted, seconds"], rows[1]["level"]) == ("n1", 60, "P1")
    assert rows[1]["summary"] == "=1+1"


async def test_a_token_is_asked_for_once_and_again_before_it_ends() -> None:
    feishu = Feishu()

    await archive(feishu, ("opened", 0.0), ("worse", 6_800.0), ("resolved", 6_950.0))

    assert (feishu.tokens, len(feishu.rows)) == (2, 3)


@pytest.mark.parametrize("answer", [{"code": 91403, "msg": "Forbidden"}, [], None, {"code": "0"}, {}])
async def test_what_feishu_refuses_is_not_archived_and_no_secret_is_told(answer: Any) -> None:
    feishu = Feishu()
    feishu.answer = answer

    with pytest.raises(UnavailableError) as caught:
        await archive(feishu, ("opened", 0.0))

    assert not any(secret in str(caught.value) for secret in ("hidden", "book", "t-1"))
    assert json.dumps(feishu.rows)
