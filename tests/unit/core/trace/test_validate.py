from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.trace import limits
from megatronapp.core.trace.columns import fill_spans, fill_summary
from megatronapp.core.trace.message_id import (
    CHUNK_BITS,
    MAX_PACKED,
    MICROBATCH_BITS,
    PART_BITS,
    Direction,
    MessageId,
)
from megatronapp.core.trace.ranges import ImplausibleError
from megatronapp.core.trace.validate import check_message, check_rank_message
from megatronapp.v1 import trace_pb2

NOW_NS = 1_760_000_000_000_000_000
WORLD = 1 << 16


def hello() -> trace_pb2.TraceMessage:
    """Of a job larger than any known."""
    ranks = range(WORLD)
    return trace_pb2.TraceMessage(
        hello=trace_pb2.Hello(
            identity=trace_pb2.Identity(
                run="0b9d-uid", job="team/gpt", attempt=999, rank=WORLD - 1, incarnation=2**64 - 1
            ),
            placement=trace_pb2.Placement(
                node="node-1.example",
                gpu_uuid="GPU-8f6e2a3c-aaaa-bbbb-cccc-0123456789ab",
                pipeline=63,
                sizes=trace_pb2.ParallelSizes(world=WORLD, tensor=8, pipeline=64, data=128, virtual_pipeline=8),
                host_unix_ns=NOW_NS,
                host_clock_ns=86_400 * 10**9,
                pid=2**22,
                device_id="GPU-8f6e2a3c-aaaa-bbbb-cccc-0123456789ab",
                device_name="NVIDIA H200",
            ),
            recipe=trace_pb2.Recipe(
                settings=[trace_pb2.Setting(name=f"flag-{n}", value="x" * 90) for n in range(limits.MAX_SETTINGS)],
                versions=[trace_pb2.Setting(name="torch", value="2.11.0+cu128")],
            ),
            device=trace_pb2.DEVICE_CUDA,
            schedule=trace_pb2.Schedule(name="interleaved", microbatches=2048, total_steps=10**6, parameters=10**13),
            communicators=[
                trace_pb2.Communicator(index=1, id="world:" + "-".join(map(str, ranks)), kind="world", ranks=ranks)
            ],
        )
    )


def batch() -> trace_pb2.TraceMessage:
    body = trace_pb2.TraceBatch(step=10**6, names=["forward", "all_reduce"], last=True, reference_host_ns=NOW_NS)
    rows = np.arange(16_384)
    fill_spans(
        body,
        {
            "start_ns": NOW_NS + rows * 1000,
            "duration_ns": rows,
            "name": rows % 2,
            "communicator": rows % 2,
            "peer": rows % 3 - 1,
            "bytes": rows << 32,
            "message": np.where(rows % 2, MAX_PACKED - rows, 0),
        },
    )
    return trace_pb2.TraceMessage(seq=2**63, batch=body)


def summary() -> trace_pb2.TraceMessage:
    body = trace_pb2.StepSummary(
        step=5,
        start_ns=NOW_NS,
        duration_ns=3600 * 10**9,
        cpu_ns=10**9,
        names=["forward"],
        phases=[trace_pb2.PHASE_CHECKPOINT, 9],  # type: ignore[list-item]  # of a newer sender
        progress=trace_pb2.Progress(loss=math.nan, grad_norm=math.inf, learning_rate=1e-4),  # a run that diverged
        dropped=10**9,
        memory=trace_pb2.Memory(allocated_bytes=140 << 30, device_bytes=141 << 30, host_bytes=2 << 40),
    )
    fill_summary(body, {"name": [0], "count": [4], "duration_sum_ns": [10**12], "length_squares": [2**60]})
    return trace_pb2.TraceMessage(seq=1, summary=body)


def heartbeat() -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(
        seq=7,
        heartbeat=trace_pb2.Heartbeat(
            evaluations=[trace_pb2.Evaluation(split="valid", loss=math.nan, microbatches=100, step=5)] * 8,
            clock_ns=1,
            unix_ns=NOW_NS,
            step=12,
            phase=31,  # type: ignore[arg-type]  # of a newer sender
            activity="forward",
            frontiers=[
                trace_pb2.Frontier(communicator=3, enqueued=10**9, operation="all_reduce", peer=-1),
                trace_pb2.Frontier(
                    communicator=2,
                    enqueued=10**9,
                    peer=7,
                    open=[trace_pb2.OpenMessage(step=12, message=MAX_PACKED, posted_at_ns=-5)] * 16,
                ),
            ],
            memory=trace_pb2.Memory(host_bytes=2 << 40),
            control=trace_pb2.TraceControl(enabled=True, interval=limits.MAX_TRACE_INTERVAL, continuous_iterations=2),
            gpu=trace_pb2.GpuTelemetry(power_watts=700.5, clock_event_reasons=2**64 - 1),
        ),
    )


