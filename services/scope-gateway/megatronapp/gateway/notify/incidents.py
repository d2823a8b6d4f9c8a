"""Incidents, and who must be told of them now. Pure: events are folded in, the time is passed in.

Several gateways fold the same events, so they agree on what is due without speaking to each other: one that wants to
tell somebody publishes a claim, and the first claim on the topic for what is due is the one that counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from megatronapp.gateway.notify.events import (
    AlertReceived,
    AnyEvent,
    Claimed,
    GroupState,
    MonitoringHeard,
    NotificationSent,
)
from megatronapp.gateway.notify.levels import Level

MAX_INCIDENTS = 5_000
CLAIM_SECONDS = 60.0
"""A claim whose gateway says nothing for so long is void."""
RETRY_SECONDS, MAX_RETRY_SECONDS = 10.0, 600.0
REPORT = "report-"
"""Subjects with this prefix are weekly reports."""

Reason = Literal["opened", "worse", "still", "resolved", "report"]


@dataclass(frozen=True, slots=True)
class Rules:
    """levels: the least urgent level that each receiver hears of. reporters: who gets the weekly report."""

    levels: Mapping[str, Level]
    repeat_seconds: float
    flap_seconds: float
    reporters: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Incident:
    """One fault, from its first alert to its last: what people are told of once."""

    id: str
    state: GroupState
    opened: float
    reopened: float
    """Since when it has been open without a break."""
    resolved: float | None = None
    flaps: int = 0
    """How often it came back within a short time."""

    @property
    def open(self) -> bool:
        return self.resolved is None


@dataclass(frozen=True, slots=True)
class Record:
    """What one receiver has been told of one subject."""

    notified: Literal["", "open", "resolved"] = ""
    level: Level = Level.P3
    at: float = 0.0
    claim: str = ""
    claimed_at: float = 0.0
    failures: int = 0
    failed_at: float = 0.0

    def waits(self, now: float) -> bool:
        """Somebody is telling now, or it has just failed."""
        patience = min(RETRY_SECONDS * 2 ** (self.failures - 1), MAX_RETRY_SECONDS) if self.failures else 0.0
        return (bool(self.claim) and now - self.claimed_at < CLAIM_SECONDS) or now - self.failed_at < patience


@dataclass(frozen=True, slots=True)
class Due:
    subject: str
    receiver: str
    reason: Reason


@dataclass(slots=True)
class Incidents:
    rules: Rules
    incidents: dict[str, Incident] = field(default_factory=dict)
    """By id, the one opened first first."""
    latest: dict[str, str] = field(default_factory=dict)
    """Group → its newest incident."""
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    """(subject, receiver) → what was told."""

    heard: float | None = None
    """When monitoring was last heard; None: never."""

    def apply(self, event: AnyEvent, week: str = "") -> bool:
        """Fold in one event; False for a claim that does not count. `week` is the report that is due at its time."""
        if isinstance(event, AlertReceived):
            self._on_alert(event.state, event.at)
            return True
        if isinstance(event, NotificationSent):
            self._note(event)
            return True
        if isinstance(event, MonitoringHeard):
            self.heard = max(event.at, self.heard or event.at)
            return True
        return self._grant(event, week)

    def due(self, now: float, week: str = "") -> list[Due]:
        """All that must be told now, the most urgent first. `week` names the report that is due; "": none."""
        found = [due for incident in self.incidents.values() for due in self._due_of(incident, now)]
        found.sort(key=lambda due: self.incidents[due.subject].state.level)
        if week:
            found += [Due(REPORT + week, name, "report") for name in self._unreported(REPORT + week, now)]
        return found

    def _unreported(self, subject: str, now: float) -> list[str]:
        records = {name: self.records.get((subject, name), Record()) for name in sorted(self.rules.reporters)}
        return [name for name, record in records.items() if not record.notified and not record.waits(now)]

    def _on_alert(self, state: GroupState, at: float) -> None:
        known = self.incidents.get(self.latest.get(state.group, ""))
        if not state.firing:
            if known is not None and known.open:
                self._keep(replace(known, resolved=at))
        elif known is None or (known.resolved is not None and at - known.resolved > self.rules.flap_seconds):
            opened = min(at, state.since_unix_seconds) if known is None else at
            self._keep(Incident(f"{state.group}-{int(at * 1000):x}", state, opened=opened, reopened=at))
        elif known.resolved is not None:
            self._keep(replace(known, state=state, resolved=None, reopened=at, flaps=known.flaps + 1))
        else:
            self._keep(replace(known, state=_worst(known.state, state)))

    def _keep(self, incident: Incident) -> None:
        self.incidents[incident.id] = incident
        self.latest[incident.state.group] = incident.id
        if len(self.incidents) > MAX_INCIDENTS:
            self._forget(next((i for i in self.incidents.values() if not i.open), incident))

    def _forget(self, incident: Incident) -> None:
        del self.incidents[incident.id]
        if self.latest.get(incident.state.group) == incident.id:
            del self.latest[incident.state.group]
        for key in [key for key in self.records if key[0] == incident.id]:
            del self.records[key]

    def _due_of(self, incident: Incident, now: float) -> Iterator[Due]:
        for receiver, threshold in self.rules.levels.items():
            record = self.records.get((incident.id, receiver), Record())
            reason = self._reason(incident, record, now)
            if reason and not record.waits(now) and incident.state.level.reaches(threshold):
                yield Due(incident.id, receiver, reason)

    def _reason(self, incident: Incident, record: Record, now: float) -> Reason | None:
        if not incident.open:
            return "resolved" if record.notified == "open" else None
        if not record.notified:
            return "opened"
        if record.notified == "resolved":
            return "opened" if now - incident.reopened >= self.rules.flap_seconds else None
        if incident.state.level < record.level:
            return "worse"
        return "still" if now - record.at >= self.rules.repeat_seconds else None

    def _grant(self, claim: Claimed, week: str) -> bool:
        if not any((due.subject, due.receiver) == (claim.subject, claim.receiver) for due in self.due(claim.at, week)):
            return False
        key = (claim.subject, claim.receiver)
        self.records[key] = replace(self.records.get(key, Record()), claim=claim.claim, claimed_at=claim.at)
        return True

    def _note(self, sent: NotificationSent) -> None:
        key = (sent.subject, sent.receiver)
        record = self.records.get(key, Record())
        if record.claim != sent.claim:
            return
        if not sent.delivered:
            self.records[key] = replace(record, claim="", failures=record.failures + 1, failed_at=sent.at)
            return
        self.records[key] = Record(notified="resolved" if sent.resolved else "open", level=sent.level, at=sent.at)


def _worst(before: GroupState, now: GroupState) -> GroupState:
    """As it is now, as urgent as it ever was while open: a group does not calm down before it is resolved."""
    return now.model_copy(update={"level": min(before.level, now.level)})
