"""What a scheduler asks of GPU messages, around a stand-in for the CUDA driver.

python tests/integration/rdma/stand_in_scheduling.py libcuda.so.1
"""

from __future__ import annotations

import ctypes
import random
import threading
import time
from collections import deque
from typing import Any

# First: it opens the stand-in before PyTorch brings the machine's own driver, where it has one.
from stand_in_ranks import DRIVER, MESSAGES, SECONDS, SIZES, content, pair, post, until  # isort: split

import pytest
import torch

from megatronapp.rdma import _native
from megatronapp.rdma._native import Direction, Status

SEND, RECEIVE = Direction.SEND, Direction.RECEIVE
FLAGS = 1024
"""Of one peer: so many receives of GPU memory may be open."""
Ranks = list[_native.Engine]


def stream() -> int:
    made = ctypes.c_void_p()
    DRIVER.cuStreamCreate(ctypes.byref(made), 0)
    assert made.value is not None
    return made.value


_words: list[ctypes.c_uint32] = []


def new_word() -> ctypes.c_uint32:
    """What a stream reads or writes, and nothing else ever: its thread is not known to have ended."""
    _words.append(ctypes.c_uint32(0))
    return _words[-1]


class Gate:
    """Work on a stream that does not end before it is opened."""

    def __init__(self, on: int) -> None:
        self._flag = new_word()
        DRIVER.cuStreamWaitValue32_v2(ctypes.c_void_p(on), ctypes.c_uint64(ctypes.addressof(self._flag)), 1, 0)

    def open(self) -> None:
        self._flag.value = 1


class Mark:
    """Whether a stream has come so far."""

    def __init__(self, on: int) -> None:
        self._flag = new_word()
        DRIVER.cuStreamWriteValue32_v2(ctypes.c_void_p(on), ctypes.c_uint64(ctypes.addressof(self._flag)), 1, 0)

    def reached(self) -> bool:
        return self._flag.value == 1


def well(engine: _native.Engine, *messages: _native.Message) -> None:
    for message in messages:
        assert engine.wait(message, SECONDS, {message}) == 1
        assert message.status == Status.DONE, message.reason


def bytes_of(number: int, size: int = 64) -> torch.Tensor:
    return torch.full((size,), number % 251, dtype=torch.uint8)


