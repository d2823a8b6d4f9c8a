"""What is told of a flight recorder's dump."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from megatronapp.core.errors import DataError
from megatronapp.core.trace.limits import MAX_RECORDER
from megatronapp.trainer.agent.recorder_text import in_words, main


def entry(record: int, state: str, **changed: Any) -> dict[str, Any]:
    return {
        "record_id": record,
        "process_group": ("5", "TENSOR_MODEL_PARALLEL_GROUP"),
        "collective_seq_id": record,
        "p2p_seq_id": 0,
        "profiling_name": "nccl:all_reduce",
        "input_sizes": [[4, 8]],
        "state": state,
        "is_p2p": False,
        "frames": [{"name": "train_step", "filename": "loop.py", "line": 88}],
        **changed,
    }


def dump(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {"5": {"ranks": "[0, 1]"}}, "entries": list(entries)}


def test_the_oldest_operation_that_is_not_through_is_told_and_where_it_was_called() -> None:
    text = in_words(dump(entry(8, "scheduled"), entry(6, "completed"), entry(7, "started")))

    assert text == (
        "all_reduce 7 [[4, 8]] of TENSOR_MODEL_PARALLEL_GROUP, ranks [0, 1]: begun on the device; 1 more behind it\n"
        "  train_step (loop.py:88)"
    )


def test_a_rank_that_waits_for_nothing_says_what_it_called_last() -> None:
    assert in_words(dump(entry(6, "completed"))) == "all of its 1 operations are through; the newest is all_reduce"


NAMELESS = {key: value for key, value in entry(1, "completed").items() if key != "profiling_name"}


@pytest.mark.parametrize(
    "entries", [7, [7], [{"record_id": "x"}], [entry(1, "scheduled", process_group=("9",))], [NAMELESS]]
)
def test_what_makes_no_sense_is_refused(entries: Any) -> None:
    with pytest.raises(DataError, match="flight-recorder dump"):
        in_words({"version": "2.10", "pg_config": {}, "entries": entries})


def test_texts_of_a_dump_are_bounded_and_move_no_terminal(tmp_path: Path) -> None:
    hostile = entry(1, "scheduled", profiling_name="\x1b[2J" + "x" * 100_000)
    (tmp_path / "dump").write_bytes(pickle.dumps(dump(hostile)))

    text = main(str(tmp_path / "dump"))

    assert len(text) <= MAX_RECORDER
    assert "\x1b" not in text


@pytest.mark.parametrize("content", [b"cos\nsystem\n(S'touch ran'\ntR.", b"\x80\x02]r\xff\xff\xff\xff.", b"", b"\x80"])
def test_a_dump_that_would_run_code_or_take_all_memory_is_told_as_refused(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dump").write_bytes(content)

    text = main(str(tmp_path / "dump"))

    assert text.startswith("its dump is refused: not readable as a flight-recorder dump")
    assert "\n" not in text
    assert not (tmp_path / "ran").exists()
