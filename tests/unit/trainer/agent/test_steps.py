"""Records to steps: whole ones come out, what is missing is counted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.trainer.agent import layout
from megatronapp.trainer.agent.ring import Record
from megatronapp.trainer.agent.steps import Steps


def rows(step: int, count: int) -> Record:
    table = np.zeros((len(layout.COLUMNS), count), np.int64)
    return Record(layout.ROWS, 0, layout.ROWS_HEAD.pack(step, count, len(table)) + table.tobytes())


def end(step: int, count: int) -> Record:
    return Record(layout.STEP_END, 0, layout.END.pack(step, *[0] * 5, count, *[0] * 3, *[0.0] * 5, 0, 0))


PARTS = st.lists(st.integers(1, 5), max_size=4)


@given(st.lists(PARTS, min_size=1, max_size=8), st.data())
def test_steps_of_which_any_record_is_missing_are_left_out_and_counted(
    steps: list[list[int]], data: st.DataObject
) -> None:
    records = [
        (number, record)
        for number, parts in enumerate(steps, start=1)
        for record in [*(rows(number, part) for part in parts), end(number, sum(parts))]
    ]
    missing = data.draw(st.sets(st.integers(0, len(records) - 1)))
    assembler = Steps()

    last = len(steps) + 1

    kept = [record for at, (_, record) in enumerate(records) if at not in missing]
    whole = [assembler.feed(record) for record in [*kept, rows(last, 1), end(last, 1)]]

    damaged = {records[at][0] for at in missing}
    assert [step.end.step for step in whole if step] == [n for n in range(1, last + 1) if n not in damaged]
    told = {number for at, (number, _) in enumerate(records) if at not in missing} & damaged
    assert assembler.lost >= len(told)
