"""Stacks are shown with the training thread first, bounded, and with nothing that a terminal would act on."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.trace.limits import MAX_STACK
from megatronapp.trainer.agent.stack_text import in_order, shown

DUMP = """Thread 0x01 (most recent call first):
  File "loader.py", line 3 in fetch

Current thread 0x02 (most recent call first):
  File "train.py", line 7 in step
"""


def test_the_thread_that_took_the_signal_comes_first() -> None:
    first, second = in_order(DUMP).split("\n\n")

    assert first.splitlines()[1].strip() == 'File "train.py", line 7 in step'
    assert second.startswith("Thread 0x01")


def test_what_is_no_dump_stays_as_it_is() -> None:
    assert in_order("nothing known") == "nothing known"


@given(st.text(max_size=200) | st.just("\x1b[31m<script>" * 3000))
def test_whatever_stands_there_is_bounded_and_printable(text: str) -> None:
    found = shown(text)

    assert len(found) <= MAX_STACK
    assert all(letter.isprintable() or letter == "\n" for letter in found)
