from __future__ import annotations

from dataclasses import replace

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Kind
from megatronapp.core.trace.work_requests import HEADER
from megatronapp.detector.analyze import analyze
from tests.support.work_requests import CHUNK, LINE, SendingPort, write

NOW_NS = 1_790_000_000_000_000_000
SECOND = 10**9
PORTS = tuple(SendingPort(f"mlx5_{place}", place, place + 4) for place in range(4))


def record(folder, *ports, stalled=(), operations=40):
    """An operation a second; at `stalled` places the tenth does not end."""
    for port in ports:
        stalls = port.place in stalled
        rows = [
            row
            for i in range(10 if stalls else operations)
            for row in port.rows(i, NOW_NS + i * SECOND, 60, 55 if stalls and i == 9 else None)
        ]
        write(port.files(folder)[0], rows)


def test_a_port_that_sends_slowly_is_named_with_its_ranks(tmp_path):
    record(tmp_path, *(port.slower(2) if port.place == 2 else port for port in PORTS))

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.SLOW_LINK, Cause.NIC, (2,), True)
    assert finding.effect_ratio == pytest.approx(2.0, rel=0.05)
    said = "A byte takes 2.0 times as long through host_mlx5_2 port 0 as through the other ports."
    assert finding.summary.startswith(said)


def test_ports_that_are_never_busy_tell_nothing_of_speed(tmp_path):
    record(tmp_path, PORTS[0].slower(2), *(replace(port, every_seconds=2 * CHUNK / LINE) for port in PORTS[1:]))

    assert analyze(tmp_path).findings == ()


def test_a_port_with_less_to_send_is_not_slow(tmp_path):
    record(tmp_path, *PORTS[:3], replace(PORTS[3], every_seconds=0.95 * CHUNK / LINE))

    assert analyze(tmp_path).findings == ()


def test_a_send_that_does_not_end_while_others_go_on_is_named(tmp_path):
    record(tmp_path, *PORTS, stalled=(1,))

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.ranks) == (Kind.HANG, (1,))
    assert finding.summary.startswith(
        "A send of rank 1 to rank 5 through host_mlx5_1 port 0 has stalled, in operation 9 or behind it: "
    )
    assert "bytes are outstanding, and the other ports went on for 30 s" in finding.summary


def test_two_ends_of_a_link_that_stalls_both_ways_are_one_finding(tmp_path):
    ends = {1: replace(PORTS[1], peer=2), 2: replace(PORTS[2], peer=1)}
    others = [SendingPort(f"mlx5_{place}", place, place + 4) for place in (0, 3, 4, 5)]
    record(tmp_path, *others, *ends.values(), stalled=(1, 2))

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.ranks) == (Kind.HANG, (1, 2))
    assert "rank 1 to rank 2" in finding.summary
    assert "rank 2 to rank 1" in finding.summary


def test_a_peer_that_is_no_rank_is_not_named(tmp_path):
    record(tmp_path, *(replace(port, peer=-1) for port in PORTS), stalled=(1,))

    (finding,) = analyze(tmp_path).findings

    assert finding.summary.startswith("A send of rank 1 through host_mlx5_1 port 0 has stalled")


def test_a_port_that_has_nothing_left_to_send_has_not_stalled(tmp_path):
    record(tmp_path, *PORTS[:3])
    record(tmp_path, PORTS[3], operations=10)

    assert analyze(tmp_path).findings == ()


def test_places_in_several_communicators_are_nobodys_ranks(tmp_path):
    apart = [replace(port, communicator=77 + port.place % 2) for port in PORTS]
    record(tmp_path, *(port.slower(2) if port.place == 2 else port for port in apart), stalled=(1,))

    findings = analyze(tmp_path).findings

    assert [(finding.kind, finding.ranks) for finding in findings] == [(Kind.HANG, ()), (Kind.SLOW_LINK, ())]
    assert "rank 1 to rank 5 of communicator 0x4e through host_mlx5_1 port 0" in findings[0].summary


def test_both_files_of_a_port_are_read_in_the_order_of_their_rows(tmp_path):
    record(tmp_path, *PORTS)
    older, newer = PORTS[0].files(tmp_path)
    rows = older.read_text().splitlines()[1:]
    write(newer, rows[:200])
    write(older, rows[200:])

    assert analyze(tmp_path).findings == ()
    assert analyze(tmp_path).job.records == 4 * len(rows)


def test_a_last_row_that_is_cut_is_left_out(tmp_path):
    record(tmp_path, *PORTS)
    records = analyze(tmp_path).job.records
    log = tmp_path / "host_mlx5_0_Port0_A.log"
    log.write_bytes(log.read_bytes()[:-25])

    assert analyze(tmp_path).job.records == records - 1


@pytest.mark.parametrize("row", ["", "20260101120000,1,2", "x,1,-1,1,0,2,3,a,b,4,5,6,7\n1,2,3", "1" * 5000])
def test_nonsense_is_one_line_that_names_the_file(tmp_path, row):
    (tmp_path / "h_mlx5_Port0_A.log").write_text(f"{HEADER}\n{row}")

    with pytest.raises(DataError, match=r"h_mlx5_Port0_A\.log") as refused:
        analyze(tmp_path)
    assert "\n" not in str(refused.value)
