"""Whose link explains that some transfers are slow and others are not."""

from megatronapp.detector.signals.tomography import Cleared, Path, culprits


def message(sender: int, receiver: int) -> Path:
    return Path(frozenset({sender}), frozenset({receiver}))


def group(*ranks: int) -> Path:
    return Path(frozenset(ranks), frozenset(ranks))


def blamed(slow: list[Path], good: list[Path]) -> set[int]:
    return set(culprits(slow[0], slow, Cleared.by(good)))


def test_the_rank_that_all_slow_transfers_share_is_blamed() -> None:
    slow = [group(1, 5), message(0, 1), message(1, 0), message(1, 2), message(2, 1)]
    good = [group(0, 4), group(2, 6), message(4, 5), message(5, 4), message(5, 6), message(6, 5)]

    assert blamed(slow, good) == {1}


def test_a_good_transfer_clears_its_ends_each_way_by_itself() -> None:
    slow = [message(1, 2)]

    assert blamed(slow, [message(2, 3), message(3, 2)]) == {1}
    assert blamed(slow, [message(1, 0), message(1, 4)]) == {2}


def test_a_message_is_put_down_to_its_sender_where_nothing_tells_the_ends_apart() -> None:
    assert blamed([message(1, 2)], []) == {1}


def test_a_pair_that_is_slow_both_ways_is_blamed_with_both_ends() -> None:
    assert blamed([message(1, 2), message(2, 1)], []) == {1, 2}


def test_all_members_are_blamed_where_nothing_clears_any() -> None:
    assert blamed([group(0, 1, 2, 3)], []) == {0, 1, 2, 3}


def test_between_innocent_ends_it_is_the_way_itself() -> None:
    assert blamed([message(1, 2)], [message(1, 3), message(4, 2)]) == {1, 2}


def test_the_rank_that_explains_more_is_blamed_before_one_that_explains_less() -> None:
    slow = [group(1, 5), message(1, 2), message(2, 1), message(5, 6)]

    assert blamed(slow, []) == {1}
