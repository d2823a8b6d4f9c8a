"""Whom ranks send to, and what a byte takes to get there."""

from __future__ import annotations

import math

import pytest

from megatronapp.detector.signals import destinations
from megatronapp.detector.signals.destinations import RECENT, Destinations
from megatronapp.detector.signals.nccl import Joined
from megatronapp.v1 import trace_pb2

KNOWN = {7: Joined("pp:4-5-6", (4, 5, 6), True)}
BYTES = 1 << 20


def sends(seconds: float, peer: int | None = None, hash_: int = 7) -> trace_pb2.NcclTally:
    seat = trace_pb2.NcclSeat(hash=hash_, size=3, place=0, timed=True, peer=peer)
    return trace_pb2.NcclTally(seat=seat, sending=True, network_ns=int(seconds * 1e9), sent_bytes=BYTES)


def noted(seconds: list[float], slow_since: int | None = None) -> Destinations:
    """Rank 4 sends to rank 5 so many seconds in each step, to rank 6 one, and one in collectives."""
    found = Destinations()
    for step, each in enumerate(seconds):
        slow = {4: slow_since} if slow_since is not None and step > slow_since else {}
        found.note(step, [(4, [sends(each, peer=1), sends(1.0, peer=2), sends(1.0)])], KNOWN, slow)
    return found


def test_each_is_compared_with_what_it_took_before() -> None:
    excess = noted([1.0] * 8 + [4.0] * 3).excess(4, 8)

    assert excess == pytest.approx({5: math.log(4), 6: 0.0, None: 0.0}, abs=1e-6)


def test_what_has_been_slow_for_long_is_still_compared_with_what_was_before() -> None:
    excess = noted([1.0] * 8 + [4.0] * (2 * RECENT), slow_since=8).excess(4, 8)

    assert excess[5] == pytest.approx(math.log(4), abs=1e-6)


def test_of_what_was_never_sent_before_nothing_is_said() -> None:
    assert noted([1.0] * 4).excess(4, 0) == {}


def test_a_communicator_whose_members_are_not_known_names_nobody() -> None:
    found = Destinations()
    found.note(0, [(4, [sends(1.0, peer=1, hash_=8)])], KNOWN, {})

    assert list(found.pairs()) == []


def test_pairs_that_are_too_many_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destinations, "MOST_PAIRS", 1)

    assert list(noted([1.0]).pairs()) == [(4, 5)]
