"""Files of Megatrace's telemetry that this process itself has open, as a rank's NCCL has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from megatronapp.core.trace.limits import MAX_COUNT, MAX_TIME_NS, MAX_WORLD
from megatronapp.core.trace.validate import check_message
from megatronapp.trainer.agent import port_telemetry
from megatronapp.trainer.agent.port_telemetry import PortTelemetry, is_enabled
from megatronapp.v1 import trace_pb2
from tests.support.work_requests import CHUNK, LINE, NOW_NS, OpenPort, SendingPort, write

PORT = SendingPort("mlx5_0", place=3, peer=4)


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[OpenPort]:
    port = OpenPort(tmp_path, PORT)
    yield port
    port.close()


@pytest.fixture
def telemetry() -> Iterator[PortTelemetry]:
    read = PortTelemetry(os.getpid())
    yield read
    read.close()


def test_what_a_port_did_since_it_was_told_last_is_told(writing: OpenPort, telemetry: PortTelemetry) -> None:
    writing.send()
    telemetry.read(0.0)
    (first,) = telemetry.drain()
    telemetry.read(1.0)
    (nothing_new,) = telemetry.drain()

    assert first.port == "host_mlx5_0 port 0"
    assert first.busy_ns / first.busy_bytes == pytest.approx(1e9 / LINE, rel=0.05)
    assert first.busy_bytes == pytest.approx(first.busy_sends * CHUNK, rel=0.05)
    assert (nothing_new.busy_sends, nothing_new.ended_unix_ns) == (0, first.ended_unix_ns)


def test_a_send_that_does_not_end_is_seen_by_what_is_outstanding(writing: OpenPort, telemetry: PortTelemetry) -> None:
    writing.send(until=100)
    telemetry.read(0.0)

    (port,) = telemetry.standing(NOW_NS)

    assert (port.outstanding_bytes, port.operation, port.peer) == (8 * CHUNK, 1, 4)


def test_what_was_outstanding_long_before_the_rank_came_to_a_stand_is_not_told(
    writing: OpenPort, telemetry: PortTelemetry
) -> None:
    writing.send(until=100)
    telemetry.read(0.0)
    ended_ns = telemetry.standing(0)[0].ended_unix_ns

    still = [telemetry.standing(ended_ns + later_ns) for later_ns in (port_telemetry.RECENT_NS, 3 * 10**9)]

    assert [len(ports) for ports in still] == [1, 0]


def test_a_row_that_is_being_written_is_taken_when_it_is_whole(writing: OpenPort, telemetry: PortTelemetry) -> None:
    row = next(PORT.rows(7, NOW_NS))
    writing.send()
    telemetry.read(0.0)
    writing.write(row[:40])
    telemetry.read(1.0)
    writing.write(row[40:] + "\n")
    telemetry.read(2.0)

    assert telemetry.standing(NOW_NS)[0].operation == 1  # older than what was told: it tells no newer state
    assert telemetry.drain()[0].busy_sends > 0


def test_files_that_are_written_in_turn_are_one_port(writing: OpenPort, telemetry: PortTelemetry) -> None:
    for file, sends in ((0, 200), (1, 200), (0, 100)):
        writing.begin_again(file)
        writing.send(sends, file=file)
        telemetry.read(0.0)

    (port,) = telemetry.drain()

    assert port.operation == 3
    assert port.busy_sends == pytest.approx(150 + 150 + 50, rel=0.05)


def test_of_what_comes_faster_than_it_can_be_read_the_newest_is_read(
    writing: OpenPort, telemetry: PortTelemetry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(port_telemetry, "READ_BYTES", 2_000)
    telemetry.read(0.0)
    for _ in range(20):
        writing.send()
    telemetry.read(1.0)

    (port,) = telemetry.drain()

    assert port.operation == 20
    assert 5 <= port.busy_sends <= 25
    assert port.busy_ns / port.busy_bytes == pytest.approx(1e9 / LINE, rel=0.05)


def test_a_port_that_opens_later_is_found(telemetry: PortTelemetry, tmp_path: Path) -> None:
    telemetry.read(0.0)
    port = OpenPort(tmp_path, PORT)
    port.send()
    telemetry.read(1.0)
    before = telemetry.drain()
    telemetry.read(port_telemetry.LOOK_SECONDS)
    port.close()

    assert (before, len(telemetry.drain())) == ([], 1)


def test_files_of_other_processes_and_of_other_names_are_nobodys(telemetry: PortTelemetry, tmp_path: Path) -> None:
    with (tmp_path / "rank_0.log").open("w") as other:
        other.write("\n".join(PORT.rows(1, NOW_NS)))
        other.flush()
        write(PORT.files(tmp_path)[0], list(PORT.rows(1, NOW_NS)))
        telemetry.read(0.0)

    assert telemetry.drain() == []


def test_a_file_without_rows_of_sends_is_left_out_and_told_once(telemetry: PortTelemetry, tmp_path: Path) -> None:
    files = [path.open("w") for path in PORT.files(tmp_path)]
    for file in files:
        file.write("Time,DevIndex,Func,MaxBandwidth,MeanBandwidth,Status\n20260101000000,0,2,40,20,1\n")
        file.flush()
    with capture_logs() as logs:
        telemetry.read(0.0)
        telemetry.read(port_telemetry.LOOK_SECONDS)
    for file in files:
        file.close()

    assert telemetry.drain() == []
    assert [entry["reason"] for entry in logs] == ["its file has no rows of sends: set NCCL_TELEMETRY_OBSERVE=1"]


def test_nonsense_is_left_out(writing: OpenPort, telemetry: PortTelemetry) -> None:
    writing.write("nonsense\n1,2,3\n\0\0\n")
    writing.send()
    telemetry.read(0.0)

    assert len(telemetry.drain()) == 1


@pytest.mark.parametrize("card", ["mlx5\x1b[2J", "mlx5\u202e", os.fsdecode(b"mlx5\xff")])
def test_a_port_whose_name_no_collector_takes_is_left_out(telemetry: PortTelemetry, tmp_path: Path, card: str) -> None:
    port = OpenPort(tmp_path, SendingPort(card, place=0, peer=1))
    port.send()
    telemetry.read(0.0)
    port.close()

    assert telemetry.drain() == []


def test_whatever_rows_say_a_collector_takes_the_summary(writing: OpenPort, telemetry: PortTelemetry) -> None:
    most = f"{MAX_COUNT},{MAX_COUNT},{MAX_COUNT}"
    for ended_ns in (1, MAX_TIME_NS):
        writing.write(f"x,{-(1 << 63)},{MAX_WORLD - 1},{MAX_WORLD},0,2,{MAX_COUNT},a,b,{most},{ended_ns}\n")
    telemetry.read(0.0)
    summary = trace_pb2.StepSummary(step=1, duration_ns=1, ports=telemetry.drain())

    check_message(trace_pb2.TraceMessage(seq=1, summary=summary))

    assert len(summary.ports) == 1


def test_a_process_that_has_ended_tells_nothing() -> None:
    telemetry = PortTelemetry(1 << 22)
    telemetry.read(0.0)

    assert telemetry.drain() == []


@pytest.mark.parametrize(("value", "enabled"), [("1", True), ("0", False), ("", False), (None, False)])
def test_it_is_read_where_the_agents_or_the_ranks_environment_asks_for_it(value: str | None, enabled: bool) -> None:
    environment = {} if value is None else {"NCCL_TELEMETRY_ENABLE": value}
    rank = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], env=environment, stdin=-1, stdout=-1)
    assert rank.stdout is not None
    rank.stdout.readline()  # it runs, and its environment is its own

    found = is_enabled(environment, os.getpid()), is_enabled({}, rank.pid)
    rank.communicate(b"\n")

    assert found == (enabled, enabled)


def test_of_a_process_that_has_ended_nothing_is_asked() -> None:
    assert is_enabled({}, 1 << 22) is False
