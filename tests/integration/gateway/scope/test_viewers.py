"""Viewers do not disturb each other or the model; whoever is away for a moment misses no event."""

import asyncio
import json

import pytest
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import InvalidStatus

from megatronapp.v1 import scope_pb2
from tests.integration.gateway.conftest import OPERATOR, Served, Start
from tests.integration.gateway.scope.conftest import Viewer, address, opened, sample, viewing, with_pods
from tests.support.scope_pods import attached, ranks

ONE = "layers[0].resid_post | token(0) | batch(0)"


async def closed(socket: ClientConnection) -> int | None:
    """The code with which the gateway ends it."""
    await asyncio.wait_for(socket.wait_closed(), 30)
    return socket.close_code


async def test_a_viewer_without_credit_gets_the_newest_frame_when_it_has_some(start: Start) -> None:
    scope = await with_pods(start, scope_max_fps=1e6)
    async with attached(address(scope), ranks()) as pods, viewing(scope) as slow, viewing(scope) as quick:
        await slow.subscribe(1, ONE, credits=1)
        await quick.subscribe(1, ONE, credits=100)
        await pods[0].asked(1)
        of_quick = []
        for step in range(1, 11):
            await pods[0].step(step)
            of_quick.append(await quick.frame())
        of_slow = [await slow.frame()]
        await slow.send(credit={"id": 1, "frames": 1})
        of_slow.append(await slow.frame())

    assert [frame.step for frame in of_quick] == list(range(1, 11))
    assert [(frame.step, frame.sequence) for frame in of_slow] == [(1, 1), (10, 10)]


