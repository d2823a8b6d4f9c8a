"""What the controller takes from objects, settings and gateway before anything is decided."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.errors import ConfigError, UnavailableError
from megatronapp.core.trainingjob import ConditionType, Status
from megatronapp.operator.backends import unsupported
from megatronapp.operator.cache import Cache
from megatronapp.operator.controller import BreakerState, Controller, parsed
from megatronapp.operator.executor import rewritten
from megatronapp.operator.gateway import GatewayClient, readable, report
from megatronapp.operator.informers import InformerCache
from megatronapp.operator.kinds import JOBS, TRAINING_JOBS
from megatronapp.operator.metrics import Metrics
from megatronapp.operator.names import ATTEMPT_LABEL, JOB_LABEL, RUN_LABEL, Key
from megatronapp.operator.settings import OperatorSettings
from tests.unit.operator.samples import UID, training_job

NOW_TEXT = "2026-01-01T00:00:00Z"
KEY = Key("team", "gpt")


def body(version: int = 1, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "megatronapp.io/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt", "namespace": "team", "uid": UID, "resourceVersion": str(version)},
        "spec": {"procPerNode": 1, **spec},
    }


def test_keys_of_a_newer_version_are_left_alone() -> None:
    job = parsed(body(somethingNew=1, plugins={"scan": {"alsoNew": True}}))

    assert job.spec.proc_per_node == 1


@pytest.mark.parametrize(
    ("spec", "key"),
    [({"scheduling": {"gang": "Volcano"}}, "scheduling.gang Volcano"), ({"backend": "JobSet"}, "backend JobSet")],
)
def test_what_is_switched_off_is_told(spec: dict[str, Any], key: str) -> None:
    request = training_job(**spec).spec

    assert unsupported(request, frozenset()).startswith(key)
    assert unsupported(request, frozenset({"Volcano", "JobSet"})) == ""


def test_namespaces_may_be_given_as_a_list_or_with_commas() -> None:
    assert OperatorSettings.load(watch_namespaces="a, b").watch_namespaces == ("a", "b")
    assert OperatorSettings.load(watch_namespaces='["a"]').watch_namespaces == ("a",)
    assert OperatorSettings.load(watch_namespaces="").watch_namespaces == ()


def test_a_wrong_setting_names_its_flag() -> None:
    with pytest.raises(ConfigError, match="--workers"):
        OperatorSettings.load(workers=0)


def test_a_status_loses_what_is_gone_and_keeps_what_a_newer_operator_added() -> None:
    before = {"findings": {"node": "a"}, "phase": "Running"}

    assert rewritten({**before, "new": 1}, before, {"phase": "Failed"}) == {"new": 1, "phase": "Failed"}


def test_a_run_that_is_told_of_in_a_way_that_makes_no_sense_is_nobody_elses_matter() -> None:
    wrong: dict[str, Any] = {"run": "a", "attempt": 1, "step": "many"}
    job = {"attempt": 1, "step": 5, "total_steps": 9, "step_seconds": None, "eta_seconds": None}

    assert readable(wrong, []) is None
    assert readable({**job, "run": "b"}, [{"attempt": 1, "effect_ratio": None}]) is None
    assert readable({**job, "run": "c"}, []) is not None


def test_a_hang_has_an_infinite_effect() -> None:
    finding = {
        "attempt": 1,
        "kind": "hang",
        "cause": "compute",
        "ranks": [1],
        "node": "node1",
        "effect_ratio": None,
        "confidence": 1.0,
        "page": True,
        "opened_step": 4,
        "summary": "",
    }
    job = {"attempt": 1, "step": 5, "total_steps": 9, "step_seconds": None, "eta_seconds": None}

    found = report(job, [finding, {**finding, "attempt": 2}])

    assert len(found.suspicions) == 1
    assert found.suspicions[0].effect_ratio == float("inf")
    assert found.suspicions[0].steps_open == 1


# ---- the cache


@pytest.fixture
def informers() -> InformerCache:
    found = InformerCache()
    found.event(TRAINING_JOBS, body(1), deleted=False)
    return found


def test_the_operators_own_write_is_seen_before_the_watch_brings_it(informers: InformerCache) -> None:
    found = Cache(informers)

    found.wrote_job(KEY, body(2))
    assert (found.job(KEY) or {})["metadata"]["resourceVersion"] == "2"

    informers.event(TRAINING_JOBS, body(3), deleted=False)
    assert (found.job(KEY) or {})["metadata"]["resourceVersion"] == "3"


def test_a_write_to_a_job_that_is_gone_is_forgotten(informers: InformerCache) -> None:
    found = Cache(informers)
    found.wrote_job(KEY, body(2))

    informers.event(TRAINING_JOBS, body(3), deleted=True)

    assert found.job(KEY) is None


def test_children_of_an_earlier_job_of_the_name_are_not_its_own(informers: InformerCache) -> None:
    found = Cache(informers)
    informers.listed(JOBS, [child_body(1), child_body(2, run="another")])

    assert [one.attempt for one in found.children(KEY, UID)] == [1]


def test_a_child_that_was_written_and_is_not_among_those_listed_later_is_gone(informers: InformerCache) -> None:
    found = Cache(informers)
    found.wrote_child(KEY, child_body(1, version=5))

    found.listed_children(4)
    assert [one.attempt for one in found.children(KEY, UID)] == [1]

    found.listed_children(5)
    assert found.children(KEY, UID) == ()


def child_body(attempt: int, version: int = 1, run: str = UID) -> dict[str, Any]:
    labels = {JOB_LABEL: KEY.name, RUN_LABEL: run, ATTEMPT_LABEL: str(attempt)}
    return {
        "metadata": {
            "name": f"gpt-{attempt}",
            "namespace": KEY.namespace,
            "uid": f"child-{attempt}",
            "resourceVersion": str(version),
            "labels": labels,
            "ownerReferences": [{"kind": "TrainingJob", "name": KEY.name, "uid": run, "controller": True}],
        },
        "spec": {"completions": 1},
    }


@pytest.mark.parametrize(
    "status",
    [
        "text",
        {"excludedNodes": [{"name": "a", "since": 7}]},
        {"excludedNodes": 7},
        {"excludedNodes": ["a", {"since": NOW_TEXT}, None]},
    ],
)
async def test_a_status_that_makes_no_sense_does_not_hide_the_others_from_the_circuit_breaker(status: Any) -> None:
    informers = InformerCache()
    good = {"excludedNodes": [{"name": "node1", "since": NOW_TEXT}]}
    for name, found in (("evil", status), ("good", good)):
        job = body(1)
        job["metadata"] = {**job["metadata"], "name": name, "uid": name}
        informers.event(TRAINING_JOBS, {**job, "status": found}, deleted=False)
    nobody: Any = None
    metrics = Metrics(CollectorRegistry())
    controller = Controller(Cache(informers), nobody, OperatorSettings(), metrics, BreakerState(lambda _: None))

    assert controller._excluded_since(datetime(2025, 1, 1, tzinfo=UTC)) == {"node1"}


class PodlessServer:
    """Of an API server that can make no pod of a Job, and says why in its events."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.status = Status()

    async def events_of(self, *of: str) -> list[dict[str, Any]]:
        self.asked.append((of[0], of[1], of[2]))
        told = {"type": "Warning", "reason": "FailedCreate", "message": 'serviceaccount "x" not found'}
        return [{"metadata": {"resourceVersion": "9"}, "lastTimestamp": NOW_TEXT, **told}]

    async def write_status(self, job: dict[str, Any], _before: Status | None, after: Status) -> dict[str, Any]:
        self.status = after
        return {**job, "status": after.model_dump(mode="json", by_alias=True, exclude_none=True)}

    async def do(self, *_: Any) -> None:
        pass


