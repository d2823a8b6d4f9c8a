"""What a program, a user or a peer may do wrong: each is a clear error, and messages move afterwards as before.

Tensors and tags that can't be moved, tags used twice and tensors that differ are in the contract suite; wrong secrets,
jobs, attempts, lanes and strangers in the meeting's tests; flags in the training's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.distributed import HashStore

from megatronapp.rdma import Config, Engine, PeerLostError, Spec, Tag, TransportError
from tests.support.engines import engines

SECONDS = 20.0


@pytest.fixture(scope="module")
def pair() -> Iterator[list[Engine]]:
    with engines("shm") as made:
        yield made


WRONG: dict[str, tuple[type[Exception], str, Callable[[Engine], object]]] = {
    "no tensor": (TypeError, "a list can't be moved", lambda e: e.isend([1.0], 1, Tag(1))),  # type: ignore[arg-type]
    "unknown dtype": (
        ValueError,
        "complex32 can't be moved: send tensor.view",
        lambda e: e.isend(torch.empty(2, dtype=torch.complex32), 1, Tag(1)),
    ),
    "expanded": (ValueError, "not contiguous", lambda e: e.isend(torch.zeros(1).expand(4), 1, Tag(1))),
    "negative size": (ValueError, "a dimension is negative", lambda e: e.irecv(Spec((-1,), torch.uint8), 1, Tag(1))),
    "itself": (TransportError, "rank 0 is this rank", lambda e: e.isend(torch.zeros(1), 0, Tag(1))),
    "deadline": (
        ValueError,
        "deadline_seconds -1 must be positive",
        lambda e: e.isend(torch.zeros(1), 1, Tag(1), deadline_seconds=-1),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_call_is_refused_and_harms_nothing(pair: list[Engine], what: str) -> None:
    kind, words, call = WRONG[what]

    with pytest.raises(kind, match=words):
        call(pair[0])

    tag = Tag(2, microbatch=list(WRONG).index(what))
    receive = pair[1].irecv(Spec((3,), torch.float32), 0, tag)
    pair[0].isend(torch.ones(3), 1, tag).wait(SECONDS)
    receive.wait(SECONDS)
    assert torch.equal(receive.tensor, torch.ones(3))


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda folder: Engine(2, 2, HashStore()), ValueError, "rank 2 of 2"),
        (lambda folder: Engine(0, 2, HashStore(), secret=b""), ValueError, "secret is empty"),
        (lambda folder: Engine(0, 2, folder), ValueError, "no store can be made at"),
        (lambda folder: Engine(0, 2, folder / "not there" / "store"), ValueError, "no store can be made at"),
        (
            lambda folder: Engine(0, 2, HashStore(), config=Config(address="192.0.2.1")),
            TransportError,
            "can't listen on 192.0.2.1",
        ),
        (lambda folder: Config(spin_seconds=-1), ValueError, "spin_seconds must not be negative"),
        (lambda folder: Config(lanes=()), ValueError, "no lane is allowed"),
        (lambda folder: Config(chunk_bytes=1), ValueError, "the least is 4096"),
    ],
)
def test_engine_that_cannot_be_is_not_made(
    tmp_path: Path, make: Callable[[Path], object], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        make(tmp_path)


@pytest.mark.parametrize("lane", ["shm", "tcp"])
def test_peer_that_talks_nonsense_is_given_up(lane: str) -> None:
    with engines(lane) as (first, second):
        waiting = second.irecv(Spec((1,), torch.uint8), 0, Tag(1))

        first._peers[1].connection.sendall(b"nonsense" * 100)

        with pytest.raises(PeerLostError, match="rank 0 is lost: it does not keep to the protocol"):
            waiting.wait(SECONDS)
        with pytest.raises(PeerLostError, match="rank 1 is lost"):
            first.irecv(Spec((1,), torch.uint8), 1, Tag(1)).wait(SECONDS)