@pytest.mark.parametrize("make", [hello, batch, summary, heartbeat])
def test_what_a_large_job_sends_is_plausible(make: Callable[[], trace_pb2.TraceMessage]) -> None:
    check_message(make())


def _numbers(make: Callable[[], trace_pb2.TraceMessage], *changes: tuple[str, object]) -> list[object]:
    return [pytest.param(make, path, value, id=f"{path}={value!r:.24}") for path, value in changes]


@pytest.mark.parametrize(
    ("make", "path", "value"),
    [
        *_numbers(
            hello,
            ("hello.identity.run", "manifest.json"),
            ("hello.identity.run", "manifest.part"),
            ("hello.identity.run", ".."),
            ("hello.identity.job", "team"),
            ("hello.identity.attempt", 0),
            ("hello.identity.attempt", 2**32 - 1),
            ("hello.identity.rank", 2**32 - 1),
            ("hello.device", -1),
            ("hello.placement.host_unix_ns", 2**63 - 1),
            ("hello.placement.host_unix_ns", -1),
            ("hello.placement.host_clock_ns", -(2**63)),
            ("hello.placement.host_clock_ns", -(3 * 10**18)),
            ("hello.placement.data", 2**32 - 1),
            ("hello.placement.pipeline", 2**32 - 1),
            ("hello.placement.local_rank", 2**32 - 1),
            ("hello.placement.sizes.world", 2**32 - 1),
            ("hello.placement.sizes.pipeline", 2**32 - 1),
            ("hello.placement.sizes.virtual_pipeline", 2**32 - 1),
            ("hello.placement.sizes.virtual_pipeline", limits.MAX_VIRTUAL_PIPELINE),
            ("hello.placement.node", "n" * 257),
            ("hello.placement.node", "node\n1"),
            ("hello.placement.gpu_uuid", "g" * 257),
            ("hello.placement.device_id", "d" * 257),
            ("hello.placement.device_id", "cpu:node\n1/0"),
            ("hello.placement.device_name", "d" * 257),
            ("hello.placement.role", "r" * 257),
            ("hello.placement.role", "forward\n"),
            ("hello.schedule.name", "s" * 257),
            ("hello.schedule.microbatches", 2**32 - 1),
            ("hello.schedule.total_steps", 2**63),
            ("hello.schedule.first_step", 2**63),
            ("hello.schedule.sequence_length", 2**32 - 1),
            ("hello.schedule.micro_batch_size", 2**32 - 1),
            ("hello.schedule.parameters", 2**64 - 1),
        ),
        *_numbers(
            batch,
            ("batch.step", 2**63),
            ("batch.count", 2**32 - 1),
            ("batch.dropped", 2**64 - 1),
            ("batch.reference_error_ns", -1),
            ("batch.reference_host_ns", 2**63 - 1),
            ("batch.base_ns", -(2**63)),
        ),
        *_numbers(
            summary,
            ("summary.step", 2**63),
            ("summary.rows", 2**32 - 1),
            ("summary.start_ns", 2**63 - 1),
            ("summary.duration_ns", 2**63 - 1),
            ("summary.duration_ns", -1),
            ("summary.cpu_ns", -1),
            ("summary.dropped", 2**64 - 1),
            ("summary.progress.total_steps", 2**64 - 1),
            ("summary.memory.allocated_bytes", 2**63),
            ("summary.memory.device_bytes", 2**64 - 1),
        ),
        *_numbers(
            heartbeat,
            ("heartbeat.clock_ns", 2**63 - 1),
            ("heartbeat.unix_ns", 2**63 - 1),
            ("heartbeat.step", 2**63),
            ("heartbeat.dropped", 2**64 - 1),
            ("heartbeat.phase", -1),
            ("heartbeat.phase", 32),
            ("heartbeat.activity", "a" * 1025),
            ("heartbeat.activity_since_ns", 2**63 - 1),
            ("heartbeat.thread_cpu_ns", -1),
            ("heartbeat.thread_wait_ns", 2**63 - 1),
            ("heartbeat.control.interval", 2_000_000),
            ("heartbeat.control.continuous_iterations", 2**32 - 1),
            ("heartbeat.control.granularity", -1),
            ("heartbeat.gpu.pcie_replays", 2**64 - 1),
            ("heartbeat.memory.host_bytes", 2**63),
            ("heartbeat.memory.reserved_bytes", 2**64 - 1),
        ),
    ],
)
def test_a_field_out_of_its_range_is_refused(
    make: Callable[[], trace_pb2.TraceMessage], path: str, value: object
) -> None:
    message = make()
    *parents, field = path.split(".")
    target = message
    for parent in parents:
        target = getattr(target, parent)
    setattr(target, field, value)

    with pytest.raises(DataError):
        check_message(message)


