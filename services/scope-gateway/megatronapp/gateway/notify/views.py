"""An incident as a value of the REST API."""

from __future__ import annotations

from pydantic import Field

from megatronapp.core.findings import State
from megatronapp.gateway.models import Model
from megatronapp.gateway.notify.incidents import Incident
from megatronapp.gateway.notify.levels import Level


class IncidentView(Model):
    """One fault, as alerts told of it."""

    id: str
    state: State
    level: Level
    alert: str
    summary: str
    description: str
    runbook: str
    namespace: str
    training_job: str
    node: str
    component: str
    cause: str
    ranks: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    opened_unix_seconds: float
    resolved_unix_seconds: float | None
    flaps: int = Field(description="how often it came back within a short time")


def incident_view(incident: Incident) -> IncidentView:
    state = incident.state
    return IncidentView(
        id=incident.id,
        state=State.OPEN if incident.open else State.RESOLVED,
        alert=state.name,
        opened_unix_seconds=incident.opened,
        resolved_unix_seconds=incident.resolved,
        flaps=incident.flaps,
        **state.model_dump(exclude={"group", "firing", "name", "since_unix_seconds"}),
    )
