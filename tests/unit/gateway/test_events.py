"""What pages are told: written once, the newest state of each thing, and steps before all else are left out."""

from __future__ import annotations

import json

import pytest
from prometheus_client import CollectorRegistry

from megatronapp.core.findings import State
from megatronapp.gateway import events
from megatronapp.gateway.live import Hub, Subscription
from megatronapp.gateway.metrics import GatewayMetrics
from megatronapp.gateway.models import FindingEvent, JobGoneEvent, StepEvent, StepRow
from tests.integration.gateway.support import finding

ROW = StepRow(
    step=0,
    unix_seconds=0,
    step_seconds=None,
    loss=None,
    learning_rate=None,
    grad_norm=None,
    tokens_per_second=None,
    tflops_per_gpu=None,
)


@pytest.fixture
def hub() -> Hub:
    return Hub(3, GatewayMetrics(CollectorRegistry()).live_dropped)


async def drain(subscription: Subscription) -> list[dict[str, object]]:
    return [json.loads((await subscription.take()).payload) for _ in range(len(subscription))]


async def test_all_pages_are_told_the_same_and_the_newest_state_of_a_finding_once(hub: Hub) -> None:
    with hub.subscribe(events.PAGE) as one, hub.subscribe(events.PAGE) as two:
        events.publish(hub, FindingEvent(finding=finding(1)))
        events.publish(hub, StepEvent(run="r", row=ROW))
        events.publish(hub, JobGoneEvent(run="r"))
        events.publish(hub, FindingEvent(finding=finding(1, state=State.RESOLVED)))
        seen = [await drain(one), await drain(two)]

    assert seen[0] == seen[1]
    assert [event["type"] for event in seen[0]] == ["step", "job_gone", "finding"]
    assert seen[0][-1]["finding"]["state"] == "resolved"  # type: ignore[index]


async def test_a_page_that_is_behind_misses_steps_and_no_finding(hub: Hub) -> None:
    with hub.subscribe(events.PAGE) as slow:
        for number in range(400):
            events.publish(hub, StepEvent(run="r", row=ROW.model_copy(update={"step": number})))
            events.publish(hub, FindingEvent(finding=finding(number)))
        got = await drain(slow)

    assert sum(event["type"] == "finding" for event in got) == 400
    steps = [event["row"]["step"] for event in got if event["type"] == "step"]  # type: ignore[index]
    assert steps == list(range(400 - events.STEPS.max_messages, 400))
    assert slow.dropped == {"steps": 400 - events.STEPS.max_messages}
