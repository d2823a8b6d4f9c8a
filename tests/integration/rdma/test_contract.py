"""What every lane keeps: one suite, run over each."""

from __future__ import annotations

import random
import select
import threading
import time
from collections.abc import Iterator

import pytest
import torch

from megatronapp.rdma import (
    CancelledError,
    Engine,
    EngineClosedError,
    Kind,
    MismatchError,
    PeerLostError,
    Spec,
    Status,
    Tag,
    TagError,
    TransferTimeoutError,
    TransportError,
)
from megatronapp.rdma.tensors import DTYPES
from tests.support.engines import HOST_LANES, engines

SECONDS = 20.0
SIZES = (0, 1, 31, 4096, 65_536, 262_144, 262_145, 1 << 20, (1 << 20) + 17, 9 << 20)


@pytest.fixture(params=HOST_LANES, scope="module")
def shared_pair(request: pytest.FixtureRequest) -> Iterator[list[Engine]]:
    """Two engines for all tests that leave them whole."""
    with engines(request.param) as pair:
        yield pair


@pytest.fixture
def pair(shared_pair: list[Engine]) -> list[Engine]:
    for engine in shared_pair:
        engine.poll()
    return shared_pair


@pytest.fixture(params=HOST_LANES)
def lane(request: pytest.FixtureRequest) -> str:
    return str(request.param)


_rounds = iter(range(1, 4000))


def new_tag(kind: int = Kind.FORWARD, **fields: int) -> Tag:
    """Each test in a round of its own."""
    return Tag(kind, round=next(_rounds), **fields)


