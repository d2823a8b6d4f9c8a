"""Each receiver gets its own words, and nothing in an alert can become markup or a link of its own."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import httpx
import pytest
from pydantic import SecretStr

from megatronapp.core.errors import UnavailableError
from megatronapp.gateway.notify.alertmanager import Webhook as AlertmanagerWebhook
from megatronapp.gateway.notify.alertmanager import group_state
from megatronapp.gateway.notify.incidents import Incident
from megatronapp.gateway.notify.levels import Level
from megatronapp.gateway.notify.messages import Message, duration, of_incident
from megatronapp.gateway.notify.receivers import receivers
from megatronapp.gateway.notify.receivers.feishu import Feishu, signature
from megatronapp.gateway.notify.receivers.phone import Phone
from megatronapp.gateway.notify.receivers.slack import Slack
from megatronapp.gateway.notify.receivers.webhook import Webhook
from megatronapp.gateway.notify.report import markdown, report
from megatronapp.gateway.settings import GatewaySettings

URL = SecretStr("https://example.com/hook")


def alert(
    rank: str, severity: str = "P1", status: str = "firing", starts: str = "2026-11-20T10:00:05Z"
) -> dict[str, object]:
    labels = {"alertname": "SlowGPU", "severity": severity, "namespace": "ml", "training_job": "gpt"}
    return {
        "status": status,
        "labels": labels | {"node": "n1", "rank": rank, "gpu_uuid": f"GPU-{rank}", "cause": "thermal"},
        "annotations": {
            "summary": f"ml/gpt: rank {rank} <!channel> computes slowly",
            "description": "Without it the job would be 1.2 times as fast.",
            "runbook_url": "https://example.com/SlowGPU.md",
        },
        "startsAt": starts,
        "endsAt": "0001-01-01T00:00:00Z",
        "fingerprint": "f",
    }


def payload(*alerts: dict[str, object], status: str = "firing") -> AlertmanagerWebhook:
    body = {"version": "4", "groupKey": '{}:{alertname="SlowGPU"}', "status": status, "receiver": "gateway"}
    return AlertmanagerWebhook.model_validate_json(json.dumps(body | {"alerts": alerts}))


INCIDENT = Incident("i-1", group_state(payload(alert("5"), alert("12"))), opened=1_790_000_000.0, reopened=0.0)
MESSAGE = of_incident(INCIDENT, "opened", "https://page.example.com/")


def test_a_group_is_summed_up_by_its_most_urgent_alert() -> None:
    state = group_state(payload(alert("12", "P2"), alert("5", "P1"), alert("7", "P0", status="resolved")))

    assert (state.level, state.node, state.cause) == (Level.P1, "n1", "thermal")
    assert state.ranks == ("5", "12")
    assert state.summary.startswith("ml/gpt: rank 5")
    assert state.summary.endswith("(and 1 more)")


def test_a_severity_of_another_vocabulary_is_neither_lost_nor_a_page() -> None:
    assert group_state(payload(alert("5", "critical"))).level is Level.P2


def test_the_same_group_has_the_same_name() -> None:
    assert group_state(payload(alert("5"))).group == group_state(payload(alert("6"), status="resolved")).group


def test_slack_gets_blocks_in_which_nothing_is_markup() -> None:
    body, headers = Slack(URL, Level.P2).request(MESSAGE, 0.0)

    assert headers == {}
    assert body["blocks"][0]["text"]["type"] == "plain_text"
    assert "&lt;!channel&gt;" in body["text"]
    assert "*node* n1" in body["blocks"][1]["text"]["text"]
    assert "<https://page.example.com/health|open the page>" in body["blocks"][2]["elements"][0]["text"]


HOSTILE = "https://x.example/<!channel>|y> <!channel> <https://evil.example|the page"


def hostile_message() -> Message:
    """Every field that an alert has tries to make markup."""
    labels = {"alertname": HOSTILE, "severity": "P1", "namespace": HOSTILE, "training_job": HOSTILE, "node": HOSTILE}
    one = alert("5") | {
        "labels": labels | {"component": HOSTILE, "cause": HOSTILE, "rank": HOSTILE, "gpu_uuid": HOSTILE},
        "annotations": {"summary": HOSTILE, "description": HOSTILE, "runbook_url": HOSTILE},
    }
    return of_incident(Incident("i-2", group_state(payload(one)), opened=0.0, reopened=0.0), "opened", "")


def test_no_field_of_an_alert_calls_a_slack_channel_or_makes_a_link() -> None:
    body, _ = Slack(URL, Level.P2).request(hostile_message(), 0.0)

    marked = [body["text"], body["blocks"][1]["text"]["text"], body["blocks"][2]["elements"][0]["text"]]
    assert body["blocks"][1]["text"]["verbatim"]
    assert body["blocks"][2]["elements"][0]["verbatim"]
    assert re.findall("<[^>]*>", "".join(marked)) == [
        "<https://x.example/%3C!channel%3E%7Cy%3E%20%3C!channel%3E%20%3Chttps://evil.example%7Cthe%20page|runbook>"
    ]


def test_an_address_makes_no_markup_in_slack_whatever_has_let_it_through() -> None:
    message = replace(MESSAGE, link="https://page.example.com/?a=1&b=2", runbook="https://x.example/<!channel>")

    body, _ = Slack(URL, Level.P2).request(message, 0.0)

    assert body["blocks"][2]["elements"][0]["text"] == (
        "<https://page.example.com/?a=1&amp;b=2|open the page> · <https://x.example/&lt;!channel&gt;|runbook>"
    )


@pytest.mark.parametrize("runbook", ["javascript:alert(1)", "runbooks/SlowGPU.md", "", "ftp://x"])
def test_a_runbook_that_is_no_web_address_makes_no_link(runbook: str) -> None:
    one = alert("5")
    one["annotations"] = {"summary": "s", "runbook_url": runbook}
    message = of_incident(Incident("i-2", group_state(payload(one)), opened=0.0, reopened=0.0), "opened", "")

    slack, _ = Slack(URL, Level.P2).request(message, 0.0)
    feishu, _ = Feishu(URL, Level.P2, None).request(message, 0.0)

    assert len(slack["blocks"]) == 2
    assert [element["tag"] for element in feishu["card"]["elements"]] == ["div"]


def test_no_name_in_the_weekly_report_calls_a_feishu_group() -> None:
    state = hostile_message().incident
    assert state is not None
    name = "<at id=all></at> [the page](https://evil.example) ![](img_key)"
    changes = {"node": name, "training_job": name, "cause": name, "name": name, "gpu_uuids": (name,)}
    incidents = [
        Incident(f"i-{at}", state.state.model_copy(update=changes), opened=at, reopened=at) for at in (1.0, 2.0)
    ]
    text = markdown(report(incidents, 0, 10))
    week = Message("report", "report", Level.P3, "Weekly report", (), text, "")

    body, _ = Feishu(URL, Level.P2, None).request(week, 0.0)

    (element,) = body["card"]["elements"]
    assert "at id=all" in element["content"]
    assert not set("<>[]`") & set(element["content"])


def test_a_tag_that_the_weekly_report_has_not_escaped_calls_no_feishu_group() -> None:
    week = Message("report", "report", Level.P3, "Weekly report", (), "<at id=all></at>", "")

    body, _ = Feishu(URL, Level.P2, None).request(week, 0.0)

    assert body["card"]["elements"][0]["content"] == "&#60;at id=all&#62;&#60;/at&#62;"


def test_feishu_gets_a_signed_card_in_plain_text() -> None:
    body, _ = Feishu(URL, Level.P2, SecretStr("secret")).request(MESSAGE, 1_700_000_000.7)

    assert body["sign"] == signature("secret", "1700000000")
    assert body["timestamp"] == "1700000000"
    assert body["card"]["header"]["template"] == "orange"
    tags = {field["text"]["tag"] for field in body["card"]["elements"][0]["fields"]}
    assert tags == {"plain_text"}


def test_feishu_s_signature_is_the_documented_one() -> None:
    # HMAC-SHA256 with the key "<timestamp>\n<secret>" over an empty text, in base64.
    assert signature("demo", "1599360473") == "l1N0gAcBjdwBvGm1xMjOF0XSyaLRpR7tuO5dHfhAYc8="


@pytest.mark.parametrize(
    ("answer", "objects"),
    [
        ({"code": 0, "msg": "success"}, False),
        ({"StatusCode": 0}, False),
        ({"code": 19021, "msg": "sign match fail"}, True),
        ({"code": None}, True),
        ({"code": [], "msg": {}}, True),
        ([], True),
        (None, True),
        ("success", True),
        (0, True),
    ],
)
def test_feishu_s_refusal_is_seen_though_it_answers_200(answer: object, objects: bool) -> None:
    assert bool(Feishu(URL, Level.P2, None).objection(answer)) is objects


@pytest.mark.parametrize(
    "answer",
    [b"ok", b"", b"\xff\xfe", b"[" * 60_000, b"9" * 5_000],
    ids=["text", "nothing", "no text", "deep", "long number"],
)
async def test_an_answer_that_is_no_json_refuses_nothing_by_itself(answer: bytes) -> None:
    """Slack answers "ok"."""
    transport = httpx.MockTransport(lambda request: httpx.Response(200, stream=httpx.ByteStream(answer)))
    async with httpx.AsyncClient(transport=transport) as client:
        await Slack(URL, Level.P2).deliver(client, MESSAGE, 0.0)

        with pytest.raises(UnavailableError, match="feishu refuses the message: the answer is no JSON object"):
            await Feishu(URL, Level.P2, None).deliver(client, MESSAGE, 0.0)


def test_programs_get_the_whole_incident() -> None:
    body, headers = Webhook(URL, Level.P3, SecretStr("token")).request(MESSAGE, 0.0)

    assert headers == {"Authorization": "Bearer token"}
    assert body["incident"]["ranks"] == ["5", "12"]
    assert body["incident"]["opened_unix_seconds"] == INCIDENT.opened


def test_the_phone_service_can_end_the_call_it_began() -> None:
    phone = Phone(URL, Level.P0, None)

    began, _ = phone.request(MESSAGE, 0.0)
    ended, _ = phone.request(of_incident(INCIDENT, "resolved", ""), 0.0)

    assert (began["event"], ended["event"]) == ("trigger", "resolve")
    assert began["key"] == ended["key"]


def test_receivers_are_those_with_an_address() -> None:
    settings = GatewaySettings(slack_url=URL, phone_url=URL)

    assert [(receiver.name, receiver.level) for receiver in receivers(settings)] == [("slack", "P2"), ("phone", "P0")]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0 s"), (59.9, "59 s"), (3_600, "1 h"), (93_780, "1 d 2 h")])
def test_durations_are_said_as_people_say_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
