"""The plug-in as NCCL calls it: what it records of each operation, and what it makes of calls that can't be right."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from megatronapp.trainer.agent.operations import Completed, Direction, Enqueued, Lane, OperationsReader
from megatronapp.trainer.agent.segment import Segment
from tests.unit.nccl.stand_in import (
    CE_COLL,
    COLL,
    PROXY_STEP,
    RECV_GPU_WAIT,
    RECV_WAIT,
    SEND_GPU_WAIT,
    SEND_PEER_WAIT,
    SEND_WAIT,
    Communicator,
    Nccl,
)

nccl = pytest.importorskip("megatronapp.nccl", reason="the plug-in's wheel is not installed: pip install native/nccl")
VERSIONS = (5, 6, 7)
RING = 1 << 16
_hashes = iter(range(1, 1 << 30))


@pytest.fixture(scope="module")
def reader() -> OperationsReader:
    """One recorder a process; communicators are told apart by their hashes."""
    return OperationsReader(Segment(os.dup(nccl.open_segment(RING, 4096))))


@pytest.fixture(autouse=True)
def everything(reader: OperationsReader) -> None:
    nccl.ask_for(nccl.Level.ALL)
    drain(reader)


@pytest.fixture(params=VERSIONS, ids="v{}".format)
def library(request: pytest.FixtureRequest) -> Nccl:
    return Nccl(nccl.LIBRARY, request.param)


@pytest.fixture
def library5() -> Nccl:
    return Nccl(nccl.LIBRARY, 5)


def drain(reader: OperationsReader) -> list[Enqueued | Completed]:
    found: list[Enqueued | Completed] = []
    while part := reader.records():
        found += part
    return found


def enqueued(reader: OperationsReader) -> list[Enqueued]:
    return [record for record in drain(reader) if isinstance(record, Enqueued)]


def completed(reader: OperationsReader) -> list[Completed]:
    return [record for record in drain(reader) if isinstance(record, Completed)]


def lanes(reader: OperationsReader, hash_: int) -> list[Lane]:
    return [lane for lane in reader.lanes().values() if lane.communicator == hash_]


def new(library: Nccl, **more: object) -> tuple[Communicator, int]:
    hash_ = next(_hashes) << 32
    return library.communicator(hash_, **more), hash_  # type: ignore[arg-type]


def test_a_collective_is_recorded_when_it_is_called_and_when_it_is_through(library, reader):
    communicator, hash_ = new(library, ranks=4, rank=3, name=b"tensor")
    before = time.monotonic_ns()

    event = communicator.enqueue(b"AllReduce", 4096, channels=2)
    communicator.run(event, 5_000, 9_000)

    (call, end) = drain(reader)
    (lane,) = lanes(reader, hash_)
    assert isinstance(call, Enqueued)
    assert isinstance(end, Completed)
    assert (call.operation, call.type, call.algorithm, call.protocol) == ("AllReduce", "ncclBfloat16", "RING", "SIMPLE")
    assert (call.number, call.sequence, call.count, call.root, call.channels) == (1, 0, 4096, -1, 2)
    assert before <= call.at_ns <= end.launched_ns <= end.start_seen_ns <= end.end_seen_ns <= time.monotonic_ns()
    assert (end.lane, end.number, end.channels, end.start_ns, end.end_ns) == (call.lane, 1, 2, 5_000, 9_000)
    assert (lane.ranks, lane.rank, lane.name, lane.peer, lane.direction) == (4, 3, "tensor", -1, Direction.NONE)
    assert (lane.enqueued, lane.started, lane.completed, lane.oldest, lane.newest) == (1, 1, 1, None, call)


def test_a_host_that_is_late_tells_one_channel_whole_before_the_next_and_the_times_are_right_all_the_same(
    library, reader
):
    """Then the earliest start is told of after the latest end."""
    communicator, _ = new(library)
    event = communicator.enqueue(b"AllReduce", channels=2)
    communicator.end_channel(communicator.channel(event, 0, 5_100), 9_000)
    communicator.end_channel(communicator.channel(event, 1, 5_000), 8_900)

    (end,) = completed(reader)

    assert (end.channels, end.start_ns, end.end_ns) == (2, 5_000, 9_000)
    assert end.enqueued_ns <= end.end_seen_ns <= end.start_seen_ns


def test_messages_are_numbered_for_each_peer_and_direction(library, reader):
    communicator, hash_ = new(library, ranks=4)
    for func, peer in ((b"Send", 1), (b"Recv", 1), (b"Send", 2), (b"Send", 1)):
        communicator.run(communicator.message(func, peer), 10, 20, channels=1)

    calls = enqueued(reader)

    assert [(call.operation, call.number, call.sequence) for call in calls] == [
        ("Send", 1, 1),
        ("Recv", 1, 1),
        ("Send", 1, 1),
        ("Send", 2, 2),
    ]
    assert {(lane.peer, lane.direction.name): lane.completed for lane in lanes(reader, hash_)} == {
        (-1, "NONE"): 0,
        (1, "SENDS"): 2,
        (1, "RECEIVES"): 1,
        (2, "SENDS"): 1,
    }


def test_all_collectives_of_a_communicator_have_one_numbering(library5, reader):
    communicator, _ = new(library5)
    for func in (b"AllReduce", b"AllGather", b"AllReduce"):
        communicator.enqueue(func)

    assert [(call.operation, call.number, call.sequence) for call in enqueued(reader)] == [
        ("AllReduce", 1, 0),
        ("AllGather", 2, 0),
        ("AllReduce", 3, 1),
    ]


def test_numbers_are_right_again_after_a_pause(library5, reader):
    communicator, _ = new(library5)
    communicator.enqueue(b"AllReduce")
    communicator.enqueue(b"AllGather")
    nccl.ask_for(nccl.Level.OFF)
    for func in (b"AllReduce", b"AllGather", b"AllReduce"):
        communicator.enqueue(func)
    nccl.ask_for(nccl.Level.ALL)
    for func in (b"AllReduce", b"AllGather", b"AllReduce"):
        communicator.enqueue(func)

    assert [call.number for call in enqueued(reader)] == [1, 2, 5, 7, 8]


@pytest.mark.parametrize("sends", [True, False])
def test_what_the_proxys_steps_waited_for_is_told_apart(library, reader, sends):
    communicator, _ = new(library)
    event = communicator.enqueue(channels=1)
    proxy = communicator.proxy(event, sends)
    states = (SEND_GPU_WAIT, SEND_PEER_WAIT, SEND_WAIT) if sends else (RECV_WAIT, RECV_GPU_WAIT)
    with communicator.step(proxy) as step:
        for state in states:
            library.state(step, state, transSize=512)
            time.sleep(0.002)
    communicator.run(event, 1, 2, channels=1)
    assert completed(reader) == []  # its proxy is still at work

    library.stop(proxy)

    (end,) = completed(reader)
    assert (end.network_bytes, end.sent_bytes) == (512, 512 if sends else 0)
    on_the_way, never = end.waited_for_network_ns, end.waited_for_data_ns
    on_the_way, never = (on_the_way, never) if sends else (never, on_the_way)
    assert min(end.waited_for_gpu_ns, on_the_way) >= 2_000_000
    assert never == 0
    assert end.waited_for_peer_ns >= 2_000_000 if sends else end.waited_for_peer_ns == 0


def test_a_proxy_that_works_for_another_process_is_not_taken_for_ones_own(library5, reader):
    communicator, _ = new(library5)
    event = communicator.enqueue(channels=1)

    assert communicator.proxy(event, pid=os.getpid() + 1) is None


def test_what_an_operation_is_in_is_told_while_it_is(library, reader):
    communicator, hash_ = new(library)
    communicator.run(communicator.enqueue(b"AllGather"), 1, 2)
    communicator.channel(communicator.enqueue(b"AllReduce", 77), 0, 100)
    communicator.enqueue(b"ReduceScatter", 88)

    (lane,) = lanes(reader, hash_)

    assert (lane.enqueued, lane.started, lane.completed) == (3, 2, 1)
    assert (lane.oldest.operation, lane.oldest.count) == ("AllReduce", 77)
    assert (lane.newest.operation, lane.newest.count) == ("ReduceScatter", 88)


def test_an_operation_that_is_told_of_late_keeps_its_times(library5, reader):
    communicator, hash_ = new(library5)
    first, second = communicator.enqueue(), communicator.enqueue()
    communicator.run(second, 30, 40)
    assert lanes(reader, hash_)[0].completed == 2  # a communicator's operations run in order

    communicator.run(first, 10, 20)

    assert {(end.number, end.start_ns, end.end_ns) for end in completed(reader)} == {(2, 30, 40), (1, 10, 20)}


def test_an_operation_of_which_nothing_is_told_does_not_stay_open_for_ever(library5, reader):
    communicator, hash_ = new(library5)
    communicator.enqueue()
    for _ in range(100):
        communicator.run(communicator.enqueue(), 1, 2)

    ends = completed(reader)

    assert len(ends) == 101
    assert lanes(reader, hash_)[0].oldest is None
    assert [end.number for end in ends if end.start_ns == 0] == [1]


def test_without_times_a_call_counts_as_through_when_it_is_launched(library, reader):
    nccl.ask_for(nccl.Level.CALLS)
    communicator, hash_ = new(library)
    communicator.enqueue()

    (call, end) = drain(reader)

    assert (call.timed, end.start_ns) == (False, 0)
    assert lanes(reader, hash_)[0].completed == 1


def test_off_asks_nccl_for_nothing_and_on_again_is_counted(library5, reader):
    communicator, hash_ = new(library5)
    nccl.ask_for(nccl.Level.OFF)
    assert library5.mask.value == 0
    assert communicator.enqueue() is None

    nccl.ask_for(nccl.Level.TIMES)

    assert library5.mask.value & COLL
    assert not library5.mask.value & PROXY_STEP
    assert lanes(reader, hash_)[0].switches == 1
    assert enqueued(reader) == []


@pytest.mark.parametrize("version", [6, 7])
def test_collectives_of_the_copy_engine_are_recorded_without_times(reader, version):
    library = Nccl(nccl.LIBRARY, version)
    communicator, hash_ = new(library)
    told = {"seqNumber": 0, "func": b"AllGather", "count": 9, "root": -1, "datatype": b"ncclInt8"}
    library.stop(library.start(communicator.context, CE_COLL, ceColl=told))

    (call, end) = drain(reader)

    assert (call.operation, call.count, call.algorithm, call.timed) == ("AllGather", 9, "CE", False)
    assert (end.number, end.start_ns) == (1, 0)
    assert lanes(reader, hash_)[0].completed == 1


def test_a_communicator_that_ends_leaves_its_last_operation(library5, reader):
    communicator, hash_ = new(library5)
    event = communicator.enqueue(b"Broadcast", 5, root=1)
    communicator.finalize()
    communicator.finalize()
    communicator.run(event, 1, 2)  # late, of what is no more

    (lane,) = lanes(reader, hash_)
    assert (lane.closed, lane.enqueued, lane.completed) == (True, 1, 0)
    assert (lane.newest.operation, lane.newest.root) == ("Broadcast", 1)
    assert communicator.enqueue() is None


@pytest.mark.parametrize("seed", range(6))
def test_calls_in_any_order_with_any_handle_do_no_harm(library, reader, seed):
    chance = random.Random(seed)
    communicators = [new(library)[0] for _ in range(3)]
    handles: list[int | None] = [None, 1, 0xDEADBEEF, (1 << 63) - 1, (1 << 64) - 1]

    def some() -> int | None:
        return chance.choice(handles) if chance.random() < 0.8 else chance.getrandbits(64)

    calls: list[Callable[[Communicator], int | None]] = [
        lambda c: c.enqueue(chance.choice((b"AllReduce", b"", None, b"x" * 99))),  # type: ignore[arg-type]
        lambda c: c.message(chance.choice((b"Send", b"Recv")), chance.randrange(-2, 3)),
        lambda c: c.channel(some(), chance.randrange(256), chance.getrandbits(64)),
        lambda c: c.end_channel(some(), chance.getrandbits(64)),
        lambda c: c.proxy(some()),
        lambda c: library.start(c.context, PROXY_STEP, some()),
        lambda c: library.state(some(), chance.randrange(40), transSize=chance.getrandbits(64)),
        lambda c: library.stop(some()),
        lambda c: library.start(some(), chance.choice((0, COLL, 1 << 20))),
        lambda c: library.plugin.finalize(some()) and None,
    ]
    for _ in range(2000):
        handles.append(chance.choice(calls)(chance.choice(communicators)))
        del handles[:-200]

    fresh, hash_ = new(library)
    drain(reader)
    fresh.run(fresh.enqueue(), 3, 4)
    assert [(end.start_ns, end.end_ns) for end in completed(reader)] == [(3, 4)]
    assert lanes(reader, hash_)[0].completed == 1
    assert reader.implausible == 0


def test_a_null_description_or_event_is_nothing(library5):
    communicator, _ = new(library5)

    assert library5.plugin.startEvent(communicator.context, None, None) == 0
    assert library5.plugin.recordEventState(None, 22, None) == 0
    assert library5.plugin.init(None, 1, None, None, 1, 1, 0, type(communicator._log)()) == 0


def test_what_is_not_read_in_time_is_overwritten_and_counted(library5, reader):
    communicator, hash_ = new(library5)
    lost = reader.lost
    for _ in range(2000):
        communicator.run(communicator.enqueue(), 1, 2)

    read = len(drain(reader))

    assert read < 1000
    assert read + reader.lost - lost == 4000
    assert lanes(reader, hash_)[0].newest.number == 2000


def test_threads_record_at_the_same_time_and_nothing_is_torn(library5, reader):
    communicators = [new(library5) for _ in range(4)]
    told: dict[int, list[int]] = {}
    done = threading.Event()

    def call(communicator: Communicator) -> None:
        for number in range(300):
            communicator.run(communicator.enqueue(count=number), 1 + number, 2 + number)

    def read() -> None:
        while not done.is_set():
            for record in drain(reader):
                if isinstance(record, Completed):
                    told.setdefault(record.lane, []).append(record.number)
                    assert record.end_ns - record.start_ns in (0, 1)

    threads = [threading.Thread(target=call, args=(communicator,)) for communicator, _ in communicators]
    watcher = threading.Thread(target=read)
    watcher.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done.set()
    watcher.join()

    assert all(lanes(reader, hash_)[0].completed == 300 for _, hash_ in communicators)
    assert all(numbers == sorted(numbers) for numbers in told.values())


KILLED = """
import os, sys
from megatronapp import nccl
from tests.unit.nccl.stand_in import Nccl
fd = nccl.open_segment(1 << 16, 8)
nccl.ask_for(nccl.Level.ALL)
communicator = Nccl(nccl.LIBRARY, 5).communicator(77, ranks=2, rank=1, name=b"data")
communicator.run(communicator.enqueue(b"AllGather"), 1, 2)
child = os.fork()
if child == 0:
    for _ in range(50):
        communicator.enqueue(b"InTheChild")
    os._exit(0)
