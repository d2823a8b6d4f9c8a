"""JSON that is nested deeper than any parser here goes."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megatronapp.core.errors import UnavailableError
from megatronapp.operator.json_text import MAX_LEVELS, loads, shallow, shallow_text

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(), children, max_size=4),
    max_leaves=30,
)


def nested(levels: int, rest: str = "1") -> bytes:
    return f'{{"deep": {"[" * levels}{rest}{"]" * levels}, "beside": "[{{\\"}}]"}}'.encode()


def depth(value: Any) -> int:
    """In levels of objects and lists."""
    found, level = 0, [value]
    while level := [child for node in level if isinstance(node, dict | list) for child in _children(node)] or []:
        found += 1
    return found


def _children(node: Any) -> list[Any]:
    return list(node.values()) if isinstance(node, dict) else node


@pytest.mark.parametrize("levels", [300, 1_100, 50_000])
def test_what_lies_too_deep_is_cut_off_and_the_rest_is_read(levels: int) -> None:
    found = shallow(loads(nested(levels)))

    assert found["beside"] == '[{"}]'
    assert depth(found) <= MAX_LEVELS
    assert orjson.loads(orjson.dumps(found)) == found
    assert json.loads(json.dumps(found, sort_keys=True)) == found


def test_what_is_no_json_is_asked_for_again() -> None:
    with pytest.raises(UnavailableError):
        loads(b'{"a": ')


@given(value=VALUES, levels=st.integers(1, 6))
def test_the_text_is_cut_as_the_value_is(value: Any, levels: int) -> None:
    assert orjson.loads(shallow_text(orjson.dumps(value), levels)) == shallow(value, levels)


@given(value=VALUES)
def test_what_is_not_deep_stays_as_it_is(value: Any) -> None:
    text = orjson.dumps(value)

    assert shallow_text(text) == text
    assert shallow(value) == value
