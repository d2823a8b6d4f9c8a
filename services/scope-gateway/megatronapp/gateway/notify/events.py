"""What is written to the topic of incidents. Every gateway folds the same events in the same order."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from megatronapp.gateway.notify.levels import Level


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class GroupState(_Value):
    """A group of alerts as Alertmanager sees it."""

    group: str
    firing: bool
    name: str
    level: Level
    summary: str
    description: str = ""
    runbook: str = ""
    namespace: str = ""
    training_job: str = ""
    node: str = ""
    component: str = ""
    cause: str = ""
    ranks: tuple[str, ...] = ()
    gpu_uuids: tuple[str, ...] = ()
    since_unix_seconds: float


class AlertReceived(_Value):
    """Alertmanager said this."""

    type: Literal["heard"] = "heard"
    at: float
    state: GroupState


class Claimed(_Value):
    """A gateway wants to tell a receiver of a subject (an incident, or a week's report). The first claim wins."""

    type: Literal["claimed"] = "claimed"
    at: float
    claim: str
    subject: str
    receiver: str


class NotificationSent(_Value):
    """It did, or the receiver did not take it."""

    type: Literal["told"] = "told"
    at: float
    claim: str
    subject: str
    receiver: str
    delivered: bool
    level: Level
    """That it was told of."""
    resolved: bool
    """It was told that the incident is over."""


class MonitoringHeard(_Value):
    """The alert that always fires has come from Prometheus through Alertmanager."""

    type: Literal["alive"] = "alive"
    at: float


AnyEvent = AlertReceived | Claimed | NotificationSent | MonitoringHeard
Event = Annotated[AnyEvent, Field(discriminator="type")]
_EVENT: TypeAdapter[AnyEvent] = TypeAdapter(Event)


def parse(value: bytes) -> AnyEvent:
    """Raises pydantic's ValidationError, a ValueError."""
    return _EVENT.validate_json(value)
