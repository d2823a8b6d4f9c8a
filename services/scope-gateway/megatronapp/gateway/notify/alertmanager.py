"""Alertmanager's webhook (version 4 of its payload) as a value of ours."""

from __future__ import annotations

import sys
from hashlib import sha256
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

from megatronapp.gateway.notify.events import GroupState
from megatronapp.gateway.notify.levels import level_of

MAX_ALERTS = 1_000
MAX_LABEL = 4_096
LAST_UNIX_SECONDS = 1e11
"""Some thousand years from now."""
NUMBER_DIGITS = 20


def _plausible(moment: AwareDatetime) -> AwareDatetime:
    if not 0 <= moment.timestamp() <= LAST_UNIX_SECONDS:
        raise ValueError("must be after 1970 and not in thousands of years")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_plausible)]
Labels = dict[str, Annotated[str, StringConstraints(max_length=MAX_LABEL)]]


class _Model(BaseModel):
    """Alertmanager may send more than is read here."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Alert(_Model):
    status: Literal["firing", "resolved"]
    labels: Labels
    annotations: dict[str, str] = Field(default_factory=dict)
    starts_at: Moment = Field(alias="startsAt")


class Webhook(_Model):
    """What Alertmanager sends for a group of alerts, each time the group changes, resolves, or is repeated."""

    group_key: str = Field(alias="groupKey", max_length=4096)
    status: Literal["firing", "resolved"]
    alerts: tuple[Alert, ...] = Field(min_length=1, max_length=MAX_ALERTS)


def group_state(webhook: Webhook) -> GroupState:
    """The group as it is now: its most urgent alert speaks for it."""
    firing = [alert for alert in webhook.alerts if alert.status == "firing"]
    alerts = firing or list(webhook.alerts)
    first = min(alerts, key=lambda alert: (level_of(alert.labels.get("severity", "")), alert.starts_at))
    labels = first.labels
    return GroupState(
        group=sha256(webhook.group_key.encode()).hexdigest()[:16],
        firing=webhook.status == "firing",
        name=labels.get("alertname", "unnamed"),
        level=level_of(labels.get("severity", "")),
        summary=_summary(first, len(alerts)),
        description=first.annotations.get("description", ""),
        runbook=first.annotations.get("runbook_url") or first.annotations.get("runbook", ""),
        namespace=labels.get("namespace", ""),
        training_job=labels.get("training_job", ""),
        node=labels.get("node", ""),
        component=labels.get("component", ""),
        cause=labels.get("cause", ""),
        ranks=_all(alerts, "rank"),
        gpu_uuids=_all(alerts, "gpu_uuid"),
        since_unix_seconds=min(alert.starts_at.timestamp() for alert in alerts),
    )


def _summary(first: Alert, count: int) -> str:
    text = first.annotations.get("summary", "") or first.labels.get("alertname", "an alert without a name")
    return f"{text} (and {count - 1} more)" if count > 1 else text


def _all(alerts: list[Alert], label: str) -> tuple[str, ...]:
    """A label's values, each once, numbers in their order."""
    values = {alert.labels[label] for alert in alerts if alert.labels.get(label)}
    return tuple(sorted(values, key=_in_order))


def _in_order(value: str) -> tuple[int, str]:
    """Numbers by their value, then everything else."""
    number = value.isdecimal() and len(value) <= NUMBER_DIGITS
    return (int(value), "") if number else (sys.maxsize, value)
