"""Whether monitoring itself is heard: an alert that always fires comes from Prometheus through Alertmanager every few
minutes, and when it stays away, nothing else comes either. Pure.

Each gateway looks for itself and says what it finds as it would of an alert, so that all of them fold one incident.
It ends when the alert is heard again. A platform whose Alertmanager never sent it is not judged. That the gateways are
gone as well nobody here can tell: a service outside, which is called while all is well, does.
"""

from __future__ import annotations

from megatronapp.gateway.notify.events import GroupState
from megatronapp.gateway.notify.incidents import Incident
from megatronapp.gateway.notify.levels import Level

ALWAYS_FIRES = "Watchdog"
"""The name of the alert; kube-prometheus' own has the same."""
GROUP = "monitoring-is-silent"


def news(heard: float | None, known: Incident | None, now: float, silent_seconds: float) -> GroupState | None:
    """What is to be said now; None: nothing new. known: the newest incident of GROUP."""
    if heard is None:
        return None
    silent = now - heard >= silent_seconds
    notified = known is not None and known.open
    return None if silent == notified else _state(silent, heard)


def _state(silent: bool, heard: float) -> GroupState:
    return GroupState(
        group=GROUP,
        firing=silent,
        name="MonitoringSilent",
        level=Level.P0,
        summary="Monitoring is silent: no alert would be heard",
        description="The alert that always fires does not come any more. Prometheus, Alertmanager or the way from them "
        "to the gateway is down: look at their pods, and at the page for what jobs do meanwhile.",
        since_unix_seconds=heard,
    )
