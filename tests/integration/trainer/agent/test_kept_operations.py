"""A rank's NCCL operations at its agent: two segments in one connection, drained while the rank runs, and told when it
was killed."""

from __future__ import annotations

import multiprocessing
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from megatronapp.core.trace.columns import span_columns
from megatronapp.core.trace.file import read as read_trace
from megatronapp.core.trace.values import Communicator
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.app import Agent
from megatronapp.trainer.agent.kept_operations import KeptOperations
from megatronapp.trainer.agent.layout import StepEnd
from megatronapp.trainer.agent.rendezvous import listen
from megatronapp.trainer.plugins.scan.agent_link import AgentPlace
from megatronapp.trainer.plugins.scan.operations import Operation
from tests.support.rank_writer import RankWriter
from tests.unit.nccl.stand_in import Nccl

nccl = pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
from tests.support import nccl_rank  # noqa: E402  (needs it)

fork = multiprocessing.get_context("fork")


def play(path: Path, *, closes: bool, ready: Event) -> None:
    """A rank in a process of its own."""
    writer = nccl_rank.play(AgentPlace(path, own=False))
    if closes:
        writer.close()
    ready.set()
    time.sleep(60)


@contextmanager
def watched(path: Path, *, closes: bool) -> Iterator[BaseProcess]:
    """A rank in a process of its own, and an agent that listens at `path`."""
    listener = listen(path)
    assert listener is not None
    ready = fork.Event()
    process = fork.Process(target=play, args=(path,), kwargs={"closes": closes, "ready": ready})
    process.start()
    with agent(listener, path):
        assert ready.wait(20)
        yield process
    process.kill()
    process.join()


@contextmanager
def agent(listener: socket.socket, path: Path) -> Iterator[None]:
    running = Agent(listener, path, Access())
    thread = threading.Thread(target=running.run)
    thread.start()
    try:
        yield
    finally:
        running.stop()
        thread.join()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert condition()


OVERWRITTEN = """
import os
from megatronapp import nccl
from megatronapp.trainer.agent.kept_operations import KeptOperations
from megatronapp.trainer.agent.segment import Segment
from tests.unit.nccl.stand_in import Nccl
descriptor = nccl.open_segment(1 << 16, 8)
nccl.ask_for(nccl.Level.ALL)
kept = KeptOperations(Segment(os.dup(descriptor)))
calls = Nccl(nccl.LIBRARY, 5).communicator(77)
for _ in range(2000):
    calls.run(calls.enqueue(), 1, 2)
kept.read()
print(kept.lost > 0, Segment(os.dup(descriptor)).sent == kept.lost)
"""


def test_the_rank_is_told_how_many_records_were_overwritten():
    told = subprocess.run([sys.executable, "-c", OVERWRITTEN], capture_output=True, text=True, check=True).stdout

    assert told.split() == ["True", "True"]


def test_after_kill_9_the_agent_tells_what_the_rank_was_in(tmp_path, capsys, monkeypatch):
    kept: list[KeptOperations] = []
    init = KeptOperations.__init__
    monkeypatch.setattr(KeptOperations, "__init__", lambda self, *given: (init(self, *given), kept.append(self))[0])
    with watched(tmp_path / "agent.sock", closes=False) as process:
        until(lambda: bool(kept) and kept[0].enqueued == nccl_rank.ENQUEUED)
        assert (kept[0].completed, kept[0].lost) == (nccl_rank.COMPLETED, 0)
        process.kill()
        process.join()

    said = capsys.readouterr().out
    assert "rank_died_in" in said
    assert all(operation in said for operation in nccl_rank.OPEN)


def train_a_step(path: Path, folder: Path) -> None:
    """A traced step: an all-reduce that a hook has called, and one that none has seen, whose ends NCCL tells late."""
    segment = nccl.open_segment(1 << 16, 8)
    nccl.ask_for(nccl.Level.TIMES)
    group = Communicator(index=1, id="dp:0-1", kind="dp", ranks=(0, 1))
    writer = RankWriter(path, folder=folder, operations_fd=segment, communicators=[group])
    own = Nccl(nccl.LIBRARY, 5).communicator(77, ranks=2, rank=0)
    start_ns = time.monotonic_ns()
    writer.recorder.set_step(1)
    writer.recorder.begin(Operation.ALL_REDUCE)
    hooked = own.enqueue(b"AllReduce", 1024)
    writer.recorder.end_operation(1, -1, 5, 2048, 0)
    unseen = own.enqueue(b"Broadcast", 16)
    duration_ns = time.monotonic_ns() - start_ns
    writer.recorder.end_step(StepEnd(1, start_ns=start_ns, duration_ns=duration_ns, cpu_ns=1, traced=1))
    time.sleep(0.4)
    for event in (hooked, unseen):
        at_ns = time.monotonic_ns()
        own.run(event, at_ns - 1000, at_ns)
    writer.close()


def test_a_traced_step_waits_for_nccls_times_and_has_each_operation_once(tmp_path):
    path, folder = tmp_path / "agent.sock", tmp_path / "traces"
    listener = listen(path)
    assert listener is not None
    with agent(listener, path):
        process = fork.Process(target=train_a_step, args=(path, folder))
        process.start()
        process.join(20)

    (file,) = folder.rglob("rank-0.pb")
    messages = list(read_trace(file))
    (batch,) = [each.batch for each in messages if each.HasField("batch")]
    (summary,) = [each.summary for each in messages if each.HasField("summary")]
    columns = span_columns(batch)
    assert [batch.names[name] for name in columns["name"]] == ["all_reduce", "broadcast"]
    assert columns["sequence"].tolist() == [5, 0]
    assert columns["communicator"].tolist() == [1, 1]
    assert columns["bytes"].tolist() == [2048, 32]
    tallies = [(each.operation, each.seat.hash, each.fastest_bytes, each.fastest_ns) for each in summary.nccl]
    assert tallies == [("all_reduce", 77, 2048, 1000), ("broadcast", 77, 32, 1000)]


def test_of_a_rank_that_ends_in_good_order_nothing_is_told(tmp_path, capsys):
    with watched(tmp_path / "agent.sock", closes=True):
        pass

    assert "rank_died_in" not in capsys.readouterr().out


def test_of_a_rank_that_lives_when_the_agent_ends_nothing_is_told(tmp_path, capsys):
    with watched(tmp_path / "agent.sock", closes=False):
        pass

    assert "rank_died_in" not in capsys.readouterr().out


def test_a_second_segment_that_is_none_is_refused(tmp_path, capsys):
    path = tmp_path / "agent.sock"
    listener = listen(path)
    assert listener is not None
    with agent(listener, path), (tmp_path / "file").open("w+b") as file:
        file.truncate(1 << 16)
        RankWriter(path, operations_fd=file.fileno())
        said = ""
        deadline = time.monotonic() + 10
        while "rank_left" not in said and time.monotonic() < deadline:
            time.sleep(0.05)
            said += capsys.readouterr().out

    assert "a segment that can" in said
