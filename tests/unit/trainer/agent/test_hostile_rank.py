"""Whatever a rank writes or says: its agent refuses it in good order, and nothing else happens."""

from __future__ import annotations

import json
import mmap
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.trace import file as trace_file
from megatronapp.core.trace import limits
from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.access import Access
from megatronapp.trainer.agent.calls import Call
from megatronapp.trainer.agent.connection import LENGTH, MAX_FRAME, Connection
from megatronapp.trainer.agent.encode import encode_all
from megatronapp.trainer.agent.hello import RankHello
from megatronapp.trainer.agent.layout import Sections
from megatronapp.trainer.agent.rank import IMPLAUSIBLE, Rank
from megatronapp.trainer.agent.ring import SegmentError
from megatronapp.trainer.agent.segment import Segment
from megatronapp.trainer.agent.stream import StreamLoop
from megatronapp.trainer.plugins.scan.operations import Operation
from megatronapp.v1 import trace_pb2
from tests.support.rank_writer import RankWriter

RING = 1 << 14
SECTIONS = Sections.of(RING, 512)
WORDS = st.integers(0, (1 << 64) - 1).map(lambda word: word.to_bytes(8, "little"))
CONTENT = st.one_of(st.binary(min_size=1, max_size=200), st.lists(WORDS, max_size=8).map(b"".join))
PLACES = st.one_of(
    st.integers(0, layout.HEADER_BYTES - 1),
    st.integers(SECTIONS.state, SECTIONS.frontiers + 2 * layout.FRONTIER_BYTES),
    st.sampled_from(
        [SECTIONS.ring, SECTIONS.ring + 8, SECTIONS.frontiers, SECTIONS.control + 32, SECTIONS.control + 40]
    ),
    st.integers(SECTIONS.ring, SECTIONS.ring + 4096),
)
WRITES = st.lists(st.tuples(PLACES, CONTENT), min_size=1, max_size=6)


@contextmanager
def pair() -> Iterator[tuple[socket.socket, Connection]]:
    here, there = socket.socketpair()
    connection = Connection(there)
    with here:
        yield here, connection
    connection.close()


@contextmanager
def known(folder: Path) -> Iterator[tuple[Rank, RankWriter]]:
    """A rank, and the agent's side of it."""
    writer = RankWriter(Path("/nowhere"), folder=folder, ring=RING)
    with pair() as (_, connection):
        hello = RankHello.parse(json.loads(json.dumps(writer.hello)))
        streams = StreamLoop()
        yield Rank(connection, hello, Segment(os.dup(writer.recorder.fd)), streams, Access()), writer
        streams.close()


def take(rank: Rank, until: int | None = None) -> None:
    """As the agent does in a tick."""
    steps = rank.read(rank.head() if until is None else until)
    for messages in encode_all([(rank.names, step) for step in steps]):
        rank.send(messages)


def overwrite(fd: int, writes: list[tuple[int, bytes]]) -> None:
    with mmap.mmap(fd, 0) as whole:
        for at, content in writes:
            fitting = content[: len(whole) - at]
            whole[at : at + len(fitting)] = fitting


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(writes=WRITES, steps=st.integers(0, 3), before=st.booleans())
@example(writes=[(SECTIONS.ring, b"\xff" * 16)], steps=1, before=False)
@example(writes=[(SECTIONS.ring, b"\x08" + b"\0" * 7)], steps=0, before=True)
@example(writes=[(SECTIONS.frontiers, b"\xff" * 4)], steps=1, before=False)
@example(writes=[(SECTIONS.state, b"\x01")], steps=1, before=False)
def test_bytes_anywhere_in_the_segment_are_refused_or_read(
    tmp_path: Path, writes: list[tuple[int, bytes]], steps: int, before: bool
) -> None:
    with known(tmp_path) as (rank, writer):
        writer.recorder.track(1, 2, True)
        if before:
            overwrite(writer.recorder.fd, writes)
        for step in range(1, steps + 1):
            with suppress(Exception):  # the writer is in the same memory, and not the one that is tested
                writer.step(step)
        overwrite(writer.recorder.fd, writes)

        with suppress(*IMPLAUSIBLE):
            take(rank)
        rank.tick()
        rank.end().join()


def test_a_head_that_goes_back_ends_in_good_order(tmp_path: Path) -> None:
    with known(tmp_path) as (rank, writer):
        writer.step(1)
        take(rank)
        overwrite(writer.recorder.fd, [(SECTIONS.ring, bytes(8))])

        take(rank)

        assert [step for step, _ in steps_of(tmp_path, rank)] == [1]


