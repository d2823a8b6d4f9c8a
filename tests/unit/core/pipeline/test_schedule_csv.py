from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import MegatronAppError
from megatronapp.core.pipeline import orders
from megatronapp.core.pipeline.operations import Kind, Operation
from megatronapp.core.pipeline.placement import Layout, Placement
from megatronapp.core.pipeline.schedule_csv import read_csv, write_csv
from tests.support.random_pipelines import random_case

F, B, W = Kind


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=50)
def test_what_was_written_is_read(seed: int) -> None:
    case = random_case(seed)
    layout = case.layout
    if layout.stages == 1:
        return

    read, found = read_csv(write_csv(layout, case.hints))

    assert (read, found) == (layout, case.hints)


def test_a_full_backward_is_the_gradient_of_input_and_weights() -> None:
    layout, (order,) = read_csv("0F0,,0B0,0F1,0I1,0W1\n")

    assert layout == Layout(stages=1, microbatches=2, split=True)
    assert order == [Operation(kind, 0, microbatch) for microbatch in range(2) for kind in (F, B, W)]


def test_an_overlapped_pair_is_read_one_behind_the_other_and_communication_is_passed_over() -> None:
    text = "0F0,0SEND_F0,3F0,3B0,0UNSHARD,(0F1;0B0)OVERLAP_F_B,3F1,3B1,0B1\n1F0,2F0,2B0,1B0,1F1,2F1,2B1,1B1\n"

    layout, found = read_csv(text)

    assert layout.placement is Placement.V
    assert found[0][3:5] == [Operation(F, 0, 1), Operation(B, 0, 0)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "without an operation"),
        ("0F0,0B0,nonsense\n", "row 1, cell 3: 'nonsense' is no action"),
        ("0F0,0B0\n1F0\n", "row 2: 1 operations, where 1 parts a stage and 1 microbatches need at least 2"),
        ("0F0,0F1,0W0,0W1\n", "the order lacks B0"),
        ("4095F65535\n", "row 1: 1 operations, where 4096 parts a stage and 65536 microbatches need"),
        ("0F0,0F0,0B0\n", "twice"),
        ("0F1,0F0,0B0,0B1\n", "lanes keep their order"),
        ("0F0,0B0\n2F0,2B0\n", "equally many"),
        ("1F0,1B0\n0F0,0B0\n", "part 1 of the model is on stage 1"),
        ("99999999F0\n", "more than 4096 parts"),
        ("0F0,(0F1;;)OVERLAP_F_B,0SIDEWAYS\n", "cell 3"),
    ],
)
def test_a_damaged_schedule_is_refused_with_its_place(text: str, said: str) -> None:
    with pytest.raises(MegatronAppError, match=said):
        read_csv(text)


def test_stock_schedules_are_written_as_torchtitan_writes_them() -> None:
    layout = Layout(stages=2, microbatches=2)

    assert write_csv(layout, orders.all_stages("1f1b", layout)) == "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
