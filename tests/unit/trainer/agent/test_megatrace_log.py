"""Megatrace's variables are understood, and the logs that they ask for are ones that our own reader reads back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import UsageError
from megatronapp.detector.formats.megatrace_log import read_log
from megatronapp.trainer.agent.megatrace_log import MegatraceLog, MegatraceSettings
from megatronapp.trainer.agent.operations import Direction, Enqueued, Lane

CALL = Enqueued(0, -1, 1, 0, 4096, 10**9, 2, True, "AllReduce", "ncclFloat32", "RING", "LL")
LANE = Lane(0xABC, 4, 1, -1, Direction.NONE, False, 1, 1, 0, 0, 0, 0, 0, "", 0, CALL, CALL)
PAIR = replace(LANE, peer=2, direction=Direction.SENDS)
LANES = {0: LANE, 1: PAIR}


@pytest.mark.parametrize(
    ("text", "seconds", "warned"),
    [("300s", 300.0, False), ("3000ms", 3.0, False), ("5m", 300.0, False), ("300", 0.3, True), ("", 3.0, False)],
)
def test_times_have_units_and_a_bare_number_is_milliseconds_with_a_warning(
    text: str, seconds: float, warned: bool
) -> None:
    settings = MegatraceSettings.of({"NCCL_MEGATRACE_ENABLE": "1", "NCCL_MEGATRACE_SENSTIME": text})

    assert settings is not None
    assert settings.silence_seconds == pytest.approx(seconds)
    assert bool(settings.remark) is warned


@pytest.mark.parametrize("environment", [{}, {"NCCL_MEGATRACE_ENABLE": "0"}, {"NCCL_MEGATRACE_LOG_PATH": "logs"}])
def test_it_is_off_unless_it_is_enabled(environment: dict[str, str]) -> None:
    assert MegatraceSettings.of(environment) is None


@pytest.mark.parametrize("text", ["soon", "-3", "3h", "1e3", "9" * 20])
def test_a_time_that_is_none_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="such as 300s or 3000ms"):
        MegatraceSettings.of({"NCCL_MEGATRACE_ENABLE": "1", "NCCL_MEGATRACE_SENSTIME": text})


def test_calls_are_written_after_a_silence_and_read_back(tmp_path: Path) -> None:
    written = MegatraceLog(MegatraceSettings(tmp_path / "logs", 3.0), rank=3)
    calls = [replace(CALL, number=number, at_ns=number * 10**6) for number in range(1, 21)]
    message = replace(CALL, lane=1, operation="Send", number=1, count=64)

    written.note([*calls, message], LANES, now_seconds=10.0)
    written.tick(12.9)
    early = (tmp_path / "logs").exists()
    written.tick(13.0)
    read = read_log(3, tmp_path / "logs" / "rank_3.log")

    assert not early
    assert [(call.number, call.operation, call.count) for call in read.calls["abc"]] == [
        (number, "AllReduce", 4096) for number in range(1, 21)
    ]
    assert (read.messages, read.hashed, read.cut) == ({("abc", "Send"): 1}, True, False)


def test_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    written = MegatraceLog(MegatraceSettings(tmp_path, 1.0), rank=0)
    written.note([CALL], LANES, now_seconds=0.0)
    written.save()
    (tmp_path / "rank_0.log").unlink()

    written.tick(50.0)
    written.save()

    assert not (tmp_path / "rank_0.log").exists()


def test_a_folder_that_can_not_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    written = MegatraceLog(MegatraceSettings(tmp_path / "file", 1.0), rank=0)
    written.note([CALL], LANES, now_seconds=0.0)

    written.save()

    assert "no_megatrace_log" in capsys.readouterr().out


@given(st.lists(st.integers(1, 10**16 - 1), min_size=1, max_size=30, unique=True), st.text(max_size=16))
def test_whatever_is_called_is_read_back_with_its_number(
    tmp_path_factory: pytest.TempPathFactory, numbers: list[int], function: str
) -> None:
    folder = tmp_path_factory.mktemp("logs")
    written = MegatraceLog(MegatraceSettings(folder, 1.0), rank=0)
    ordered = sorted(numbers)
    written.note([replace(CALL, number=number, operation=f"All{function}") for number in ordered], LANES, 0.0)

    written.save()

    assert [call.number for call in read_log(0, folder / "rank_0.log").calls["abc"]] == ordered
