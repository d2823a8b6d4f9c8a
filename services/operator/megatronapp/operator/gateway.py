"""Progress and findings of all runs, asked of the gateway over REST; where TrainingJobs stand, told to it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.core.logging import get_logger
from megatronapp.operator.phases import PhaseReport
from megatronapp.operator.snapshots import FindingSummary, Report

log = get_logger(__name__)

API = "/api/v1"
TIMEOUT_SECONDS = 10.0


class GatewayClient:
    def __init__(self, url: str, token: SecretStr | None) -> None:
        headers = {"Authorization": f"Bearer {token.get_secret_value()}"} if token else {}
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS)

    async def close(self) -> None:
        await self._client.aclose()

    async def reports(self) -> dict[str, Report]:
        """What is known now, by run. Raises UnavailableError."""
        jobs = await self._get("/jobs")
        findings = await self._get("/findings", state="open")
        by_run: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for finding in findings:
            by_run[finding["run"]].append(finding)
        return {job["run"]: found for job in jobs if (found := readable(job, by_run[job["run"]])) is not None}

    async def patch_phases(self, jobs: list[PhaseReport]) -> None:
        """Raises UnavailableError."""
        try:
            (await self._client.patch(f"{API}/jobs/phases", json={"jobs": jobs})).raise_for_status()
        except httpx.HTTPError as error:
            raise UnavailableError(
                f"the gateway at {self._client.base_url} takes no phases of jobs: {_reason(error)}"
            ) from error

    async def _get(self, path: str, **query: str) -> list[dict[str, Any]]:
        try:
            answer = await self._client.get(f"{API}{path}", params=query)
            answer.raise_for_status()
            found = answer.json()
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            raise UnavailableError(
                f"the gateway at {self._client.base_url} does not tell of jobs: {_reason(error)}"
            ) from error
        if not isinstance(found, list):
            raise UnavailableError(f"the gateway at {self._client.base_url} does not tell of jobs: it answers no list")
        return [each for each in found if isinstance(each, dict) and isinstance(each.get("run"), str)]


def _reason(error: Exception) -> str:
    return str(error.response.status_code) if isinstance(error, httpx.HTTPStatusError) else type(error).__name__


def readable(job: dict[str, Any], findings: list[dict[str, Any]]) -> Report | None:
    """None for a run that is told of in a way that makes no sense: it is nobody else's matter."""
    try:
        return report(job, findings)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        log.warning("report_set_aside", run=job.get("run"), error=f"{type(error).__name__}: {error}")
        return None


def report(job: dict[str, Any], findings: list[dict[str, Any]]) -> Report:
    """The gateway's values as far as a decision needs them."""
    of_attempt = (finding for finding in findings if finding["attempt"] == job["attempt"])
    return Report(
        attempt=job["attempt"],
        step=job["step"],
        total_steps=job["total_steps"],
        step_seconds=job["step_seconds"],
        eta_seconds=job["eta_seconds"],
        suspicions=tuple(_suspicion(finding, job["step"]) for finding in of_attempt),
    )


def _suspicion(finding: dict[str, Any], step: int) -> FindingSummary:
    ratio = finding["effect_ratio"]
    return FindingSummary(
        kind=finding["kind"],
        cause=finding["cause"],
        ranks=tuple(finding["ranks"]),
        node=finding["node"],
        effect_ratio=float("inf") if ratio is None else ratio,
        confidence=finding["confidence"],
        page=finding["page"],
        steps_open=step - finding["opened_step"],
        summary=finding["summary"],
    )
