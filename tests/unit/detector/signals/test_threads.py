"""Which of the ranks in a circle has stopped by itself, by what their threads do."""

from __future__ import annotations

import pytest

from megatronapp.detector.signals.frontier import Blame, Side
from megatronapp.detector.signals.threads import computes, stopped_alone, with_sides

CIRCLE = [Blame(rank, Side.CIRCULAR, "p2p:0-1", "forward_send", 0, (), circle=(0, 1, 2)) for rank in range(3)]
SECOND_NS = 10**9


@pytest.mark.parametrize(
    ("computing", "passing", "alone"),
    [
        pytest.param({2}, {0, 2}, {2}, id="it computes"),
        pytest.param({1, 2}, {1, 2}, {1, 2}, id="two compute"),
        pytest.param(set(), {1}, {1}, id="it stands in a pass"),
        pytest.param(set(), {0, 1}, set(), id="two may wait in what nobody tells of"),
        pytest.param(set(), {7}, set(), id="who is in no circle"),
        pytest.param(set(), set(), set(), id="all are in operations"),
    ],
)
def test_who_has_stopped_by_itself(computing: set[int], passing: set[int], alone: set[int]) -> None:
    assert stopped_alone(CIRCLE, frozenset(computing), frozenset(passing)) == alone


def test_where_no_circle_is_nobody_is_looked_for() -> None:
    blamed = [Blame(1, Side.HOST, "dp:0-1", "all_reduce", 5, (0,))]

    assert stopped_alone(blamed, frozenset({0}), frozenset({0})) == set()


def test_one_of_five_threads_on_a_processor_computes_and_one_that_waits_does_not() -> None:
    assert computes(SECOND_NS, SECOND_NS // 4, queued_ns=0)
    assert not computes(SECOND_NS, SECOND_NS // 10_000, queued_ns=0)
    assert not computes(0, 0, queued_ns=0)


def test_a_thread_that_gets_a_tenth_of_a_busy_processor_and_waits_for_the_rest_computes() -> None:
    assert computes(SECOND_NS, SECOND_NS // 10, queued_ns=SECOND_NS * 9 // 10)


def test_a_cpu_rank_that_computes_is_no_host_that_stands_still_and_one_that_stands_in_a_pass_is() -> None:
    blamed = [Blame(rank, Side.DEVICE, "p2p:0-1", "forward_send", 0, (3,)) for rank in range(3)]

    sides = [b.side for b in with_sides(blamed, frozenset({0}), frozenset({0, 1}))]

    assert sides == [Side.DEVICE, Side.HOST, Side.DEVICE]
