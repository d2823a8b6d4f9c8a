"""The agent with ranks that speak to it through real sockets and real shared memory: killed, stopped, lost, found."""

from __future__ import annotations

import itertools
import mmap
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.app import Agent
from megatronapp.trainer.agent.rendezvous import address_of, listen, start_agent
from megatronapp.trainer.plugins.scan import agent_link
from megatronapp.trainer.plugins.scan.agent_link import find_agent
from megatronapp.v1 import trace_pb2
from tests.support.forked import PRELOAD
from tests.support.rank_writer import RankWriter

SERVER = Path(__file__).with_name("server.py")
PATIENCE_SECONDS = 60.0


@contextmanager
def serving(path: Path) -> Iterator[Agent]:
    listener = listen(path)
    assert listener is not None
    agent = Agent(listener, path, Access())
    thread = threading.Thread(target=agent.run)
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join()


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def messages(folder: Path, rank: int = 0) -> list[trace_pb2.TraceMessage]:
    path = trace_file.path_for(folder, "team/job", 1, rank)
    return list(trace_file.read(path)) if path.exists() else []


def summaries(folder: Path, rank: int = 0) -> list[trace_pb2.StepSummary]:
    return [message.summary for message in messages(folder, rank) if message.WhichOneof("body") == "summary"]


def heartbeats(folder: Path, rank: int = 0) -> list[trace_pb2.Heartbeat]:
    return [message.heartbeat for message in messages(folder, rank) if message.WhichOneof("body") == "heartbeat"]


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def start(target: Callable[..., None], *args: object) -> multiprocessing.process.BaseProcess:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    process = context.Process(target=target, args=args)
    process.start()
    return process


def test_what_a_rank_writes_arrives_and_its_goodbye_is_answered_when_all_was_read(socket: Path, tmp_path: Path) -> None:
    with serving(socket):
        rank = RankWriter(socket, folder=tmp_path)
        for step in range(1, 6):
            rank.step(step)

        assert rank.close()

        assert [summary.step for summary in summaries(tmp_path)] == [1, 2, 3, 4, 5]
        assert sum(message.batch.count for message in messages(tmp_path)) == 15
        assert [message.seq for message in messages(tmp_path)] == list(range(len(messages(tmp_path))))
        assert heartbeats(tmp_path)[-1].closing


def killed_in_step(socket: Path, folder: Path, steps: int) -> None:
    rank = RankWriter(socket, folder=folder)
    for step in range(1, steps + 1):
        rank.step(step)
    os.kill(os.getpid(), signal.SIGKILL)


def test_the_last_records_of_a_killed_rank_arrive(socket: Path, tmp_path: Path) -> None:
    with serving(socket):
        start(killed_in_step, socket, tmp_path, 200).join()

        eventually(lambda: len(summaries(tmp_path)) == 200)

    assert not any(beat.closing for beat in heartbeats(tmp_path))


def stands_in_step(socket: Path, folder: Path) -> None:
    rank = RankWriter(socket, folder=folder)
    rank.step(3)
    rank.recorder.begin(2)
    time.sleep(PATIENCE_SECONDS)


def test_a_stopped_rank_still_beats_and_tells_what_it_is_in(socket: Path, tmp_path: Path) -> None:
    with serving(socket):
        process = start(stands_in_step, socket, tmp_path)
        eventually(lambda: any(beat.activity == "forward" for beat in heartbeats(tmp_path)))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        before = len(heartbeats(tmp_path))

        eventually(lambda: len(heartbeats(tmp_path)) >= before + 3)

        process.kill()
        process.join()
    last = heartbeats(tmp_path)[-1]
    assert (last.step, last.activity) == (3, "forward")
    assert last.activity_since_ns == heartbeats(tmp_path)[before].activity_since_ns


def test_a_rank_goes_on_where_it_was_with_an_agent_that_takes_the_place_of_another(
    socket: Path, tmp_path: Path
) -> None:
    with serving(socket):
        rank = RankWriter(socket, folder=tmp_path)
        rank.step(1)
        eventually(lambda: len(summaries(tmp_path)) == 1)
    rank.step(2)

    with serving(socket):
        rank.link.border(last=True)
        rank.step(3)
        assert rank.close()

    assert [summary.step for summary in summaries(tmp_path)] == [1, 2, 3]
    numbers = [message.seq for message in messages(tmp_path) if message.seq]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_ring_that_overflows_is_counted_and_what_is_left_is_whole(socket: Path, tmp_path: Path) -> None:
    with serving(socket) as agent:
        rank = RankWriter(socket, folder=tmp_path, ring=1 << 14)
        eventually(lambda: agent.ranks == 1)
        for step in range(1, 2001):
            rank.step(step)
        assert rank.close()

    found = summaries(tmp_path)
    assert found[-1].step == 2000
    assert all(summary.rows == 1 for summary in found)
    if len(found) < 2000:  # the agent may have kept pace
        assert heartbeats(tmp_path)[-1].dropped >= 2000 - len(found)


