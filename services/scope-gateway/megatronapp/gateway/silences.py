"""Silences in Alertmanager, over its API (v2)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Any

import httpx
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.core.findings import Finding, Kind
from megatronapp.core.logging import get_logger
from megatronapp.gateway.errors import ConflictError

log = get_logger(__name__)

TIMEOUT_SECONDS = 10.0
ALERTS: dict[Kind, str] = {
    Kind.HANG: "TrainingHang",
    Kind.SLOW_GPU: "SlowGPU",
    Kind.SLOW_LINK: "SlowLink",
    Kind.SLOW_HOST: "SlowHost",
    Kind.FABRIC_SLOW: "FabricSlow",
    Kind.IMBALANCE: "JobImbalanced",
    Kind.UNKNOWN: "UnknownSlowness",
}
OF_THE_JOB = frozenset({Kind.FABRIC_SLOW, Kind.IMBALANCE})
"""Their alerts name no rank."""
NOT_SET = (
    "there is no Alertmanager to silence anything in; set MEGATRONAPP_GATEWAY_ALERTMANAGER_URL to its address, "
    "for example http://alertmanager:9093"
)


class Silences:
    def __init__(self, url: str, bearer: SecretStr | None) -> None:
        """`url` empty: there is none, and whoever asks is told so."""
        headers = {"Authorization": f"Bearer {bearer.get_secret_value()}"} if bearer else {}
        self._url = url
        self._client = httpx.AsyncClient(base_url=url, headers=headers, timeout=TIMEOUT_SECONDS) if url else None

    @property
    def possible(self) -> bool:
        return self._client is not None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def create(self, finding: Finding, by: str, text: str, begin: float, end: float) -> str:
        """Silence the finding's alerts between two times of Unix; returns the silence's id.

        Raises ConflictError without an Alertmanager, and UnavailableError when it does not take it.
        """
        body = {
            "matchers": matchers(finding),
            "startsAt": _time(begin),
            "endsAt": _time(end),
            "createdBy": by,
            "comment": f"{text or finding.summary} (finding {finding.id})",
        }
        answer = await self._ask("POST", "/api/v2/silences", json=body)
        silence = answer.get("silenceID") if isinstance(answer, dict) else None
        if not isinstance(silence, str) or not re.fullmatch(r"[A-Za-z0-9-]{1,128}", silence):
            raise UnavailableError(f"Alertmanager at {self._url} gives no id for the silence")
        return silence

    async def end(self, silence: str) -> None:
        """One that has expired already is no matter."""
        await self._ask("DELETE", f"/api/v2/silence/{silence}", missing_ok=True)

    async def _ask(self, method: str, path: str, *, missing_ok: bool = False, **given: Any) -> Any:
        if self._client is None:
            raise ConflictError(NOT_SET)
        try:
            answer = await self._client.request(method, path, **given)
            if missing_ok and answer.status_code in (404, 500):  # 500: "silence … already expired"
                return None
            answer.raise_for_status()
            return answer.json() if answer.content else None
        except httpx.HTTPStatusError as error:
            reason = f"HTTP {error.response.status_code}"
        except (httpx.HTTPError, ValueError, RecursionError) as error:
            reason = type(error).__name__
        log.warning("alertmanager_not_reached", reason=reason)
        raise UnavailableError(f"Alertmanager at {self._url} does not take it: {reason}")


def matchers(finding: Finding) -> list[dict[str, object]]:
    """What picks the alerts of this finding and of no other: its kind, job and ranks."""
    namespace, _, name = finding.job.partition("/")
    exact = {"alertname": ALERTS[finding.kind], "namespace": namespace, "training_job": name}
    found: list[dict[str, object]] = [_matcher(label, value, regex=False) for label, value in exact.items()]
    if finding.ranks and finding.kind not in OF_THE_JOB:
        found.append(_matcher("rank", "|".join(map(str, finding.ranks)), regex=True))
    return found


def _matcher(label: str, value: str, *, regex: bool) -> dict[str, object]:
    return {"name": label, "value": value, "isRegex": regex, "isEqual": True}


def _time(unix_seconds: float) -> str:
    return datetime.fromtimestamp(unix_seconds, UTC).isoformat()
