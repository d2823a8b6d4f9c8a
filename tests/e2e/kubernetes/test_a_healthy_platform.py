"""On a platform that was installed and left alone no alert at all is firing or pending, and every pod is well.

The first file by its name: the others hurt the platform that they share.
"""

from __future__ import annotations

import time

import pytest

from tests.e2e.kubernetes.monitoring import Monitoring
from tests.support.cluster import Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(900, func_only=True)]

COMPONENTS = {"collector", "detector", "gateway", "operator"}
PODS = COMPONENTS | {"redis"}
NEWS = 'ALERTS{alertname!="Watchdog"}'
OBSERVED_SECONDS = 180
"""Longer than the most urgent alerts wait; any alert is pending from its first moment on."""


def up(monitors: Monitoring, release: Release) -> set[tuple[str, str]]:
    """Labels that rules and dashboards know a target by, of those of the release that answer."""
    found = monitors.series(f'up{{namespace="{release.cluster.namespace}"}} == 1')
    return {(series.get("part_of", ""), series.get("component", "")) for series in found}


def test_no_alert_is_firing_or_pending(monitors: Monitoring, release: Release) -> None:
    wanted = {("megatronapp", component) for component in COMPONENTS}
    wait_until("all targets are scraped", lambda: up(monitors, release) == wanted, 180, 2.0)
    wait_until("what was pending before has gone", lambda: not monitors.series(NEWS), 120, 2.0)

    end = time.monotonic() + OBSERVED_SECONDS
    while time.monotonic() < end:
        assert monitors.series(NEWS) == []
        assert up(monitors, release) == wanted
        time.sleep(2.0)
    assert {alert["labels"]["alertname"] for alert in monitors.alerts()} <= {"Watchdog"}
    for component in COMPONENTS:  # as the platform's dashboard asks
        assert monitors.series(f'sum(up{{part_of="megatronapp", component="{component}"}}) > 0')
    assert monitors.series("megatronapp_operator_leader == 1"), "the services' own metrics are there too"
    for component in PODS:  # once more at the end: a probe may fail only after a while, and no alert waits so briefly
        assert release.is_ready(component), component
    assert set(release.restarts().values()) == {0}
