"""What a scheduler sees and asks for: pending, what came first, priorities, limits, taking back."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from megatronapp.rdma import (
    CancelledError,
    Engine,
    Handle,
    Kind,
    MismatchError,
    PeerLostError,
    Spec,
    Tag,
    TransferTimeoutError,
)
from tests.support.engines import HOST_LANES, engines

SECONDS = 20.0
LARGE, SMALL = 128 << 20, 64
PIECE = 4 << 20


@pytest.fixture(params=HOST_LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def pair(lane: str) -> Iterator[list[Engine]]:
    with engines(lane) as made:
        yield made


def content(size: int, seed: int = 0) -> torch.Tensor:
    """Of large ones all bytes are the seed."""
    if size > PIECE:
        return torch.full((size,), seed, dtype=torch.uint8)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def spec(size: int) -> Spec:
    return Spec((size,), torch.uint8)


def until(reached: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def switches_of_progress_threads(during: Callable[[], None]) -> int:
    """How often they went to sleep, of those that are there all the while."""
    before = _switches()
    during()
    after = _switches()
    return sum(after[thread] - count for thread, count in before.items() if thread in after)


def _switches() -> dict[str, int]:
    """By thread."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # another test's has just ended
            if (thread / "comm").read_text().strip() == "rdma-progress":
                words = (thread / "status").read_text().split()
                found[thread.name] = int(words[words.index("voluntary_ctxt_switches:") + 1])
    assert found
    return found


# ---- what a sender has ready


def test_what_a_sender_has_ready_is_seen_before_a_receive_is_posted(pair: list[Engine]) -> None:
    tags = [Tag(Kind.FORWARD, chunk=3, microbatch=number, round=7, slot=2) for number in (5, 1)]
    sent = [pair[0].isend(torch.full((2, 3), number, dtype=torch.float64), 1, tag) for number, tag in enumerate(tags)]
    until(lambda: len(pair[1].probe()) == 2)

    pending = pair[1].probe(Kind.FORWARD, 3, peer=0, in_round=7)

    assert [send.tag for send in pending] == tags
    assert {(send.peer, send.shape, send.dtype, send.on_gpu, send.nbytes) for send in pending} == {
        (0, (2, 3), torch.float64, False, 48)
    }
    assert pending[0].t_ns <= pending[1].t_ns
    others = [pair[1].probe(Kind.BACKWARD), pair[1].probe(chunk=2), pair[1].probe(peer=1), pair[1].probe(in_round=6)]
    assert others == [[], [], [], []]
    for number, send in enumerate(pending):
        receive = pair[1].irecv(send.spec("cpu"), send.peer, send.tag)
        receive.wait(SECONDS)
        assert bool((receive.tensor == number).all())
    assert pair[1].probe() == []
    for handle in sent:
        handle.wait(SECONDS)