@pytest.mark.long
async def test_a_viewer_that_reads_nothing_costs_the_others_nothing(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as quick, opened(scope) as socket:
        stalled = Viewer(socket)
        await stalled.join()
        await stalled.subscribe(1, ONE, credits=4000, max_fps=1000)
        await quick.subscribe(1, ONE, credits=4000, max_fps=1000)
        await pods[0].asked(1)
        for step in range(1, 301):
            await pods[0].step(step, request="r")
        frames = [await quick.frame() for _ in range(300)]

    assert [frame.step for frame in frames] == list(range(1, 301))


async def test_steps_of_a_generation_wait_for_credit_one_after_the_other(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await viewer.subscribe(1, ONE, credits=1)
        await pods[0].asked(1)
        for step in range(5):
            await pods[0].step(step, request="r")
        frames = [await viewer.frame()]
        for _ in range(4):
            await viewer.send(credit={"id": 1, "frames": 1})
            frames.append(await viewer.frame())

    assert [frame.step for frame in frames] == list(range(5))


async def test_after_a_cut_no_event_is_missing(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods:
        async with viewing(scope) as viewer:
            await pods[3].event(series=scope_pb2.ScopeSeries(name="loss", step=1, value=1.0))
            before = await viewer.event("series")
            epoch = (await scope.gateway._scope.session("run-1")).ring.epoch  # type: ignore[union-attr]
        for step in range(2, 30):
            await pods[3].event(series=scope_pb2.ScopeSeries(name="loss", step=step, value=1.0))
        async with opened(scope) as socket:
            viewer = Viewer(socket)
            await viewer.join(resume={"epoch": epoch, "offset": before["offset"]})
            resumed = await viewer.text("resumed")
            steps = [int((await viewer.event("series"))["event"]["series"]["step"]) for _ in range(28)]

    assert resumed == {"offset": before["offset"]}
    assert steps == list(range(2, 30))


@pytest.mark.parametrize("resume", [{"epoch": "another", "offset": "1"}, {"epoch": "", "offset": "999"}])
async def test_events_that_are_not_kept_are_a_gap(scope: Served, resume: dict[str, str]) -> None:
    async with attached(address(scope), ranks()), opened(scope) as socket:
        viewer = Viewer(socket)
        await viewer.join(resume=resume)

        assert (await viewer.text("gap"))["reason"]


async def test_after_a_gap_all_that_is_kept_is_told(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as before:
        for step in (1, 2):
            await pods[0].event(series=scope_pb2.ScopeSeries(name="loss", step=step))
            await before.event("series")
        async with opened(scope) as socket:
            viewer = Viewer(socket)
            await viewer.join(resume={"epoch": "another", "offset": "1"})
            steps = [(await viewer.event("series"))["event"]["series"]["step"] for _ in (1, 2)]

    assert steps == ["1", "2"]


async def test_an_event_that_a_rank_sends_again_is_told_once(scope: Served) -> None:
    series = [scope_pb2.ScopeSeries(name="loss", step=step) for step in range(1, 5)]
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        for step in (1, 2):
            await pods[0].event(number=step, series=series[step - 1])
            await viewer.event("series")
        again = ranks()[:1]
        async with attached(address(scope), again):
            for step in (1, 2, 3, 4):
                await again[0].event(number=step, series=series[step - 1])
            heard = [await viewer.event("series") for _ in (3, 4)]

    assert again[0].received == 2
    assert [event["eventNumber"] for event in heard] == ["3", "4"]


async def test_an_operator_controls_and_others_wait(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods:
        async with viewing(scope, OPERATOR) as one, viewing(scope, OPERATOR) as other:
            await one.send(command={"id": "p", "train": {"do": "pause"}})
            result = await one.text("result")
            refused = await other.refused(command={"id": "q", "train": {"do": "resume"}})
            await one.send(control={"do": "release"})
            await other.text("event")
            while (await other.event("presence"))["event"]["presence"]["what"] != "released":
                pass
            await other.send(command={"id": "q", "train": {"do": "resume"}})
            after = await other.text("result")
        await pods[0].commanded(2)

    assert (result["command"], result["ranks"], result["answered"]) == ("p", 4, 4)
    assert result["ack"] == {"command": "p", "effectiveStep": "12"}
    assert (refused["code"], refused["command"]) == ("not_controller", "q")
    assert after["command"] == "q"
    assert [command.train.do for command in pods[2].commands] == ["pause", "resume"]


@pytest.mark.parametrize(
    "command",
    [
        {"train": {"do": "pause"}},
        {"generation": {"command": '{"id": "r", "prompts": ["a"]}'}},
        {"perturb": {"plan": "p"}, "reason": "curious"},
        {"compare": {"request": "r"}, "reason": "curious"},
        {"record": {"do": "start"}},
    ],
)
async def test_a_viewer_who_disturbs_is_refused(scope: Served, command: dict[str, object]) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        refused = await viewer.refused(command={"id": "c", **command})
        await viewer.subscribe(1, ONE)
        await pods[0].asked(1)

    assert refused["code"] in ("forbidden", "invalid")
    assert not any(rank.commands for rank in pods)


async def test_an_operator_perturbs_with_a_reason_that_the_audit_keeps(scope: Served) -> None:
    plan = {"plan": "p", "perturbations": [{"place": "calculation", "site": "mlp.out", "kind": "noise1"}]}
    async with attached(address(scope), ranks()) as pods, viewing(scope, OPERATOR) as viewer:
        refused = await viewer.refused(command={"id": "1", "perturb": plan})
        await viewer.send(command={"id": "2", "perturb": plan, "reason": "how robust is it?"})
        await viewer.text("result")
        told = await viewer.event("audit")
        async with scope.client(OPERATOR) as client:
            audit = (await client.get("/api/v1/scope/audit", params={"run": "run-1"})).json()

    assert "reason" in refused["message"]
    assert told["event"]["audit"]["reason"] == "how robust is it?"
    assert [(entry["action"], entry["outcome"]) for entry in audit] == [("perturb", ""), ("perturb", "done")]
    assert len({entry["command"] for entry in audit}) == 1
    assert pods[0].commands[0].perturb.perturbations[0].kind == "noise1"
    assert pods[0].commands[0].by == "operator (token)"


async def test_the_audit_keeps_no_prompts(scope: Served) -> None:
    async with attached(address(scope), ranks()), viewing(scope, OPERATOR) as viewer:
        request = json.dumps({"id": "r", "prompts": ["my secret"]})
        await viewer.send(command={"id": "1", "generation": {"command": request}})
        await viewer.text("result")
        entries = [entry.detail for entry in scope.gateway._scope.audit.of("run-1")]  # type: ignore[union-attr]

    assert entries
    assert not any("secret" in entry for entry in entries)


@pytest.mark.parametrize("document", ["", "[]", "no json", '{"prompts": ["a"]}', '{"type": "control", "id": "a"}'])
async def test_a_generation_without_a_name_is_refused(scope: Served, document: str) -> None:
    async with attached(address(scope), ranks()), viewing(scope, OPERATOR) as viewer:
        refused = await viewer.refused(command={"id": "1", "generation": {"command": document}})

    assert refused["code"] == "invalid"


async def test_a_step_waits_until_all_ranks_show_what_was_asked_for_before_it(scope: Served) -> None:
    pods = ranks(tensor=2, pipeline=1, confirms=True)
    async with attached(address(scope), pods), viewing(scope, OPERATOR) as viewer:
        await viewer.subscribe(1, "layers[0].attn.q")
        await viewer.send(command={"id": "1", "train": {"do": "step", "steps": 1}})
        for rank in pods:
            await rank.asked(1)
        await pods[0].send(in_force=scope_pb2.ScopeInForce(revision=pods[0].demand.revision))
        await viewer.send(ping={"time": 1})
        await viewer.text("pong")
        before = [list(rank.commands) for rank in pods]

        await pods[1].send(in_force=scope_pb2.ScopeInForce(revision=pods[1].demand.revision))
        result = await viewer.text("result")

    assert before == [[], []]
    assert (result["command"], result["answered"]) == ("1", 2)
    assert [[command.train.do for command in rank.commands] for rank in pods] == [["step"], ["step"]]


async def test_a_command_that_a_rank_refuses_is_told(scope: Served) -> None:
    pods = ranks()
    pods[2].refuse = "unsupported"
    async with attached(address(scope), pods), viewing(scope, OPERATOR) as viewer:
        await viewer.send(command={"id": "1", "train": {"do": "pause"}})
        result = await viewer.text("result")

    assert result["ack"]["code"] == "unsupported"


async def test_events_of_ranks_reach_everybody_and_forged_ones_do_not(scope: Served) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        await pods[1].event(audit=scope_pb2.ScopeAudit(by="nobody", action="perturb"))
        await pods[1].event(alert=scope_pb2.ScopeAlert(kind="nonfinite", site="mlp.out", step=3))
        event = await viewer.event("alert")

    assert (event["rank"], event["event"]["alert"]["site"]) == (1, "mlp.out")
    assert sample(scope.registry, "megatronapp_gateway_scope_refused_events_total") == 1


@pytest.mark.parametrize(
    ("expression", "code", "says"),
    [
        ("layers[0].attn.q | evil(1)", "syntax", "no operation evil"),
        ("layers[0].attn.z", "unknown_site", "attn.q"),
        ("attn.q", "invalid", "layers[*].attn.q"),
        ("layers[0].logits", "invalid", "write logits"),
        ("layers[9].attn.q", "invalid", "belongs to layers"),
        ("layers[0].attn.*", "invalid", "means"),
        ("layers[0].attn.q | head(17)", "invalid", "the model has 4"),
        ("__import__('os').system('true')", "syntax", ""),
    ],
)
async def test_what_can_not_be_shown_is_refused_before_anything_is_done(
    scope: Served, expression: str, code: str, says: str
) -> None:
    async with attached(address(scope), ranks()) as pods, viewing(scope) as viewer:
        refused = await viewer.refused(subscribe={"id": 1, "expression": expression})

        assert refused["code"] == code
        assert says in refused["message"] + refused.get("hint", "")
        assert not any(rank.demand.taps for rank in pods)


async def test_more_subscriptions_than_allowed_are_refused(start: Start) -> None:
    served = await with_pods(start, scope_max_subscriptions=2)
    async with attached(address(served), ranks()), viewing(served) as viewer:
        for number in (1, 2):
            await viewer.subscribe(number, ONE)
        refused = await viewer.refused(subscribe={"id": 3, "expression": ONE})

    assert refused["code"] == "too_many"


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("{}", 4400),
        ("no json", 4400),
        ("[" * 3000, 4400),
        ('{"ping": {"time": 1}}', 4400),
        (b"bytes", 4400),
        ('{"join": {"run": "unknown"}}', 4400),
        ('{"join": {"client": "' + "x" * 5000 + '"}}', 4413),
    ],
)
async def test_a_viewer_that_does_not_speak_the_protocol_is_disconnected(
    start: Start, sent: str | bytes, code: int
) -> None:
    served = await with_pods(start, scope_max_message_bytes=4096)
    async with opened(served) as socket:
        await socket.send(sent)

        assert await closed(socket) == code


async def test_who_sends_too_much_is_disconnected(start: Start) -> None:
    served = await with_pods(start, scope_max_messages_per_second=5.0)
    async with attached(address(served), ranks()), viewing(served) as viewer:
        for _ in range(50):
            await viewer.send(ping={"time": 1})

        assert await closed(viewer.socket) == 4429


async def test_who_says_nothing_is_disconnected(start: Start) -> None:
    served = await with_pods(start, scope_idle_seconds=0.2)
    async with attached(address(served), ranks()), viewing(served) as viewer:
        assert await closed(viewer.socket) == 4408


async def test_a_page_of_another_site_is_refused(scope: Served) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with opened(scope, headers={"Origin": "https://evil.example"}):
            pass

    assert caught.value.response.status_code == 403


async def test_without_a_token_nobody_looks(scope: Served) -> None:
    with pytest.raises(InvalidStatus) as caught:
        async with opened(scope, token="wrong"):
            pass

    assert caught.value.response.status_code == 401


async def test_a_ticket_opens_one_connection_with_its_role(scope: Served) -> None:
    async with attached(address(scope), ranks()), scope.client() as client:
        ticket = (await client.post("/api/v1/scope/tickets")).json()["ticket"]
        protocols = ["mscope.v1", f"ticket.{ticket}"]
        async with opened(scope, token="", subprotocols=protocols) as socket:
            welcome = await Viewer(socket).join()
            chosen = socket.subprotocol
        async with opened(scope, token="", subprotocols=protocols) as again:
            code = await closed(again)

    assert (welcome["role"], chosen, code) == ("viewer", "mscope.v1", 4401)


async def test_a_ticket_needs_a_token(scope: Served) -> None:
    async with scope.client("") as client:
        assert (await client.post("/api/v1/scope/tickets")).status_code == 401


async def test_when_the_gateway_stops_viewers_are_sent_away(start: Start) -> None:
    served = await with_pods(start)
    async with attached(address(served), ranks()), viewing(served) as viewer:
        stopping = asyncio.create_task(served.gateway.stop())
        told = await viewer.text("goAway")
        code = await closed(viewer.socket)
        await stopping

    assert told["retryMilliseconds"] > 0
    assert code == 4503


async def test_what_the_model_is_is_told_and_told_again_when_ranks_come(scope: Served) -> None:
    pods = ranks()
    async with attached(address(scope), pods[:1]), viewing(scope) as viewer:
        first = await viewer.text("description")
        async with attached(address(scope), pods[1:]):
            while len((later := await viewer.text("description"))["ranks"]) < 4:
                pass

    sites = {site["name"]: site for site in later["sites"]}
    assert first["missingRanks"] == [1, 2, 3]
    assert "logits" not in {site["name"] for site in first["sites"]}
    assert sites["attn.q"]["layers"] == [0, 1, 2, 3]
    assert sites["attn.q"]["axes"][2] == {"name": "head", "size": 4}
    assert later["roles"] == ["generate", "perturb", "train"]
