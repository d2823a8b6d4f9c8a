"""Findings as bytes: what goes in comes out, and what can't be true does neither."""

from __future__ import annotations

import math
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import DataError
from megatronapp.core.findings import Cause, Evidence, Finding, Kind, State, Worker
from megatronapp.core.findings_store.codec import decode, encode

ratios = st.floats(0, allow_nan=False, width=32)
findings = st.builds(
    Finding,
    id=st.just("f-1"),
    run=st.just("run-1"),
    job=st.just("team/gpt"),
    attempt=st.integers(1, 100),
    kind=st.sampled_from(Kind),
    cause=st.sampled_from(Cause),
    state=st.sampled_from(State),
    ranks=st.lists(st.integers(0, 1000), max_size=5).map(tuple),
    workers=st.lists(st.builds(Worker, dp=st.integers(0, 9), pp=st.integers(0, 9)), max_size=3).map(tuple),
    since_step=st.none() | st.integers(0, 10**12),
    effect_ratio=ratios,
    cost_ratio=ratios,
    confidence=st.floats(0, 1),
    summary=st.text(st.characters(exclude_categories=["Cs"]), max_size=50),
    updated_unix_ns=st.integers(0, 4 * 10**18),
    evidence=st.lists(
        st.builds(
            lambda series, text: Evidence(
                signal="s", text=text, steps=tuple(range(len(series))), values=tuple(series), expected=()
            ),
            st.lists(st.floats(allow_nan=False), max_size=5),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=9),
        ),
        max_size=3,
    ).map(tuple),
)
ONE = Finding(id="f-1", run="run-1", job="team/gpt", kind=Kind.HANG, cause=Cause.COMPUTE, cost_ratio=math.inf)


@given(findings)
def test_a_finding_survives_being_written(finding: Finding) -> None:
    assert decode(encode(finding)) == finding


@given(st.binary(max_size=200))
def test_any_bytes_are_a_finding_or_a_data_error(body: bytes) -> None:
    with suppress(DataError):
        decode(body)


@given(st.data())
def test_a_damaged_finding_is_a_finding_or_a_data_error(data: st.DataObject) -> None:
    body = bytearray(encode(data.draw(findings)))
    body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))

    with suppress(DataError):
        decode(bytes(body))


@pytest.mark.parametrize(
    "change",
    [
        {"id": ""},
        {"id": "a/b"},
        {"run": "manifest.json"},
        {"run": "../x"},
        {"run": "\ud800"},
        {"job": "gpt"},
        {"attempt": 0},
        {"attempt": -1},
        {"attempt": 1 << 40},
        {"ranks": (1 << 20,)},
        {"workers": (Worker(dp=-1, pp=0),)},
        {"since_step": 1 << 60},
        {"opened_unix_ns": -1},
        {"updated_unix_ns": 1 << 62},
        {"node": "n" * 300},
        {"summary": "x" * 40_000},
        {"summary": "\ud800"},
        {"evidence": (Evidence(signal="s", text="t"),) * 65},
        {"evidence": (Evidence(signal="s", text="t", steps=(1, 2), values=(1.0,)),)},
        {"evidence": tuple(Evidence(signal="s", text="x" * 32_000) for _ in range(40))},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_finding_that_cannot_be_true_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(DataError):
        encode(ONE.model_copy(update=change))