os.waitpid(child, 0)
communicator.channel(communicator.enqueue(b"AllReduce", 123), 0, 5)
print(f"/proc/{os.getpid()}/fd/{fd}", flush=True)
while True:
    communicator.message(b"Send", 0)
"""


def test_after_kill_9_the_last_operations_are_told_and_a_fork_wrote_nothing():
    with subprocess.Popen([sys.executable, "-c", KILLED], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        segment = Segment(os.open(process.stdout.readline().strip(), os.O_RDWR))
        reader = OperationsReader(segment)
        while not any(lane.enqueued > 100 for lane in reader.lanes().values() if lane.peer == 0):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()

    collectives, messages = reader.lanes().values()

    assert (collectives.name, collectives.rank, collectives.enqueued, collectives.started) == ("data", 1, 2, 2)
    assert (collectives.oldest.operation, collectives.oldest.count) == ("AllReduce", 123)
    assert messages.newest.number == messages.enqueued
    assert {record.operation for record in drain(reader) if isinstance(record, Enqueued)} <= {
        "AllGather",
        "AllReduce",
        "Send",
    }
    segment.close()


NOT_ASKED = """
from megatronapp import nccl
from tests.unit.nccl.stand_in import Nccl
library = Nccl(nccl.LIBRARY, 7)
communicator = library.communicator(1)
print(library.mask.value, communicator.context, library.logged)
"""


def test_without_a_recorder_nothing_is_asked_for_and_one_line_says_so():
    out = subprocess.run([sys.executable, "-c", NOT_ASKED], capture_output=True, text=True, check=True).stdout

    assert out.startswith("0 None ['megatronapp-nccl records nothing")


@pytest.mark.parametrize(("ring", "why"), [(5000, "power of two"), (1 << 30, "power of two")])
def test_a_ring_that_cant_be_is_refused_in_one_line(ring, why):
    code = f"from megatronapp import nccl\ntry: nccl.open_segment({ring}, 8)\nexcept OSError as e: print(e)"

    assert why in subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("version", "level", "why"),
    [
        ((2, 27, 7), nccl.Level.OFF, "2.28"),
        ((2, 28, 9), nccl.Level.ALL, ""),
        ((2, 31, 2), nccl.Level.CALLS, "slower"),
        ((2, 32, 3), nccl.Level.ALL, ""),
    ],
)
def test_an_nccl_that_is_too_old_or_slow_is_asked_for_less(version, level, why):
    got, said = nccl.supported_level(version, nccl.Level.ALL)

    assert got is level
    assert why in said