@pytest.mark.parametrize(
    "opens",
    [
        [trace_pb2.OpenMessage()] * 17,
        [trace_pb2.OpenMessage(step=2**63)],
        [trace_pb2.OpenMessage(message=MAX_PACKED + 1)],
        [trace_pb2.OpenMessage(posted_at_ns=-(2**63))],
    ],
    ids=["17", "step", "message", "posted_at_ns"],
)
def test_open_messages_that_cannot_be_are_refused(opens: list[trace_pb2.OpenMessage]) -> None:
    message = heartbeat()
    message.heartbeat.frontiers.add(peer=3, open=opens)

    with pytest.raises(ImplausibleError):
        check_message(message)


@pytest.mark.parametrize(
    "evaluations",
    [
        [trace_pb2.Evaluation(split="valid")] * 65,
        [trace_pb2.Evaluation(split="v" * 257)],
        [trace_pb2.Evaluation(split="v\0")],
        [trace_pb2.Evaluation(split="valid", step=2**63)],
        [trace_pb2.Evaluation(split="valid", microbatches=2**64 - 1)],
    ],
    ids=["65", "long split", "split", "step", "microbatches"],
)
def test_evaluations_that_cannot_be_are_refused(evaluations: list[trace_pb2.Evaluation]) -> None:
    message = heartbeat()
    del message.heartbeat.evaluations[:]
    message.heartbeat.evaluations.extend(evaluations)

    with pytest.raises(ImplausibleError):
        check_message(message)


@pytest.mark.parametrize("part", ["settings", "versions"])
@pytest.mark.parametrize(
    "settings",
    [
        [trace_pb2.Setting(name="flag")] * (limits.MAX_SETTINGS + 1),
        [trace_pb2.Setting(name="n" * 257)],
        [trace_pb2.Setting(name="flag", value="v" * 4097)],
        [trace_pb2.Setting(name="flag", value="\x1b[2J")],
        [trace_pb2.Setting(name="flag", value="v" * 4096)] * 64,
    ],
    ids=["many", "long name", "long value", "unprintable", "large in all"],
)
def test_recipes_that_cannot_be_are_refused(part: str, settings: list[trace_pb2.Setting]) -> None:
    message = hello()
    message.hello.recipe.Clear()
    getattr(message.hello.recipe, part).extend(settings)

    with pytest.raises(ImplausibleError):
        check_message(message)


@given(
    direction=st.sampled_from(Direction),
    microbatch=st.integers(0, (1 << MICROBATCH_BITS) - 1),
    chunk=st.integers(0, (1 << CHUNK_BITS) - 1),
    part=st.integers(0, (1 << PART_BITS) - 1),
)
def test_every_message_that_can_be_named_is_taken(direction: Direction, microbatch: int, chunk: int, part: int) -> None:
    name = MessageId(direction, microbatch, chunk, part).pack()
    body = trace_pb2.TraceBatch(step=1, names=["forward_send"])
    fill_spans(body, {"start_ns": [1, 2], "message": [0, name]})
    beat = heartbeat()
    beat.heartbeat.frontiers.add(peer=1, open=[trace_pb2.OpenMessage(step=1, message=name)])

    check_message(trace_pb2.TraceMessage(seq=1, batch=body))
    check_message(beat)


@given(st.integers(MAX_PACKED + 1, 2**64 - 1))
def test_a_number_that_names_no_message_is_refused(number: int) -> None:
    body = trace_pb2.TraceBatch(step=1, names=["forward_send"])
    fill_spans(body, {"start_ns": [1, 2], "message": [0, number]})

    with pytest.raises(ImplausibleError, match="message"):
        check_message(trace_pb2.TraceMessage(seq=1, batch=body))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_news_and_taken(value: float) -> None:
    message = summary()
    message.summary.progress.loss = message.summary.progress.grad_norm = value

    check_message(message)


def test_an_order_of_more_passes_than_a_step_can_have_is_refused() -> None:
    message = summary()
    message.summary.order = bytes(limits.MAX_ORDER_BYTES + 1)

    with pytest.raises(ImplausibleError) as raised:
        check_message(message)

    assert raised.value.reason == "order"


@pytest.mark.parametrize("phases", [[-1], [32], [40], [1] * 65])
def test_phases_that_are_no_bits_are_refused(phases: list[int]) -> None:
    message = summary()
    message.summary.phases[:] = phases  # type: ignore[index]

    with pytest.raises(ImplausibleError) as raised:
        check_message(message)

    assert raised.value.reason == "phases"


