"""Devices that stand in work of their own, where frontiers tell of a host or of nobody."""

from __future__ import annotations

import pytest

from megatronapp.detector.signals.devices import of_devices, stands
from megatronapp.detector.signals.frontier import Blame, Side

MARK_NS = 1000


@pytest.mark.parametrize(
    ("unpassed_ns", "opened_ns", "expected"),
    [
        pytest.param(MARK_NS, [], True, id="in no operation"),
        pytest.param(MARK_NS, [1001, 2000], True, id="before all operations"),
        pytest.param(MARK_NS, [999, 2000], False, id="behind one that may not have ended"),
        pytest.param(MARK_NS, [0], False, id="behind one of which nobody knows when"),
        pytest.param(0, [], False, id="all marks passed"),
    ],
)
def test_a_device_stands_in_its_own_work_where_it_waits_in_no_operation_handed_over_before(
    unpassed_ns: int, opened_ns: list[int], expected: bool
) -> None:
    assert stands(unpassed_ns, opened_ns) is expected


def test_a_host_that_could_launch_no_more_is_not_to_blame() -> None:
    blamed = [Blame(1, Side.HOST, "dp:0-1", "all_reduce", 71, (0,))]

    (found,) = of_devices(blamed, {1})

    assert (found.rank, found.side, found.waiting, found.stands) == (1, Side.DEVICE, (0,), True)


@pytest.mark.parametrize("side", [Side.NETWORK, Side.CIRCULAR])
def test_of_all_who_are_in_what_does_not_end_the_one_whose_device_stands_holds_the_others_up(side: Side) -> None:
    circle = (0, 1, 2) if side is Side.CIRCULAR else ()
    blamed = [Blame(rank, side, "p2p:0-1", "forward_send", 0, (), circle=circle) for rank in range(3)]

    (found,) = of_devices(blamed, {1})

    assert (found.rank, found.side, found.waiting, found.circle) == (1, Side.DEVICE, (0, 2), ())


def test_another_circle_is_told_as_before() -> None:
    first, second = (
        [Blame(rank, Side.CIRCULAR, "p2p:0-1", "forward_send", 0, (), circle=circle) for rank in circle]
        for circle in ((0, 1), (2, 3))
    )

    found = of_devices([*first, *second], {1})

    assert [(b.rank, b.side) for b in found] == [(1, Side.DEVICE), (2, Side.CIRCULAR), (3, Side.CIRCULAR)]


def test_nobody_else_is_acquitted_or_accused() -> None:
    host = Blame(2, Side.HOST, "dp:2-3", "all_reduce", 5, (3,))
    network = [Blame(rank, Side.NETWORK, "dp:0-1", "all_reduce", 5, ()) for rank in range(2)]

    assert of_devices([*network, host], set()) == [*network, host]
    assert of_devices([*network, host], {7}) == [*network, host]
    assert [(b.rank, b.side) for b in of_devices([*network, host], {2})] == [
        (0, Side.NETWORK),
        (1, Side.NETWORK),
        (2, Side.DEVICE),
    ]