async def test_events_of_an_attempt_that_lacks_its_pods_are_asked_for_once_and_tell_why() -> None:
    informers, server = InformerCache(), PodlessServer()
    child = child_body(1)
    child["metadata"]["creationTimestamp"] = NOW_TEXT
    informers.event(TRAINING_JOBS, body(1), deleted=False)
    informers.event(JOBS, child, deleted=False)
    executor: Any = server
    metrics = Metrics(CollectorRegistry())
    controller = Controller(Cache(informers), executor, OperatorSettings(), metrics, BreakerState(lambda _: None))

    for _ in range(2):
        await controller.reconcile(KEY)

    assert server.asked == [("team", "Job", "gpt-1")]
    (ready,) = (c for c in server.status.conditions if c.type is ConditionType.PODS_READY)
    assert ready.reason == "FailedCreate"
    assert ready.message.startswith('job gpt-1: serviceaccount "x" not found')


@pytest.mark.parametrize("answer", [{}, 7, None, [7, [], {}, {"run": 7}]])
async def test_a_gateway_that_answers_nonsense_tells_of_nothing(answer: Any) -> None:
    client = GatewayClient("http://gateway", None)
    transport = httpx.MockTransport(lambda request: httpx.Response(200, json=answer))
    client._client = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    if isinstance(answer, list):
        assert await client.reports() == {}
    else:
        with pytest.raises(UnavailableError, match="does not tell of jobs"):
            await client.reports()
