"""Where TrainingJobs stand, as the gateway is told: what is new at once, and all of it now and then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from megatronapp.core.trainingjob import ConditionType, Phase
from megatronapp.operator.snapshots import parse_time

Body = Mapping[str, Any]
PhaseReport = dict[str, Any]
"""One job, as the gateway takes it."""

AT_ONCE = 200
"""Jobs of one request; the gateway takes 500."""
MAX_REASON = 64
MAX_MESSAGE = 1024
TELLS = {
    Phase.PENDING: ConditionType.PODS_READY,
    Phase.STARTING: ConditionType.PODS_READY,
    Phase.RESTARTING: ConditionType.RESTARTING,
    Phase.SUSPENDED: ConditionType.SUSPENDED,
    Phase.FAILED: ConditionType.FAILED,
}
"""The condition that tells why a job is in a phase."""
HINDERS = (ConditionType.RECONCILE_ERROR, ConditionType.INVALID_TEMPLATE)
"""Conditions that, where they are true, tell more than any other why nothing happens."""


class PhaseReporter:
    """What the gateway knows, so that it is told no more than what it does not know."""

    def __init__(self) -> None:
        self._known: dict[str, PhaseReport] = {}

    def news(self, bodies: Iterable[Body]) -> list[list[PhaseReport]]:
        """What to tell of all TrainingJobs that there are, in requests; jobs that are gone among it."""
        there = {report["run"]: report for report in map(phase_of_job, bodies)}
        gone = [{**report, "phase": None} for run, report in self._known.items() if run not in there]
        changed = [report for run, report in there.items() if self._known.get(run) != report]
        news = iter([*gone, *changed])
        return list(iter(lambda: list(islice(news, AT_ONCE)), []))

    def sent(self, jobs: Iterable[PhaseReport]) -> None:
        """The gateway has taken these."""
        for job in jobs:
            if job["phase"] is None:
                self._known.pop(job["run"], None)
            else:
                self._known[job["run"]] = job

    def forget(self) -> None:
        """All is told anew: a gateway may have been started afresh. What is gone and was not told yet stays known."""
        self._known = {run: {"run": run, "job": report["job"]} for run, report in self._known.items()}


def phase_of_job(body: Body) -> PhaseReport:
    """Of the object as it is, whatever stands in its status."""
    meta, status = body["metadata"], _mapping(body.get("status"))
    phase = status.get("phase", "")
    known = Phase(phase) if isinstance(phase, str) and phase in set(Phase) else Phase.PENDING
    why = _why(status, known)
    since = parse_time(_text(why.get("lastTransitionTime"))) or parse_time(_text(meta.get("creationTimestamp")))
    return {
        "run": str(meta["uid"]),
        "job": f"{meta['namespace']}/{meta['name']}",
        "phase": known.value,
        "reason": _text(why.get("reason"))[:MAX_REASON],
        "message": _text(why.get("message"))[:MAX_MESSAGE],
        "since_unix_seconds": max(0.0, since.timestamp()) if since else 0.0,
    }


def _why(status: Body, phase: Phase) -> Body:
    """The condition that tells most; an empty one where there is nothing to tell."""
    given = status.get("conditions")
    conditions = {
        each["type"]: each
        for each in (given if isinstance(given, list) else ())
        if isinstance(each, dict) and isinstance(each.get("type"), str)
    }
    for kind in HINDERS:
        if conditions.get(kind, {}).get("status") == "True":
            return conditions[kind]
    return conditions.get(TELLS[phase], {}) if phase in TELLS else {}


def _mapping(value: object) -> Body:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
