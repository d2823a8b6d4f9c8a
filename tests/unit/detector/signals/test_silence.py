"""Silence of a process, of a node and of everybody are told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.detector.signals.silence import Silence, silences

NODES = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}


@pytest.mark.parametrize(
    ("silent", "lost", "found"),
    [
        ({2}, set(), {2: Silence.RANK}),
        (set(), {2}, {2: Silence.ENDED}),
        ({2, 3}, set(), {2: Silence.NODE, 3: Silence.NODE}),
        ({2}, {3}, {2: Silence.NODE, 3: Silence.NODE}),
        ({4}, set(), {4: Silence.RANK}),
        ({0, 1, 2, 3}, {4}, {}),
        (set(), set(), {}),
    ],
)
def test_silences_are_told_apart(silent: set[int], lost: set[int], found: dict[int, Silence]) -> None:
    assert silences(silent, lost, NODES, NODES) == found


@given(st.sets(st.sampled_from(sorted(NODES))), st.sets(st.sampled_from(sorted(NODES))))
def test_who_is_heard_of_is_never_called_silent(silent: set[int], lost: set[int]) -> None:
    assert silences(silent, lost, NODES, NODES).keys() <= silent | lost
