"""Several detectors share the jobs: each job has one that judges it, also when that one dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.kubernetes.jobs import wait_phase
from tests.e2e.kubernetes.monitoring import Monitoring
from tests.e2e.kubernetes.training import gone_afterwards, training_job
from tests.support.cluster import Cluster, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(1800, func_only=True)]

NAMES = ("gpt-shared-a", "gpt-shared-b")
STEPS = 20_000


@pytest.fixture
def two_detectors(release: Release) -> Iterator[Release]:
    release.upgrade("--set", "detector.replicas=2")
    yield release
    release.helm("rollback", release.name, "--wait", "--timeout", "10m")


def test_a_killed_detectors_jobs_are_judged_by_another(
    jobs: Cluster, two_detectors: Release, monitors: Monitoring
) -> None:
    with gone_afterwards(jobs, NAMES[0]), gone_afterwards(jobs, NAMES[1]):
        for name in NAMES:
            jobs.apply(*training_job(name, STEPS))
        for name in NAMES:
            wait_phase(jobs, name, "Running", 300)
        wait_until("each job has one owner", lambda: owners(monitors).keys() == set(NAMES), 300, 2.0)
        victim = owners(monitors)[NAMES[0]]

        two_detectors.cluster.kubectl("delete", "pod", victim, "--grace-period=0", "--force")

        wait_until("others own what was its", lambda: owned_without(victim, monitors), 120, 2.0)
        for name in NAMES:
            judged = (
                f'increase(megatronapp_step_duration_seconds_count{{training_job="{name}",pod!="{victim}"}}[20s]) > 0'
            )
            wait_until(f"steps of {name} are judged", lambda query=judged: monitors.series(query), 120, 2.0)


def owned_without(victim: str, monitors: Monitoring) -> bool:
    found = owners(monitors)
    return found.keys() == set(NAMES) and victim not in found.values()


def judged_without(victim: str, name: str, monitors: Monitoring) -> bool:
    steps = f'megatronapp_step_duration_seconds_count{{training_job="{name}",pod!="{victim}"}}'
    return bool(monitors.series(f"increase({steps}[20s]) > 0"))


def owners(monitors: Monitoring) -> dict[str, str]:
    """The replica of each job that exactly one replica judges."""
    found: dict[str, list[str]] = {}
    for series in monitors.series("megatronapp_detector_owner == 1"):
        if series["training_job"] in NAMES:
            found.setdefault(series["training_job"], []).append(series["replica"])
    return {job: replicas[0] for job, replicas in found.items() if len(replicas) == 1}
