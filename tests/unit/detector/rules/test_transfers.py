"""Whose links are the fabric's."""

from __future__ import annotations

from megatronapp.detector.rules.transfers import suspected
from megatronapp.detector.signals.tomography import Cleared, Path


def test_links_between_ranks_that_good_transfers_clear_are_suspected() -> None:
    messages = [path(0, 2), path(3, 1)]
    everybody = Cleared(sending=frozenset(range(4)), receiving=frozenset(range(4)))

    assert suspected([each.ends for each in messages], messages, everybody) == {0, 1, 2, 3}


def test_so_are_ranks_that_nothing_clears() -> None:
    nobody = Cleared(frozenset(), frozenset())

    assert suspected([frozenset({0})], [path(0, 2), path(5, 6)], nobody) == {0, 2, 5, 6}


def path(sender: int, receiver: int) -> Path:
    return Path(frozenset({sender}), frozenset({receiver}))