def content(size: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("receiver_first", [True, False])
def test_bytes_arrive_as_they_were_sent(pair: list[Engine], size: int, receiver_first: bool) -> None:
    tag, sent, received = new_tag(), content(size, size), torch.zeros(size, dtype=torch.uint8)

    if receiver_first:
        receive = pair[1].irecv(received, 0, tag)
        send = pair[0].isend(sent, 1, tag)
    else:
        send = pair[0].isend(sent, 1, tag)
        receive = pair[1].irecv(received, 0, tag)
    receive.wait(SECONDS)
    send.wait(SECONDS)

    assert torch.equal(received, sent)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_goes_into_memory_of_the_engine(pair: list[Engine], dtype: torch.dtype) -> None:
    tag = new_tag()
    sent = content(2 * 3 * 5 * 16, 1).view(2, 3, 5, 16)
    sent = (sent % 2 if dtype == torch.bool else sent).view(dtype)

    receive = pair[0].irecv(Spec(tuple(sent.shape), dtype), 1, tag)
    pair[1].isend(sent, 0, tag).wait(SECONDS)
    receive.wait(SECONDS)

    assert receive.tensor.dtype == dtype
    assert torch.equal(receive.tensor.view(torch.uint8), sent.view(torch.uint8))


def test_scalar_has_no_dimension(pair: list[Engine]) -> None:
    tag = new_tag()

    receive = pair[1].irecv(Spec((), torch.float64), 0, tag)
    pair[0].isend(torch.tensor(2.5, dtype=torch.float64), 1, tag).wait(SECONDS)
    receive.wait(SECONDS)

    assert receive.tensor.item() == 2.5


def test_messages_overtake_each_other(pair: list[Engine]) -> None:
    number = next(_rounds)
    tags = [Tag(Kind.BACKWARD, microbatch=i, round=number) for i in range(50)]
    tensors = {tag: content(random.Random(tag.microbatch).choice(SIZES), tag.microbatch) for tag in tags}
    order = random.Random(3).sample(tags, len(tags))

    sends = [pair[0].isend(tensors[tag], 1, tag) for tag in tags]
    receives = {tag: pair[1].irecv(torch.empty_like(tensors[tag]), 0, tag) for tag in order}
    for tag in random.Random(4).sample(tags, len(tags)):
        receives[tag].wait(SECONDS)

    assert all(torch.equal(receives[tag].tensor, tensors[tag]) for tag in tags)
    for send in sends:
        send.wait(SECONDS)


def test_both_ways_at_once(pair: list[Engine]) -> None:
    tag, size = new_tag(), 8 << 20
    receives = [engine.irecv(Spec((size,), torch.uint8), 1 - engine.rank, tag) for engine in pair]
    sends = [engine.isend(content(size, engine.rank), 1 - engine.rank, tag) for engine in pair]
    for handle in sends + receives:
        handle.wait(SECONDS)

    assert torch.equal(receives[0].tensor, content(size, 1))
    assert torch.equal(receives[1].tensor, content(size, 0))


def test_message_moves_while_nobody_waits(pair: list[Engine]) -> None:
    tag = new_tag()
    receive = pair[1].irecv(Spec((4 << 20,), torch.uint8), 0, tag)
    pair[0].isend(content(4 << 20, 5), 1, tag)

    deadline = time.monotonic() + SECONDS
    while not receive.done() and time.monotonic() < deadline:
        time.sleep(0.001)

    assert torch.equal(receive.tensor, content(4 << 20, 5))


def test_poll_tells_each_end_once_and_the_descriptor_announces_it(pair: list[Engine]) -> None:
    number = next(_rounds)
    tags = {Tag(Kind.FORWARD, microbatch=i, round=number) for i in range(3)}
    receives = {tag: pair[1].irecv(Spec((10,), torch.int16), 0, tag) for tag in tags}
    for tag in tags:
        pair[0].isend(torch.arange(10, dtype=torch.int16), 1, tag).wait(SECONDS)

    told = []
    while len(told) < 3:
        assert select.select([pair[1].fileno()], [], [], SECONDS)[0]
        told += pair[1].poll()

    assert {each.tag: each.handle for each in told} == receives
    assert {each.status for each in told} == {Status.DONE}
    assert {each.nbytes for each in told} == {20}
    assert pair[1].poll() == []
    assert not select.select([pair[1].fileno()], [], [], 0)[0]


def test_what_arrived_and_was_not_taken_is_listed_in_order(pair: list[Engine]) -> None:
    number = next(_rounds)
    tags = [Tag(Kind.FORWARD, chunk=2, microbatch=i, round=number) for i in range(4)]
    receives = [pair[1].irecv(Spec((3,), torch.uint8), 0, tag) for tag in tags]
    for i in (3, 1):
        pair[0].isend(content(3, i), 1, tags[i]).wait(SECONDS)
    deadline = time.monotonic() + SECONDS
    while len(pair[1].arrived(Kind.FORWARD, 2)) < 2 and time.monotonic() < deadline:
        time.sleep(0.001)

    assert pair[1].arrived(Kind.FORWARD, 2, in_round=number) == [receives[3], receives[1]]
    assert pair[1].arrived(Kind.FORWARD, 1) == []
    receives[3].wait(SECONDS)
    assert pair[1].arrived(Kind.FORWARD, 2, peer=0) == [receives[1]]
    assert pair[1].arrived(peer=1) == []
    for i in (0, 2):
        pair[0].isend(content(3, i), 1, tags[i]).wait(SECONDS)


@pytest.mark.parametrize(
    ("sent", "expected", "words"),
    [
        (torch.zeros(4), Spec((5,), torch.float32), r"float32 \[4\] on cpu.*float32 \[5\] on cpu"),
        (torch.zeros(4), Spec((4,), torch.int32), r"float32 \[4\] on cpu.*int32 \[4\]"),
        (torch.zeros(2, 2), Spec((4,), torch.float32), r"float32 \[2, 2\].*float32 \[4\]"),
    ],
)
@pytest.mark.parametrize("receiver_first", [True, False])
def test_different_tensors_are_an_error_on_both_sides(
    pair: list[Engine], sent: torch.Tensor, expected: Spec, words: str, receiver_first: bool
) -> None:
    tag = new_tag()
    if receiver_first:
        receive = pair[1].irecv(expected, 0, tag)
        time.sleep(0.05)
    send = pair[0].isend(sent, 1, tag)
    if not receiver_first:
        receive = pair[1].irecv(expected, 0, tag)

    with pytest.raises(MismatchError, match=rf"this rank sends {words.split('.*')[0]}"):
        send.wait(SECONDS)
    with pytest.raises(MismatchError, match=rf"rank 0 sends {words}"):
        receive.wait(SECONDS)


def test_tag_is_used_once_in_a_round(pair: list[Engine]) -> None:
    tag = new_tag()
    pair[0].isend(torch.zeros(1), 1, tag)
    receive = pair[1].irecv(Spec((1,), torch.float32), 0, tag)

    with pytest.raises(TagError, match="used already"):
        pair[0].isend(torch.zeros(1), 1, tag)
    with pytest.raises(TagError, match="used already"):
        pair[1].irecv(Spec((1,), torch.float32), 0, tag)
    receive.wait(SECONDS)
    with pytest.raises(TagError, match="used already"):
        pair[1].irecv(Spec((1,), torch.float32), 0, tag)


def test_only_the_newest_rounds_are_open(pair: list[Engine]) -> None:
    rounds = [next(_rounds) for _ in range(5)]
    tags = [Tag(Kind.FORWARD, round=number) for number in rounds]
    handles = [pair[0].isend(torch.zeros(1), 1, tag) for tag in reversed(tags[1:])]

    with pytest.raises(TagError, match=r"older than the 4 newest rounds.*Config.open_rounds"):
        pair[0].isend(torch.zeros(1), 1, tags[0])
    with pytest.raises(TagError, match="used already"):
        pair[0].isend(torch.zeros(1), 1, tags[1])
    for tag in tags[1:]:
        pair[1].irecv(Spec((1,), torch.float32), 0, tag).wait(SECONDS)
    for handle in handles:
        handle.wait(SECONDS)


def test_more_rounds_may_be_open() -> None:
    with engines("shm", open_rounds=100) as (sender, receiver):
        tags = [Tag(Kind.FORWARD, round=4090 + number) for number in range(100)]
        receives = [receiver.irecv(Spec((1,), torch.int64), 0, tag) for tag in tags]
        for number, tag in enumerate(reversed(tags)):
            sender.isend(torch.tensor([number]), 1, tag)

        for receive in receives:
            receive.wait(SECONDS)
        assert [int(receive.tensor) for receive in receives] == list(reversed(range(100)))


def test_all_who_use_an_engine_share_one_counter_of_rounds(pair: list[Engine]) -> None:
    before = pair[0].round

    assert [pair[0].begin_round() for _ in range(3)] == [before + 1, before + 2, before + 3]
    assert pair[0].round == before + 3


@pytest.mark.parametrize("first", [3000, 4093])
def test_rounds_begin_anywhere_and_count_on_past_their_range(first: int) -> None:
    with engines("shm") as (sender, receiver):
        for number in range(first, first + 6):
            receive = receiver.irecv(Spec((1,), torch.int64), 0, Tag(Kind.FORWARD, round=number))
            sender.isend(torch.tensor([number]), 1, Tag(Kind.FORWARD, round=number)).wait(SECONDS)
            receive.wait(SECONDS)

            assert receive.tensor.item() == number


def test_wait_in_vain_leaves_the_message_under_way(pair: list[Engine]) -> None:
    tag = new_tag()
    receive = pair[1].irecv(Spec((5,), torch.uint8), 0, tag)

    with pytest.raises(TransferTimeoutError, match=r"from rank 0 with Tag.*not there after 0.05 s"):
        receive.wait(0.05)
    pair[0].isend(content(5, 9), 1, tag)
    receive.wait(SECONDS)

    assert torch.equal(receive.tensor, content(5, 9))


def test_unmatched_messages_can_be_taken_back(pair: list[Engine]) -> None:
    tag = new_tag()
    send = pair[0].isend(torch.zeros(7), 1, tag)
    send.cancel()
    with pytest.raises(CancelledError):
        send.wait(SECONDS)
    receive = pair[1].irecv(Spec((7,), torch.float32), 0, tag)
    receive.cancel()
    with pytest.raises(CancelledError):
        receive.wait(SECONDS)

    again = pair[1].irecv(Spec((7,), torch.float32), 0, tag)
    pair[0].isend(torch.ones(7), 1, tag).wait(SECONDS)
    again.wait(SECONDS)
    again.cancel()  # too late: nothing happens

    assert torch.equal(again.tensor, torch.ones(7))


def test_tensor_may_be_forgotten_by_the_program(pair: list[Engine]) -> None:
    tag = new_tag()
    tensor = content(3 << 20, 11)
    send = pair[0].isend(tensor, 1, tag)
    tensor.data = torch.empty(1, dtype=torch.uint8)  # as megatron-core gives up a stage's output
    receive = pair[1].irecv(Spec((3 << 20,), torch.uint8), 0, tag)
    receive.wait(SECONDS)
    send.wait(SECONDS)

    assert torch.equal(receive.tensor, content(3 << 20, 11))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(4, 4).t(), "not contiguous"),
        (torch.zeros(4).to_sparse(), "only dense"),
        (torch.zeros(2, dtype=torch.complex64).conj(), "resolve_conj"),
        (torch.zeros((1,) * 9), "9 dimensions"),
        (torch.empty(3, device="meta"), "only dense ones on cpu or cuda"),
    ],
)
def test_tensor_that_cannot_be_moved_is_refused_at_once(pair: list[Engine], tensor: torch.Tensor, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        pair[0].isend(tensor, 1, new_tag())


@pytest.mark.parametrize(
    "tag", [Tag(16), Tag(1, chunk=256), Tag(1, microbatch=1 << 20), Tag(1, slot=16), Tag(1, chunk=-1)]
)
def test_tag_that_does_not_fit_is_refused(pair: list[Engine], tag: Tag) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        pair[0].isend(torch.zeros(1), 1, tag)


def test_rank_that_is_not_connected_is_refused(pair: list[Engine]) -> None:
    with pytest.raises(TransportError, match=r"rank 5 is not connected: call connect\(\[5\]\)"):
        pair[0].isend(torch.zeros(1), 5, new_tag())
    with pytest.raises(ValueError, match="no ranks"):
        pair[0].connect([7])


def test_engine_ends_only_when_all_is_read(lane: str) -> None:
    with engines(lane) as (sender, receiver):
        handles = [receiver.irecv(Spec((1 << 20,), torch.uint8), 0, Tag(1, microbatch=i)) for i in range(20)]
        for i in range(20):
            sender.isend(content(1 << 20, i), 1, Tag(1, microbatch=i))
        sender.close(SECONDS)
        for handle in handles:
            handle.wait(SECONDS)

        assert all(torch.equal(handle.tensor, content(1 << 20, i)) for i, handle in enumerate(handles))
        assert receiver.failed() == {}
        with pytest.raises(PeerLostError, match="rank 0 is lost: it has closed its engine"):
            receiver.irecv(Spec((1,), torch.uint8), 0, Tag(2)).wait(SECONDS)
        with pytest.raises(EngineClosedError):
            sender.isend(content(1, 1), 1, Tag(3))


def test_abort_on_another_thread_ends_a_wait(lane: str) -> None:
    with engines(lane) as (first, second):
        receive = first.irecv(Spec((1,), torch.uint8), 1, Tag(1))
        threading.Timer(0.1, first.abort, ["the job is over"]).start()

        with pytest.raises(EngineClosedError, match="the job is over"):
            receive.wait(SECONDS)
        with pytest.raises(EngineClosedError):
            first.check()
        with pytest.raises(PeerLostError, match="rank 0 is lost"):
            second.irecv(Spec((1,), torch.uint8), 0, Tag(1)).wait(SECONDS)
        with pytest.raises(PeerLostError, match="rank 0 is lost"):
            second.check()


def test_receiver_that_never_comes_is_named_at_the_deadline(lane: str) -> None:
    with engines(lane) as (first, second):
        send = first.isend(torch.zeros(3), 1, Tag(1, microbatch=4), deadline_seconds=0.3)

        with pytest.raises(TransferTimeoutError, match=r"to rank 1 with Tag\(kind=1, chunk=0, microbatch=4"):
            send.wait(SECONDS)
        with pytest.raises(PeerLostError, match="rank 1 is lost"):
            first.check()
        with pytest.raises(PeerLostError, match="rank 0 is lost"):
            second.irecv(Spec((3,), torch.float32), 0, Tag(1)).wait(SECONDS)


def test_checksums_agree(lane: str) -> None:
    with engines(lane, checksum=True) as (first, second):
        for i, size in enumerate(SIZES):
            receive = second.irecv(Spec((size,), torch.uint8), 0, Tag(1, microbatch=i))
            first.isend(content(size, i), 1, Tag(1, microbatch=i)).wait(SECONDS)
            receive.wait(SECONDS)

            assert torch.equal(receive.tensor, content(size, i))
