"""How a collective was called, in one number."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.trace import limits
from megatronapp.trainer.agent.calls import DATA_TYPES, Call

CALLS = st.builds(Call, st.sampled_from(DATA_TYPES), st.integers(-1, limits.MAX_WORLD - 1))


@given(CALLS)
def test_a_call_comes_back(call: Call) -> None:
    assert Call.unpack(call.pack()) == call


def test_a_type_that_has_no_number_is_not_known() -> None:
    assert Call.unpack(Call("quint4x2", 1).pack()) == Call("", 1)


@given(st.integers(0, (1 << 64) - 1))
def test_whatever_a_rank_has_written_can_be_read(packed: int) -> None:
    assert Call.unpack(packed).data_type in DATA_TYPES
