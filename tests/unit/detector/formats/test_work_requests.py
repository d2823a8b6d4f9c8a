from __future__ import annotations

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Kind
from megatronapp.detector.analyze import analyze
from megatronapp.detector.formats.work_requests import HEADER


def write_port(folder, port, *, bandwidth=40_000, took_ns=50_000, sends=60, outstanding=0, peer=None):
    """A send a second."""
    peer = port + 4 if peer is None else peer
    rows = [
        f"2026010112{second // 60:02}{second % 60:02},77,{port},{peer},{port},2,{second},10.0.0.1,10.0.1.1,"
        f"{bandwidth + second % 7},3,{outstanding},{took_ns + second % 11}"
        for second in range(sends)
    ]
    (folder / f"host_mlx5_{port}_Port{port}_A.log").write_text("\n".join([HEADER, *rows, ""]))


def test_a_port_that_sends_slowly_is_named_with_its_ranks(tmp_path):
    for port in range(4):
        write_port(tmp_path, port, bandwidth=20_000 if port == 2 else 40_000, took_ns=100_000 if port == 2 else 50_000)

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.cause, finding.ranks, finding.page) == (Kind.SLOW_LINK, Cause.NIC, (2,), True)
    assert finding.effect_ratio == pytest.approx(2.0, abs=0.01)


def test_a_port_with_less_to_send_is_not_slow(tmp_path):
    for port in range(4):
        write_port(tmp_path, port, bandwidth=20_000 if port == 2 else 40_000)

    assert analyze(tmp_path).findings == ()


def test_a_send_that_does_not_end_while_others_go_on_is_named(tmp_path):
    for port in range(4):
        write_port(tmp_path, port, sends=30 if port == 1 else 60, outstanding=1 << 20)

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.ranks) == (Kind.HANG, (1,))
    assert finding.summary.startswith(
        "A send of rank 1 to rank 5 through host_mlx5_1 port 1 has stalled, in operation 29"
    )
    assert "1048576 bytes are outstanding, and the other ports went on for 30 s" in finding.summary


def test_two_ends_of_a_link_that_stalls_both_ways_are_one_finding(tmp_path):
    for port in range(5):
        stalls = port in (1, 2)
        write_port(
            tmp_path, port, sends=30 if stalls else 60, outstanding=8 * stalls, peer=3 - port if stalls else None
        )

    (finding,) = analyze(tmp_path).findings

    assert (finding.kind, finding.ranks) == (Kind.HANG, (1, 2))
    assert "rank 1 to rank 2" in finding.summary
    assert "rank 2 to rank 1" in finding.summary


def test_a_peer_that_is_no_rank_is_not_named(tmp_path):
    for port in range(4):
        write_port(tmp_path, port, sends=30 if port == 1 else 60, outstanding=1 << 20, peer=-1)

    (finding,) = analyze(tmp_path).findings

    assert finding.summary.startswith("A send of rank 1 through host_mlx5_1 port 1 has stalled")


def test_a_port_that_has_nothing_left_to_send_has_not_stalled(tmp_path):
    for port in range(4):
        write_port(tmp_path, port, sends=30 if port == 1 else 60)

    assert analyze(tmp_path).findings == ()


def test_a_last_row_that_is_cut_is_left_out(tmp_path):
    for port in range(4):
        write_port(tmp_path, port)
    log = tmp_path / "host_mlx5_0_Port0_A.log"
    log.write_bytes(log.read_bytes()[:-25])

    assert analyze(tmp_path).job.records == 239


@pytest.mark.parametrize("row", ["", "20260101120000,1,2", "x,1,0,1,0,2,3,a,b,4,5,6,7\n1,2,3", "1" * 5000])
def test_nonsense_is_one_line_that_names_the_file(tmp_path, row):
    (tmp_path / "h_mlx5_Port0_A.log").write_text(f"{HEADER}\n{row}")

    with pytest.raises(DataError, match=r"h_mlx5_Port0_A\.log") as refused:
        analyze(tmp_path)
    assert "\n" not in str(refused.value)