@pytest.mark.parametrize(
    "communicator",
    [
        trace_pb2.Communicator(index=0, id="dp:0", kind="dp"),
        trace_pb2.Communicator(index=2**32 - 1, id="dp:0", kind="dp"),
        trace_pb2.Communicator(index=1, id="dp:0", kind="dp", ranks=[0, 2**32 - 1]),
        trace_pb2.Communicator(index=1, id="x" * 600, kind="dp", ranks=[0, 1]),
        trace_pb2.Communicator(index=1, id="dp:0", kind="k" * 257),
    ],
    ids=["index 0", "index 2^32-1", "rank 2^32-1", "long id", "long kind"],
)
@pytest.mark.parametrize("make", [hello, batch, summary, heartbeat])
def test_a_communicator_that_can_not_be_is_refused_wherever_it_is_named(
    make: Callable[[], trace_pb2.TraceMessage], communicator: trace_pb2.Communicator
) -> None:
    message = make()
    getattr(message, message.WhichOneof("body") or "").communicators.append(communicator)

    with pytest.raises(ImplausibleError) as raised:
        check_message(message)

    assert raised.value.reason in {"communicators", "text"}


@pytest.mark.parametrize(
    "frontier",
    [
        trace_pb2.Frontier(communicator=2**32 - 1),
        trace_pb2.Frontier(enqueued=2**64 - 1),
        trace_pb2.Frontier(enqueued_at_ns=2**63 - 1),
        trace_pb2.Frontier(completed_at_ns=-(2**63)),
        trace_pb2.Frontier(peer=2**31 - 1),
        trace_pb2.Frontier(operation="o" * 1025),
    ],
)
def test_a_frontier_that_can_not_be_is_refused(frontier: trace_pb2.Frontier) -> None:
    message = heartbeat()
    message.heartbeat.frontiers.append(frontier)

    with pytest.raises(ImplausibleError):
        check_message(message)


@pytest.mark.parametrize("body", ["summary", "batch"])
def test_rows_need_columns(body: str) -> None:
    bomb = trace_pb2.TraceMessage(seq=1)
    if body == "summary":
        bomb.summary.MergeFrom(trace_pb2.StepSummary(step=1, names=["forward"], rows=10_000))
    else:
        bomb.batch.MergeFrom(trace_pb2.TraceBatch(step=1, names=["forward"], count=10_000))

    with pytest.raises(DataError, match=r"without (any column|start_ns)"):
        check_message(bomb)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("start_ns", 2**63 - 1),
        ("start_ns", -(2**63)),
        ("enqueue_ns", 5 * 10**18),
        ("duration_ns", 2**62),
        ("cpu_ns", -(2**62)),
        ("communicator", 2**32 - 1),
        ("peer", 2**31 - 1),
        ("sequence", 2**64 - 1),
        ("bytes", 2**64 - 1),
    ],
)
def test_a_column_with_a_value_out_of_range_is_refused(column: str, value: int) -> None:
    body = trace_pb2.TraceBatch(step=1, names=["forward"])
    fill_spans(body, {"start_ns": [1, 2], column: [1, value]})

    with pytest.raises(ImplausibleError, match=column):
        check_message(trace_pb2.TraceMessage(seq=1, batch=body))


@pytest.mark.parametrize("names", [["n" * 1025], ["a\x1b[2J"], ["n"] * (limits.MAX_NAMES + 1)])
def test_names_that_can_not_be_shown_are_refused(names: list[str]) -> None:
    message = batch()
    message.batch.names.extend(names)

    with pytest.raises(ImplausibleError):
        check_message(message)


def test_the_bus_is_checked_by_the_same_rules() -> None:
    identity = hello().hello.identity
    lost = trace_pb2.RankMessage(identity=identity, received_unix_ns=NOW_NS, lost=True)
    good = trace_pb2.RankMessage(identity=identity, message=hello(), received_unix_ns=NOW_NS, clock_error_ns=-1)

    check_rank_message(lost)
    check_rank_message(good)

    bad = trace_pb2.RankMessage()
    for field, value in (("received_unix_ns", -1), ("clock_error_ns", -2)):
        bad.CopyFrom(good)
        setattr(bad, field, value)
        with pytest.raises(ImplausibleError):
            check_rank_message(bad)
    bad.CopyFrom(good)
    bad.identity.rank = 0
    with pytest.raises(ImplausibleError, match="another rank"):
        check_rank_message(bad)
    bad.CopyFrom(good)
    bad.message.hello.placement.sizes.world = 2**32 - 1
    with pytest.raises(ImplausibleError, match="world"):
        check_rank_message(bad)