def send_more_than_there_are_flags(ranks: Ranks) -> None:
    count = FLAGS + 500
    sends = [post(ranks[0], SEND, bytes_of(number), 1, number) for number in range(count)]
    for first in range(0, count, FLAGS // 2):
        numbers = range(first, min(first + FLAGS // 2, count))
        tensors = {number: torch.zeros(64, dtype=torch.uint8) for number in numbers}
        well(ranks[1], *[post(ranks[1], RECEIVE, tensors[number], 0, number) for number in numbers])
        assert all(torch.equal(tensors[number], bytes_of(number)) for number in numbers)
    well(ranks[0], *sends)


def keep_the_memory_that_messages_need_at_once() -> None:
    """Four under way in a pool of two: no memory is made for each."""
    size, at_once, count = 17 << 20, 4, 24
    ranks, made = pair("cuda_ipc", receive_pool_bytes=2 * size), DRIVER.stand_in_allocations()
    sent, received = bytes_of(7, size), [torch.zeros(size, dtype=torch.uint8) for _ in range(at_once)]
    open_receives = deque[_native.Message]()
    for number in range(count):
        if len(open_receives) == at_once:
            well(ranks[0], open_receives.popleft())
        open_receives.append(post(ranks[0], RECEIVE, received[number % at_once], 1, number))
        post(ranks[1], SEND, sent, 0, number)
    well(ranks[0], *open_receives)
    assert all(torch.equal(each, sent) for each in received)
    assert DRIVER.stand_in_allocations() - made <= at_once + 1


def refuse_more_receives_than_there_are_flags(ranks: Ranks) -> None:
    tensors = [torch.zeros(64, dtype=torch.uint8) for _ in range(FLAGS + 1)]
    receives = [post(ranks[1], RECEIVE, tensors[number], 0, number) for number in range(FLAGS)]
    for _ in range(3):
        with pytest.raises(BufferError, match=rf"^{FLAGS} receives of GPU memory are open.*\({FLAGS * 64} bytes\)"):
            post(ranks[1], RECEIVE, tensors[FLAGS], 0, FLAGS)
    assert ranks[1].cancel(receives[0], SECONDS)
    receives.append(post(ranks[1], RECEIVE, tensors[FLAGS], 0, FLAGS))
    sends = [post(ranks[0], SEND, bytes_of(number), 1, number) for number in range(1, FLAGS + 1)]
    well(ranks[1], *receives[1:])
    well(ranks[0], *sends)
    assert all(torch.equal(tensors[number], bytes_of(number)) for number in range(1, FLAGS + 1))


def let_streams_wait_while_a_send_is_not_matched(ranks: Ranks, lane: str) -> None:
    """So many waits that any of a second each would outlast the test."""
    count = 200
    unmatched = post(ranks[0], SEND, bytes_of(7), 1, 0)
    side = stream()
    tensors = [torch.zeros(64, dtype=torch.uint8) for _ in range(count)]
    receives = [post(ranks[0], RECEIVE, tensors[number], 1, number) for number in range(count)]
    for receive in receives:
        assert ranks[0].wait_stream(receive, side)
    mark = Mark(side)
    assert ranks[0].flush(0.1) == (lane == "staged")  # else the GPU does not know of the send
    sends = [post(ranks[1], SEND, bytes_of(number), 0, number) for number in reversed(range(count))]
    well(ranks[1], *sends)
    until(mark.reached)
    assert all(torch.equal(tensors[number], bytes_of(number)) for number in range(count))
    received = torch.zeros(64, dtype=torch.uint8)
    receive = post(ranks[1], RECEIVE, received, 0, 0)
    assert ranks[0].flush(SECONDS)
    well(ranks[1], receive)
    well(ranks[0], unmatched)
    assert torch.equal(received, bytes_of(7))


def exchange_between_host_and_gpu(ranks: Ranks, chance: random.Random) -> None:
    """Each end of each message is in host or GPU memory, and posted at some time."""
    keys = [(rank, number) for rank in range(2) for number in range(MESSAGES)]
    sizes = {key: chance.choice(SIZES) for key in keys}
    sent = {key: content(size, hash(key)) for key, size in sizes.items()}
    received = {key: torch.zeros(size, dtype=torch.uint8) for key, size in sizes.items()}
    posted: list[tuple[_native.Engine, _native.Message]] = []
    for direction, (source, number) in chance.sample(
        [(way, key) for way in (SEND, RECEIVE) for key in keys], 2 * len(keys)
    ):
        rank = source if direction == SEND else 1 - source
        tensor = (sent if direction == SEND else received)[source, number]
        on_gpu = chance.random() < 0.5
        message = post(ranks[rank], direction, tensor, 1 - rank, number, on_gpu=on_gpu)
        if on_gpu and chance.random() < 0.5:
            assert ranks[rank].wait_stream(message, stream())
        posted.append((ranks[rank], message))
    for engine, message in chance.sample(posted, len(posted)):
        well(engine, message)
    assert all(torch.equal(received[key], sent[key]) for key in keys)


def let_a_stream_wait_for_what_comes_from_a_host(ranks: Ranks) -> None:
    side, tensor = stream(), torch.zeros(1 << 20, dtype=torch.uint8)
    receive = post(ranks[0], RECEIVE, tensor, 1, 0, stream=side)
    assert ranks[0].wait_stream(receive, side)
    mark = Mark(side)
    ranks[0].drain()
    assert not mark.reached()
    well(ranks[1], post(ranks[1], SEND, bytes_of(9, 1 << 20), 0, 0, on_gpu=False))
    until(mark.reached)
    assert torch.equal(tensor, bytes_of(9, 1 << 20))


def load_a_kernel_behind_a_message(ranks: Ranks) -> None:
    """The driver takes no call meanwhile; what came for nobody's stream must not keep the engine in one."""
    side, tensors = stream(), [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(2)]
    producer = stream()
    gate = Gate(producer)
    others, waited = [post(ranks[0], RECEIVE, tensors[number], 1, number) for number in range(2)]
    sends = [post(ranks[1], SEND, bytes_of(number, 1 << 20), 0, number, stream=producer) for number in range(2)]
    assert ranks[0].wait_stream(waited, side)
    assert ranks[1].flush(SECONDS), "both ranks have one driver here: what the other one gives it, it must have"
    loading = threading.Thread(target=DRIVER.stand_in_load, args=(ctypes.c_void_p(side),), daemon=True)
    loading.start()
    time.sleep(0.05)
    gate.open()
    loading.join(SECONDS)
    assert not loading.is_alive(), "the stream waits for the engine, and the engine for the driver"
    well(ranks[0], others, waited)
    well(ranks[1], *sends)
    assert [int(tensor[-1]) for tensor in tensors] == [0, 1]


def lose_a_peer_between_host_and_gpu(ranks: Ranks) -> None:
    side = stream()
    gate = Gate(side)
    held = post(ranks[0], SEND, bytes_of(1, 1 << 20), 1, 0, stream=side)
    waiting = post(ranks[0], RECEIVE, torch.zeros(1 << 20, dtype=torch.uint8), 1, 1)
    asked = [post(ranks[1], RECEIVE, bytes_of(0, 1 << 20), 0, 0, on_gpu=False)]
    other = stream()
    assert ranks[0].wait_stream(waiting, other)
    mark = Mark(other)
    ranks[1].abort("over")
    for message in (held, waiting):
        assert ranks[0].wait(message, SECONDS, {message}) == 2
        assert message.status == Status.PEER_LOST
    until(mark.reached)
    assert asked[0].failed
    gate.open()
    for engine in ranks:
        engine.close(1.0)


def abort_while_staged_copies_are_queued() -> None:
    """The GPU comes to them when both engines are closed: so long it may touch the tensors, and their buffers."""
    ranks, side = pair("staged"), stream()
    tensor, sent = torch.zeros(1 << 20, dtype=torch.uint8), bytes_of(3, 1 << 20)
    receive = post(ranks[0], RECEIVE, tensor, 1, 0)
    gate = Gate(side)
    assert ranks[0].wait_stream(receive, side)
    send = post(ranks[0], SEND, sent, 1, 0, stream=side)  # its producer waits, too
    for engine in ranks:
        engine.abort("over")
        engine.close(1.0)
    assert receive.failed
    assert send.failed
    assert receive.in_use
    assert send.in_use
    assert _native.end_settled() == 1
    gate.open()
    until(lambda: _native.end_settled() == 0)
    assert not receive.in_use
    assert not send.in_use


def take_back_a_staged_receive_that_a_stream_waits_for(ranks: Ranks) -> None:
    side, tensor = stream(), torch.zeros(1 << 20, dtype=torch.uint8)
    receive = post(ranks[0], RECEIVE, tensor, 1, 0)
    assert ranks[0].wait_stream(receive, side)
    mark = Mark(side)
    assert ranks[0].cancel(receive, SECONDS)
    until(mark.reached)
    until(lambda: not receive.in_use)
    again = post(ranks[0], RECEIVE, tensor, 1, 0)
    well(ranks[1], post(ranks[1], SEND, bytes_of(5, 1 << 20), 0, 0))
    well(ranks[0], again)
    assert torch.equal(tensor, bytes_of(5, 1 << 20))


def refuse_a_stream_that_is_captured(ranks: Ranks) -> None:
    side, tensor = stream(), torch.zeros(64, dtype=torch.uint8)
    receive = post(ranks[0], RECEIVE, tensor, 1, 0)
    DRIVER.stand_in_capture(ctypes.c_void_p(side))
    calls: list[Any] = [
        lambda: post(ranks[0], SEND, bytes_of(1), 1, 0, stream=side),
        lambda: post(ranks[0], RECEIVE, tensor, 1, 1, stream=side),
        lambda: ranks[0].wait_stream(receive, side),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="being captured into a CUDA graph"):
            call()
    well(ranks[1], post(ranks[1], SEND, bytes_of(3), 0, 0))  # on another stream
    well(ranks[0], receive)
    assert torch.equal(tensor, bytes_of(3))
    DRIVER.stand_in_capture(ctypes.c_void_p(1))
    sent = post(ranks[0], SEND, bytes_of(1), 1, 0, stream=side)
    well(ranks[1], post(ranks[1], RECEIVE, torch.zeros(64, dtype=torch.uint8), 0, 0))
    well(ranks[0], sent)


def overtake_a_send_that_its_producer_holds_up(ranks: Ranks) -> None:
    """Its bytes are all that may be in flight; but what its producer waits for may be the one behind it."""
    side = stream()
    gate = Gate(side)
    tensors = [torch.zeros(1 << 20, dtype=torch.uint8) for _ in range(2)]
    receives = [post(ranks[1], RECEIVE, tensors[number], 0, number) for number in range(2)]
    sends = [
        post(ranks[0], SEND, bytes_of(number, 1 << 20), 1, number, stream=(side, None)[number]) for number in range(2)
    ]
    well(ranks[1], receives[1])
    assert not receives[0].done()
    gate.open()
    well(ranks[1], receives[0])
    well(ranks[0], *sends)
    assert [int(tensor[-1]) for tensor in tensors] == [0, 1]


if __name__ == "__main__":
    for lane in ("staged", "cuda_ipc"):
        let_streams_wait_while_a_send_is_not_matched(pair(lane), lane)
        exchange_between_host_and_gpu(pair(lane), random.Random(4))
        exchange_between_host_and_gpu(pair(lane, in_flight_bytes=1 << 20), random.Random(5))
        let_a_stream_wait_for_what_comes_from_a_host(pair(lane))
        load_a_kernel_behind_a_message(pair(lane))
        lose_a_peer_between_host_and_gpu(pair(lane))
        refuse_a_stream_that_is_captured(pair(lane))
        overtake_a_send_that_its_producer_holds_up(pair(lane, in_flight_bytes=1 << 20))
        send_more_than_there_are_flags(pair(lane))
        print(f"{lane}: as a scheduler asks")
    take_back_a_staged_receive_that_a_stream_waits_for(pair("staged"))
    abort_while_staged_copies_are_queued()
    keep_the_memory_that_messages_need_at_once()
    refuse_more_receives_than_there_are_flags(pair("cuda_ipc"))
    print("no more receives than there are flags")
