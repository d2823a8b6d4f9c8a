"""The stream to the collector against real servers: good, absent, killed, silent, slow."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatronapp.core.trace import file as trace_file
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.outbox import Outbox
from megatronapp.trainer.agent.stream import CollectorStream, StreamLoop
from megatronapp.v1 import trace_pb2

SERVER = Path(__file__).with_name("server.py")
PATIENCE_SECONDS = 60.0
LARGE_BYTES = 3 << 20
"""More than goes out at once: it is still being sent when the answer to what came before is there."""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(free_port: int, tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[str]] = []

    def run(mode: str, file: str = "received.pb") -> subprocess.Popen[str]:
        command = [sys.executable, str(SERVER), mode, str(free_port), str(tmp_path / file)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield run
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def connect(free_port: int) -> Iterator[Callable[..., CollectorStream]]:
    streams: list[CollectorStream] = []
    loop = StreamLoop()

    def make(**options: object) -> CollectorStream:
        usual = {"hello": hello, "on_control": lambda control: None, "loop": loop, "access": Access()}
        stream = CollectorStream(f"127.0.0.1:{free_port}", **{**usual, **options})  # type: ignore[arg-type]
        streams.append(stream)
        return stream

    yield make
    for stream in streams:
        stream.close(0.0)
    loop.close()


def hello() -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(hello=trace_pb2.Hello(identity=trace_pb2.Identity(rank=3)))


def summary(step: int) -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(summary=trace_pb2.StepSummary(step=step))


def detail(step: int, size: int = 10_000) -> trace_pb2.TraceMessage:
    return trace_pb2.TraceMessage(batch=trace_pb2.TraceBatch(step=step, count=100, start_ns=b"x" * size))


def eventually(check: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not check():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.02)


def received(folder: Path, file: str = "received.pb") -> list[int]:
    """Numbers of the messages a server received; 0 for each Hello."""
    path = folder / file
    return [message.seq for message in unbundled(path)]


def unbundled(path: Path) -> Iterator[trace_pb2.TraceMessage]:
    for message in trace_file.read(path) if path.exists() else ():
        inside = [trace_pb2.TraceMessage.FromString(each) for each in message.bundle.messages]
        yield from inside or [message]


def bundles(folder: Path, file: str = "received.pb") -> list[int]:
    """How many messages each of them had."""
    messages = trace_file.read(folder / file)
    return [len(message.bundle.messages) for message in messages if message.HasField("bundle")]


def test_hello_comes_first_and_everything_is_acknowledged(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    start("ack")
    stream = connect()
    outbox = Outbox([stream])

    for step in range(1, 6):
        outbox.put(summary(step))
    outbox.close(PATIENCE_SECONDS)

    assert received(tmp_path) == [0, 1, 2, 3, 4, 5]
    assert stream.dropped == 0


@pytest.mark.parametrize(("mode", "sizes"), [("bundles", [20]), ("ack", [])])
def test_what_is_ready_at_once_goes_in_one_bundle_where_the_collector_takes_them(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path, mode: str, sizes: list[int]
) -> None:
    start(mode)
    loop = StreamLoop()
    stream = connect(loop=loop)
    outbox = Outbox([stream])
    outbox.put(summary(1))
    eventually(lambda: not len(stream._buffer))

    held = threading.Event()
    loop.call_soon(held.wait)
    for step in range(2, 22):
        outbox.put(summary(step))
    held.set()
    outbox.close(PATIENCE_SECONDS)

    assert received(tmp_path) == list(range(22))
    assert bundles(tmp_path) == sizes
    loop.close()


def test_what_is_closed_before_it_has_connected_is_sent_all_the_same(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    start("ack")
    loop = StreamLoop()
    loop.call_soon(lambda: time.sleep(0.3))
    outbox = Outbox([connect(loop=loop)])

    outbox.put(summary(1))
    outbox.close(PATIENCE_SECONDS)

    assert received(tmp_path) == [0, 1]
    loop.close()


def test_what_gathered_while_the_collector_was_absent_arrives_later(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    outbox = Outbox([connect()])
    for step in range(1, 4):
        outbox.put(summary(step))

    start("ack")

    eventually(lambda: received(tmp_path) == [0, 1, 2, 3])


def test_after_a_kill_what_was_not_acknowledged_comes_again_under_the_same_number(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    silent = start("silent", "first.pb")
    outbox = Outbox([connect()])
    for step in range(1, 4):
        outbox.put(summary(step))
    eventually(lambda: received(tmp_path, "first.pb") == [0, 1, 2, 3])

    silent.kill()
    silent.wait()
    start("ack", "second.pb")
    outbox.put(summary(4))

    eventually(lambda: received(tmp_path, "second.pb") == [0, 1, 2, 3, 4])


def test_a_refused_message_is_dropped_and_counted_and_the_others_arrive(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    start("picky")
    stream = connect()
    outbox = Outbox([stream])

    for message in (summary(1), detail(2), summary(3)):
        outbox.put(message)

    eventually(lambda: 3 in received(tmp_path))
    outbox.close(PATIENCE_SECONDS)
    assert 2 not in received(tmp_path)
    assert stream.dropped == 100


def test_a_refusal_that_does_not_say_of_what_is_told_and_all_comes_again(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start("muddled")
    stream = connect()
    outbox = Outbox([stream])

    for step in range(1, 4):
        outbox.put(summary(step))

    eventually(lambda: 3 in received(tmp_path))
    outbox.close(PATIENCE_SECONDS)
    assert received(tmp_path)[-2:] == [2, 3]
    assert stream.dropped == 0
    assert "2 is not liked" in capsys.readouterr().out


def assert_refusal_is_told(capsys: pytest.CaptureFixture[str], meanwhile: Callable[[], object] = lambda: None) -> None:
    said = ""

    def reason_logged() -> bool:
        nonlocal said
        meanwhile()
        said += capsys.readouterr().out
        return "no token" in said

    eventually(reason_logged)
    assert "Internal error" not in said


def test_why_a_stream_is_refused_is_told_also_when_something_was_being_sent(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start("refuse")
    outbox = Outbox([connect()])

    assert_refusal_is_told(capsys, meanwhile=lambda: outbox.put(detail(1, LARGE_BYTES)))


def test_why_a_stream_is_refused_is_told_also_when_the_first_answer_was_lost_to_who_reads_alone(
    start: Start, connect: Callable[..., CollectorStream], capsys: pytest.CaptureFixture[str]
) -> None:
    start("lost")
    connect()

    assert_refusal_is_told(capsys)


def test_why_a_stream_is_refused_is_told_also_after_another_reason_was(
    start: Start, connect: Callable[..., CollectorStream], capsys: pytest.CaptureFixture[str]
) -> None:
    start("lost-twice")
    connect()
    said = ""

    def both_are_logged() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "Internal error from Core" in said and "no token" in said

    eventually(both_are_logged)


def test_a_collector_that_cancels_its_calls_and_is_gone_is_one_line(
    start: Start, connect: Callable[..., CollectorStream], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start("stops")
    connections = 0

    def counted_hello() -> trace_pb2.TraceMessage:
        nonlocal connections
        connections += 1
        return hello()

    connect(hello=counted_hello)
    eventually(lambda: connections >= 2)

    server.kill()
    killed_after = connections
    eventually(lambda: connections >= killed_after + 3)

    said = capsys.readouterr().out
    assert said.count("collector_unreachable") == 1
    assert "cancelled the call" in said


def test_a_refused_message_is_known_also_when_the_next_was_being_sent(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start("picky")
    stream = connect()
    outbox = Outbox([stream])

    for message in (summary(1), detail(2), *(detail(step, LARGE_BYTES) for step in range(3, 8))):
        outbox.put(message)

    eventually(lambda: 7 in received(tmp_path))
    outbox.close(PATIENCE_SECONDS)
    assert 2 not in received(tmp_path)
    assert stream.dropped == 100
    assert received(tmp_path).count(0) <= 3
    assert "Internal error" not in capsys.readouterr().out


def test_many_refused_messages_are_left_out_without_backing_off_ever_longer(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("megatronapp.trainer.agent.stream.REFUSAL_SECONDS", 0.05)
    start("choosy")
    stream = connect()
    outbox = Outbox([stream])

    for step in range(1, 15):
        outbox.put(summary(step))

    eventually(lambda: 14 in received(tmp_path))
    assert [seq for seq in received(tmp_path) if seq] == [13, 14]
    assert stream.dropped == 12


def test_an_empty_token_file_is_named_and_read_again(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start("refuse")
    (tmp_path / "token").write_text("")
    outbox = Outbox([connect(access=Access(str(tmp_path / "token")))])
    outbox.put(summary(1))
    said = ""

    def logged() -> bool:
        nonlocal said
        said += capsys.readouterr().out
        return "token is empty" in said

    eventually(logged)
    (tmp_path / "token").write_text("secret")
    eventually(lambda: 1 in received(tmp_path))


def test_a_collector_that_never_acknowledges_is_left_and_called_again(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    start("silent")
    outbox = Outbox([connect(ack_timeout_seconds=0.3)])
    outbox.put(summary(1))

    def called_again() -> bool:
        outbox.put(summary(2))
        time.sleep(0.1)
        return received(tmp_path).count(0) >= 2

    eventually(called_again)


def test_before_a_collector_that_never_acknowledges_the_buffer_stays_bounded(
    start: Start, connect: Callable[..., CollectorStream]
) -> None:
    start("silent")
    stream = connect(buffer_bytes=100_000)
    outbox = Outbox([stream])

    for step in range(1, 101):
        outbox.put(detail(step))
        outbox.put(summary(step))

    assert stream._buffer.bytes <= 100_000
    assert stream.dropped % 100 == 0
    assert 8_500 <= outbox.dropped < 10_000


def test_a_slow_collector_does_not_slow_the_sender(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    start("slow")
    outbox = Outbox([connect()])

    began = time.monotonic()
    for step in range(1, 401):
        outbox.put(detail(step))
    handed_over = time.monotonic() - began

    assert handed_over < 400 * 0.05 / 2
    eventually(lambda: len(received(tmp_path)) > 10)


def test_control_reaches_the_plugin(start: Start, connect: Callable[..., CollectorStream]) -> None:
    start("control")
    heard: list[trace_pb2.TraceControl] = []

    connect(on_control=heard.append)

    eventually(lambda: len(heard) == 1)
    assert (heard[0].enabled, heard[0].interval) == (True, 3)


def test_the_token_is_read_anew_for_each_connection(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("expired")
    start("refuse")
    outbox = Outbox([connect(access=Access(str(token)))])
    outbox.put(summary(1))

    token.write_text("secret\n")

    eventually(lambda: received(tmp_path) == [0, 1])


def test_closing_without_a_collector_takes_no_longer_than_allowed(connect: Callable[..., CollectorStream]) -> None:
    stream = connect()
    Outbox([stream]).put(summary(1))

    began = time.monotonic()
    stream.close(0.5)

    assert time.monotonic() - began < 5


def test_streams_of_many_ranks_share_one_thread(
    start: Start, connect: Callable[..., CollectorStream], tmp_path: Path
) -> None:
    start("ack")
    Outbox([connect()]).put(summary(1))
    eventually(lambda: received(tmp_path) == [0, 1])
    before = threading.active_count()

    outboxes = [Outbox([connect()]) for _ in range(7)]
    for outbox in outboxes:
        outbox.put(summary(1))

    eventually(lambda: len(received(tmp_path)) == 16)
    assert threading.active_count() == before


def test_a_closed_loop_breaks_off_what_still_runs_and_what_comes_later_stays(free_port: int) -> None:
    loop = StreamLoop()
    hello = trace_pb2.TraceMessage(hello=trace_pb2.Hello())
    stream = CollectorStream(f"127.0.0.1:{free_port}", lambda: hello, lambda control: None, loop, Access())

    loop.close()
    Outbox([stream]).put(summary(1))
    stream.close(0.0)

    assert len(stream._buffer) == 1
