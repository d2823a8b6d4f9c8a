from __future__ import annotations

import time

import pytest

from megatronapp.trainer.agent.bounded_answer import BoundedAnswer


def shell(script: str, *, max_bytes: int = 100, seconds: float = 30.0) -> BoundedAnswer:
    return BoundedAnswer(["sh", "-c", script], max_bytes, time.monotonic() + seconds)


def said(answer: BoundedAnswer) -> str:
    while (text := answer.poll()) is None:
        time.sleep(0.01)
    return text


def test_what_it_prints_is_told_when_it_has_ended() -> None:
    assert said(shell("echo first; echo aside >&2; sleep 0.1; echo second")) == "first\nsecond\n"


def test_no_more_is_read_than_is_allowed() -> None:
    assert said(shell("head -c 1000000 /dev/zero | tr '\\0' x", max_bytes=7)) == "xxxxxxx"


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert said(shell(r"printf 'a\377b'")) == "a\N{REPLACEMENT CHARACTER}b"


def test_one_that_fails_has_said_nothing() -> None:
    assert said(shell("echo half; exit 3")) == ""


def test_one_that_is_late_is_ended_and_has_said_nothing() -> None:
    answer = shell("echo half; exec sleep 600", seconds=0.2)

    assert answer.poll() is None
    assert said(answer) == ""
    assert answer._process.returncode is not None


def test_one_that_is_closed_is_ended() -> None:
    answer = shell("exec sleep 600")

    answer.close()

    assert answer._process.returncode is not None


def test_one_that_is_not_there_is_an_error() -> None:
    with pytest.raises(OSError, match="no-such-program"):
        BoundedAnswer(["/no-such-program"], 100, time.monotonic() + 1)
