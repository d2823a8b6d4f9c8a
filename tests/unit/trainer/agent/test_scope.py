"""What the agent passes on of a rank's model: frames quantised as asked for, documents checked."""

from __future__ import annotations

import json
import socket
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.scope.frame import Dtype, Kind, Quantizer, Section, pack, unpack
from megatronapp.core.scope.quantize import Values, decode, encode
from megatronapp.core.scope.results import Partial, to_frame
from megatronapp.trainer.agent.connection import MAX_UNSENT, Connection
from megatronapp.trainer.agent.scope import RankScope
from megatronapp.trainer.agent.scope_stream import requantized

VALUES = Values(np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32))


def sent(result: Any = VALUES) -> bytes:
    from dataclasses import replace

    frame = replace(to_frame(result, "f32"), subscription=7, step=3, microbatch=1, layer=2, sequence=5)
    return pack(replace(frame, sections={**frame.sections, Section.EXTENT: np.array([4, 8], "<u4").tobytes()}))


def test_values_are_quantised_as_the_tap_says_and_keep_their_address() -> None:
    frame = unpack(requantized(sent(), "asinh"))

    assert (frame.dtype, frame.quantizer) == (Dtype.I8, Quantizer.ASINH)
    assert (frame.subscription, frame.step, frame.microbatch, frame.layer, frame.sequence) == (7, 3, 1, 2, 5)
    assert Section.EXTENT in frame.sections
    assert np.array_equal(decode(frame).array, decode(encode(VALUES, "asinh")).array)


def test_masked_cells_and_numbers_that_are_none_survive() -> None:
    array, masked = VALUES.array.copy(), np.zeros((4, 8), bool)
    array[0, 0], array[1, 1], masked[2, 2] = np.nan, np.inf, True

    values = decode(unpack(requantized(sent(Values(array, masked)), "asinh")))

    assert np.isnan(values.array[0, 0])
    assert values.array[1, 1] == np.inf
    assert values.masked is not None
    assert np.argwhere(values.masked).tolist() == [[2, 2]]


def test_parts_to_be_merged_pass_as_they_are() -> None:
    data = sent(Partial(np.ones((2, 4))))

    assert requantized(data, "asinh") == data
    assert unpack(data).kind is Kind.PARTIAL


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(DataError):
        requantized(b"x" * 200, "asinh")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(JSON | st.dictionaries(st.sampled_from(["hello", "ack", "event", "frame", "sites"]), JSON, max_size=2))
@settings(max_examples=200, deadline=None)
def test_whatever_a_rank_says_is_taken_or_refused(document: Any) -> None:
    scope = RankScope(None, None, lambda key, value: None, None, None)  # type: ignore[arg-type]

    try:
        scope.take(document)
    except (DataError, AttributeError):  # a hello that is one asks for the rank's identity, which this one has not
        return
    assert not scope.attached


def test_a_rank_that_reads_nothing_is_told_no_more_than_fits() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        connection = Connection(ours)
        for _ in range(64):
            connection.say("scope", "x" * (1 << 20))
        assert len(connection._unsent) <= MAX_UNSENT
        theirs.setblocking(False)
        data = theirs.recv(1 << 20)
        connection.close()

    size = int.from_bytes(data[:4], "little")
    assert size == len(json.dumps({"scope": "x" * (1 << 20)}))
