from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.core.trace.work_requests import Busy, busy, parse, port_name
from tests.support.work_requests import CHUNK, LINE, SendingPort

NOW_NS = 1_790_000_000_000_000_000
PORT = SendingPort("mlx5_0", place=3, peer=4)


def measured(*ports: SendingPort) -> Busy:
    """Of an operation a port, a second apart."""
    rows = [row for i, port in enumerate(ports) for row in port.rows(i, NOW_NS + i * 10**9)]
    return busy(map(parse, rows))


def test_what_a_byte_takes_is_the_lines_speed() -> None:
    found = measured(PORT)

    assert found.seconds_per_byte == pytest.approx(1 / LINE, rel=0.03)
    assert found.sent_bytes == pytest.approx(found.sends * CHUNK, rel=0.03)


def test_a_port_at_half_the_speed_takes_twice_as_long() -> None:
    whole, half = measured(PORT).seconds_per_byte, measured(PORT.slower(2)).seconds_per_byte

    assert whole is not None
    assert half == pytest.approx(2 * whole, rel=0.05)


def test_a_port_that_waits_for_its_turn_is_as_fast_as_one_that_does_not() -> None:
    waits = replace(PORT, every_seconds=1.3 * CHUNK / LINE)  # as in a ring with a slower member
    bursts = replace(PORT, every_seconds=0.9 * CHUNK / LINE)

    assert measured(waits) == Busy(0, 0.0, 0.0)
    assert measured(waits, PORT).seconds_per_byte == pytest.approx(1 / LINE, rel=0.15)
    assert measured(bursts).seconds_per_byte == pytest.approx(1 / LINE, rel=0.05)


def test_the_time_between_two_operations_is_nobodys() -> None:
    assert measured(PORT, PORT).seconds == pytest.approx(2 * measured(PORT).seconds)


def test_communicators_that_share_a_port_are_told_apart() -> None:
    other = replace(PORT, communicator=78)
    rows = [row for both in zip(PORT.rows(1, NOW_NS), other.rows(9, NOW_NS + 7), strict=True) for row in both]

    assert busy(map(parse, rows)).seconds == pytest.approx(2 * measured(PORT).seconds)


def test_a_place_that_is_none_is_no_peer() -> None:
    row = next(replace(PORT, peer=-1).rows(1, NOW_NS))

    assert parse(row).peer is None


def test_bytes_that_were_never_taken_off_are_not_outstanding_where_no_send_is() -> None:
    counted = "a,77,0,1,0,2,3,x,y,4,{sends},4096,7"

    assert [parse(counted.format(sends=sends)).outstanding_bytes for sends in (0, 1)] == [0, 4096]


@pytest.mark.parametrize(
    "row", ["", "1,2", "a,77,0,1,0,2,3,x,y,4,5,6,seven", "a,77,-1,1,0,2,3,x,y,4,5,6,7", "a,7,0,1,0,2,3,x,y,4,5,6,0"]
)
def test_what_is_no_row_is_refused(row: str) -> None:
    with pytest.raises(ValueError):
        parse(row)


@pytest.mark.parametrize(
    ("name", "port"),
    [
        ("host_mlx5_0_Port0_A.log", "host_mlx5_0 port 0"),
        ("node-1_mlx5_bond_0_Port1_B.log", "node-1_mlx5_bond_0 port 1"),
        ("rank_0.log", None),
        ("host_mlx5_0_Port0_C.log", None),
    ],
)
def test_a_ports_name_is_its_files(name: str, port: str | None) -> None:
    assert port_name(name) == port
