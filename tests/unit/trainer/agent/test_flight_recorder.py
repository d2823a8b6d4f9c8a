"""A flight recorder is asked by its pipe, and its dump is read, by a recorder that stands in for PyTorch's."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from megatronapp.core.errors import DataError
from megatronapp.trainer.agent import flight_recorder
from megatronapp.trainer.agent.flight_recorder import FlightRecorder
from megatronapp.trainer.agent.stacks import StackTaker

ENTRY = {
    "record_id": 1,
    "process_group": ("0", "default_pg"),
    "collective_seq_id": 41,
    "profiling_name": "nccl:all_reduce",
    "state": "scheduled",
    "is_p2p": False,
}
DUMP = pickle.dumps({"version": "2.10", "pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [ENTRY]})


class StandIn:
    """Listens as ProcessGroupNCCL does."""

    def __init__(self, folder: Path) -> None:
        self.document = {"pipe": str(folder / "0.pipe"), "dump": str(folder / "dump-0")}
        os.mkfifo(self.document["pipe"])
        self._pipe = os.open(self.document["pipe"], os.O_RDONLY | os.O_NONBLOCK)

    def asked(self) -> bool:
        return len(os.read(self._pipe, 128)) > 0

    def write(self, content: bytes) -> None:
        Path(self.document["dump"]).write_bytes(content)

    def close(self) -> None:
        os.close(self._pipe)


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    made = StandIn(tmp_path)
    yield made
    made.close()


def answer_of(recorder: FlightRecorder) -> str:
    deadline = time.monotonic() + 30
    while recorder.asking and time.monotonic() < deadline:
        if text := recorder.poll():
            return text
        time.sleep(0.02)
    return ""


def test_a_recorder_that_is_asked_tells_what_its_rank_is_in(stand_in: StandIn) -> None:
    recorder = FlightRecorder(os.getpid(), stand_in.document)
    stand_in.write(b"of a hang before")

    recorder.ask()
    nothing_yet = [recorder.poll() for _ in range(3)]
    assert stand_in.asked()
    stand_in.write(DUMP)

    assert nothing_yet == [""] * 3
    assert answer_of(recorder).startswith("all_reduce 41")
    assert not recorder.asking


def test_a_hostile_dump_is_told_as_refused(stand_in: StandIn) -> None:
    recorder = FlightRecorder(os.getpid(), stand_in.document)
    recorder.ask()
    stand_in.write(b"cos\nsystem\n(S'exit 7'\ntR.")

    assert answer_of(recorder) == "its dump is refused: not readable as a flight-recorder dump: it refers to os.system"


def test_a_recorder_that_does_not_answer_is_not_waited_for(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "ANSWER_SECONDS", 0.0)
    recorder = FlightRecorder(os.getpid(), stand_in.document)
    recorder.ask()

    assert answer_of(recorder) == ""
    assert not recorder.asking


@pytest.mark.parametrize("there", ["nothing", "file", "link", "nobody"])
def test_nothing_but_a_pipe_that_somebody_reads_is_written_to(tmp_path: Path, there: str) -> None:
    pipe, target = tmp_path / "0.pipe", tmp_path / "target"
    target.write_text("kept")
    if there == "file":
        pipe.write_text("kept")
    elif there == "link":
        pipe.symlink_to(target)
    elif there == "nobody":
        os.mkfifo(pipe)
    recorder = FlightRecorder(os.getpid(), {"pipe": str(pipe), "dump": str(tmp_path / "dump")})

    recorder.ask()

    assert not recorder.asking
    assert target.read_text() == "kept"


@pytest.mark.parametrize(
    "document", [7, {}, {"pipe": "a", "dump": "/b"}, {"pipe": "/a/../b", "dump": "/b"}, {"pipe": "/a\0", "dump": "/b"}]
)
def test_what_a_rank_can_not_mean_is_refused(document: object) -> None:
    with pytest.raises(DataError, match="absolute paths"):
        FlightRecorder(os.getpid(), document)


def test_the_stack_is_told_at_once_and_again_with_what_the_recorder_says(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    taker = StackTaker(os.getpid(), None, FlightRecorder(os.getpid(), stand_in.document))

    first = taker.ask()
    assert first is not None
    asking = taker.asking
    stand_in.write(DUMP)
    second = None
    deadline = time.monotonic() + 30
    while second is None and time.monotonic() < deadline:
        second = taker.poll()
        time.sleep(0.02)
    taker.close()

    assert asking
    assert second is not None
    assert (first.recorder, first.source) == ("", second.source)
    assert second.recorder.startswith("all_reduce 41")