def test_a_second_process_that_calls_itself_the_same_rank_is_left(socket: Path, tmp_path: Path) -> None:
    with serving(socket):
        first = RankWriter(socket, folder=tmp_path)
        first.step(1)
        eventually(lambda: len(summaries(tmp_path)) == 1)

        second = RankWriter(socket, folder=tmp_path)
        second.step(77)
        second.close()
        first.step(2)
        first.close()

    assert [summary.step for summary in summaries(tmp_path)] == [1, 2]


def test_ranks_that_lie_are_left_and_the_others_go_on(socket: Path, tmp_path: Path) -> None:
    chance = random.Random(7)
    with serving(socket) as agent:
        honest = RankWriter(socket, folder=tmp_path)
        honest.step(1)
        for number in range(1, 31):
            liar = RankWriter(socket, rank=number, folder=tmp_path, ring=1 << 14)
            liar.step(1)
            with mmap.mmap(liar.recorder.fd, 0) as memory:
                for _ in range(20):
                    at = chance.randrange(0, len(memory) - 64)
                    memory[at : at + 64] = chance.randbytes(64)
                sections = liar.recorder._segment.sections
                memory[sections.ring : sections.ring + 8] = chance.randbytes(8)
            eventually(lambda: agent.ranks < 32)
        honest.step(2)

        assert honest.close()

    assert [summary.step for summary in summaries(tmp_path)] == [1, 2]


@pytest.fixture
def collector(free_port: int, tmp_path: Path) -> Iterator[str]:
    command = [sys.executable, str(SERVER), "control", str(free_port), str(tmp_path / "taken.pb")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield f"127.0.0.1:{free_port}"
    process.kill()
    process.wait()


def test_what_the_collector_asks_for_reaches_the_rank_and_is_echoed_from_its_next_step_on(
    socket: Path, tmp_path: Path, collector: str
) -> None:
    with serving(socket):
        rank = RankWriter(socket, folder=tmp_path, collector=collector)
        rank.step(1)
        eventually(lambda: rank.recorder.control()[0] > 0)
        asked = rank.recorder.control()
        before = len(heartbeats(tmp_path))
        eventually(lambda: len(heartbeats(tmp_path)) > before)

        assert asked[1:] == (1, 3, 3, trace_pb2.GRANULARITY_BASE)
        assert {beat.control.interval for beat in heartbeats(tmp_path)} == {5}
        rank.step(2)
        eventually(lambda: heartbeats(tmp_path)[-1].control.interval == 3)
        rank.close()

    taken = list(trace_file.read(tmp_path / "taken.pb"))
    assert [message.summary.step for message in taken if message.HasField("summary")] == [1, 2]


def test_an_agent_that_a_rank_starts_ends_when_the_ranks_have(tmp_path: Path, socket: Path) -> None:
    process = start(killed_with_its_own_agent, socket, tmp_path)
    process.join()

    eventually(lambda: len(summaries(tmp_path)) == 3)
    eventually(lambda: not socket.exists())


def test_an_agent_that_dies_is_replaced_by_the_rank_that_started_it(
    tmp_path: Path, socket: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_link, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(agent_link, "START_AGAIN_SECONDS", 0.1)
    assert start_agent(socket)
    rank, other = RankWriter(socket, folder=tmp_path, own=True), RankWriter(socket, folder=tmp_path, rank=1)
    rank.step(1)
    eventually(lambda: len(summaries(tmp_path)) == 1)

    (agent,) = own_agents(socket)
    agent.kill()
    agent.wait()
    numbers = itertools.count(2)

    def arrives() -> bool:
        rank.step(next(numbers))
        return len(summaries(tmp_path)) > 3

    eventually(arrives)
    assert len(own_agents(socket)) == 1
    eventually(lambda: other.link.border() or other.link.connected)
    assert rank.close()
    assert other.close()


def test_a_rank_that_looks_a_moment_before_the_agent_is_there_finds_it_at_its_next_border(
    tmp_path: Path, socket: Path
) -> None:
    rank = RankWriter(socket, folder=tmp_path)
    before = rank.link.connected
    assert start_agent(socket)

    rank.link.border()

    assert (before, rank.link.connected) == (False, True)
    rank.step(1)
    assert rank.close()
    assert [summary.step for summary in summaries(tmp_path)] == [1]


def test_an_agent_of_ranks_that_are_ending_is_followed_by_one_of_the_new_rank_at_its_first_border(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    socket = address_of("run", 1)
    with serving(socket):
        place = find_agent("run", 1, first_of_node=True)

    rank = RankWriter(socket, folder=tmp_path, place=place)

    assert rank.link.connected
    rank.step(1)
    assert rank.close()
    assert [summary.step for summary in summaries(tmp_path)] == [1]


def own_agents(socket: Path) -> list[psutil.Process]:
    started = (each for each in psutil.Process().children() if "megatronapp.trainer.agent" in each.cmdline())
    return [each for each in started if any(str(socket) in argument for argument in each.cmdline())]


def killed_with_its_own_agent(socket: Path, folder: Path) -> None:
    assert start_agent(socket)
    assert not start_agent(socket)
    killed_in_step(socket, folder, 3)
