"""Who wakes whom where a send and a receive are posted at any moments, as core/peer_matching.cpp has it: in every order
of steps both ends come to match them, though a sender is not woken for each receiver that is ready.

A rank posts once, under its engine's lock, which its progress thread holds while it looks. Each step is one access to
memory that both ranks see, and these have one order for all (lanes/shm.h).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

SENDER, RECEIVER = 0, 1


@dataclass(frozen=True)
class Rank:
    posting: int = 0
    """Its next step of posting; DONE afterwards."""
    thread: str = "looks"
    """Looks for mail, looks a last time, or sleeps."""
    sleeping: bool = False
    """As its peer sees it."""
    rung: bool = False
    mail: bool = False
    """What the peer has written is there, and not read."""
    read: bool = False
    rings: bool = False
    """It is about to see whether its peer sleeps."""


DONE = 2
Ranks = tuple[Rank, Rank]


def steps(ranks: Ranks, who: int, *, answered: bool) -> Iterator[Ranks]:
    """What can happen next on a rank. answered: who reads of a send for which it is ready already wakes the sender."""
    rank, peer = ranks[who], ranks[1 - who]

    def then(own: Rank, other: Rank = peer) -> Ranks:
        return (own, other) if who == SENDER else (other, own)

    if rank.rings:
        yield then(replace(rank, rings=False), replace(peer, rung=peer.rung or peer.sleeping))
        return
    locked = rank.thread == "looks again"  # between saying that it sleeps and its last look
    if not locked and rank.posting == 0:
        yield then(replace(rank, posting=1, **read_of(rank, who, answered=False)))
    elif not locked and rank.posting == 1:
        tells = who == RECEIVER or not rank.read  # the sender has its receiver, or announces
        urgent = tells and (who == SENDER or rank.read)  # the receiver knows that it is waited for, or does not ring
        yield then(replace(rank, posting=DONE, rings=urgent), replace(peer, mail=peer.mail or tells))
    if 0 < rank.posting < DONE:
        return  # under the lock
    if rank.thread == "looks":
        yield then(replace(rank, thread="looks again", sleeping=True, **read_of(rank, who, answered=answered)))
    elif rank.thread == "looks again":
        thread = "looks" if rank.mail else "sleeps"
        yield then(replace(rank, thread=thread, sleeping=not rank.mail, **read_of(rank, who, answered=answered)))
    elif rank.rung:
        yield then(replace(rank, thread="looks", sleeping=False, rung=False))


def read_of(rank: Rank, who: int, *, answered: bool) -> dict[str, bool]:
    """What reading changes. A receiver that was ready already tells the sender to look."""
    crossed = answered and who == RECEIVER and rank.mail and rank.posting == DONE
    return {"mail": False, "read": rank.read or rank.mail, "rings": rank.rings or crossed}


def ends(*, answered: bool) -> set[Ranks]:
    """States in which nothing can happen any more, of all that can be reached."""
    seen: set[Ranks] = set()
    open_: list[Ranks] = [(Rank(), Rank())]
    found = set()
    while open_:
        ranks = open_.pop()
        if ranks in seen:
            continue
        seen.add(ranks)
        following = [each for who in (SENDER, RECEIVER) for each in steps(ranks, who, answered=answered)]
        if not following:
            found.add(ranks)
        open_ += following
    return found


def test_a_sender_comes_to_know_of_its_receiver_in_every_order() -> None:
    found = ends(answered=True)

    assert found
    assert all(sender.posting == receiver.posting == DONE and sender.read for sender, receiver in found)


def test_without_an_answer_to_its_announcement_it_may_sleep_for_ever() -> None:
    assert not all(sender.read for sender, _ in ends(answered=False))
