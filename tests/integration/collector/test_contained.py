"""One message and one job stop nobody else: at the door, when applied, when stored, and when a journal is replayed."""

from __future__ import annotations

import asyncio
import contextlib
import resource
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from megatronapp.collector import envelope, tables
from megatronapp.collector.blocks import SummaryBlock
from megatronapp.collector.jobs import Attempt
from megatronapp.collector.journal import Journal
from megatronapp.collector.store import Store
from megatronapp.core.bus import Topic
from megatronapp.core.quarantine import Entry, entries, release
from megatronapp.v1 import trace_pb2, trace_pb2_grpc
from tests.integration.collector.conftest import Running, Start, StartProcess
from tests.integration.collector.support import RankStream, batch, closing, hello, identity, summary

NOW_NS = 1_760_000_000_000_000_000
VICTIM, OTHER = "run-innocent", "run-poisoned"


def who(run: str, rank: int = 0, *, job: str = "", attempt: int = 1, incarnation: int = 1) -> trace_pb2.Identity:
    job = job or f"team/{run}"
    return trace_pb2.Identity(run=run, job=job, attempt=attempt, rank=rank, incarnation=incarnation)


def with_phases(*phases: int) -> trace_pb2.TraceMessage:
    message = summary(1, 1)
    message.summary.phases[:] = phases  # type: ignore[index]
    return message


def with_dropped(count: int) -> trace_pb2.TraceMessage:
    message = summary(1, 1)
    message.summary.dropped = count
    return message


def at_step(step: int) -> trace_pb2.TraceMessage:
    message = summary(1, 1)
    message.summary.step = step
    return message


def hello_at(unix_ns: int, clock_ns: int) -> trace_pb2.TraceMessage:
    message = hello(who(OTHER))
    message.hello.placement.host_unix_ns, message.hello.placement.host_clock_ns = unix_ns, clock_ns
    return message


Records = list[tuple[trace_pb2.Identity, trace_pb2.TraceMessage]]


def write_journal(folder: Path, records: Records) -> None:
    """As the version before wrote it: whatever came is in it."""
    journal = Journal(folder / "journal", fsync=False)
    journal.write(
        [envelope.wrap(envelope.sender(rank), message.SerializeToString(), NOW_NS) for rank, message in records]
    )
    journal.close()


async def steps_of(running: Running, run: str) -> list[int]:
    async with aio.insecure_channel(running.address) as channel:
        query = trace_pb2_grpc.TraceQueryStub(channel)
        answer = await query.ListSteps(trace_pb2.ListStepsRequest(run=run))
        return [int.from_bytes(answer.step[i : i + 8], "little") for i in range(0, len(answer.step), 8)]


async def run_job(running: Running, run: str, steps: int = 3) -> None:
    rank = RankStream(running.address)
    await rank.send(hello(who(run)), *[summary(step, step) for step in range(1, steps + 1)], closing(steps + 1))
    await rank.until_acked(steps + 1)
    await rank.close()


def set_aside(folder: Path) -> list[Entry]:
    quarantine = folder / "data" / "quarantine"
    return entries(quarantine) if quarantine.exists() else []


@pytest.mark.parametrize(
    "poison",
    [
        [(who(OTHER), hello_at(2**63 - 1, -(2**63)))],
        [(who(OTHER), hello(who(OTHER))), (who(OTHER), with_phases(-1))],
        [(who(OTHER), hello(who(OTHER))), (who(OTHER), with_phases(40))],
        [(who("manifest.json"), hello(who("manifest.json"))), (who("manifest.json"), summary(1, 1))],
        [(who("manifest.part"), hello(who("manifest.part"))), (who("manifest.part"), summary(1, 1))],
    ],
    ids=["clock", "phase -1", "phase 40", "manifest.json", "manifest.part"],
)
async def test_a_journal_with_a_record_that_can_not_be_applied_is_served_all_the_same(
    start: Start, tmp_path: Path, poison: Records
) -> None:
    innocent: Records = [(who(VICTIM), hello(who(VICTIM))), (who(VICTIM), summary(1, 1))]
    write_journal(tmp_path / "data", [*poison, *innocent])

    running = await start(flush_seconds=0.05)
    await run_job(running, "run-new")

    assert await steps_of(running, VICTIM) == [1]
    assert await steps_of(running, "run-new") == [1, 2, 3]
    assert poison[-1][0].run in {entry.run for entry in set_aside(tmp_path)}
    assert running.value("megatronapp_trace_quarantined_records_total", **labels(poison[-1][0])) >= 1
    assert running.collector.ready()
    await running.collector.stop()

    again = await start()
    assert await steps_of(again, VICTIM) == [1]
    assert await steps_of(again, "run-new") == [1, 2, 3]


def labels(identity: trace_pb2.Identity) -> dict[str, str]:
    namespace, _, name = identity.job.partition("/")
    return {"training_job": name, "namespace": namespace}