def test_pending_send_ends_with_its_cancel_and_comes_again_with_the_cancel_of_its_receive(pair: list[Engine]) -> None:
    tag = Tag(1)
    send = pair[0].isend(torch.zeros(LARGE // 4), 1, tag)
    assert [send.tag for send in pair[1].probe(timeout=SECONDS)] == [tag]

    assert send.cancel()
    until(lambda: pair[1].probe() == [])

    pair[0].isend(torch.zeros(3), 1, tag)
    assert [send.shape for send in pair[1].probe(timeout=SECONDS)] == [(3,)]
    pair[1].irecv(Spec((3,), torch.float32), 0, tag).wait(SECONDS)


def test_send_whose_receive_is_posted_first_is_never_pending(pair: list[Engine]) -> None:
    receives = [pair[1].irecv(spec(9), 0, Tag(1, microbatch=number)) for number in range(20)]
    for number in range(20):
        pair[0].isend(content(9, number), 1, Tag(1, microbatch=number))
    for receive in receives:
        receive.wait(SECONDS)

    assert pair[1].probe() == []


def test_a_receive_that_no_send_waits_for_wakes_nobody() -> None:
    with engines("shm") as (sender, receiver):
        posted = []

        def post() -> None:
            for number in range(100):
                posted.append(receiver.irecv(spec(SMALL), 0, Tag(Kind.FORWARD, microbatch=number)))
                time.sleep(0.001)

        began = time.monotonic()
        switches = switches_of_progress_threads(post)
        seconds = time.monotonic() - began
        idle = switches_of_progress_threads(lambda: time.sleep(seconds))
        for number, handle in enumerate(posted):
            sender.isend(content(SMALL, number), 1, Tag(Kind.FORWARD, microbatch=number))
            handle.wait(SECONDS)

        assert switches - idle < len(posted) / 4
        assert all(torch.equal(handle.tensor, content(SMALL, number)) for number, handle in enumerate(posted))


def test_more_receives_than_a_mailbox_holds_are_posted_before_any_send(pair: list[Engine]) -> None:
    tags = [Tag(Kind.FORWARD, microbatch=number) for number in range(3000)]
    receives = [pair[1].irecv(spec(SMALL), 0, tag) for tag in tags]

    for number, tag in enumerate(tags):
        pair[0].isend(content(SMALL, number), 1, tag)

    for number, receive in enumerate(receives):
        receive.wait(SECONDS)
        assert torch.equal(receive.tensor, content(SMALL, number))


def test_probe_waits_for_a_send_and_no_longer_than_its_timeout(pair: list[Engine]) -> None:
    assert pair[1].probe(timeout=0.05) == []
    threading.Timer(0.1, lambda: pair[0].isend(torch.zeros(1), 1, Tag(2))).start()

    assert [send.tag for send in pair[1].probe(timeout=SECONDS)] == [Tag(2)]
    pair[1].irecv(Spec((1,), torch.float32), 0, Tag(2)).wait(SECONDS)


# ---- what came first


def test_waiting_for_any_returns_what_ended_first(pair: list[Engine]) -> None:
    numbers = list(range(8))
    receives = [pair[1].irecv(spec(1000), 0, Tag(1, microbatch=number)) for number in numbers]
    with pytest.raises(TransferTimeoutError, match=r"none of 8 messages has ended after 0.05 s"):
        pair[1].wait_any(receives, 0.05)
    order = random.Random(2).sample(numbers, 8)
    for number in order:
        pair[0].isend(content(1000, number), 1, Tag(1, microbatch=number)).wait(SECONDS)
        until(receives[number].done)

    assert [handle.tag.microbatch for handle in pair[1].arrived()] == order
    taken = []
    while receives:
        taken.append(pair[1].wait_any(receives, SECONDS))
        receives.remove(taken[-1])

    assert [handle.tag.microbatch for handle in taken] == order
    assert all(torch.equal(handle.tensor, content(1000, handle.tag.microbatch)) for handle in taken)
    assert pair[1].poll() == []


def test_waiting_for_any_moves_messages_and_raises_how_one_ended(pair: list[Engine]) -> None:
    idle = pair[1].irecv(spec(1), 0, Tag(1))
    wrong = pair[1].irecv(spec(2), 0, Tag(2))
    threading.Timer(0.05, lambda: pair[0].isend(content(3), 1, Tag(2))).start()

    with pytest.raises(MismatchError):
        pair[1].wait_any([idle, wrong], SECONDS)
    with pytest.raises(ValueError, match="no handles"):
        pair[1].wait_any([])
    threading.Timer(0.05, pair[0].abort).start()
    with pytest.raises(PeerLostError):
        pair[1].wait_any([idle], SECONDS)


# ---- who goes first


def matched_and_queued(
    sender: Engine, receiver: Engine, priorities: Sequence[int] = (0, 0, 0)
) -> tuple[list[Handle], list[Handle]]:
    """The first is being moved, the others wait behind it."""
    sizes = [LARGE] + [PIECE] * (len(priorities) - 1)
    receives = [receiver.irecv(spec(size), 0, Tag(1, microbatch=i)) for i, size in enumerate(sizes)]
    receiver.isend(content(1), 0, Tag(3))
    sender.irecv(spec(1), 1, Tag(3)).wait(SECONDS)  # so all receives are known there
    tensors = [content(size, i) for i, size in enumerate(sizes)]
    sends = [
        sender.isend(tensor, 1, Tag(1, microbatch=i), priority=priority)
        for i, (tensor, priority) in enumerate(zip(tensors, priorities, strict=True))
    ]
    return sends, receives


@pytest.mark.parametrize("lane", ["shm", "tcp"], indirect=True)
def test_small_message_does_not_wait_for_a_large_one_that_is_under_way(pair: list[Engine]) -> None:
    large = pair[1].irecv(spec(LARGE), 0, Tag(1))
    small = pair[1].irecv(spec(SMALL), 0, Tag(2))
    sends = [pair[0].isend(torch.zeros(LARGE, dtype=torch.uint8), 1, Tag(1)), pair[0].isend(content(SMALL), 1, Tag(2))]
    for handle in [small, large, *sends]:
        handle.wait(SECONDS)

    assert small.done_ns < large.done_ns
    assert torch.equal(small.tensor, content(SMALL))
    assert not large.tensor.any()


def test_of_what_waits_the_higher_priority_goes_first() -> None:
    with engines("tcp", in_flight_bytes=1) as (sender, receiver):
        priorities = [0, 0, 5, -1, 5, 2, 0]
        sends, receives = matched_and_queued(sender, receiver, priorities)
        for handle in [*receives, *sends]:
            handle.wait(SECONDS)

        order = sorted(receives, key=lambda handle: handle.done_ns)
        assert [handle.tag.microbatch for handle in order] == [0, 2, 4, 5, 1, 6, 3]
        assert all(torch.equal(handle.tensor, content(handle.nbytes, i)) for i, handle in enumerate(receives))


def test_no_more_bytes_than_the_limit_are_moved_at_once(lane: str) -> None:
    with engines(lane, in_flight_bytes=2 * PIECE) as (sender, receiver):
        receives = [receiver.irecv(spec(PIECE), 0, Tag(1, microbatch=number)) for number in range(6)]
        sends = [sender.isend(content(PIECE, number), 1, Tag(1, microbatch=number)) for number in range(6)]
        larger = receiver.irecv(spec(5 * PIECE), 0, Tag(2))
        sender.isend(content(5 * PIECE, 99), 1, Tag(2)).wait(SECONDS)
        for handle in [*receives, *sends, larger]:
            handle.wait(SECONDS)

        assert torch.equal(larger.tensor, content(5 * PIECE, 99))
        assert all(torch.equal(handle.tensor, content(PIECE, i)) for i, handle in enumerate(receives))


def test_bytes_under_way_are_those_of_what_is_moved_and_not_of_what_waits_behind_it() -> None:
    with engines("tcp", in_flight_bytes=1) as (sender, receiver):
        sends, receives = matched_and_queued(sender, receiver)

        assert sender.in_flight() == {1: LARGE}
        for handle in [*receives, *sends]:
            handle.wait(SECONDS)
        assert (sender.in_flight(), receiver.in_flight()) == ({1: 0}, {0: 0})


# ---- taking back


def test_matched_send_that_is_not_moving_is_taken_back_and_another_takes_its_place() -> None:
    with engines("tcp", in_flight_bytes=1) as (sender, receiver):
        sends, receives = matched_and_queued(sender, receiver)

        assert sends[1].cancel()
        with pytest.raises(CancelledError):
            sends[1].wait(SECONDS)
        sender.isend(content(PIECE, 77), 1, Tag(1, microbatch=1))
        for receive in receives:
            receive.wait(SECONDS)

        assert torch.equal(receives[1].tensor, content(PIECE, 77))
        assert torch.equal(receives[0].tensor, content(LARGE, 0))
        assert not sends[0].cancel()  # it has ended


def test_receive_whose_send_is_not_moving_is_taken_back_and_the_send_is_pending_again() -> None:
    with engines("tcp", in_flight_bytes=1) as (sender, receiver):
        sends, receives = matched_and_queued(sender, receiver)

        assert receives[2].cancel()
        with pytest.raises(CancelledError):
            receives[2].wait(SECONDS)
        assert [send.tag.microbatch for send in receiver.probe(timeout=SECONDS)] == [2]
        assert not sends[2].done()
        again = receiver.irecv(spec(PIECE), 0, Tag(1, microbatch=2))
        for handle in [receives[0], receives[1], again, *sends]:
            handle.wait(SECONDS)

        assert torch.equal(again.tensor, content(PIECE, 2))


@pytest.mark.parametrize("lane", ["shm", "tcp"], indirect=True)
@pytest.mark.parametrize("end", ["sender", "receiver"])
def test_message_that_is_moved_in_part_is_taken_back(pair: list[Engine], end: str) -> None:
    sender, receiver = pair
    for number in range(3):
        tag = Tag(1, microbatch=number)
        receive = receiver.irecv(spec(LARGE // 4), 0, tag)
        send = sender.isend(torch.full((LARGE // 4,), 255, dtype=torch.uint8), 1, tag)
        time.sleep(0.002 * number)
        if end == "sender":
            taken_back = send.cancel()
            send = sender.isend(torch.full((LARGE // 4,), 1, dtype=torch.uint8), 1, tag) if taken_back else send
        elif taken_back := receive.cancel():
            assert not send.done()
            receive = receiver.irecv(spec(LARGE // 4), 0, tag)
        send.wait(SECONDS)
        receive.wait(SECONDS)

        assert bool((receive.tensor == (1 if taken_back and end == "sender" else 255)).all())


def test_what_cannot_be_taken_back_ends_as_it_would_have(pair: list[Engine]) -> None:
    receive = pair[1].irecv(spec(10), 0, Tag(1))
    send = pair[0].isend(content(10), 1, Tag(1))
    receive.wait(SECONDS)
    send.wait(SECONDS)

    assert not receive.cancel()
    assert not send.cancel()
    assert torch.equal(receive.tensor, content(10))


def test_cancel_from_both_ends_at_random_moments_loses_nothing(pair: list[Engine]) -> None:
    """Whatever was taken back is posted again: in the end each byte is where it belongs."""
    chance = random.Random(5)
    for number in range(40):
        tag, size = Tag(1, microbatch=number), chance.choice([10, 100_000, 2 << 20])
        send, receive = pair[0].isend(content(size, number), 1, tag), pair[1].irecv(spec(size), 0, tag)
        for _ in range(chance.randrange(3)):
            time.sleep(chance.random() * 1e-4)
            if chance.random() < 0.5 and send.cancel():
                send = pair[0].isend(content(size, number), 1, tag)
            elif receive.cancel():
                receive = pair[1].irecv(spec(size), 0, tag)
        send.wait(SECONDS)
        receive.wait(SECONDS)

        assert torch.equal(receive.tensor, content(size, number))
    assert pair[1].probe() == []


# ---- what is kept


def test_failed_wait_keeps_nothing_alive(pair: list[Engine]) -> None:
    receive = pair[1].irecv(spec(1 << 20), 0, Tag(1))
    tensor = weakref.ref(receive.tensor)
    pair[0].isend(content(3), 1, Tag(1))
    until(receive.done)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(MismatchError):
            receive.wait(SECONDS)
        del receive
        pair[1].poll()

        assert tensor() is None
    finally:
        gc.enable()
