"""What the operator tells the gateway of where TrainingJobs stand."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.core.trainingjob import Phase
from megatronapp.operator.app import report_phases
from megatronapp.operator.cache import Cache
from megatronapp.operator.gateway import GatewayClient
from megatronapp.operator.informers import InformerCache
from megatronapp.operator.kinds import TRAINING_JOBS
from megatronapp.operator.phases import AT_ONCE, PhaseReporter, phase_of_job

CREATED, LATER, LATER_SECONDS = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", 1_767_225_660.0


def condition(kind: str, status: str = "True", reason: str = "Why", message: str = "because") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": LATER}


def body(name: str = "gpt", phase: Any = "Pending", *conditions: Any, **meta: Any) -> dict[str, Any]:
    return {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}", "creationTimestamp": CREATED, **meta},
        "status": {"phase": phase, "conditions": list(conditions)},
    }


@pytest.mark.parametrize(
    ("phase", "conditions", "reason"),
    [
        ("Pending", [condition("PodsReady", "False", "Unschedulable")], "Unschedulable"),
        ("Starting", [condition("PodsReady", "False", "PodsStarting")], "PodsStarting"),
        ("Suspended", [condition("Suspended", reason="SuspendedByUser"), condition("PodsReady")], "SuspendedByUser"),
        ("Restarting", [condition("Restarting", reason="RankFailed")], "RankFailed"),
        ("Failed", [condition("Failed", reason="RestartsExhausted")], "RestartsExhausted"),
        ("Pending", [condition("PodsReady"), condition("InvalidTemplate", reason="SpecRefused")], "SpecRefused"),
        ("Running", [condition("ReconcileError", reason="UnexpectedError")], "UnexpectedError"),
        ("Running", [condition("InvalidTemplate", "False"), condition("Running")], ""),
        ("Succeeded", [condition("Complete")], ""),
    ],
)
def test_the_condition_that_tells_most_is_the_reason(phase: str, conditions: list[Any], reason: str) -> None:
    report = phase_of_job(body("gpt", phase, *conditions))

    assert (report["phase"], report["reason"]) == (phase, reason)
    assert report["message"] == ("because" if reason else "")


def test_a_job_without_a_status_is_pending_since_it_was_made() -> None:
    made = body()
    del made["status"]

    assert phase_of_job(made) == {
        "run": "uid-gpt",
        "job": "team/gpt",
        "phase": "Pending",
        "reason": "",
        "message": "",
        "since_unix_seconds": LATER_SECONDS - 60,
    }


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda each: st.lists(each), max_leaves=4)
CONDITION = st.dictionaries(st.sampled_from(["type", "status", "reason", "message", "lastTransitionTime"]), JSON)


@given(phase=JSON, conditions=st.lists(JSON | CONDITION, max_size=3) | JSON, created=JSON)
def test_whatever_stands_in_a_status_something_true_is_told(phase: Any, conditions: Any, created: Any) -> None:
    strange = body("gpt", phase, creationTimestamp=created)
    strange["status"]["conditions"] = conditions

    report = phase_of_job(strange)

    assert report["phase"] in set(Phase)
    assert (report["run"], report["job"]) == ("uid-gpt", "team/gpt")
    assert len(report["reason"]) <= 64
    assert len(report["message"]) <= 1024


def test_only_news_is_told_and_what_is_gone_once() -> None:
    phases, jobs = PhaseReporter(), [body("a"), body("b")]
    (first,) = phases.news(jobs)
    phases.sent(first)

    assert phases.news(jobs) == []
    (changed,) = phases.news([body("a", "Running"), body("b")])
    assert [report["run"] for report in changed] == ["uid-a"]
    (gone,) = phases.news([body("a")])
    assert [(report["run"], report["phase"]) for report in gone] == [("uid-b", None)]
    phases.sent(gone)
    assert phases.news([body("a")]) == []


def test_what_was_not_taken_is_told_again_and_all_is_after_a_while() -> None:
    phases, jobs = PhaseReporter(), [body("a"), body("b")]

    first = phases.news(jobs)
    assert phases.news(jobs) == first
    phases.sent(first[0])
    phases.forget()

    assert phases.news(jobs) == first
    assert [report["phase"] for report in phases.news([body("a")])[0]] == [None, "Pending"]


def test_many_jobs_are_told_in_several_requests() -> None:
    requests = PhaseReporter().news(body(f"job-{number}") for number in range(2 * AT_ONCE + 1))

    assert [len(jobs) for jobs in requests] == [AT_ONCE, AT_ONCE, 1]


def gateway(answers: list[int], asked: list[httpx.Request]) -> GatewayClient:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(answers.pop(0))

    client = GatewayClient("http://gateway", SecretStr("phases"))
    client._client = httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://gateway")
    return client


def cache(*bodies: dict[str, Any]) -> Cache:
    informers = InformerCache()
    for each in bodies:
        each["metadata"]["resourceVersion"] = "1"
        informers.event(TRAINING_JOBS, each, deleted=False)
    return Cache(informers)


async def test_a_gateway_that_is_away_is_told_when_it_is_back_and_then_no_more() -> None:
    asked: list[httpx.Request] = []
    client, phases, jobs = gateway([503, 204], asked), PhaseReporter(), cache(body())

    for _ in range(3):
        await report_phases(client, phases, jobs)

    assert [(request.method, request.url.path) for request in asked] == [("PATCH", "/api/v1/jobs/phases")] * 2
    assert b'"run":"uid-gpt"' in asked[1].content
    await client.close()


async def test_jobs_of_another_operator_are_not_told() -> None:
    asked: list[httpx.Request] = []
    client = gateway([], asked)

    await report_phases(client, PhaseReporter(), cache(body() | {"spec": {"managedBy": "somebody"}}))

    assert asked == []
    await client.close()


async def test_a_gateway_that_refuses_says_why() -> None:
    client = gateway([401], [])

    with pytest.raises(UnavailableError, match="takes no phases of jobs: 401"):
        await client.patch_phases([])
    await client.close()
