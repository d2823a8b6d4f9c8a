"""The stream of a rank, over real gRPC."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import SecretStr

from megatronapp.core.auth import StaticTokens
from megatronapp.core.bus import Topic
from megatronapp.core.metrics import job_labels
from megatronapp.core.trace.stream import REFUSED_AFTER
from megatronapp.v1 import trace_pb2
from tests.integration.collector.conftest import Running, Start
from tests.integration.collector.support import JOB, RUN, RankStream, batch, closing, ending, hello, identity, summary

LABELS = job_labels(JOB)


async def published(running: Running, count: int) -> list[trace_pb2.RankMessage]:
    messages = []
    async with asyncio.timeout(20):
        async for message in running.bus.subscribe(Topic.STEPS, group="test", consumer="test"):
            messages.append(trace_pb2.RankMessage.FromString(message.value))
            assert message.key == RUN
            if len(messages) == count:
                return messages
    raise AssertionError("the bus ended")


async def test_messages_are_acknowledged_and_all_but_detail_go_to_the_bus(start: Start) -> None:
    running = await start()
    rank = RankStream(running.address)

    await rank.send(hello(identity()), summary(1, 1), batch(2, 1), closing(3))
    await rank.until_acked(3)
    await rank.close()

    kinds = [message.message.WhichOneof("body") for message in await published(running, 3)]
    assert kinds == ["hello", "summary", "heartbeat"]
    assert running.value("megatronapp_trace_events_received_total", **LABELS) == 4
    assert running.value("megatronapp_trace_batches_total", **LABELS) == 1


async def test_bus_messages_carry_sender_arrival_and_clock(start: Start) -> None:
    running = await start()
    rank = RankStream(running.address)

    await rank.send(hello(identity(), offset_ns=5_000), summary(1, 1))
    await rank.until_acked(1)

    message = (await published(running, 2))[1]
    assert message.identity == identity()
    assert message.received_unix_ns > 0
    assert (message.clock_offset_ns, message.clock_error_ns, message.lost) == (5_000, 0, False)
    await rank.close()


async def test_what_is_sent_again_is_acknowledged_and_kept_once(start: Start) -> None:
    running = await start()
    first = RankStream(running.address)
    await first.send(hello(identity()), summary(1, 1), batch(2, 1))
    await first.until_acked(2)
    await first.cut()

    again = RankStream(running.address)
    await again.send(hello(identity()), summary(1, 1), batch(2, 1), closing(3))
    await again.until_acked(3)
    await again.close()

    assert running.value("megatronapp_trace_events_received_total", **LABELS) == 4
    assert running.value("megatronapp_trace_duplicates_total", **LABELS) == 2


async def test_a_stream_that_breaks_off_is_told_to_the_bus_as_lost(start: Start) -> None:
    running = await start()
    rank = RankStream(running.address)
    await rank.send(hello(identity()), summary(1, 1))
    await rank.until_acked(1)

    await rank.cut()

    assert [message.lost for message in await published(running, 3)] == [False, False, True]


async def test_a_wrong_token_is_refused(start: Start) -> None:
    running = await start(StaticTokens(pods=SecretStr("right")))
    rank = RankStream(running.address, token="wrong")

    await rank.send(hello(identity()))
    error = await rank.status()

    assert error is not None
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED
    assert "wrong" not in (error.details() or "").replace("missing or wrong", "")
    assert running.value("megatronapp_trace_refused_total", reason="unauthenticated") == 1
    await rank.channel.close(None)


async def test_ranks_that_do_not_come_back_after_a_restart_are_told_to_the_bus_as_lost(start: Start) -> None:
    running = await start()
    ranks = [RankStream(running.address) for _ in range(3)]
    for number, rank in enumerate(ranks):
        await rank.send(hello(identity(number), world=3), closing(1) if number == 2 else summary(1, 1))
        await rank.until_acked(1)
    await running.collector.stop()

    again = await start(return_seconds=1.0)
    back = RankStream(again.address)
    await back.send(hello(identity(0), world=3), summary(2, 2))
    await back.until_acked(2)

    (*_, last) = await published(again, 3)
    assert (last.identity.rank, last.lost) == (1, True)
    await back.close()


async def test_a_hello_request_is_answered_with_the_hellos_of_connected_ranks(start: Start) -> None:
    running = await start()
    there, gone = RankStream(running.address), RankStream(running.address)
    await there.send(hello(identity(0), world=2), summary(1, 1))
    await gone.send(hello(identity(1), world=2), closing(1))
    await there.until_acked(1)
    await gone.close()

    await running.bus.publish(Topic.HELLO_REQUEST, "", b"")

    (*_, answer) = await published(running, 5)
    assert (answer.identity.rank, answer.message.hello.communicators[0].id) == (0, "dp:0-1")
    await there.close()


async def test_the_right_token_is_let_in(start: Start) -> None:
    running = await start(StaticTokens(pods=SecretStr("right")))
    rank = RankStream(running.address, token="right")

    await rank.send(hello(identity()), closing(1))

    await rank.until_acked(1)
    await rank.close()


def _bad_column() -> trace_pb2.TraceMessage:
    message = batch(1, 1)
    message.batch.start_ns = message.batch.start_ns[:-1]
    return message


def _hello_with(**fields: object) -> trace_pb2.TraceMessage:
    message = hello(identity())
    for name, value in fields.items():
        setattr(message.hello.identity, name, value)
    return message


@pytest.mark.parametrize(
    ("messages", "says", "reason"),
    [
        ([summary(1, 1)], "begins with Hello", "malformed"),
        ([_hello_with(run="../../etc")], "run must be", "implausible_identity"),
        ([_hello_with(job="no-namespace")], "<namespace>/<name>", "implausible_identity"),
        ([_hello_with(attempt=0)], "attempt counts from 1", "implausible_identity"),
        ([hello(identity()), _bad_column()], "column start_ns", "malformed"),
        ([hello(identity()), trace_pb2.TraceMessage(seq=1)], "without a body", "malformed"),
        ([hello(identity()), summary(2, 1), summary(1, 2)], "seq 1 after 2", "malformed"),
        ([hello(identity()), summary(0, 1)], "counts from 1", "malformed"),
    ],
    ids=["no hello", "run", "job", "attempt", "column", "body", "order", "zero"],
)
async def test_what_makes_no_sense_is_refused_with_its_reason(
    start: Start, messages: list[trace_pb2.TraceMessage], says: str, reason: str
) -> None:
    running = await start()
    rank = RankStream(running.address)

    await rank.send(*messages)
    error = await rank.status()

    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert says in (error.details() or "")
    assert running.value("megatronapp_trace_refused_total", reason=reason) == 1
    assert running.collector.ready()
    await rank.channel.close(None)


def bundle(*messages: trace_pb2.TraceMessage) -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(bundle=trace_pb2.Bundle(messages=[each.SerializeToString() for each in messages]))


async def test_the_messages_of_a_bundle_are_taken_as_if_they_had_come_alone(start: Start) -> None:
    running = await start()
    rank = RankStream(running.address)

    await rank.send(hello(identity()), summary(1, 1), bundle(batch(2, 1), summary(3, 2)), closing(4))
    await rank.until_acked(4)
    await rank.close()

    assert [message.message.seq for message in await published(running, 4)] == [0, 1, 3, 4]
    assert running.value("megatronapp_trace_events_received_total", **LABELS) == 4


@pytest.mark.parametrize(
    ("refused", "after"),
    [
        (bundle(), "1"),
        (bundle(bundle(summary(2, 2))), "1"),
        (bundle(summary(2, 2), hello(identity())), "2"),
        (bundle(summary(2, 2), summary(2, 2)), "2"),
        (trace_pb2.TraceMessage(bundle=trace_pb2.Bundle(messages=[b"\xff"])), "1"),
    ],
    ids=["empty", "nested", "hello", "repeated", "broken"],
)
async def test_a_bundle_is_taken_up_to_what_is_wrong_in_it(
    start: Start, refused: trace_pb2.TraceMessage, after: str
) -> None:
    running = await start()
    rank = RankStream(running.address)

    await rank.send(hello(identity()), summary(1, 1), refused)
    await rank.until_acked(int(after))
    error = await rank.status()
    await rank.channel.close(None)

    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert dict(error.trailing_metadata() or ())[REFUSED_AFTER] == after


async def test_a_refused_message_is_pointed_out(start: Start) -> None:
    running = await start()
    rank = RankStream(running.address)
    broken = _bad_column()
    broken.seq = 7

    await rank.send(hello(identity()), summary(1, 1), summary(4, 2), broken)
    await rank.until_acked(4)
    error = await rank.status()
    await rank.channel.close(None)

    assert error is not None
    assert dict(error.trailing_metadata() or ())[REFUSED_AFTER] == "4"


async def test_truncated_bytes_are_refused_and_what_came_before_is_kept(start: Start) -> None:
    running = await start()
    async with aio.insecure_channel(running.address) as channel:
        call = channel.stream_stream("/megatronapp.v1.TraceIngest/Stream")()
        await call.write(hello(identity()).SerializeToString())
        await call.write(batch(1, 1).SerializeToString())
        await call.write(batch(2, 2).SerializeToString()[:-5])

        error = await ending(call)

    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert running.value("megatronapp_trace_batches_total", **LABELS) == 1


async def test_an_oversized_message_is_refused_and_the_service_stays_up(start: Start) -> None:
    running = await start(max_message_bytes=1 << 16)
    rank = RankStream(running.address)

    await rank.send(hello(identity()), batch(1, 1, spans=10_000))
    error = await rank.status()
    await rank.channel.close(None)

    assert error is not None
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    other = RankStream(running.address)
    await other.send(hello(identity(incarnation=2)), closing(1))
    await other.until_acked(1)
    await other.close()


async def test_control_from_the_bus_reaches_ranks_that_are_there_and_that_come_later(start: Start) -> None:
    running = await start()
    control = trace_pb2.TraceControl(enabled=True, interval=3, granularity=trace_pb2.GRANULARITY_FULL)
    there, later = RankStream(running.address), RankStream(running.address)
    await there.send(hello(identity()), summary(1, 1))
    await there.until_acked(1)

    await running.bus.publish(Topic.TRACE_CONTROL, RUN, control.SerializeToString())

    async with asyncio.timeout(20):
        assert await there.control() == control
        await later.send(hello(identity(1)))
        assert await later.control() == control
    await there.close()
    await later.close()


async def test_health_is_told_over_grpc(start: Start) -> None:
    running = await start()

    async with aio.insecure_channel(running.address) as channel:
        answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())

    assert answer.status == health_pb2.HealthCheckResponse.SERVING
