"""A job trains while things happen to it and to the platform: nothing is lost, and it is seen again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.e2e.kubernetes.jobs import conditions, job, nodes_of, phase, pods, status, wait_phase
from tests.e2e.kubernetes.rights import granted_rights, used_rights
from tests.e2e.kubernetes.test_startup import CAN_NOT_START, is_told
from tests.e2e.kubernetes.training import Logs, gone_afterwards, training_job, undisturbed_losses
from tests.support.cluster import Cluster, CommandError, Release, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.cluster, pytest.mark.timeout(1800, func_only=True)]

LONG = 20_000
"""Steps of a job that is still running when its test ends."""
KILLED_STEPS = 120
COMPONENTS = ("collector", "redis", "detector", "gateway", "operator")


@pytest.fixture(scope="module")
def running(jobs: Cluster, release: Release) -> Iterator[str]:
    """A job that trains through all of these tests, and is seen to."""
    name = "gpt-long"
    with gone_afterwards(jobs, name):
        jobs.apply(*training_job(name, LONG))
        wait_phase(jobs, name, "Running", 300)
        wait_until("it is seen", lambda: iteration(jobs, name) > 0, 300)
        yield name


def iteration(jobs: Cluster, name: str) -> int:
    return int((status(jobs, name).get("progress") or {}).get("iteration", 0))


def goes_on(jobs: Cluster, name: str, seconds: float = 240.0) -> None:
    """Wait for steps that were made from now on."""
    before = iteration(jobs, name)
    wait_until(f"steps after {before} are seen", lambda: iteration(jobs, name) > before + 1, seconds, 1.0)


def known_steps(release: Release, run: str) -> list[int]:
    """Steps that the gateway has of a run, out of the bus and the collector."""
    headers = {"Authorization": f"Bearer {release.secret('auth', 'viewer-token')}"}
    with release.cluster.forward(f"service/{release.prefix}-gateway", 8080) as address:
        answer = httpx.get(f"http://{address}/api/v1/jobs/{run}/metrics", headers=headers, timeout=60)
    found: list[int] = answer.raise_for_status().json()["step"]
    return found


def shown_job(release: Release, run: str) -> dict[str, Any] | None:
    """As the gateway shows it; None where it knows no such job."""
    headers = {"Authorization": f"Bearer {release.secret('auth', 'viewer-token')}"}
    with release.cluster.forward(f"service/{release.prefix}-gateway", 8080) as address:
        answer = httpx.get(f"http://{address}/api/v1/jobs/{run}", headers=headers, timeout=60)
    if answer.status_code == httpx.codes.NOT_FOUND:
        return None
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def wait_shown(release: Release, run: str, state: str, seconds: float = 120.0) -> dict[str, Any]:
    """Wait for a job to be shown in this state."""
    shown: list[dict[str, Any]] = []

    def in_state() -> bool:
        shown[:] = [job] if (job := shown_job(release, run)) is not None else []
        return bool(shown) and shown[0]["state"] == state

    wait_until(f"{run} is shown as {state}", in_state, seconds, 1.0)
    return shown[0]


def run_of(jobs: Cluster, name: str) -> str:
    found: dict[str, Any] = jobs.get("trainingjob", name) or {}
    return str(found["metadata"]["uid"])


def pod_ids(jobs: Cluster, name: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in pods(jobs, name)}


def test_the_charts_own_tests_reach_every_service(release: Release) -> None:
    told = release.helm("test", release.name, "--timeout", "5m")

    assert told.count("Phase:          Succeeded") >= len(COMPONENTS)
    assert "Failed" not in told


def test_a_killed_pod_costs_the_steps_since_the_last_checkpoint_and_no_more(
    jobs: Cluster, release: Release, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name, logs = "gpt-killed", Logs(jobs, "gpt-killed")
    expected = undisturbed_losses(tmp_path_factory.mktemp("killed"), KILLED_STEPS)
    with gone_afterwards(jobs, name):
        jobs.apply(*training_job(name, KILLED_STEPS, save_interval=20))
        wait_phase(jobs, name, "Running", 300)
        logs.wait_until("a checkpoint is there", lambda: logs.reached(1) > 25, 300)

        jobs.kubectl("delete", "pod", pods(jobs, name)[0]["metadata"]["name"], "--grace-period=0", "--force")

        logs.wait_until("it is done", lambda: phase(jobs, name) in {"Succeeded", "Failed"}, 600)
        told = status(jobs, name)
    assert conditions(told)["Complete"] == ("True", "Completed"), told
    assert (told["attempt"], told["restarts"]) == (2, 1)
    resumed = min(logs.by_attempt[2])
    assert 20 < resumed <= logs.reached(1) + 1
    for step, loss in {**logs.by_attempt[1], **logs.by_attempt[2]}.items():
        assert loss == pytest.approx(expected[step], rel=1e-5), f"step {step}"


@pytest.mark.parametrize("component", COMPONENTS)
def test_a_killed_part_of_the_platform_is_not_noticed_by_training(
    jobs: Cluster, release: Release, running: str, component: str
) -> None:
    """`kill -9` of each service in turn: ranks go on, and the platform sees all of their steps in the end."""
    before, victim = pod_ids(jobs, running), release.pod(component)

    release.cluster.kubectl("delete", "pod", victim, "--grace-period=0", "--force")

    goes_on(jobs, running)
    assert pod_ids(jobs, running) == before
    wait_until("all parts are back", lambda: all(map(release.is_ready, COMPONENTS)), 120, 1.0)
    wait_until("every step is known", lambda: gapless(known_steps(release, run_of(jobs, running))), 120, 2.0)


def gapless(steps: list[int]) -> bool:
    return bool(steps) and steps == list(range(steps[0], steps[-1] + 1))


def test_upgrade_and_rollback_leave_a_running_job_alone(jobs: Cluster, release: Release, running: str) -> None:
    before = pod_ids(jobs, running)

    release.upgrade("--set", "logging.level=debug,detector.topRanks=8")
    goes_on(jobs, running)
    release.helm("rollback", release.name, "--wait", "--timeout", "10m")
    goes_on(jobs, running)

    assert pod_ids(jobs, running) == before


def test_suspended_and_resumed_a_job_is_seen_again(jobs: Cluster, release: Release, running: str) -> None:
    before = status(jobs, running)
    patch = '{{"spec": {{"suspend": {}}}}}'
    jobs.kubectl("patch", "trainingjob", running, "--type=merge", "-p", patch.format("true"))
    wait_phase(jobs, running, "Suspended", 120)
    assert nodes_of(jobs, running) == set()
    saved = iteration(jobs, running)
    shown = wait_shown(release, run_of(jobs, running), "suspended")
    assert shown["state_reason"] == "SuspendedByUser"
    assert shown["step"] >= saved

    jobs.kubectl("patch", "trainingjob", running, "--type=merge", "-p", patch.format("false"))

    wait_phase(jobs, running, "Running", 300)
    wait_until("new steps are seen", lambda: iteration(jobs, running) > saved + 1, 300, 1.0)
    wait_shown(release, run_of(jobs, running), "running")
    told = status(jobs, running)
    assert (told["attempt"], told["restarts"]) == (before["attempt"] + 1, before["restarts"])
    assert gapless(known_steps(release, run_of(jobs, running)))


def test_a_job_that_nobody_has_heard_of_is_shown_with_the_reason_until_it_is_deleted(
    jobs: Cluster, release: Release
) -> None:
    with gone_afterwards(jobs, "nowhere"):
        jobs.apply(job("nowhere", resources={"requests": {"cpu": "9999"}}))
        run = run_of(jobs, "nowhere")

        shown = wait_shown(release, run, "pending")

        assert shown["job"] == f"{jobs.namespace}/nowhere"
        wait_until(
            "the reason is shown",
            lambda: (shown_job(release, run) or {}).get("state_reason") in {"Unschedulable", "PodsStarting"},
            120,
            1.0,
        )
    wait_until("it is shown no more", lambda: shown_job(release, run) is None, 120, 1.0)


def test_deleted_and_applied_again_a_job_is_a_new_run_that_goes_on(
    jobs: Cluster, release: Release, running: str
) -> None:
    first, reached = run_of(jobs, running), iteration(jobs, running)
    jobs.kubectl("delete", "trainingjob", running)

    jobs.apply(*training_job(running, LONG))

    wait_phase(jobs, running, "Running", 300)
    second = run_of(jobs, running)
    assert second != first
    wait_until("new steps are seen", lambda: iteration(jobs, running) > reached, 300, 1.0)
    assert min(known_steps(release, second)) > 1, "it goes on from its checkpoint"


def test_a_job_that_can_not_start_says_why(jobs: Cluster, release: Release) -> None:
    """What no pod tells itself, the operator finds in events, with the rights that the chart grants."""
    spec, reason, says = CAN_NOT_START["volume"]
    with gone_afterwards(jobs, "stuck"):
        jobs.apply(job("stuck", nodes=1, **spec))

        wait_until("it is told", lambda: is_told(status(jobs, "stuck"), reason, says), 120)


def test_the_operator_used_each_of_its_rights_and_missed_none(jobs: Cluster, release: Release) -> None:
    """What the audit log shows equals what the chart grants: the journeys and the tests above have used all of it.
    Uninstalled, an operator that still ends has lost its rights: that comes after."""
    if not jobs.is_test_cluster:
        pytest.skip("no audit log at hand")
    account = f"system:serviceaccount:{release.cluster.namespace}:{release.prefix}-operator"

    used, refused = used_rights(jobs.kubeconfig.parent / "log" / "audit.jsonl", account)
    granted = granted_rights(jobs, f"{release.prefix}-operator")

    assert refused == set()
    assert used - granted == set()
    assert granted - used == set()


def test_uninstalled_the_platform_leaves_definition_jobs_and_ranks(
    whole_cluster: Cluster, jobs: Cluster, release: Release, running: str
) -> None:
    before = pod_ids(jobs, running)
    release.helm("uninstall", release.name, "--wait")
    try:
        assert (jobs.get("trainingjob", running) or {})["metadata"]["name"] == running
        assert whole_cluster.get("crd", "trainingjobs.megatronapp.io")
        assert len(nodes_of(jobs, running)) == 2
        with pytest.raises(CommandError):
            release.helm("status", release.name)
    finally:
        release.install()
    goes_on(jobs, running)
    assert pod_ids(jobs, running) == before