@settings(max_examples=150)
@given(writes=st.lists(st.tuples(st.integers(0, 88), CONTENT), min_size=1, max_size=3))
def test_a_header_that_lies_is_refused_or_stays_within_the_segment(writes: list[tuple[int, bytes]]) -> None:
    writer = RankWriter(Path("/nowhere"), ring=RING)
    overwrite(writer.recorder.fd, writes)

    with suppress(SegmentError):
        segment = Segment(os.dup(writer.recorder.fd))
        with suppress(SegmentError):
            segment.ring.records(segment.ring.head())
        segment.frontiers()
        segment.write_control(True, 1, 1, 1, 1)
        segment.close()


def test_a_segment_that_could_shrink_is_refused() -> None:
    fd = os.memfd_create("unsealed")
    os.ftruncate(fd, 1 << 20)

    with pytest.raises(SegmentError, match="not sealed"):
        Segment(fd)


def test_what_is_no_memory_is_refused(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(write)
    file = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 1 << 16)

    for fd in (read, file):
        with pytest.raises(SegmentError):
            Segment(fd)


@given(data=st.binary(max_size=400))
def test_bytes_on_the_socket_are_frames_or_refused(data: bytes) -> None:
    with pair() as (here, connection):
        socket.send_fds(here, [b"\0"], [0])
        here.sendall(data)
        with suppress(DataError):
            for _ in range(3):
                for key, _ in connection.receive():
                    assert isinstance(key, str)


@pytest.mark.parametrize(
    "frame",
    [
        LENGTH.pack(MAX_FRAME + 1),
        LENGTH.pack(3) + b"[1]",
        LENGTH.pack(2) + b"{}",
        LENGTH.pack(200_000) + b"[" * 200_000,
        LENGTH.pack(100_006) + b'{"a":' + b"9" * 100_000 + b"}",
    ],
)
def test_a_frame_that_is_none_is_refused(frame: bytes) -> None:
    with pair() as (here, connection):
        here.setblocking(False)
        socket.send_fds(here, [b"\0"], [0])
        here.sendall(frame)

        with pytest.raises(DataError):
            list(connection.receive())


def test_a_first_byte_without_a_descriptor_or_with_two_is_refused() -> None:
    for descriptors in ([], [0, 1, 2]):
        with pair() as (here, connection):
            socket.send_fds(here, [b"\0"], descriptors)
            with pytest.raises(DataError, match="descriptors"):
                list(connection.receive())


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=10)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=10), inner, max_size=4)),
    max_leaves=10,
)
PATHS = st.sampled_from(
    [
        ("identity",),
        ("identity", "job"),
        ("identity", "rank"),
        ("identity", "incarnation"),
        ("placement", "sizes"),
        ("placement", "host_unix_ns"),
        ("placement", "node"),
        ("schedule", "microbatches"),
        ("device",),
        ("communicators",),
        ("spans",),
        ("spans", "names"),
        ("spans", "kinds"),
        ("control",),
        ("control", "interval"),
        ("collector_address",),
        ("trace_dir",),
    ]
)


@given(path=PATHS, value=JSON)
@example(path=("placement", "node"), value="\ud800")
@example(path=("identity", "job"), value="../../etc/passwd")
@example(path=("trace_dir",), value="relative")
@example(path=("identity", "incarnation"), value=-1)
@example(path=("collector_address",), value="host:1 evil")
def test_a_hello_that_is_wrong_anywhere_is_refused_or_understood(path: tuple[str, ...], value: Any) -> None:
    document: dict[str, Any] = json.loads(json.dumps(RankWriter(Path("/nowhere"), ring=RING).hello))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value

    with suppress(*IMPLAUSIBLE):
        RankHello.parse(document)


@pytest.mark.parametrize(
    ("field", "value"),
    [("trace_dir", "relative"), ("trace_dir", "/a\0b"), ("collector_address", "nowhere"), ("collector_address", 7)],
)
def test_where_a_trace_goes_is_an_address_and_an_absolute_path(field: str, value: Any) -> None:
    document = json.loads(json.dumps(RankWriter(Path("/nowhere"), ring=RING).hello)) | {field: value}

    with pytest.raises(DataError):
        RankHello.parse(document)