async def test_lost_events_of_old_processes_that_add_up_to_more_than_a_number_holds_stop_nobody(
    start: Start, tmp_path: Path
) -> None:
    first, second = who(OTHER), who(OTHER, incarnation=2)
    write_journal(
        tmp_path / "data",
        [
            (first, hello(first)),
            (first, with_dropped(2**64 - 1)),
            (second, hello(second)),
            (second, with_dropped(2**64 - 1)),
        ],
    )

    running = await start(flush_seconds=0.05)
    await run_job(running, VICTIM)

    assert await steps_of(running, VICTIM) == [1, 2, 3]
    assert len(set_aside(tmp_path)) == 2


async def test_phases_that_are_named_twice_or_are_newer_are_stored(start: Start) -> None:
    running = await start(flush_seconds=0.05)
    rank = RankStream(running.address)

    await rank.send(hello(who(OTHER)), with_phases(31, 31, 31))
    await rank.until_acked(1)
    await rank.close()

    await run_job(running, VICTIM)
    assert await steps_of(running, OTHER) == [1]


async def test_a_store_that_the_version_before_could_not_write_any_more_is_taken_up(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "data" / "store" / "manifest.json" / "attempt-1").mkdir(parents=True)
    (tmp_path / "data" / "store" / "manifest.json" / "attempt-1" / "note").write_text("kept")

    running = await start(flush_seconds=0.05)
    await run_job(running, VICTIM)
    await running.collector.stop()

    again = await start()
    assert await steps_of(again, VICTIM) == [1, 2, 3]
    assert (tmp_path / "data" / "store" / "_manifest.json" / "attempt-1" / "note").read_text() == "kept"


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([hello_at(2**63 - 1, -(2**63))], "number"),
        ([hello(who("manifest.json"))], "identity"),
        ([hello(who("manifest.part"))], "identity"),
        ([hello(who(OTHER, attempt=2**32 - 1))], "identity"),
        ([hello(who(OTHER)), with_phases(-1)], "phases"),
        ([hello(who(OTHER)), with_phases(40)], "phases"),
        ([hello(who(OTHER)), with_dropped(2**64 - 1)], "number"),
        ([hello(who(OTHER)), at_step(2**63)], "number"),
    ],
)
async def test_a_field_out_of_range_is_refused_counted_and_leaves_nothing(
    start: Start, tmp_path: Path, messages: list[trace_pb2.TraceMessage], reason: str
) -> None:
    running = await start(flush_seconds=0.05)
    rank = RankStream(running.address)

    await rank.send(*messages)
    error = await rank.status()
    await rank.channel.close(None)
    await run_job(running, VICTIM)

    assert error is not None
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert running.value("megatronapp_trace_refused_total", reason=f"implausible_{reason}") == 1
    assert await steps_of(running, VICTIM) == [1, 2, 3]
    await running.collector.stop()
    journalled = [trace_pb2.RankMessage.FromString(record) for _, record in Journal(tmp_path / "data/journal").replay()]
    assert len([each for each in journalled if each.identity.run != VICTIM]) == len(messages) - 1


class StrangeError(Exception):
    """What nobody has thought of."""


def raising(when: Callable[..., bool], original: Callable[..., Any]) -> Callable[..., Any]:
    def method(*args: Any, **kwargs: Any) -> Any:
        if when(*args):
            raise StrangeError("unthought-of")
        return original(*args, **kwargs)

    return method


