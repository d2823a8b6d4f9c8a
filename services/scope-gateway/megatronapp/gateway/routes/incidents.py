"""What people were told of, and the report over a week."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import PlainTextResponse

from megatronapp.core.findings import State
from megatronapp.gateway.deps import GatewayParts
from megatronapp.gateway.notify.report import WEEK_SECONDS, Report, markdown, report
from megatronapp.gateway.notify.views import IncidentView, incident_view

router = APIRouter(tags=["incidents"])

MAX_DAYS = 366
Days = Annotated[int, Query(ge=1, le=MAX_DAYS, description="how many days before the end")]
End = Annotated[float | None, Query(ge=0, le=1e11, description="seconds since 1970; absent: now")]


@router.get("/incidents")
async def list_incidents(
    gateway: GatewayParts, state: Annotated[State | None, Query(description="in this state only")] = None
) -> list[IncidentView]:
    """The incident that opened last first."""
    incidents = gateway.notifier.incidents
    return [incident_view(i) for i in incidents if state is None or i.open == (state is State.OPEN)]


@router.get("/report")
async def get_report(gateway: GatewayParts, end: End = None, days: Days = 7) -> Report:
    """Incidents by level and cause, the mean time to resolve them, and repeat offenders."""
    return _report(gateway, end, days)


@router.get("/report.md", response_class=PlainTextResponse)
async def get_report_markdown(gateway: GatewayParts, end: End = None, days: Days = 7) -> PlainTextResponse:
    """The report as Markdown."""
    return PlainTextResponse(markdown(_report(gateway, end, days)), media_type="text/markdown; charset=utf-8")


def _report(gateway: GatewayParts, end: float | None, days: int) -> Report:
    until = time.time() if end is None else end
    return report(gateway.notifier.incidents, until - days * WEEK_SECONDS / 7, until)