FRAMES = st.sampled_from(["communicators", "evaluation", "closing", "hello", "other"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(st.tuples(FRAMES, JSON), max_size=5))
def test_frames_that_make_no_sense_are_refused_or_left_out(tmp_path: Path, frames: list[tuple[str, Any]]) -> None:
    with known(tmp_path) as (rank, writer):
        for key, value in frames:
            with suppress(*IMPLAUSIBLE):
                rank.take(key, value)
        writer.step(1)
        take(rank)
        rank.tick()
        rank.end().join()


@pytest.mark.parametrize("column", layout.COLUMNS)
def test_a_row_out_of_bounds_costs_its_step_alone(tmp_path: Path, column: str) -> None:
    with known(tmp_path) as (rank, writer):
        writer.step(1)
        until = rank.head()
        at = SECTIONS.ring_data + layout.RECORD.size + layout.ROWS_HEAD.size + 8 * 3 * layout.COLUMNS.index(column)
        overwrite(writer.recorder.fd, [(at, struct.pack("<q", -(1 << 62)))])
        take(rank, until)
        writer.step(2)
        take(rank)

        assert [step for step, _ in steps_of(tmp_path, rank)] == [2]


GROUP = {"index": 1, "id": "tp-0", "kind": "tp", "ranks": [0, 1]}


def test_communicators_that_came_with_a_refused_step_are_told_with_the_next(tmp_path: Path) -> None:
    with known(tmp_path) as (rank, writer):
        rank.take("communicators", [GROUP])
        writer.step(1)
        (refused,) = encode_all([(rank.names, step) for step in rank.read(rank.head())])
        refused.summary.summary.duration_ns = limits.MAX_DURATION_NS + 1
        rank.send(refused)
        for step in (2, 3):
            writer.step(step)
            take(rank)

        told = [(m.step, [each.id for each in m.communicators]) for m in summaries_of(tmp_path, rank)]
        assert told == [(2, ["tp-0"]), (3, [])]


@pytest.mark.parametrize("wrong", [{"index": 0}, {"id": "\0"}, {"ranks": [limits.MAX_WORLD]}, {"ranks": [-1]}])
def test_a_communicator_that_cannot_be_is_refused_when_it_comes(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with known(tmp_path) as (rank, _), pytest.raises(IMPLAUSIBLE):
        rank.take("communicators", [GROUP | wrong])


def test_a_rank_that_dies_leaves_what_it_was_in(tmp_path: Path) -> None:
    with known(tmp_path) as (rank, writer):
        rank.tick()
        collective = writer.recorder.track(1, -1, False)
        writer.recorder.enqueue(collective, Operation.ALL_REDUCE, 12, Call("float32").pack())

        rank.end().join()

        messages = trace_file.read(trace_file.path_for(tmp_path, "team/job", 1, 0))
        last = [message.heartbeat for message in messages if message.HasField("heartbeat")][-1]
        assert not last.closing
        (frontier,) = last.frontiers
        assert (frontier.operation, frontier.elements, frontier.data_type) == ("all_reduce", 12, "float32")


def test_a_rank_that_is_through_its_collectives_tells_how_it_called_the_newest(tmp_path: Path) -> None:
    with known(tmp_path) as (rank, writer):
        rank.tick()
        collective, pair = writer.recorder.track(1, -1, False), writer.recorder.track(1, 3, True)
        for operation, elements in ((Operation.ALL_REDUCE, 12), (Operation.ALL_GATHER, 7)):
            writer.recorder.enqueue(collective, operation, elements, Call("float32").pack())
        for ticket in (2, 1):
            writer.recorder.complete(collective, ticket)
        writer.recorder.complete(pair, writer.recorder.enqueue(pair, Operation.FORWARD_SEND, 3, 1))

        rank.end().join()

        messages = trace_file.read(trace_file.path_for(tmp_path, "team/job", 1, 0))
        last = [message.heartbeat for message in messages if message.HasField("heartbeat")][-1]
        told = [(frontier.completed, frontier.operation, frontier.elements) for frontier in last.frontiers]
        assert told == [(2, "all_gather", 7), (1, "", 0)]


def steps_of(folder: Path, rank: Rank) -> list[tuple[int, int]]:
    return [(summary.step, summary.dropped) for summary in summaries_of(folder, rank)]


def summaries_of(folder: Path, rank: Rank) -> list[trace_pb2.StepSummary]:
    rank.end().join()
    messages = trace_file.read(trace_file.path_for(folder, "team/job", 1, 0))
    return [message.summary for message in messages if message.HasField("summary")]