async def test_a_message_that_can_not_be_applied_is_set_aside_acknowledged_and_taken_when_handed_back(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Attempt.take
    monkeypatch.setattr(Attempt, "take", raising(lambda _, received: received.message.summary.step == 2, original))
    running = await start(flush_seconds=0.05)

    await asyncio.gather(run_job(running, OTHER), run_job(running, VICTIM))

    assert await steps_of(running, OTHER) == await steps_of(running, VICTIM) == [1, 3]
    kept = set_aside(tmp_path)
    assert sorted(entry.run for entry in kept) == [VICTIM, OTHER]
    assert {entry.reason for entry in kept} == {"StrangeError: unthought-of"}

    # Handed back too early it comes back; handed back when the fault is gone it is stored once.
    folder = tmp_path / "data" / "quarantine"
    release(folder, kept[0].id)
    await until(lambda: not list((folder / "released").iterdir()) and len(set_aside(tmp_path)) == 2)
    monkeypatch.setattr(Attempt, "take", original)
    for entry in kept:
        release(folder, entry.id)
    await until(lambda: not list((folder / "released").iterdir()))

    assert await steps_of(running, OTHER) == await steps_of(running, VICTIM) == [1, 2, 3]
    assert not set_aside(tmp_path)
    await running.collector.stop()
    again = await start()
    assert await steps_of(again, OTHER) == await steps_of(again, VICTIM) == [1, 2, 3]


async def test_what_is_handed_back_is_done_with_also_when_the_bus_takes_it_after_the_store(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Attempt.take
    monkeypatch.setattr(Attempt, "take", raising(lambda _, received: received.message.summary.step == 2, original))
    running = await start(flush_seconds=0.05)
    await run_job(running, OTHER)
    monkeypatch.setattr(Attempt, "take", original)
    bus_goes_on, publish_all = asyncio.Event(), running.bus.publish_all

    async def publish_when_it_goes_on(topic: Topic, messages: Sequence[tuple[str, bytes]]) -> None:
        await bus_goes_on.wait()
        await publish_all(topic, messages)

    monkeypatch.setattr(running.bus, "publish_all", publish_when_it_goes_on)
    folder = tmp_path / "data" / "quarantine"
    (kept,) = set_aside(tmp_path)

    release(folder, kept.id)
    await until(lambda: bool(list((tmp_path / "data" / "store" / OTHER).glob("attempt-1/steps-*-2-2.parquet"))))
    assert list((folder / "released").iterdir()), "the bus does not have it yet"
    bus_goes_on.set()

    await until(lambda: not list((folder / "released").iterdir()))


async def until(true: Callable[[], bool]) -> None:
    for _ in range(600):
        if true():
            return
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come to pass")


async def test_a_job_whose_rows_can_not_be_stored_does_not_hold_up_the_others(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poisoned(blocks: list[SummaryBlock]) -> bool:
        return any(block.summary.names[0] == "poison" for block in blocks)

    original = tables.summary_table
    monkeypatch.setattr(tables, "summary_table", raising(poisoned, original))
    running = await start(flush_seconds=0.05)
    message = summary(1, 1)
    message.summary.names[0] = "poison"
    rank = RankStream(running.address)
    await rank.send(hello(who(OTHER)), message, batch(2, 1))
    await rank.until_acked(2)
    await run_job(running, VICTIM)
    store = tmp_path / "data" / "store"
    await until(lambda: any((store / VICTIM).glob("attempt-1/steps-*")) and len(set_aside(tmp_path)) == 2)

    assert not list((store / OTHER).glob("attempt-1/*.parquet")), "nothing half is left"
    assert running.collector.ready()
    await rank.send(summary(3, 2))
    await rank.until_acked(3)
    await until(lambda: any((store / OTHER).glob("attempt-1/steps-*")))
    await rank.close()

    monkeypatch.setattr(tables, "summary_table", original)
    for entry in set_aside(tmp_path):
        release(tmp_path / "data" / "quarantine", entry.id)
    await until(lambda: not list((tmp_path / "data" / "quarantine" / "released").iterdir()))
    await running.collector.stop()
    again = await start()
    assert await steps_of(again, OTHER) == [1, 2]
    assert await steps_of(again, VICTIM) == [1, 2, 3]


@pytest.mark.parametrize(("part", "method"), [(Journal, "write"), (Store, "write"), (Store, "expire")])
async def test_a_fault_that_nobody_has_thought_of_is_passed_and_nothing_is_lost(
    start: Start, monkeypatch: pytest.MonkeyPatch, part: type, method: str
) -> None:
    failures = iter([True] * 3)
    monkeypatch.setattr(part, method, raising(lambda *_: next(failures, False), getattr(part, method)))
    monkeypatch.setattr("megatronapp.collector.pipeline.EXPIRE_SECONDS", 0.0)
    running = await start(flush_seconds=0.05)

    for _ in range(4):
        rank = RankStream(running.address)
        with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):  # the latter for a call that has ended
            await rank.send(hello(who(VICTIM)), summary(1, 1), summary(2, 2), closing(3))
            await rank.until_acked(3)
        await rank.channel.close(None)

    assert rank.acked == 3
    await until(running.collector.ready)
    await running.collector.stop()
    again = await start()
    assert await steps_of(again, VICTIM) == [1, 2]


async def test_a_job_whose_folder_is_in_the_way_does_not_hold_up_the_others(start: Start, tmp_path: Path) -> None:
    running = await start(flush_seconds=0.05)
    (tmp_path / "data" / "store" / OTHER).write_text("no folder")

    await run_job(running, OTHER)
    await run_job(running, VICTIM)
    await until(lambda: any((tmp_path / "data" / "store" / VICTIM).glob("attempt-1/steps-*")))

    assert running.collector.ready()
    await until(lambda: len(set_aside(tmp_path)) == 3)


async def test_rows_that_are_claimed_and_not_sent_take_no_memory(process: StartProcess) -> None:
    collector = process(FLUSH_SECONDS="0.2")
    await collector.until_ready()
    before = resident_bytes(collector.process.pid)

    for seq in range(1, 11):
        rank = RankStream(collector.address)
        bomb = trace_pb2.StepSummary(step=seq, rows=1_000_000, names=["forward"])
        await rank.send(hello(identity()), trace_pb2.TraceMessage(seq=seq, summary=bomb))
        error = await rank.status()
        await rank.channel.close(None)
        assert error is not None
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT

    assert resident_bytes(collector.process.pid) - before < 256 << 20


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()
